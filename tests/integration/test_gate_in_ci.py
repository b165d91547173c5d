"""``specdeploy gate`` as a pipeline starts it, on a load test that was prepared: exit codes, and every output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from specdeploy.bench.paired import paired_ratio
from tests.deployments import specdeploy
from tests.unit.bench.simulated import load_report

if TYPE_CHECKING:
    import subprocess

CONFIG = """\
name: smollm2
target: {checkpoint: target}
draft: {checkpoint: draft}
gate: {rules: [error_rate <= 0]}
"""
#: Verdict -> a rule that the prepared run takes to it, its exit code, and its element in JUnit.
VERDICTS = {
    "pass": ("error_rate <= 0", 0, "system-out"),
    "fail": ("request_latency.p50@1 <= 0.001ms", 1, "failure"),
    "undecided": ("speedup@1 >= 1.0", 3, "error"),
    "not_measured": ("speedup@64 >= 0.1", 3, "error"),
}
EVERYTHING = ("--markdown", "out/gate.md", "--junit", "out/gate.xml")


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """A deployment with a load test of which one speed-up is open: its interval holds 1."""
    load = load_report()
    load["speedup"]["1"] |= paired_ratio([0.8, 1.3, 0.9, 1.2], [True, False, True, False], excluded=0).to_dict()
    (tmp_path / "specdeploy.yaml").write_text(CONFIG)
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "load.json").write_text(json.dumps(load))
    return tmp_path


def run(folder: Path, *arguments: str, summary: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the gate, as a step of a job where a summary is named."""
    return specdeploy("gate", *arguments, cwd=folder, env={"GITHUB_STEP_SUMMARY": str(summary or "")})


def elements(file: Path) -> list[str]:
    """Return the elements within the cases of a JUnit file."""
    return [child.tag for case in ET.parse(file).iter("testcase") for child in case]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_output_says_the_same(folder: Path, verdict: str) -> None:
    """Exit code, JSON, ``gate.json``, JUnit and Markdown agree on each kind of verdict."""
    rule, exit_code, element = VERDICTS[verdict]
    done = run(folder, "--rule", rule, "--json", *EVERYTHING)

    document: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"], document["status"]) == (exit_code, exit_code, verdict), done.stderr
    assert json.loads((folder / "reports" / "gate.json").read_text()) == document
    assert elements(folder / "out" / "gate.xml") == [element]
    heading = {0: "passed", 1: "failed", 3: "could not decide"}[exit_code]
    text = (folder / "out" / "gate.md").read_text()
    assert text.startswith(f"## Gate {heading}\n")
    assert "### Speculation\n" in text


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_workflow_is_told_and_gets_its_summary(folder: Path, tmp_path: Path, verdict: str) -> None:
    """An error for a failure, a warning for what is not known; the summary is added below what stood there."""
    rule, exit_code, _ = VERDICTS[verdict]
    summary = tmp_path / "summary.md"
    summary.write_text("# Job\n")
    done = run(folder, "--rule", rule, "--rule", "error_request_count <= 0", "--format", "github", summary=summary)

    commands = [line.split(" ")[0] for line in done.stdout.splitlines() if line.startswith("::")]
    assert done.returncode == exit_code
    assert commands == {"pass": [], "fail": ["::error"]}.get(verdict, ["::warning"])
    assert "gate: " in done.stdout
    text = summary.read_text()
    assert text.startswith("# Job\n\n## Gate ")
    assert text.count("| <code>") == 2


def test_the_summary_belongs_to_the_workflow_format(folder: Path, tmp_path: Path) -> None:
    """In any other format the page of the job is left alone; outside of a job there is none."""
    summary = tmp_path / "summary.md"

    assert run(folder, summary=summary).returncode == 0
    assert not summary.exists()
    assert run(folder, "--format", "github").returncode == 0


