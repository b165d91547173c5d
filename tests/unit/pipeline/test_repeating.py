"""The gate that measures on: when it stops, what it says, and what it leaves; nothing is measured for real."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.records import records_to_jsonl
from specdeploy.bench.schedule import LoadSettings
from specdeploy.cli import run as run_command
from specdeploy.cli._events import LoadLines
from specdeploy.config.load import load_config
from specdeploy.errors import ConfigError
from specdeploy.pipeline import outputs
from specdeploy.pipeline.outputs import NotKept, alone_in
from specdeploy.pipeline.repeating import Look, gate_until
from specdeploy.triton.client.failures import RequestFailed
from tests.unit.bench.fakes import FakeClock
from tests.unit.bench.simulated import CONTEXT, Simulator

CONFIG = """\
name: smollm2
target: {checkpoint: target}
draft: {checkpoint: draft}
load: {pairs: 2, requests: 5}
"""


class Measured:
    """A measurement that takes a second for each pair, of a simulated deployment."""

    def __init__(self, clock: FakeClock, pairs: int = 0, **simulator) -> None:
        self.clock = clock
        self.parts: list[int] = []
        self.early = ""
        self.gone = False
        self.lost_s = 0.0
        self._simulator = Simulator(**simulator)
        if pairs:
            self.go_on(pairs)

    def begun(self) -> bool:
        """Whether there is a run."""
        return bool(self.parts)

    def begin(self) -> None:
        """Two pairs."""
        self.go_on(2)

    def go_on(self, pairs: int) -> str:
        """Make the run that much larger."""
        if self.early:
            self.clock.advance(self.lost_s)
            return self.early
        if self.gone:
            raise RequestFailed("connection", "nobody is there")
        self.parts.append(pairs)
        self.clock.advance(float(pairs))
        run, plan = self._simulator.run(LoadSettings(pairs=sum(self.parts), requests=5, warmup_requests=1))
        document = build_load_report(run, plan, CONTEXT) | {"duration_s": float(sum(self.parts))}
        document["plan"]["pairs"] = self.parts[0]
        document["repeats"] = [{"pairs": part} for part in self.parts[1:]]
        Path("reports").mkdir(exist_ok=True)
        Path("reports/load.json").write_text(json.dumps(document))
        Path("reports/load_records.jsonl").write_text(records_to_jsonl(run.records))
        return ""


@pytest.fixture(name="clock")
def _clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    monkeypatch.chdir(tmp_path)
    Path("specdeploy.yaml").write_text(CONFIG)
    return FakeClock()


def repeat(measured: Measured, *rules: str, budget_s: float = 1000.0):
    """Return the gate's document and the looks that were told."""
    told: list = []
    loaded = load_config(Path("specdeploy.yaml"), {}, {})
    document = gate_until(loaded, rules, budget_s, measured, told.append, measured.clock)
    assert json.loads(Path("reports/gate.json").read_text()) == document
    assert [entry["number"] for entry in document["repeats"]["looks"]] == [look.number for look in told]
    return document, told


def test_it_measures_on_until_a_claim_is_decided(clock: FakeClock) -> None:
    """A p90 of ten requests is open; the next look has as many as it needs to be surer, and is."""
    measured = Measured(clock)
    document, told = repeat(measured, "request_latency.p90 <= 60s", "error_rate <= 0")

    assert (document["status"], document["exit_code"], document["repeats"]["ended"]) == ("pass", 0, "decided")
    assert measured.parts == [2, 7]
    assert [look.status for look in told] == ["undecided", "pass"]
    assert [look.share_of_errors for look in told] == [0.5, 0.25]
    assert document["confidence"] == pytest.approx(1 - 0.05 / 4)
    assert document["rules"][0]["numbers"]["kept"] == 45


def test_it_stops_at_the_first_failure(clock: FakeClock) -> None:
    """Then the gate has decided, whatever is open."""
    measured = Measured(clock, pairs=5)
    document, told = repeat(measured, "request_latency.p99 <= 60s", "speedup@1 >= 99")

    assert (document["exit_code"], len(told)) == (1, 1)
    assert document["repeats"]["ended"] == "decided: a rule failed"


def test_it_stops_when_the_time_is_spent(clock: FakeClock) -> None:
    """With what is still missing; nothing is begun that does not fit."""
    measured = Measured(clock, pairs=2)
    document, told = repeat(measured, "request_latency.p99 <= 60s", budget_s=10.5)

    assert (document["exit_code"], document["repeats"]["ended"]) == (3, "the time is spent")
    assert measured.parts == [2, 10]
    assert told[-1].spent_s == 10.0
    assert "more, all of them within" in document["rules"][0]["reason"]


@pytest.mark.parametrize(
    "rule", ["request_latency: 5%", "lossless.divergences <= 0", "speedup@8 >= 1", "request_latency[prose] <= 1s"]
)
def test_it_does_not_measure_what_cannot_help(clock: FakeClock, rule: str) -> None:
    """A baseline, a smoke test, a load or a category that is not there does not come by measuring on."""
    measured = Measured(clock, pairs=5)
    document, _ = repeat(measured, rule, "request_latency.p99 <= 60s")

    assert (document["exit_code"], measured.parts) == (3, [5])
    assert document["repeats"]["ended"] == f"measuring more does not decide {rule!r}"


