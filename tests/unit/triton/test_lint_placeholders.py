"""Placeholders of NVIDIA's templates that were left: an error where it matters, one remark a model for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdeploy.triton.lint import lint_repository
from specdeploy.triton.sources import read_repository
from tests import broken_repositories as broken
from tests.nvidia_templates import FILL, write_templates

if TYPE_CHECKING:
    from pathlib import Path

    from specdeploy.findings import Finding

PYTHON = b'name: "m"\nbackend: "python"\n'
ENGINE = b'name: "m"\nbackend: "tensorrtllm"\n'
CODE = b"class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


def of(config: bytes, extra: dict[str, bytes] | None = None) -> list[Finding]:
    """Return what lint says of the placeholders of one model."""
    tree = {"m/config.pbtxt": config, "m/1/model.py": CODE} | (extra or {})
    return [finding for finding in lint_repository(tree) if finding.code == "repo.placeholder"]


def parameter(key: str, value: str) -> bytes:
    """Return one parameter as the templates lay it out."""
    return f'parameters: {{\n  key: "{key}"\n  value: {{\n    string_value: "{value}"\n  }}\n}}\n'.encode()


@pytest.mark.parametrize(
    ("config", "severities"),
    [
        (PYTHON + b"max_batch_size: ${n}\n", ["error"]),
        (PYTHON + b"model_transaction_policy { decoupled: ${d} }\n", ["error"]),
        (PYTHON + b'input { name: "X" data_type: ${t} dims: [ 1 ] }\n', ["error"]),
        (b'name: "m"\nbackend: "${triton_backend}"\n', ["error"]),
        (b'name: "${name}"\nbackend: "python"\n', ["error"]),
        (PYTHON + b'input { name: "${X}" data_type: TYPE_INT32 dims: [ 1 ] }\n', []),
        (PYTHON + parameter("tokenizer_dir", "${tokenizer_dir}"), ["error"]),
        (PYTHON + parameter("tensorrt_llm_model_name", "${tensorrt_llm_model_name}"), ["error"]),
        (PYTHON + parameter("add_special_tokens", "${add_special_tokens}"), ["info"]),
        (PYTHON + parameter("greeting", "Hello ${name}"), []),
        (PYTHON + parameter("greeting", "${name}"), []),
        (PYTHON + parameter("tokenizer_dir", "/models/${name}"), []),
        (ENGINE + parameter("gpt_model_path", "${engine_dir}"), ["error"]),
        (ENGINE + parameter("tokenizer_dir", "${tokenizer_dir}"), ["info"]),
        (ENGINE + parameter("num_nodes", "${num_nodes}"), ["info"]),
        (ENGINE + parameter("enable_kv_cache_reuse", "${enable_kv_cache_reuse}"), ["info"]),
        (ENGINE + b"# was ${n}\n" + parameter("sink_token_length", "#${x}"), []),
    ],
)
def test_each_place_counts_as_what_it_does(config: bytes, severities: list[str]) -> None:
    """Triton refuses it in a number, the template fails on it, or the backend takes it for "not set"."""
    assert [finding.severity for finding in of(config)] == severities


def test_what_counts_as_not_set_is_one_remark() -> None:
    """The remark lists the names, with the line of the first."""
    (finding,) = of(ENGINE + parameter("num_nodes", "${num_nodes}") + parameter("decoding_mode", "${decoding_mode}"))

    assert "2 parameters" in finding.message
    assert "${num_nodes}, ${decoding_mode}" in finding.message
    assert finding.where == "m/config.pbtxt:6"


def test_reuse_matters_where_somebody_drafts() -> None:
    """Every round of speculation needs the KV cache of the last one."""
    engine = ENGINE + parameter("enable_kv_cache_reuse", "${enable_kv_cache_reuse}")
    caller = PYTHON.replace(b'"m"', b'"c"') + parameter("tensorrt_llm_draft_model_name", "m")
    found = of(engine, {"c/config.pbtxt": caller, "c/1/model.py": CODE})

    assert [finding.severity for finding in found] == ["error"]


def test_other_files_may_hold_what_they_like() -> None:
    """Templates fill in configurations only; a YAML file may have variables of its own."""
    assert of(PYTHON, {"m/1/conf.yaml": b"data: ${DATA_DIR}\n"}) == []


def test_templates_as_users_fill_them_in_have_few_errors(tmp_path: Path) -> None:
    """With what the README fills in, faults are not drowned: errors only for what is missing for serving."""
    engines = tmp_path / "engine"
    broken.write_engine(engines)
    write_templates(tmp_path / "models", "0.18.2", fill=FILL | {"engine_dir": str(engines)})
    found = [f for f in lint_repository(read_repository(tmp_path / "models")) if f.code == "repo.placeholder"]
    errors = [f"{f.where.split('/')[0]} {f.message.split()[0]}" for f in found if f.severity == "error"]

    assert len(errors) <= 4, errors
    assert len([f for f in found if f.severity == "info"]) <= 4
