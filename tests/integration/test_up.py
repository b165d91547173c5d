"""The whole line through the command line, with tiny checkpoints and the real tritonserver."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.deployments import specdeploy, write_deployment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.cpu, pytest.mark.triton]


@pytest.fixture(name="ran", scope="module")
def _ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    folder = tmp_path_factory.mktemp("deployment")
    write_deployment(folder)
    done = specdeploy("up", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_up_takes_two_checkpoints_to_a_passed_gate(ran: tuple[Path, dict[str, object]]) -> None:
    """One command checks, builds, serves, smoke-tests, measures and judges, and says so in its document."""
    _, document = ran

    assert document["exit_code"] == 0
    assert document["smoke"]["counts"]["fail"] == 0
    assert [rule["status"] for rule in document["gate"]["rules"]] == ["pass", "pass"]


def test_up_measures_both_arms_and_the_speedup(ran: tuple[Path, dict[str, object]]) -> None:
    """The load document has real numbers for control and speculation, and the interval of their ratio."""
    _, document = ran
    load = document["load"]
    arms = {arm["arm"]: arm["metrics"] for arm in load["arms"]}

    assert arms["speculation"]["overall_spec_decode_draft_acceptance_rate"]["avg"] > 0
    assert "overall_spec_decode_draft_acceptance_rate" not in arms["control"]
    assert all(arm["output_token_throughput"]["avg"] > 0 for arm in arms.values())
    assert load["speedup"]["1"]["ci_low"] <= load["speedup"]["1"]["avg"] <= load["speedup"]["1"]["ci_high"]


def test_the_server_counts_what_the_answers_report(ran: tuple[Path, dict[str, object]]) -> None:
    """Requests and drafts of each arm, by Triton's own counters over the same blocks."""
    load = ran[1]["load"]
    metrics = {arm["arm"]: arm["metrics"] for arm in load["arms"]}
    server = {entry["arm"]: entry for entry in load["server"]}

    for arm, entry in server.items():
        front_door = entry["models"]["ensemble"]
        assert front_door["requests"] == metrics[arm]["request_count"]["avg"]
        assert 0 < front_door["compute_ms"] <= front_door["total_ms"]
    drafts = server["speculation"]["acceptance"]
    assert drafts["draft_tokens"] == metrics["speculation"]["spec_decode_draft_tokens"]["sum"]
    assert drafts["accepted_tokens"] == metrics["speculation"]["spec_decode_accepted_draft_tokens"]["sum"]
    assert server["control"]["acceptance"]["draft_tokens"] == 0
    assert "load.other-traffic" not in {finding["code"] for finding in load["findings"]}


def test_up_finds_greedy_answers_identical_in_both_arms(ran: tuple[Path, dict[str, object]]) -> None:
    """Greedy decoding gives the same tokens with and without drafts, request by request."""
    _, document = ran
    outputs = document["load"]["outputs"]

    assert outputs["compared"] == outputs["identical"] == 10


def test_up_leaves_results_and_a_report(ran: tuple[Path, dict[str, object]]) -> None:
    """Every document is on disk, and the report is one page that loads nothing from elsewhere."""
    folder, _ = ran
    reports = folder / "reports"

    assert {path.name for path in reports.iterdir()} == {
        "smoke.json",
        "load.json",
        "load_records.jsonl",
        "gate.json",
        "report.html",
    }
    page = (reports / "report.html").read_text()
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_up_stops_its_server(ran: tuple[Path, dict[str, object]]) -> None:
    """Nothing is left running: there is no server to find, and smoke says how to start one."""
    folder, _ = ran
    done = specdeploy("smoke", cwd=folder)

    assert done.returncode == 4
    assert "specdeploy serve" in done.stderr


def test_a_second_build_takes_everything_from_the_store(ran: tuple[Path, dict[str, object]]) -> None:
    """Nothing is compiled twice."""
    folder, _ = ran
    before = {path: path.stat().st_mtime_ns for path in (folder / "engines").rglob("model.onnx")}
    done = specdeploy("build", cwd=folder)

    assert done.returncode == 0, done.stderr
    assert done.stderr.count("in the store already") == 2
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "engines").rglob("model.onnx")}