def test_nothing_measured_leaves_nothing_green(folder: Path, tmp_path: Path) -> None:
    """Where there is no load test the files say so, over what an earlier run may have left (3)."""
    assert run(folder, *EVERYTHING).returncode == 0
    (folder / "reports" / "load.json").unlink()
    done = run(folder, "--format", "github", *EVERYTHING, summary=tmp_path / "summary.md")

    assert done.returncode == 3
    assert "nothing has been measured" in done.stderr
    assert done.stdout.startswith("::error title=gate.not-measured::there is no ")
    assert elements(folder / "out" / "gate.xml") == ["error"]
    for file in (folder / "out" / "gate.md", tmp_path / "summary.md"):
        assert file.read_text().startswith("## Gate could not decide\n")


@pytest.mark.parametrize(("arguments", "kind"), [(("--json",), "error"), (("--format", "json"), "gate")])
def test_nothing_measured_is_one_document(folder: Path, arguments: tuple[str, ...], kind: str) -> None:
    """Standard output is JSON that says why, by either spelling."""
    (folder / "reports" / "load.json").unlink()
    done = run(folder, *arguments)

    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"], document["kind"]) == (3, 3, kind)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--junit", "specdeploy.yaml/gate.xml"), "--junit: specdeploy.yaml/gate.xml cannot be written: "),
        (("--markdown", "reports"), "--markdown: reports cannot be written: it is no file"),
        (("--junit", ""), "--junit names no file"),
        (("--junit", "one", "--markdown", "./one"), "--junit: one is the file of --markdown"),
        (("--markdown", "reports/load.json"), "--markdown: reports/load.json is the file of the load test's results"),
        (("--json", "--format", "github"), "--json is --format json, and --format github is given as well"),
        (("--set", "report.path=specdeploy.yaml"), "report.path: "),
    ],
)
def test_a_file_that_cannot_be_written_is_named_before_anything_is_judged(
    folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    """It is a mistake of the command line (2), and no verdict is left."""
    before = (folder / "reports" / "load.json").read_text()
    done = run(folder, *arguments)

    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert not (folder / "reports" / "gate.json").exists()
    assert (folder / "reports" / "load.json").read_text() == before


def test_a_summary_that_cannot_be_written_is_named(folder: Path) -> None:
    """By the variable that names it."""
    done = run(folder, "--format", "github", summary=folder)

    assert done.returncode == 2
    assert "GITHUB_STEP_SUMMARY: " in done.stderr
    assert not (folder / "reports" / "gate.json").exists()


def test_a_verdict_that_cannot_be_kept_is_no_pass(folder: Path) -> None:
    """The page of the job is full when the summary comes: the verdict is shown all the same, and the exit code is 4."""
    done = run(folder, "--format", "github", summary=Path("/dev/full"))

    assert done.returncode == 4, done.stderr
    assert "GITHUB_STEP_SUMMARY: /dev/full cannot be written: No space left on device" in done.stderr
    assert "gate: PASS" in done.stdout


def test_files_are_written_as_a_whole(folder: Path) -> None:
    """Nothing is left beside them, and an earlier file is replaced."""
    assert run(folder, *EVERYTHING, "--rule", "speedup@64 >= 0.1").returncode == 3
    assert run(folder, *EVERYTHING).returncode == 0
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["gate.md", "gate.xml"]
    assert elements(folder / "out" / "gate.xml") == ["system-out"]


def test_words_of_a_load_test_cannot_break_the_outputs(folder: Path, tmp_path: Path) -> None:
    """Why a run stopped, and the name of what was measured, come from elsewhere: no output is other than with words."""
    path = folder / "reports" / "load.json"
    load = json.loads(path.read_text())
    hostile = "a|b\n::set-output name=x::y\n<script>`\x1b[31m\ud800"
    load |= {"partial": True, "stop_reason": hostile, "deployment": {"name": hostile}}
    path.write_text(json.dumps(load))
    done = run(folder, "--format", "github", *EVERYTHING, summary=tmp_path / "summary.md")

    assert done.returncode == 3, done.stderr
    assert [line[:9] for line in done.stdout.splitlines() if line.lstrip().startswith("::")] == ["::warning"]
    assert elements(folder / "out" / "gate.xml") == ["error"]
    text = (folder / "out" / "gate.md").read_text()
    assert "<script>" not in text
    assert "\n::" not in text
    assert (tmp_path / "summary.md").read_text() == text
