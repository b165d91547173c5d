"""The gate's selftest: what two runs say of the gate, and what is refused since it could say nothing."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING

import pytest

from specdeploy.bench.driver import INTERRUPTED_BY_USER
from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.records import LoadRun
from specdeploy.bench.schedule import LoadSettings
from specdeploy.cli import run as run_command
from specdeploy.cli._selftest import command
from specdeploy.errors import ConfigError
from specdeploy.gate.rules import parse_rules
from specdeploy.gate.selftest import DEFAULT_RULE, DEFAULT_SLOWDOWN, Trial, conclude, require_sense, worse_by
from specdeploy.gate.verdict import evaluate
from specdeploy.pipeline import selftest as pipeline
from specdeploy.pipeline.loading import plan_of
from tests.unit.bench.simulated import CONTEXT, Simulator

if TYPE_CHECKING:
    from pathlib import Path

RULE = "output_token_throughput: 5% of control"
CONFIG = """\
name: tiny
target: {checkpoint: target}
draft: {checkpoint: draft}
"""
SAME = LoadSettings(own_control=False)


@functools.cache
def measured(slowdown: float = 0.0, *, noise: float = 0.01, **ended) -> dict:
    """The document of a run in which the candidate's answers took longer by a share."""
    run, plan = Simulator(control_drafts=True, noise=noise).run(SAME)
    records = [record for record in run.records if record.arm == "control"]
    records += [slower(record, slowdown) for record in run.records if record.arm != "control"]
    return build_load_report(LoadRun(records=tuple(records), duration_s=run.duration_s, **ended), plan, CONTEXT)


def slower(record, slowdown: float):
    """The same answer, later; one after the other, as in a closed loop."""
    grown = 1 + slowdown
    moments = {name: getattr(record, name) * grown for name in ("intended_s", "sent_s", "first_s", "last_s", "ended_s")}
    return dataclasses.replace(record, **moments, chunk_s=tuple(at * grown for at in record.chunk_s))


def trial(slowdown: float, load: dict, *, grew: float | None = None, rule: str = RULE) -> Trial:
    """A run, judged."""
    (verdict,) = evaluate(parse_rules([rule]), load).rules
    stopped = load["stop_reason"] if load["partial"] else ""
    return Trial(slowdown=slowdown, verdict=verdict, grew=slowdown if grew is None else grew, stopped=stopped)


def test_how_much_worse_a_slowdown_makes_a_metric() -> None:
    """Times grow with it; of a throughput it is less; acceptance and errors do not know of it."""
    assert worse_by("request_latency", 0.15) == worse_by("inter_token_latency", 0.15) == 0.15
    assert worse_by("output_token_throughput", 0.15) == pytest.approx(0.1304, abs=1e-4)
    assert worse_by("spec_decode_acceptance_length", 0.15) is None


@pytest.mark.parametrize(
    ("rule", "changes", "said"),
    [
        ("output_token_throughput: 5%", {}, "compares two arms of one run"),
        ("error_rate <= 0", {}, "compares two arms of one run"),
        ("spec_decode_acceptance_length: 5% of control", {}, "do not change spec_decode_acceptance_length"),
        (
            "output_token_throughput: 14% of control",
            {},
            "15 % longer make output_token_throughput worse by 13 %, no more than",
        ),
        ("request_latency: 15% of control", {}, "no more than the 15 % that are allowed"),
        (RULE, {"pairs": 4}, "load.pairs is 4"),
        (RULE, {"open_loop": True}, "in an open loop throughput follows the rate"),
    ],
)
def test_what_could_show_nothing_is_refused(rule: str, changes: dict, said: str) -> None:
    """Before anything is measured: the rule, a slowdown that it allows, too few pairs."""
    with pytest.raises(ConfigError) as refused:
        require_sense(parse_rules([rule])[0], 0.15, **{"pairs": 5, "open_loop": False, **changes})

    assert said in refused.value.message
    assert refused.value.hint


