"""``specdeploy lint`` as its users run it: text, JSON, annotations, exit codes, any directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from specdeploy.cli import _render
from specdeploy.cli.lint import command
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding
from specdeploy.triton.sources import engine_listing, read_repository
from tests import broken_repositories as broken

if TYPE_CHECKING:
    from click.testing import Result

FIRST = "first/config.pbtxt"


def run(*arguments: object) -> Result:
    """Run the command; its exit code is what the function returns."""
    return CliRunner().invoke(command, [str(argument) for argument in arguments], standalone_mode=False)


@pytest.fixture(name="repository")
def _repository(tmp_path: Path) -> Path:
    return broken.plain(tmp_path / "models")


def test_a_good_repository_passes(repository: Path) -> None:
    """Anybody's repository can be linted, by its path and without a configuration."""
    done = run(repository)

    assert done.return_value == 0
    assert "nothing to complain about" in done.output


def test_an_error_is_shown_with_its_place_and_cure(repository: Path) -> None:
    """Code, message, file and line, and what to do; exit code 2."""
    broken.replace(FIRST, "max_batch_size", "max_batch_sise")(repository)
    done = run(repository)

    assert done.return_value == 2
    assert "repo.pbtxt-parse" in done.output
    assert "max_batch_sise" in done.output
    assert f"({FIRST}:3)" in done.output
    assert "-> mend the line" in done.output


@pytest.mark.parametrize("arguments", [["--json"], ["--format", "json"]])
def test_json_is_one_document(repository: Path, arguments: list[str]) -> None:
    """Findings as data, with every field."""
    broken.append("first/1/model.py", "def (:\n")(repository)
    done = run(repository, *arguments)
    document = json.loads(done.output)

    assert done.return_value == 2
    assert document["kind"] == "lint"
    assert [finding["code"] for finding in document["findings"]] == ["python.syntax"]
    assert set(document["findings"][0]) == {"severity", "code", "message", "hint", "where"}


def test_warnings_fail_when_asked_to(repository: Path) -> None:
    """A warning passes, unless it is strict."""
    broken.append("second/config.pbtxt", "model_transaction_policy { decoupled: true }\n")(repository)

    assert run(repository).return_value == 0
    assert run(repository, "--strict").return_value == 2


def test_annotations_name_files_from_where_the_command_runs(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GitHub shows a finding beside the line of the change."""
    monkeypatch.chdir(repository.parent)
    broken.replace(FIRST, "max_batch_size: 4", "max_batch_size: ${size}")(repository)
    done = run("models", "--format", "github")

    assert done.return_value == 2
    assert done.output.startswith(f"::error file=models/{FIRST},line=3,title=repo.placeholder::${{size}} was not")


def test_annotations_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """A message can hold anything, and is still one workflow command."""
    finding = Finding(severity="info", code="a.b", message="100%\nof ::error::", hint="x", where="a,b:c/config.pbtxt:7")
    _render.github_annotations([finding], "repo")

    assert capsys.readouterr().out == (
        "::notice file=repo/a%2Cb%3Ac/config.pbtxt,line=7,title=a.b::100%25%0Aof ::error::%0Ax\n"
    )


def test_engines_elsewhere_can_be_left_out(tmp_path: Path) -> None:
    """A repository for another machine names engines that are not here."""
    root = broken.templates(tmp_path / "models")
    broken.remove("../engines")(root)

    assert run(root).return_value == 2
    assert run(root, "--no-engines").return_value == 0


def test_what_is_no_directory_is_a_usage_error(tmp_path: Path) -> None:
    """It is named, with the cure."""
    done = run(tmp_path / "nowhere")

    assert f"there is no directory {tmp_path / 'nowhere'}" in str(done.exception)
    (tmp_path / "file").touch()
    assert f"{tmp_path / 'file'} is not a directory" in str(run(tmp_path / "file").exception)
    assert "there is no directory" in str(run(tmp_path / ("n" * 5001)).exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{}", "--json", "--format", "github"], "--json is --format json"),
        ([""], "REPOSITORY is empty"),
        (["{}", "--set", "repo.path=elsewhere"], "not read when REPOSITORY is given"),
    ],
)
def test_options_that_would_be_ignored_are_refused(repository: Path, arguments: list[str], said: str) -> None:
    """Two formats, no name, an override of a configuration that is not read: each is a usage error."""
    done = run(*(argument.replace("{}", str(repository)) for argument in arguments))

    assert isinstance(done.exception, click.UsageError)
    assert said in str(done.exception)


def test_help_names_the_exit_codes() -> None:
    """Scripts need them."""
    assert "Exit codes: 0" in run("--help").output


def test_names_of_files_cannot_speak_for_themselves(repository: Path) -> None:
    """A line end in a name is no workflow command, an escape moves no cursor, and bytes that are no text are shown."""
    for name in (b"x\n::error file=pwn::owned.py", b"\x1b[2Jclear.py", b"\xff.py"):
        Path(os.fsdecode(bytes(repository / "first" / "1") + b"/" + name)).write_text("def (:\n")
    text, annotations, document = (run(repository, "--format", how).output for how in ("text", "github", "json"))

    assert not any(line.startswith("::") for line in text.splitlines())
    assert "\x1b" not in text + annotations
    assert "\\n::error file=pwn" in text
    assert "\\udcff.py" in text
    assert len(annotations.splitlines()) == len(json.loads(document)["findings"]) == 3


def test_directories_that_triton_sees_are_seen(repository: Path) -> None:
    """An empty directory, and ones that are not looked into, are models to Triton, and versions inside of a model."""
    (repository / ".git").mkdir()
    (repository / "__pycache__").mkdir()
    (repository / "empty").mkdir()
    (repository / "first" / "1" / "__pycache__").mkdir()
    files = read_repository(repository)

    assert {path for path in files if path.endswith("/")} == {".git/", "__pycache__/", "empty/", "ensemble/1/"}


def test_an_engine_is_listed_by_sizes_and_small_documents(tmp_path: Path) -> None:
    """Weights are not read; a path is relative to the repository, which need not be there yet."""
    broken.write_engine(tmp_path / "engines" / "target")
    seen = engine_listing(tmp_path / "models")("../engines/target")

    assert seen is not None
    assert seen.sizes["rank0.engine"] == 6
    assert set(seen.documents) == {"config.json"}
    assert engine_listing(tmp_path / "models")("../engines/draft") is None


def test_a_variable_names_the_configuration(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For who can add no option, such as a container's health check; the option has the last word."""
    config = {"name": "tiny", "profile": "cpu", "repo": {"path": str(repository)}}
    config |= {role: {"checkpoint": str(tmp_path / role)} for role in ("target", "draft")}
    (tmp_path / "mine.yaml").write_text(json.dumps(config))
    monkeypatch.setenv("SPECDEPLOY_CONFIG", str(tmp_path / "mine.yaml"))

    assert run().return_value == 0
    empty = run("--set", f"repo.path={tmp_path}").exception
    assert empty is None
    assert run("--set", f"repo.path={tmp_path / 'gone'}").exception is not None
    other = run("--config", tmp_path / "other.yaml").exception
    assert isinstance(other, ConfigError)
    assert "other.yaml" in str(other)
