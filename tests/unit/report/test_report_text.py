"""The reports on a terminal."""

from __future__ import annotations

import pytest

from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.records import LoadRun
from specdeploy.bench.schedule import LoadSettings
from specdeploy.report.html import render
from specdeploy.report.text import gate_table, load_table, smoke_table, up_summary
from tests.unit.bench.simulated import CONTEXT, Simulator, failed
from tests.unit.report.documents import documents, measured, open_documents

DOCUMENTS = documents()
OPEN = open_documents()


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


def test_the_words_of_a_server_move_no_cursor() -> None:
    """Where they are the reason why a run ended, or in a finding."""
    evil = "gone \x1b[2J\nwarning: faked"
    finding = {"severity": "warning", "code": "a.b", "message": evil, "hint": evil, "where": ""}
    text = load_table({**DOCUMENTS["load"], "partial": True, "stop_reason": evil, "findings": [finding]})

    assert "\x1b" not in text
    assert text.splitlines()[-3:] == [
        "partial: gone \\x1b[2J warning: faked",
        "warning: gone \\x1b[2J warning: faked",
        "  -> gone \\x1b[2J warning: faked",
    ]


def test_an_open_loop_has_a_table_for_each_rate() -> None:
    """With the ratio of latencies in place of a speed-up, and goodput where it was promised."""
    text = load_table(OPEN["load"])
    ratios = OPEN["load"]["open_loop"][1]
    latency, first = ratios["request_latency_ratio"], ratios["time_to_first_token_ratio"]

    assert [line for line in text.splitlines() if line.startswith(("5 requests/s ", "20 requests/s "))] != []
    assert "concurrency" not in text
    assert "speed-up" not in text
    assert f"request latency, speculation / control {latency['avg']:.2f}x (95 % interval" in text
    assert f"time to first token, speculation / control {first['avg']:.2f}x" in text
    assert "share of good requests" in text
    assert "share of good requests" not in load_table(DOCUMENTS["load"])


def test_one_arm_has_one_column() -> None:
    """Nothing is compared, and no comparison is missed."""
    load = measured(LoadSettings(concurrency=(2,), pairs=2, compare=False), ["error_rate <= 0"])["load"]
    head, _, *rows = load_table(load).splitlines()

    assert head.split() == ["concurrency", "2", "speculation", "unit"]
    assert "acceptance" in "".join(rows)
    assert not [row for row in rows if "speed-up" in row or "control" in row]
    assert [line.split("  ")[0] for line in up_summary({"load": load}, report="r").splitlines()][2:4] == [
        "acceptance",
        "latency @2",
    ]


def test_a_run_that_failed_invents_nothing() -> None:
    """Dashes and words where numbers would stand, and why."""
    _, plan = Simulator().run(LoadSettings())
    run = LoadRun(records=(failed("timeout"), failed("timeout", index=1)), stop_reason="the deadline of 9 s passed")
    text = load_table(build_load_report(run, plan, CONTEXT))

    assert "speed-up not measured" in text
    assert "acceptance not measured" in text
    assert "failed: 2 requests of speculation at concurrency 1 (timeout), such as: timeout" in text
    assert "partial: the deadline of 9 s passed" in text


def test_a_rate_at_which_everything_failed() -> None:
    """Its failures are said of that rate, and its ratio is not measured."""
    _, plan = Simulator().run(LoadSettings(shape="poisson", rates=(5.0,)))
    text = load_table(build_load_report(LoadRun(records=(failed(concurrency=None, rate=5.0),)), plan, CONTEXT))

    assert "latency, speculation / control not measured" in text
    assert "failed: 1 requests of speculation at 5 requests/s (timeout)" in text


def test_nothing_measured_is_said() -> None:
    """An empty run has no table."""
    _, plan = Simulator().run(LoadSettings())

    assert "nothing was measured" in load_table(build_load_report(LoadRun(records=()), plan, CONTEXT))


def test_the_gate_table_explains_what_did_not_pass() -> None:
    """Every rule is a row; whatever is not a pass has its sentence; the exit code closes it."""
    text = gate_table(DOCUMENTS["gate"])

    assert all(rule["rule"] in text for rule in DOCUMENTS["gate"]["rules"])
    assert text.count("NOT MEASURED") == 2
    assert "was not measured: the loads that were are concurrency 1" in text
    assert text.endswith("gate: NOT MEASURED (exit code 3)")


def test_the_gate_table_says_at_which_load_a_rule_was_judged() -> None:
    """Under several loads it is the worst one, and which that is the rule does not say; and who the control was."""
    rule = {**DOCUMENTS["gate"]["rules"][0], "rule": "request_latency <= 1s", "concurrency": 4, "rate": None}
    control = {"control": '{"server": "old:8000"}'}
    text = gate_table({**DOCUMENTS["gate"], "rules": [rule], "fingerprint": control})

    assert text.splitlines()[0].split()[-1] == "load"
    assert text.splitlines()[2].endswith("4")
    assert 'the control was another server: {"server": "old:8000"}' in text


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


def test_the_summary_of_an_open_loop_names_its_rates() -> None:
    """How latency changed, for each."""
    text = up_summary(OPEN, report="r.html")

    assert "latency @5/s   speculation / control 0." in text
    assert "latency @20/s  speculation / control 0." in text
    assert text.isascii()


@pytest.mark.parametrize("part", ["smoke", "load", "gate"])
def test_the_summary_says_what_was_not_run(part: str) -> None:
    """It also closes a run that stopped early."""
    assert "not run" in up_summary({**DOCUMENTS, part: None}, report="r.html")


def test_text_is_ascii() -> None:
    """A terminal without Unicode shows it too."""
    parts = [smoke_table(DOCUMENTS["smoke"]), load_table(DOCUMENTS["load"]), gate_table(DOCUMENTS["gate"])]

    assert "\n".join([*parts, up_summary(DOCUMENTS, report="r.html")]).isascii()


def test_another_deployment_is_not_called_a_target_without_drafts() -> None:
    """Text and page name the server that answered for the control, and speak of no speed-up."""
    settings = LoadSettings(concurrency=(1,), requests=10, own_control=False)
    built = measured(settings, ["error_rate <= 0"], simulator=Simulator(control_drafts=True))
    built["load"]["deployment"]["control"] = {"server": "old:8000", "num_draft_tokens": "4"}
    text, page = load_table(built["load"]), render(built)

    assert "\noutput token throughput, speculation / control " in text
    assert "\ncontrol: another deployment at old:8000\n" in f"{text}\n"
    assert "control: another deployment at old:8000" in page
    assert "Against the control" in page
    assert "speed-up" not in text
    for words in ("the target alone</span>", "without speculation", "What bounds"):
        assert words not in page
