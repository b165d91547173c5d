"""``specdeploy gate`` and ``gate baseline`` on results that were measured before, with no server."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.records import records_to_jsonl
from specdeploy.bench.schedule import LoadSettings
from specdeploy.cli import run as run_command
from specdeploy.config.load import load_config
from specdeploy.errors import ConfigError
from specdeploy.pipeline.measure import deployment, preflight
from tests.unit.bench.simulated import CONTEXT, Simulator
from tests.unit.gate.test_gate_lossless import check, smoke
from tests.unit.gate.test_gate_relative import run

RUN, PLAN = Simulator().run(LoadSettings(concurrency=(1,), requests=8))
LOAD = build_load_report(RUN, PLAN, CONTEXT)
CONFIG = """\
name: smollm2
target: {checkpoint: target}
draft: {checkpoint: draft}
gate:
  rules:
    - error_rate <= 0
    - request_latency: 5%
    - advisory: speedup@1 >= 99
    - rule: "request_throughput: 5%"
      floor: 0.001 requests/s
    - {rule: request_latency.p50 <= 60s, advisory: false}
"""


@pytest.fixture(name="folder", autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment with a load test behind it, and nothing else."""
    monkeypatch.chdir(tmp_path)
    Path("specdeploy.yaml").write_text(CONFIG)
    measured()
    Path("reports/load_records.jsonl").write_text(records_to_jsonl(RUN.records))
    return tmp_path


def measured(day: float = 0.0, **factors) -> None:
    """Put the results of a load test where `specdeploy load` would."""
    Path("reports").mkdir(exist_ok=True)
    Path("reports/load.json").write_text(json.dumps(run(day, load=LOAD, **factors)))
    if factors:
        # Whose records these numbers are not.
        Path("reports/load_records.jsonl").unlink(missing_ok=True)


def five_days() -> None:
    """Make a baseline of five days."""
    for day, pace in enumerate((1.0, 1.01, 0.99, 1.005, 0.995)):
        measured(day, request_latency=pace, request_throughput=1 / pace)
        assert run_command(["gate", "baseline", "update", "--label", f"commit-{day}"]) == 0


def verdict() -> dict:
    """The document that the gate left."""
    return json.loads(Path("reports/gate.json").read_text())