def test_a_gate_that_fires_when_it_should_passes() -> None:
    """And only then."""
    outcome = conclude(trial(0.0, measured()), trial(0.15, measured(0.15)), pairs=5)

    assert (outcome.status, outcome.exit_code) == ("pass", 0)
    assert outcome.reason == "it fired at answers slower by 15 %, and not at the same deployment"


def test_a_false_alarm_fails() -> None:
    """Whatever the slowdown did."""
    outcome = conclude(trial(0.0, measured(0.2)), trial(0.15, measured(0.15)), pairs=5)

    assert (outcome.status, outcome.exit_code) == ("fail", 1)
    assert "false alarm" in outcome.reason


def test_a_gate_that_does_not_see_the_slowdown_fails() -> None:
    """Where the answers did take so much longer."""
    outcome = conclude(trial(0.0, measured()), trial(0.15, measured()), pairs=5)

    assert (outcome.status, outcome.exit_code) == ("fail", 1)
    assert "passed answers slower by 15 %" in outcome.reason


def test_a_slowdown_that_was_none_says_nothing_of_the_gate() -> None:
    """A server that waits for what is held back answers the others faster: 4 % longer is what the rule allows."""
    outcome = conclude(trial(0.0, measured()), trial(0.15, measured(), grew=0.04), pairs=5)

    assert (outcome.status, outcome.exit_code) == ("undecided", 3)
    assert "took 4 % longer" in outcome.reason
    assert "fewer in flight" in outcome.hint


@pytest.mark.parametrize("at", ["same", "slowed"])
def test_runs_that_scatter_too_much_decide_nothing(at: str) -> None:
    """The hint names the pairs that may."""
    noisy = {"noise": 0.5}
    sound, slowed = (
        measured(share, **(noisy if at == name else {})) for name, share in (("same", 0), ("slowed", 0.15))
    )
    outcome = conclude(trial(0.0, sound), trial(0.15, slowed), pairs=5)

    assert (outcome.status, outcome.exit_code) == ("undecided", 3)
    assert "load.pairs=10" in outcome.hint


def test_a_run_that_ended_early_decides_nothing() -> None:
    """And says why it did; the other one was not begun."""
    outcome = conclude(trial(0.0, measured(stop_reason="the server is gone")), None, pairs=5)

    assert (outcome.status, outcome.reason) == ("undecided", "a run ended early: the server is gone")


# The command