def test_a_part_that_ends_early_ends_the_gate(clock: FakeClock) -> None:
    """With the verdict of what there is, and why."""
    measured = Measured(clock, pairs=2)
    measured.early, measured.lost_s = "the server is gone", 7.0
    document, told = repeat(measured, "request_latency.p99 <= 60s")

    assert (document["exit_code"], len(told)) == (3, 1)
    assert document["repeats"]["ended"] == "measuring more ended early: the server is gone"
    assert document["repeats"]["spent_s"] == 7.0


def test_a_server_that_has_gone_between_two_looks_ends_the_gate(clock: FakeClock) -> None:
    """As one that goes meanwhile: with the verdict of what there is."""
    measured = Measured(clock, pairs=2)
    measured.gone = True
    document, told = repeat(measured, "request_latency.p99 <= 60s")

    assert (document["exit_code"], len(told)) == (3, 1)
    assert document["repeats"]["ended"] == "measuring more ended early: connection: nobody is there"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"control": {"server": "old:8000"}}, "the control of the last load test was old:8000"),
        ({"profile": "openai", "control": {"name": "m", "server": "https://b"}}, "load test was https://b"),
    ],
)
def test_the_comparison_with_another_server_is_not_replaced(
    clock: FakeClock, told: dict, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By one with the target alone, which the same rule would judge: refused (2), and all stays as it was."""
    Measured(clock, pairs=2)
    load = json.loads(Path("reports/load.json").read_text())
    Path("reports/load.json").write_text(json.dumps(load | {"deployment": load["deployment"] | told}))
    before = Path("reports/load.json").read_bytes()

    assert run_command(["gate", "--repeat-until", "5s", "--rule", "output_token_throughput: 5% of control"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "--control-http and --control-grpc" in err
    assert Path("reports/load.json").read_bytes() == before


def test_a_look_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Of more than one word, too."""
    look = Look(number=2, pairs=4, status="not_measured", share_of_errors=0.25, spent_s=8.0, more=0)
    LoadLines().look(look)
    assert "look 2: not measured after 4 pair(s) and 8 s" in capsys.readouterr().err


def test_a_run_that_has_grown_is_judged_alike_by_whoever_looks(clock: FakeClock) -> None:
    """A later gate without the option has no more to spend than the last look of the one that measured on."""
    measured = Measured(clock, pairs=2)
    measured.go_on(3)
    assert run_command(["gate", "--rule", "request_latency.p50 <= 60s"]) == 0
    plain = json.loads(Path("reports/gate.json").read_text())
    document, _ = repeat(measured, "request_latency.p50 <= 60s")

    assert (plain["look"], plain["share_of_errors"], plain["repeats"]) == (2, 0.25, None)
    assert plain["rules"] == document["rules"]


def test_pairs_with_the_control_are_measured_on(clock: FakeClock) -> None:
    """Where they scatter so much that five would not have shown what is asked."""
    measured = Measured(clock, pairs=3, noise=0.1, acceptance=0.3, draft_s=0.0068)
    document, told = repeat(measured, "output_token_throughput@1: 20% of control")

    assert measured.parts[:2] == [3, 3]
    assert told[0].status == "undecided"
    assert document["status"] in {"pass", "fail"}
    assert document["rules"][0]["numbers"]["independent"] == sum(measured.parts)


def test_a_verdict_that_cannot_be_kept_is_told_all_the_same(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the error, which has the document with its looks."""

    def full(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(outputs, "write_json_atomic", full)
    with pytest.raises(NotKept, match=r"gate\.json cannot be written: No space left") as raised:
        repeat(Measured(clock, pairs=2), "error_rate <= 0")

    assert (raised.value.document["status"], raised.value.document["repeats"]["ended"]) == ("pass", "decided")


def test_a_rule_that_cannot_be_read_is_refused_before_anything_is_measured(clock: FakeClock) -> None:
    """Exit code 2."""
    measured = Measured(clock)
    with pytest.raises(ConfigError):
        repeat(measured, "request_latenzy <= 1s")
    assert not measured.parts


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--repeat-until", "0s"], "no time to measure in"),
        (["--repeat-until", "soon"], "cannot read --repeat-until 'soon'"),
        (["--repeat-until", "-5s"], "cannot read --repeat-until '-5s'"),
        (["--serve"], "are for --repeat-until"),
        (["--http", "127.0.0.1:1"], "are for --repeat-until"),
        (["--repeat-until", "5s", "--http", "127.0.0.1:1"], "--http and --grpc go together"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and the cure."""
    assert run_command(["gate", "--rule", "error_rate <= 0", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("words", [["gate", "--repeat-until", "5s"], ["load"], ["load", "--processes", "2"]])
def test_two_at_once_in_a_folder_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The second one (4): each would replace what the other has measured. Nothing is left of the lock."""
    with alone_in(Path("reports")):
        assert run_command(words) == 4
    assert "another command is just measuring into" in capsys.readouterr().err
    with alone_in(Path("reports")):
        # A gate says that nothing was judged, as whenever it ends before it can.
        assert {path.name for path in Path("reports").iterdir()} <= {"gate.json"}


@pytest.mark.usefixtures("clock")
def test_without_a_server_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was measured, and nothing can be (4)."""
    assert run_command(["gate", "--repeat-until", "5s", "--rule", "error_rate <= 0"]) == 4
    assert "specdeploy" in capsys.readouterr().err
