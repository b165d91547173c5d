"""Lint of python models: an error only for what Triton's python backend fails on, whatever else lies in the folder."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from specdeploy.triton.lint import lint_repository

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = b'name: "m"\nbackend: "python"\n'
MODEL = b"class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
BROKEN = b"def (:\n"


def found(files: Mapping[str, bytes], config: bytes = CONFIG) -> list[str]:
    """Return severity and code of what lint says of one python model."""
    tree = {"m/config.pbtxt": config, "m/1/model.py": MODEL} | {f"m/{path}": data for path, data in files.items()}
    return [f"{finding.severity} {finding.code}" for finding in lint_repository(tree)]


@pytest.mark.parametrize(
    ("imported", "file", "severity"),
    [
        (b"", "1/templates/x.py", "info"),
        (b"import helper\n", "1/helper.py", "error"),
        (b"import helper\n", "helper.py", "error"),
        (b"from lib.deep import thing\n", "1/lib/deep.py", "error"),
        (b"from lib import deep\n", "1/lib/__init__.py", "error"),
        (b"from .helper import thing\n", "1/helper.py", "error"),
        (b"from . import helper\n", "1/helper.py", "error"),
        (b"def late():\n    import helper\n", "1/helper.py", "warning"),
        (b"try:\n    import helper\nexcept Exception:\n    helper = None\n", "1/helper.py", "warning"),
        (b"import json\n", "1/json.py", "info"),
        (b"import other\n", "1/helper.py", "info"),
    ],
)
def test_syntax_matters_where_the_file_is_loaded(imported: bytes, file: str, severity: str) -> None:
    """The model's file and what it imports for sure; what it may import is a warning, anything else good to know."""
    assert found({"1/model.py": imported + MODEL, file: BROKEN}) == [f"{severity} python.syntax"]


def test_imports_of_imports_count() -> None:
    """A file is loaded by whatever detour."""
    files = {"1/model.py": b"import a\n" + MODEL, "1/a.py": b"import b\nimport a\n", "1/b.py": BROKEN}

    assert found(files) == ["error python.syntax"]


@pytest.mark.parametrize(
    "code",
    [
        b"_M = type('M', (), {'execute': print})\nTritonPythonModel: type = _M\n",
        b"TritonPythonModel, other = object, 1\n",
        b"globals()['TritonPythonModel'] = object\n",
        b"for TritonPythonModel in [object]:\n    pass\n",
        b"from lib import *\n",
        b"class TritonPythonModel:\n    pass\ndef run(self, requests): ...\nTritonPythonModel.execute = run\n",
        b"class TritonPythonModel:\n    pass\nsetattr(TritonPythonModel, 'execute', print)\n",
        b"class TritonPythonModel(metaclass=make):\n    pass\n",
    ],
)
def test_the_class_may_come_from_anywhere(code: bytes) -> None:
    """Any mention of the class, and of its method, is taken for it."""
    assert found({"1/model.py": code}) == []


def test_a_file_may_be_named_by_a_detour() -> None:
    """Triton joins the paths, and so do we; what lies above the repository is not looked at."""
    assert found({}, CONFIG + b'default_model_filename: "../1/model.py"\n') == []
    assert found({"shared.py": MODEL}, CONFIG + b'default_model_filename: "../shared.py"\n') == []
    assert found({}, CONFIG + b'default_model_filename: "../../../up.py"\n') == []
    assert found({}, CONFIG + b'default_model_filename: "../up.py"\n') == ["error python.missing"]


@pytest.mark.parametrize("code", [b"x=" + b"-" * 100_000, b"x=1" + b"+a" * 5000, b"(" * 5000, b"x=" + b"[" * 5000])
@pytest.mark.parametrize("file", ["1/model.py", "1/other.py"])
def test_code_of_any_depth_is_survived(code: bytes, file: str) -> None:
    """Python's own parser gives up on some of it; that is no error of the repository's."""
    for finding in found({file: MODEL + code}):
        assert finding.split()[1] in {"python.unread", "python.syntax"}
    assert "error python.unread" not in found({file: MODEL + code})


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python takes it")
@pytest.mark.parametrize("line", [b"type Alias = int\n", b"def f[T](x: T) -> T: ...\n", b'x = f"{"a"}"\n'])
def test_syntax_of_a_newer_python_is_good_to_know(line: bytes) -> None:
    """Lint's Python is not the server's."""
    assert found({"1/model.py": line + MODEL}) == ["info python.syntax"]


@pytest.mark.parametrize(
    ("code", "severity"),
    [
        (b"    def idle(self):\n        return pb.InferenceRequest(model_name='another')\n", "info"),
        (b"    def initialize(self, args):\n        pb.InferenceRequest(model_name='another')\n", "warning"),
        (
            b"    def finalize(self):\n        self.ask()\n    def ask(self): InferenceRequest(model_name='x')\n",
            "warning",
        ),
    ],
)
def test_calls_matter_where_something_runs_them(code: bytes, severity: str) -> None:
    """A method that nothing calls calls nothing."""
    assert found({"1/model.py": b"import utils as pb\n" + MODEL + code}) == [f"{severity} bls.unknown-call"]


@pytest.mark.parametrize(
    ("backend", "finding"),
    [
        ("pyhton", ["warning repo.backend-unknown"]),
        ("tensorrt_llm", ["warning repo.backend-unknown"]),
        ("identity_py", ["info repo.backend-unknown"]),
        ("fill", ["info repo.backend-unknown"]),
        ("mine", []),
    ],
)
def test_a_backend_may_have_any_name(backend: str, finding: list[str]) -> None:
    """A slip of the fingers is a warning; what may be a name of its own is not."""
    assert found({}, f'name: "m"\nbackend: "{backend}"\n'.encode()) == finding


def test_a_backend_that_triton_guesses_is_good_to_know() -> None:
    """It takes the python backend for a model.py, and has nothing to guess from otherwise."""
    assert found({}, b'name: "m"\n') == ["info repo.backend-missing"]


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (b"# postgres://user:pass@host/db\n", []),
        (b"# https://me:s3cr3t@example.com/\n", []),
        (b"# https://me:${PASSWORD}@acme.org/\n", []),
        (b"# https://me:<password>@acme.org/\n", []),
        (b"# https://me:your-password@acme.org/\n", []),
        (b"# https://me:****@acme.org/\n", []),
        (b"# postgres://user:pass@host/db\nU = 'https://bob:Xk29qq@db.acme.org/'\n", ["warning repo.secret"]),
        (b"T = 'hf_" + b"aB3d" * 9 + b"'\n", ["error repo.secret"]),
    ],
)
def test_examples_are_no_secrets(text: bytes, finding: list[str]) -> None:
    """What documentation writes is not taken for a password; a URL that may hold one is a warning, a token an error."""
    assert found({"1/model.py": MODEL + text}) == finding