def test_from_the_first_run_to_a_regression(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a baseline the gate cannot decide; with five days it passes, and then catches what got worse."""
    assert run_command(["gate"]) == 3
    assert "specdeploy gate baseline update" in capsys.readouterr().out
    five_days()
    assert "1 more day" in capsys.readouterr().out
    measured(9)
    assert run_command(["gate"]) == 0
    assert [rule["status"] for rule in verdict()["rules"]] == ["pass", "pass", "fail", "pass", "pass"]
    assert f"measured {verdict()['measured_at']}\n" in capsys.readouterr().out
    measured(9, request_latency=1.2)
    assert run_command(["gate"]) == 1
    assert "20 % worse" in capsys.readouterr().out


def test_rules_of_the_command_line_are_judged_as_well() -> None:
    """In the compact spelling, in place of those of the configuration."""
    five_days()
    measured(9, request_latency=1.2)

    assert run_command(["gate", "--rule", "request_latency: 30%", "--rule", "advisory: request_latency: 5%"]) == 0
    assert run_command(["gate", "--set", "gate.confidence=0.9", "--rule", "request_latency.p50@1 <= 60s"]) == 0
    assert verdict()["confidence"] == 0.9


def test_losslessness_is_read_from_the_smoke_test() -> None:
    """Which may be missing, and is then not measured, or of engines that nobody knows."""
    rule = ["gate", "--rule", "lossless.divergences <= 0"]

    assert run_command(rule) == 3
    Path("reports/smoke.json").write_text(json.dumps(smoke(check())))
    assert run_command(rule) == 3
    load = run(load=LOAD)
    load["deployment"] = smoke()["deployment"]
    Path("reports/load.json").write_text(json.dumps(load))
    assert run_command(rule) == 0
    Path("reports/smoke.json").write_text(json.dumps(smoke(check(status="fail", divergence=1))))
    assert run_command(rule) == 1


def test_claims_are_read_from_the_raw_records() -> None:
    """40 requests are enough for a median, not for a p99; records of another run are refused."""
    assert run_command(["gate", "--rule", "request_latency.p50 <= 60s"]) == 0
    assert verdict()["rules"][0]["numbers"]["kept"] == 40
    assert run_command(["gate", "--rule", "request_latency.p99 <= 60s"]) == 3
    assert verdict()["rules"][0]["numbers"]["more_requests"] == 259
    Path("reports/load_records.jsonl").write_text(records_to_jsonl(RUN.records[:-3]))
    assert run_command(["gate", "--rule", "request_latency.p50 <= 60s"]) == 2
    Path("reports/load_records.jsonl").unlink()
    assert run_command(["gate", "--rule", "request_latency.p50 <= 60s"]) == 0


def of_this(**told: object) -> None:
    """Let the load test be one of the deployment of the configuration, but for what is told."""
    now = deployment(load_config(Path("specdeploy.yaml"), {}, {}))
    Path("reports/load.json").write_text(json.dumps(LOAD | {"deployment": now | told}))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({}, ""),
        ({"max_seq_len": 512}, "max_seq_len was 512 and is "),
        ({"profile": "llmapi"}, "profile was llmapi and is cpu"),
        ({"engines": {"target": {"key": "ab" * 32}}}, "engine.target was abababababababab and is cdcdcdcdcdcdcdcd"),
        # What is not told is not known: an image that cannot be asked for, an engine that is not here, a newer field.
        ({"image": "elsewhere", "engines": {"eagle": {"key": "ab"}}, "release": ""}, ""),
        # Another server than ours, of which the configuration says nothing.
        ({"profile": "openai", "max_seq_len": 512}, ""),
    ],
)
def test_a_run_of_another_deployment_never_passes(told: dict, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured has to be what is configured and written now, as far as both are known."""
    Path("triton_repo/models").mkdir(parents=True)
    Path("triton_repo/models/specdeploy.json").write_text(json.dumps({"engines": {"target": {"key": "cd" * 32}}}))
    of_this(**told)

    assert run_command(["gate", "--rule", "error_rate <= 0"]) == (3 if said else 0)
    [rule] = verdict()["rules"]
    assert rule["status"] == ("not_comparable" if said else "pass")
    assert said in rule["reason"]
    if said:
        assert LOAD["created"] in capsys.readouterr().out


def test_a_machine_that_only_judges_needs_no_repository() -> None:
    """As the job of another machine than that of the load test."""
    of_this(engines={"target": {"key": "ab" * 32}})
    assert run_command(["gate", "--rule", "error_rate <= 0"]) == 0


def test_records_that_contradict_the_document_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Of as many requests, but another run: by their percentile where the document has no digest, else by that."""
    quick, _ = Simulator(seed=7).run(PLAN.settings)
    Path("reports/load_records.jsonl").write_text(records_to_jsonl(quick.records))
    assert run_command(["gate", "--rule", "request_latency.p50 <= 60s"]) == 2
    assert "the raw records come to request_latency.p50 = " in capsys.readouterr().err
    Path("reports/load.json").write_text(json.dumps(LOAD | {"records_sha256": "0" * 64}))
    assert run_command(["gate", "--rule", "request_latency.p50 <= 60s"]) == 2
    assert "records_sha256 is '000" in capsys.readouterr().err


def test_records_that_are_no_file_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """And not taken for missing."""
    Path("reports/load_records.jsonl").unlink()
    Path("reports/load_records.jsonl").mkdir()
    assert run_command(["gate", "--rule", "request_latency.p50 <= 60s"]) == 2
    assert "is no regular file" in capsys.readouterr().err


def test_the_baseline_is_shown_and_told_as_history(capsys: pytest.CaptureFixture[str]) -> None:
    """As text, as a document, and as CSV."""
    assert run_command(["gate", "baseline", "show"]) == 3
    five_days()
    capsys.readouterr()
    assert run_command(["gate", "baseline", "show"]) == 0
    text = capsys.readouterr().out
    assert run_command(["gate", "baseline", "show", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert run_command(["gate", "baseline", "history"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))

    assert "5 run(s) of 5 day(s); relative rules need 5 days" in text
    assert "- request_latency@1#speculation: " in text
    assert (document["days"], document["needed_days"], len(document["runs"])) == (5, 5, 5)
    assert [row["commit"] for row in rows] == [f"commit-{day}" for day in range(5)]


def test_a_baseline_of_something_else_is_begun_anew_only_on_demand() -> None:
    """Exit code 3, and the file is as it was; with --reset the new run is the first."""
    five_days()
    before = Path("gate-baseline.json").read_bytes()
    other = run(9, load=LOAD)
    other["plan"]["max_tokens"] = 7
    Path("reports/load.json").write_text(json.dumps(other))

    assert run_command(["gate", "baseline", "update"]) == 3
    assert Path("gate-baseline.json").read_bytes() == before
    assert run_command(["gate"]) == 3
    assert {rule["status"] for rule in verdict()["rules"][1:2]} == {"not_comparable"}
    assert run_command(["gate", "baseline", "update", "--reset"]) == 0
    assert len(json.loads(Path("gate-baseline.json").read_text())["runs"]) == 1


@pytest.mark.parametrize(
    "content", ["", "{}", "[", '{"kind": "gate-baseline", "schema_version": "1.0", "x": NaN}', "\ud800"]
)
def test_a_damaged_baseline_stops_the_gate(content: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and the name of the file, before anything passes; rules that need none are judged."""
    Path("gate-baseline.json").write_bytes(content.encode("utf-8", "surrogatepass"))

    assert run_command(["gate"]) == 2
    assert "gate-baseline.json" in capsys.readouterr().err
    assert run_command(["gate", "--rule", "error_rate <= 0"]) == 0
    assert run_command(["gate", "baseline", "update"]) == 2


def test_a_baseline_keeps_what_a_server_calls_itself() -> None:
    """Also when it is no text that UTF-8 has."""
    load = run(0, load=LOAD)
    load["deployment"]["model"] = "\ud800"
    Path("reports/load.json").write_text(json.dumps(load))

    assert run_command(["gate", "baseline", "update"]) == 0
    assert run_command(["gate", "baseline", "show"]) == 0
    assert run_command(["gate", "--rule", "request_latency: 5%"]) == 3


def test_a_damaged_baseline_is_found_before_anything_is_measured() -> None:
    """`up` reads it first."""
    Path("gate-baseline.json").write_text("{")

    with pytest.raises(ConfigError, match="gate-baseline"):
        preflight(load_config(Path("specdeploy.yaml"), {}, {}))


def test_a_baseline_that_is_a_folder_is_an_error() -> None:
    """Read or written."""
    Path("gate-baseline.json").mkdir()

    assert run_command(["gate"]) == 2
    assert run_command(["gate", "baseline", "update", "--reset"]) == 2


@pytest.mark.parametrize("label", ["=1+1", "+1", "-1", "@SUM(A1)"])
def test_a_label_is_no_formula(label: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A spreadsheet that opens the history would carry it out."""
    assert run_command(["gate", "baseline", "update", "--label", label]) == 2
    assert f"the label {label!r} would be a formula" in capsys.readouterr().err
    assert not Path("gate-baseline.json").exists()
    assert run_command(["gate", "baseline", "update", "--label", "v1+2@3-4"]) == 0


def test_options_before_a_subcommand_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """They would be ignored."""
    assert run_command(["gate", "--rule", "error_rate <= 0", "baseline", "show"]) == 2
    assert "stands before baseline" in capsys.readouterr().err


def test_records_elsewhere_are_not_read() -> None:
    """A document names a file beside it and no other."""
    load = {**run(0, load=LOAD), "records_file": "../elsewhere.jsonl"}
    Path("reports/load.json").write_text(json.dumps(load))

    assert run_command(["gate", "--rule", "request_latency.p50 <= 60s"]) == 2