def test_gate_fails_with_exit_code_1(ran: tuple[Path, dict[str, object]]) -> None:
    """A rule that the measurement breaks ends the command with 1 and names the value."""
    folder, _ = ran
    done = specdeploy("gate", "--rule", "request_latency.p50 <= 0.001ms", cwd=folder)

    assert done.returncode == 1
    assert "request_latency.p50" in done.stdout


def test_gate_cannot_pass_what_was_not_measured(ran: tuple[Path, dict[str, object]]) -> None:
    """A concurrency that nobody measured is no pass: exit code 3."""
    folder, _ = ran
    done = specdeploy("gate", "--rule", "speedup@64 >= 0.1", cwd=folder)

    assert done.returncode == 3
    assert "not measured" in done.stdout


def test_gate_refuses_an_unknown_metric(ran: tuple[Path, dict[str, object]]) -> None:
    """A misspelt metric is an error with the nearest match, not a rule that never fires."""
    folder, _ = ran
    done = specdeploy("gate", "--rule", "eror_rate <= 0", cwd=folder)

    assert done.returncode == 2
    assert "error_rate" in done.stderr


def test_up_stops_at_a_gate_that_fails_and_still_reports(ran: tuple[Path, dict[str, object]]) -> None:
    """A failing gate is the exit code of ``up``; the report is written all the same and shows it."""
    folder, _ = ran
    rules = ["--set", "gate.rules=[error_rate <= 0,request_latency.p50 <= 0.001ms]"]
    short = ["--set", "load.pairs=1", "--set", "smoke.samples=0"]
    done = specdeploy("up", *rules, *short, "--set", "report.path=failed", cwd=folder)

    assert done.returncode == 1, done.stderr
    assert "stopped at gate" in done.stderr
    assert "Gate failed" in (folder / "failed" / "report.html").read_text()


def test_up_goes_on_after_a_smoke_test_that_cannot_decide(ran: tuple[Path, dict[str, object]]) -> None:
    """Too few samples to tell are no failure: the rest is measured and judged, and the exit code says undecided."""
    folder, _ = ran
    options = ["--set", "smoke.samples=2", "--set", "load.pairs=1", "--set", "report.path=undecided"]
    done = specdeploy("up", "--json", *options, cwd=folder)

    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 3, done.stderr
    assert document["smoke"]["counts"]["undecided"] == 1
    assert document["stopped_at"] == ""
    assert document["gate"]["exit_code"] == 0


def test_up_needs_no_draft_where_drafts_are_looked_up(tmp_path: Path) -> None:
    """One engine, the same line, the same checks: with drafts from the text, and a control beside them."""
    config = write_deployment(tmp_path)
    text = config.read_text().replace("draft:\n  checkpoint: draft\n", "speculation:\n  method: ngram\n")
    config.write_text(text.replace(">= 1.2", ">= 1.0"))

    done = specdeploy("up", "--json", "--set", "load.pairs=1", "--set", "smoke.samples=0", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["smoke"]["counts"]["fail"] == document["smoke"]["counts"]["undecided"] == 0
    assert document["load"]["outputs"]["identical"] == document["load"]["outputs"]["compared"] == 5
    assert not (tmp_path / "models" / "tensorrt_llm_draft").exists()


def test_a_deployment_that_does_not_stream_goes_the_whole_way(tmp_path: Path) -> None:
    """What needs a stream is skipped by the smoke test, and by the load test not measured; both say so."""
    write_deployment(tmp_path)
    done = specdeploy("up", "--json", "--set", "repo.decoupled=false", "--set", "load.requests=3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    skipped = {check["name"] for check in document["smoke"]["checks"] if "does not stream" in check["reason"]}

    assert skipped == {"stream-http", "stream-grpc", "stream-early", "multibyte", "cancellation"}
    assert "load.not-streamed" in {finding["code"] for finding in document["load"]["findings"]}
    for arm in document["load"]["arms"]:
        assert arm["metrics"]["request_latency"]["avg"] == arm["metrics"]["time_to_first_token"]["avg"]
        assert "inter_token_latency" not in arm["metrics"]