class Measured:
    """In place of a measurement: what it would have kept is made up; the second one has the slowdown."""

    seen = 0.0

    def __init__(self, loaded, connect_all, *_rest) -> None:
        self._loaded = loaded
        self._held = connect_all().speculation.wire.slowdown

    def once(self, plan, _findings) -> dict:
        """Return a document, and leave it where the configuration says."""
        assert not plan.settings.own_control
        document = measured(self.seen if self._held else 0.0)
        folder = self._loaded.base_dir / self._loaded.config.report.path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "load.json").write_text(json.dumps(document))
        return document


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment with results of earlier tests, and no server: what is measured is made up."""
    from specdeploy.pipeline.measurement import Line

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "Measurement", Measured)
    monkeypatch.setattr(pipeline, "line_to", lambda *_: Line(None, None))
    monkeypatch.setattr(pipeline, "_time_of_one", lambda *_: 0.5)
    (tmp_path / "specdeploy.yaml").write_text(CONFIG)
    (tmp_path / "reports").mkdir()
    for name in ("load.json", "gate.json", "load_records.jsonl"):
        (tmp_path / "reports" / name).write_text("earlier")
    return tmp_path


COMMAND = ("gate", "selftest", "--http", "127.0.0.1:9", "--grpc", "127.0.0.1:9")


@pytest.mark.parametrize(
    ("seen", "exit_code", "words"), [(0.15, 0, "PASS (exit code 0): it fired"), (0.0, 1, "FAIL (exit code 1)")]
)
def test_the_command_tells_and_keeps_what_came_of_it(
    seen: float, exit_code: int, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """In a document of its own; what load tests and gates left is as it was."""
    monkeypatch.setattr(Measured, "seen", seen)
    # Answers that are made up take no time: how long they took is not known.
    assert run_command([*COMMAND]) == exit_code
    told = capsys.readouterr()
    document = json.loads((folder / "reports" / "gate-selftest.json").read_text())

    assert words in told.out
    assert "two runs of 62 requests, about 62 s in all" in told.err
    assert (document["kind"], document["exit_code"], document["slowdown"]) == ("gate-selftest", exit_code, 0.15)
    assert [run["verdict"]["status"] for run in document["runs"]] == ["pass", "fail" if seen else "pass"]
    assert all((folder / "reports" / name).read_text() == "earlier" for name in ("load.json", "gate.json"))
    kept = sorted(path.relative_to(folder / "reports") for path in (folder / "reports").rglob("gate-selftest/*/*"))
    assert [str(path) for path in kept] == ["gate-selftest/same/load.json", "gate-selftest/slowed/load.json"]


def test_the_command_speaks_json(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The document that it keeps."""
    monkeypatch.setattr(Measured, "seen", 0.3)
    assert run_command([*COMMAND, "--json", "--slowdown", "30%", "--rule", "request_latency: 10% of control"]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((folder / "reports" / "gate-selftest.json").read_text())
    assert shown["rule"] == "request_latency: 10% of control"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--slowdown", "15"), "no percentage"),
        (("--slowdown", "-5%"), "no percentage"),
        (("--slowdown", "nan%"), "no percentage"),
        (("--slowdown", "5%"), "no more than the 5 % that are allowed"),
        (("--rule", "speedup >= 1"), "compares two arms of one run"),
        (("--rule", "request_latency"), "gate rule"),
        (("--set", "load.pairs=2"), "load.pairs is 2"),
    ],
)
def test_the_command_refuses_what_could_show_nothing(options: tuple[str, ...], said: str, folder: Path, capsys) -> None:
    """With exit code 2; nothing is measured or kept."""
    assert run_command([*COMMAND, *options]) == 2
    assert said in capsys.readouterr().err
    assert not list((folder / "reports").glob("gate-selftest*"))


def test_what_could_not_be_kept_is_not_measured(folder: Path, capsys) -> None:
    """A file where the folder of the runs would be (2)."""
    (folder / "reports" / "gate-selftest").write_text("")

    assert run_command([*COMMAND]) == 2
    assert "gate-selftest" in capsys.readouterr().err


def test_a_selftest_that_broke_off_leaves_no_older_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does one that is interrupted (130)."""
    monkeypatch.setattr(Measured, "seen", 0.15)
    assert run_command([*COMMAND]) == 0
    interrupted = {**measured(), "partial": True, "stop_reason": INTERRUPTED_BY_USER}
    monkeypatch.setattr(Measured, "once", lambda *_: interrupted)

    assert run_command([*COMMAND]) == 130
    assert not (folder / "reports" / "gate-selftest.json").exists()


def test_the_command_has_the_defaults_of_the_gate() -> None:
    """They stand there once more, so that --help need not import the gate."""
    defaults = {parameter.name: parameter.default for parameter in command.params}

    assert defaults["rule"] == DEFAULT_RULE
    assert defaults["slowdown"] == f"{DEFAULT_SLOWDOWN:.0%}"


def test_how_long_a_run_takes(folder: Path) -> None:
    """By its time where the plan has one, and by its requests where it has not."""
    from specdeploy.config.load import load_config

    def estimate(**overrides: str) -> float:
        wanted = {f"load.{key}": value for key, value in overrides.items()}
        return pipeline.estimated_s(plan_of(load_config(folder / "specdeploy.yaml", wanted, {})), 0.5)

    assert estimate() == pytest.approx(0.5 * 62)
    assert estimate(concurrency="[2]", warmup_requests="0") == pytest.approx(0.5 * 30)
    assert estimate(duration_s="3", warmup_requests="0") == pytest.approx(10 * 3.5)
