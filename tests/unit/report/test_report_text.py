"""The reports on a terminal."""

from __future__ import annotations

import pytest

from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.records import LoadRun
from specdeploy.bench.schedule import LoadSettings
from specdeploy.report.text import gate_table, load_table, smoke_table, up_summary
from tests.unit.bench.simulated import CONTEXT, Simulator, failed
from tests.unit.report.documents import documents

DOCUMENTS = documents()


def test_the_load_table_has_both_arms_speedup_and_acceptance() -> None:
    """One table for each concurrency, with units, and the warnings at its end."""
    text = load_table(DOCUMENTS["load"])
    speedup = DOCUMENTS["load"]["speedup"]["2"]

    assert "concurrency 1" in text
    assert "concurrency 2" in text
    assert f"speed-up {speedup['avg']:.2f}x (95 % interval {speedup['ci_low']:.2f}x" in text
    assert "tokens a step" in text
    assert "answers: 48 of 48 identical" in text
    assert "warning: a block sends 6 different prompts" in text


def test_a_run_that_failed_invents_nothing() -> None:
    """Dashes and words where numbers would stand, and why."""
    _, plan = Simulator().run(LoadSettings())
    run = LoadRun(records=(failed("timeout"), failed("timeout", index=1)), stop_reason="the deadline of 9 s passed")
    text = load_table(build_load_report(run, plan, CONTEXT))

    assert "speed-up not measured" in text
    assert "acceptance not measured" in text
    assert "failed: 2 requests of speculation at concurrency 1 (timeout)" in text
    assert "partial: the deadline of 9 s passed" in text


def test_nothing_measured_is_said() -> None:
    """An empty run has no table."""
    _, plan = Simulator().run(LoadSettings())

    assert "nothing was measured" in load_table(build_load_report(LoadRun(records=()), plan, CONTEXT))


def test_the_gate_table_explains_what_did_not_pass() -> None:
    """Every rule is a row; whatever is not a pass has its sentence; the exit code closes it."""
    text = gate_table(DOCUMENTS["gate"])

    assert all(rule["rule"] in text for rule in DOCUMENTS["gate"]["rules"])
    assert text.count("NOT MEASURED") == 2
    assert "was not measured." in text
    assert text.endswith("gate: NOT MEASURED (exit code 3)")


def test_the_smoke_table_lists_every_check() -> None:
    """Status, name, time, what was seen; then the counts, and that the server was lost if it was."""
    text = smoke_table(DOCUMENTS["smoke"])
    lost = smoke_table({**DOCUMENTS["smoke"], "server_lost": "connection refused"})

    assert "FAIL  lossless  3.20 s  differs at token 5 of 32" in text
    assert text.endswith("smoke: 1 passed, 1 failed, 1 skipped")
    assert lost.endswith("the server was lost: connection refused")


def test_the_summary_closes_up() -> None:
    """What was built, acceptance, speed-up with its interval, the verdict, and where the report is."""
    engines = {"target": {"checkpoint": "smollm2", "precision": "fp32", "size_bytes": 540e6}, "draft": "int8"}
    deployment = {"name": "demo", "profile": "cpu", "engines": engines}
    lines = up_summary({**DOCUMENTS, "deployment": deployment}, report="reports/report.html").splitlines()

    assert [line.split("  ")[0] for line in lines] == [
        "deployment",
        "target engine",
        "draft engine",
        "smoke test",
        "acceptance",
        "speed-up @1",
        "speed-up @2",
        "gate",
        "report",
    ]
    assert "smollm2, fp32, 540 MB" in lines[1]
    assert "95 % interval" in lines[5]
    assert lines[-1].endswith("reports/report.html")


@pytest.mark.parametrize("part", ["smoke", "load", "gate"])
def test_the_summary_says_what_was_not_run(part: str) -> None:
    """It also closes a run that stopped early."""
    assert "not run" in up_summary({**DOCUMENTS, part: None}, report="r.html")


def test_text_is_ascii() -> None:
    """A terminal without Unicode shows it too."""
    parts = [smoke_table(DOCUMENTS["smoke"]), load_table(DOCUMENTS["load"]), gate_table(DOCUMENTS["gate"])]

    assert "\n".join([*parts, up_summary(DOCUMENTS, report="r.html")]).isascii()
