"""The files of ``specdeploy gate``: which it may replace, and what they say when something goes wrong."""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specdeploy.bench.shards import Shard
from specdeploy.cli import Interrupted
from specdeploy.cli import run as run_command
from specdeploy.config.load import load_config
from specdeploy.pipeline import exporting, gating, selftest
from specdeploy.pipeline.measure import report
from specdeploy.pipeline.outputs import alone_in, keep_verdict
from specdeploy.pipeline.report_files import what_is
from specdeploy.pipeline.shards import Generator
from specdeploy.pipeline.smoke_results import other_place, own_place
from specdeploy.pipeline.workspace import workspace
from tests.unit.bench.simulated import load_report

if TYPE_CHECKING:
    from collections.abc import Iterator

LOAD = load_report()
CONFIG = """\
## Gate of a tiny pair
name: smollm2
target: {checkpoint: target}
draft: {checkpoint: draft}
gate: {rules: [error_rate <= 0]}
"""
OUTPUTS = ("--junit", "j.xml", "--markdown", "m.md")
FAILS = ("--rule", "request_latency.avg <= 0.001ms")
WRITTEN = ("j.xml", "m.md", "reports/gate.json")


@pytest.fixture(name="folder", autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment with a load test behind it."""
    monkeypatch.chdir(tmp_path)
    Path("specdeploy.yaml").write_text(CONFIG)
    Path("reports").mkdir()
    Path("reports/load.json").write_text(json.dumps(LOAD))
    return tmp_path


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let no file have more than 200 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def require_red(kind: str, words: str, exit_code: int) -> None:
    """Fail unless every file says that nothing was judged, and why."""
    xml, summary, document = (Path(name).read_text() for name in WRITTEN)
    gate = json.loads(document)
    assert f'type="{kind}"' in xml
    assert words in xml
    assert summary.startswith("## Gate could not decide\n")
    assert (gate["status"], gate["exit_code"], gate["rules"]) == (kind, exit_code, [])
    assert words in gate["reason"]


# What is there already


@pytest.mark.parametrize("option", ["--junit", "--markdown"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("specdeploy.yaml", "is the file of the configuration"),
        ("gate-baseline.json", "is the file of the baseline"),
        ("reports/gate-selftest.json", "is the file of the results of the gate's selftest"),
        ("reports/smoke-quick.json", "is the file of the results of a smoke test"),
        ("reports/load-shard-1-of-2_records.jsonl", "is the file of a part of a load test"),
        ("notes.txt", "is there already, and is not "),
    ],
)
def test_the_file_of_something_else_is_not_replaced(
    option: str, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused by name, or by what is in it, before anything is judged."""
    path = Path(name)
    path.write_text(path.read_text() if path.exists() else "somebody's\n")
    before = path.read_text()

    assert run_command(["gate", option, name]) == 2
    assert f"{option}: {name} {said}" in capsys.readouterr().err
    assert path.read_text() == before
    assert not Path("reports/gate.json").exists()


def test_each_output_replaces_its_own_kind_only() -> None:
    """That of an earlier run or an empty file; not JUnit of the smoke test, nor the other's."""
    Path("j.xml").touch()
    Path("smoke.xml").write_text('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="specdeploy.smoke"/>\n')
    for _ in range(2):
        assert run_command(["gate", *OUTPUTS]) == 0
    assert run_command(["gate", "--junit", "m.md"]) == 2
    assert run_command(["gate", "--markdown", "j.xml"]) == 2
    assert run_command(["gate", "--junit", "smoke.xml"]) == 2


def test_every_file_of_the_report_folder_is_known() -> None:
    """Also when it is not there yet: those of all commands that write into it."""
    loaded = load_config(Path("specdeploy.yaml"), {}, {})
    place = workspace(loaded)
    shard = Generator(shard=Shard(number=1, of=2)).files(place)
    exported = [name for names in exporting._FILES.values() for name in names]
    files = [
        *Generator().files(place),
        *shard,
        shard.records.with_suffix(".parquet"),
        *(place.reports / name for name in exported),
        place.reports / exporting._AIPERF / "concurrency1" / "profile_export.jsonl",
        own_place(loaded).results,
        own_place(loaded).of_part("quick").results,
        other_place(loaded, kind="openai", url="").of_part("quick").results,
        place.gate_json,
        place.reports / f"{selftest.FOLDER}.json",
        place.reports / selftest.FOLDER / "slowed" / "load.json",
        place.report_html,
    ]

    assert [file for file in files if not what_is(file, place.reports)] == []
    assert what_is(place.reports / "gate.xml", place.reports) == ""
    assert what_is(place.reports.parent / "load.json", place.reports) == ""


# A disk that is full


@pytest.mark.parametrize(("rules", "exit_code", "words"), [((), 4, "gate: PASS"), (FAILS, 1, "gate: FAIL")])
def test_a_verdict_that_cannot_be_kept_is_shown(
    rules: tuple[str, ...], exit_code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pass ends with 4, a failure is one; what an earlier run wrote is not left to be taken for this one's."""
    assert run_command(["gate", *OUTPUTS]) == 0
    with full_disk():
        assert run_command(["gate", *OUTPUTS, *rules]) == exit_code
    shown = capsys.readouterr()

    assert words in shown.out
    for name in WRITTEN:
        assert f"{name} cannot be written: File too large" in shown.err
        assert not Path(name).exists()


def test_a_report_that_cannot_be_kept_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The user has to make room."""
    with full_disk():
        assert run_command(["report"]) == 2
    assert "report.html cannot be written: File too large" in capsys.readouterr().err


# Standard output that was closed


@pytest.mark.parametrize(("rules", "exit_code"), [((), 4), (FAILS, 1)])
@pytest.mark.parametrize("how", ["text", "json", "github"])
def test_a_pass_that_nobody_saw_is_none(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: str,
    rules: tuple[str, ...],
    exit_code: int,
) -> None:
    """The files are there; a failure is a failure all the same."""
    monkeypatch.setattr(sys, "stdout", None)

    assert run_command(["gate", "--format", how, *OUTPUTS, *rules]) == exit_code
    assert "standard output: it is closed" in capsys.readouterr().err
    assert json.loads(Path("reports/gate.json").read_text())["exit_code"] == (1 if rules else 0)


# Nothing left of a run that was green


@pytest.mark.parametrize(
    ("damage", "rule", "words"),
    [
        ("reports/load.json", "error_rate <= 0", "load.json is not JSON"),
        ("reports/load_records.jsonl", "request_latency.p50 <= 60s", "load_records.jsonl"),
        ("reports/smoke.json", "lossless.divergences <= 0", "smoke.json is not JSON"),
        ("gate-baseline.json", "request_latency: 5%", "gate-baseline.json"),
    ],
)
def test_a_damaged_document_leaves_nothing_green(damage: str, rule: str, words: str) -> None:
    """Exit code 2, and every file says why."""
    assert run_command(["gate", *OUTPUTS]) == 0
    Path(damage).write_text("{")

    assert run_command(["gate", *OUTPUTS, "--rule", rule]) == 2
    require_red("error", words, 2)


def test_a_server_that_is_not_there_leaves_nothing_green() -> None:
    """Where more was to be measured (4)."""
    assert run_command(["gate", *OUTPUTS]) == 0
    Path("reports/load.json").unlink()

    assert run_command(["gate", *OUTPUTS, "--repeat-until", "5s"]) == 4
    require_red("error", "", 4)


def test_nothing_measured_leaves_nothing_green(capsys: pytest.CaptureFixture[str]) -> None:
    """The cure is said everywhere, and the report can show such a verdict."""
    assert run_command(["gate", *OUTPUTS]) == 0
    Path("reports/load.json").unlink()

    assert run_command(["gate", *OUTPUTS, "--format", "github"]) == 3
    require_red("not_measured", "nothing has been measured", 3)
    assert "run &#96;specdeploy load&#96; first" in Path("m.md").read_text()
    assert "run `specdeploy load` first" in Path("j.xml").read_text()
    assert "%0Arun `specdeploy load` first" in capsys.readouterr().out
    page = report(load_config(Path("specdeploy.yaml"), {}, {})).read_text()
    assert "nothing has been measured" in page


@pytest.mark.parametrize("mistake", [("--rule", "eror_rate <= 0"), ("--junit", "specdeploy.yaml")])
def test_a_misspelt_command_line_changes_nothing(mistake: tuple[str, str]) -> None:
    """What an earlier run wrote is as it was."""
    assert run_command(["gate", *OUTPUTS]) == 0
    before = [Path(name).read_text() for name in WRITTEN]

    assert run_command(["gate", *OUTPUTS, *mistake]) == 2
    assert [Path(name).read_text() for name in WRITTEN] == before


@pytest.mark.parametrize(
    ("ending", "exit_code", "words"),
    [
        (KeyboardInterrupt(), 130, "the gate was stopped before it judged anything"),
        (Interrupted(), 143, "the gate was stopped before it judged anything"),
        (ZeroDivisionError("a bug"), 70, "the gate failed: ZeroDivisionError: a bug"),
    ],
)
def test_a_gate_that_is_stopped_or_breaks_leaves_nothing_green(
    ending: BaseException, exit_code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a signal, or a bug of ours."""
    assert run_command(["gate", *OUTPUTS]) == 0

    def ends(*_: object) -> None:
        raise ending

    monkeypatch.setattr(gating, "judged", ends)
    assert run_command(["gate", *OUTPUTS]) == exit_code
    kind, code = ("error", 70) if exit_code == 70 else ("not_measured", 3)
    require_red(kind, words, code)


def test_a_gate_that_is_stopped_while_it_measures_on_has_its_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the files as well: what was open is, and an earlier pass is gone."""
    assert run_command(["gate", *OUTPUTS]) == 0
    look = json.loads(Path("reports/gate.json").read_text())
    look |= {"status": "undecided", "exit_code": 3, "repeats": {"ended": "stopped", "looks": []}}
    look["rules"][0] |= {"status": "undecided", "reason": "too few requests."}

    def stopped(*_: object) -> None:
        keep_verdict(Path("reports/gate.json").absolute(), look)
        raise KeyboardInterrupt

    monkeypatch.setattr(gating, "judged", stopped)
    assert run_command(["gate", *OUTPUTS]) == 130
    assert json.loads(Path("reports/gate.json").read_text()) == look
    assert "too few requests" in Path("j.xml").read_text()
    assert "too few requests" in Path("m.md").read_text()


def test_a_gate_that_another_one_keeps_out_touches_nothing() -> None:
    """What lies in the folder is the other one's (4)."""
    assert run_command(["gate", *OUTPUTS]) == 0
    before = [Path(name).read_bytes() for name in WRITTEN]

    with alone_in(Path("reports").absolute()):
        assert run_command(["gate", *OUTPUTS, "--repeat-until", "5s"]) == 4
    assert [Path(name).read_bytes() for name in WRITTEN] == before


@pytest.mark.parametrize("name", ["reports/load.json", "gate-baseline.json", "specdeploy.yaml"])
def test_the_page_of_a_job_is_none_of_our_files(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is added to it would damage them."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", name)
    before = Path("reports/load.json").read_bytes()

    assert run_command(["gate", "--format", "github"]) == 2
    assert f"GITHUB_STEP_SUMMARY: {name} is the file of" in capsys.readouterr().err
    assert Path("reports/load.json").read_bytes() == before
    assert not Path("gate-baseline.json").exists()


def test_a_link_to_itself_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Refused with its name, and not with a traceback."""
    Path("loop").symlink_to("loop")

    assert run_command(["gate", "--markdown", "loop"]) == 2
    assert "--markdown: loop cannot be" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["specdeploy.yaml", "reports/load.json", "notes.txt"])
def test_a_new_baseline_takes_the_place_of_no_other_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The configuration, results, somebody's notes: --reset is about baselines, also damaged ones."""
    Path("notes.txt").write_text("mine")
    before = Path(name).read_bytes()

    assert run_command(["gate", "baseline", "update", "--reset", "--set", f"gate.baseline={name}"]) == 2
    assert "gate.baseline: " in capsys.readouterr().err
    assert Path(name).read_bytes() == before
    assert run_command(["gate", "baseline", "update"]) == 0
    whole = Path("gate-baseline.json").read_text()
    Path("gate-baseline.json").write_text(whole[: len(whole) // 2])
    assert run_command(["gate", "baseline", "update", "--reset"]) == 0
    assert Path("gate-baseline.json").read_text() == whole
