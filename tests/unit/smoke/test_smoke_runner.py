"""The runner: checks are isolated, selectable and limited in time, and a server that is gone ends the run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pytest

from specdeploy.errors import ConfigError
from specdeploy.smoke import CHECKS, Check, CheckResult, SmokeReport, isolation, run_smoke
from specdeploy.smoke.cures import CURES
from specdeploy.smoke.isolation import apart, interruptible
from specdeploy.smoke.probe import Broken, Undecided
from specdeploy.smoke.runner import CUT_SHORT, NOT_STARTED, Asked, SmokeRun, cut_short, select
from specdeploy.triton.client import HINTS, RequestFailed
from tests.unit.smoke.deployment import DRAFTS, EXPECT, FakeDeployment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.smoke.isolation import Caller
    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.client import TritonClient
    from specdeploy.triton.protocol import Chunk, GenerateRequest


ASK_FOR_TEXT = ("http-equals-grpc", "stream-http", "stream-grpc", "second-door", "short-answers", "parallel-clients")


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def test_no_server_skips_what_it_would_be_asked() -> None:
    """Whether it is ready is known; every other check is skipped with the reason, and the exit code is 4."""
    deployment = FakeDeployment()
    deployment.dead = True

    report = run_smoke(deployment.client, EXPECT)

    first, *others = report.checks
    assert (first.name, first.status, first.hint) == ("server-ready", "fail", CURES["server-ready"])
    assert {check.status for check in others} == {"skip"}
    assert all("connection refused" in check.reason for check in report.checks)
    assert report.exit_code == 4


def test_a_server_that_dies_ends_the_run() -> None:
    """The check that kills the server fails; those after it are skipped; those before keep their outcome."""
    deployment = FakeDeployment()

    def die(rule: str) -> bool:
        deployment.dead = True
        return True

    deployment.silent = die

    report = run_smoke(
        deployment.client,
        EXPECT,
        only=["server-ready", "metadata", "refuses-wrong-type", "refuses-zero-tokens", "refuses-unknown-model"],
    )

    assert [check.status for check in report.checks] == ["pass", "pass", "fail", "skip", "skip"]
    assert report.exit_code == 4
    assert "connection refused" in report.server_lost


def test_a_stuck_server_fails_within_the_time_limit() -> None:
    """A server that is live but never answers fails every check that asks for text, and is not called lost."""
    deployment = FakeDeployment()
    deployment.accepts = {"type", "missing", "zero", "long", "model"}

    def stuck(*_: object, **__: object) -> list[object]:
        raise RequestFailed("timeout", "no answer")

    deployment.answer = stuck  # type: ignore[method-assign, assignment]

    report = run_smoke(
        deployment.client,
        dataclasses.replace(EXPECT, request_timeout_s=0.02),
        sleep=lambda seconds: None,
        only=["server-ready", "models-ready", "metadata", *ASK_FOR_TEXT],
    )

    statuses = {check.name: check.status for check in report.checks}
    assert {name for name, status in statuses.items() if status == "pass"} == {
        "server-ready",
        "models-ready",
        "metadata",
    }
    assert report.count("skip") == 0
    assert report.exit_code == 1


def test_a_check_has_a_time_limit_of_its_own() -> None:
    """A check whose calls are each in time but too many fails, and the time is named."""
    seconds = itertools.count()

    report = run_smoke(
        FakeDeployment().client,
        dataclasses.replace(EXPECT, check_timeout_s=5),
        only=["lossless-greedy"],
        monotonic=lambda: float(next(seconds)),
    )

    (result,) = report.checks
    assert result.status == "fail"
    assert "longer than 5 s" in result.reason


def test_a_crash_is_one_checks_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception nobody foresaw fails its check with the message, and the others run."""

    def crash(_probe: object) -> str:
        raise ZeroDivisionError("oops")

    monkeypatch.setitem(CHECKS, "models-ready", Check(crash))  # type: ignore[arg-type]

    report = run_smoke(FakeDeployment().client, EXPECT, only=["server-ready", "models-ready", "metadata"])

    assert [(check.status) for check in report.checks] == ["pass", "fail", "pass"]
    assert report.checks[1].reason == "ZeroDivisionError: oops"
    assert report.exit_code == 1


def test_a_failed_request_is_told_with_its_label() -> None:
    """A check that ends with a failed request has the label in its details."""
    deployment = FakeDeployment()
    deployment.http_error_as_200 = True

    (result,) = run_smoke(deployment.client, EXPECT, only=["http-equals-grpc"]).checks

    assert result.details == {"label": "protocol"}
    assert result.hint == HINTS["protocol"]
    assert result.hint not in result.reason


def test_outcomes_are_told_as_they_come() -> None:
    """The caller hears of each outcome once, in order."""
    told: list[CheckResult] = []

    report = run_smoke(FakeDeployment().client, EXPECT, only=["metadata", "server-ready"], on_check=told.append)

    assert tuple(told) == report.checks
    assert [check.name for check in told] == ["server-ready", "metadata"]


def test_selection() -> None:
    """Checks are chosen or left out by name, and keep their order."""
    assert select([], []) == tuple(CHECKS)
    assert select(["seeds", "control"], []) == ("control", "seeds")
    assert select([], ["seeds"]) == tuple(name for name in CHECKS if name != "seeds")
    assert select(["seeds"], ["seeds"]) == ()


@pytest.mark.parametrize(("only", "skip"), [(["sneeds"], []), ([], ["sneeds"])])
def test_a_name_that_is_none_is_an_error(only: list[str], skip: list[str]) -> None:
    """A misspelt check is not silently left out."""
    with pytest.raises(ConfigError, match="sneeds") as caught:
        select(only, skip)
    assert caught.value.hint == "Did you mean 'seeds'?"


def test_a_name_like_no_other_lists_the_checks() -> None:
    """Without a near name the hint lists them."""
    with pytest.raises(ConfigError) as caught:
        select(["qqq"], [])
    assert "lossless-greedy" in caught.value.hint


@pytest.mark.parametrize(
    ("statuses", "lost", "code"),
    [
        (["pass", "pass"], "", 0),
        (["pass", "skip"], "", 0),
        (["pass", "fail"], "", 1),
        (["pass", "fail", "skip"], "gone", 4),
        (["skip"], "", 3),
        ([], "", 3),
    ],
)
def test_exit_codes(statuses: list[str], lost: str, code: int) -> None:
    """A server that is lost is 4, a failure 1, and nothing checked at all is no pass but 3."""
    checks = tuple(
        CheckResult(name=str(index), status=status, duration_s=0.0)  # type: ignore[arg-type]
        for index, status in enumerate(statuses)
    )

    assert SmokeReport(checks=checks, server_lost=lost).exit_code == code


def test_the_document_is_plain_data() -> None:
    """The report can be written as JSON, with its version, its counts, and everything that was seen."""
    deployment = FakeDeployment()
    deployment.not_ready = {"tensorrt_llm"}
    report = run_smoke(deployment.client, EXPECT, only=["server-ready", "models-ready"])

    document = json.loads(json.dumps(report.as_dict()))

    assert (document["schema_version"], document["kind"], document["passed"]) == ("1.1", "smoke", False)
    assert document["counts"] == {"pass": 1, "fail": 1, "undecided": 0, "skip": 0}
    assert document["checks"][1]["details"] == {"not_ready": ["tensorrt_llm"]}


def test_where_the_number_of_drafts_is_fixed_nothing_is_compared_with_a_control() -> None:
    """What needs the target alone is skipped and says why; everything else runs."""
    deployment = FakeDeployment()
    expected = dataclasses.replace(EXPECT, draft_model=None, fixed_by="medusa")

    compared = {"control", "lossless-greedy", "lossless-batch", "lossless-sampled"}
    report = run_smoke(deployment.client, expected, only=[*compared, *ASK_FOR_TEXT], sleep=lambda seconds: None)

    skipped = {check.name: check.reason for check in report.checks if check.status == "skip"}
    assert skipped.keys() == compared
    assert all("medusa drafts always as it was built to" in reason for reason in skipped.values())
    assert report.count("fail") == 0
    assert report.exit_code == 0


def test_no_more_is_asked_for_than_the_engine_was_built_for() -> None:
    """An engine for three drafts is not compared at seven."""
    deployment = FakeDeployment()

    report = run_smoke(
        deployment.client,
        dataclasses.replace(EXPECT, max_draft_tokens=DRAFTS),
        only=["lossless-greedy"],
        sleep=lambda seconds: None,
    )

    assert report.checks[0].status == "pass"
    assert report.checks[0].reason.endswith("drafts of 1, 3")


def taking(clock: Clock, seconds: float) -> Asked:
    """Return a question that takes that long."""

    def run(probe: Probe) -> str:
        clock.now += seconds
        return f"{probe.timeout_s:g} s were left for a call"

    return Asked(run=run)


def test_a_run_with_a_budget_ends_within_it() -> None:
    """No call may take longer than what is left of the run; a check whose turn comes too late is undecided."""
    clock = Clock()
    asked = {name: taking(clock, 1.5) for name in ("server-ready", "models-ready")}
    asked["metadata"] = taking(clock, 1.0)
    expect = dataclasses.replace(EXPECT, request_timeout_s=60.0, check_timeout_s=60.0)

    run = SmokeRun(FakeDeployment().client, expect, asked=asked, budget_s=4.0, monotonic=clock)
    report = run.of(["server-ready", "models-ready", "metadata", "seeds"])

    assert [(check.status, check.reason) for check in report.checks] == [
        ("pass", "2.5 s were left for a call"),
        ("pass", "1 s were left for a call"),
        ("undecided", "the check took longer than 1 s"),
        ("undecided", "the run's 4 s were over before its turn came"),
    ]
    assert report.exit_code == 3


def test_a_failure_within_the_budget_is_a_failure() -> None:
    """Only what runs out of the run's time is undecided."""

    def fail(_probe: Probe) -> str:
        raise Broken("wrong")

    run = SmokeRun(FakeDeployment().client, EXPECT, asked={"metadata": Asked(run=fail)}, budget_s=4.0)
    report = run.of(["server-ready", "metadata"])

    assert [check.status for check in report.checks] == ["pass", "fail"]
    assert report.exit_code == 1


def test_a_question_may_have_a_limit_of_its_own() -> None:
    """Many recorded answers take longer than a check may."""
    clock = Clock()
    patient = dataclasses.replace(taking(clock, 15.0), limit_s=20.0)

    run = SmokeRun(
        FakeDeployment().client, EXPECT, asked={"metadata": patient, "seeds": taking(clock, 15.0)}, monotonic=clock
    )
    report = run.of(["metadata", "seeds"])

    assert [check.status for check in report.checks] == ["pass", "fail"]


def test_what_did_not_pass_says_what_to_do_next() -> None:
    """A failure and an undecided check carry the cure; a pass and a skip need none."""

    def undecided(_probe: Probe) -> str:
        raise Undecided("too few samples", {"samples": 3})

    deployment = FakeDeployment()
    deployment.not_ready = {"tensorrt_llm"}
    run = SmokeRun(deployment.client, EXPECT, asked={"seeds": Asked(run=undecided)})
    report = run.of(["server-ready", "models-ready", "seeds"])

    assert [check.hint for check in report.checks] == ["", CURES["models-ready"], CURES["seeds"]]
    assert report.checks[2].details == {"samples": 3}
    assert report.exit_code == 1


def test_every_check_has_its_cure() -> None:
    """Nobody is left alone with a failure."""
    assert set(CHECKS) == set(CURES)


def test_a_check_that_never_ends_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client is closed, which ends what it waits for, and the checks after it run."""
    monkeypatch.setattr(isolation, "GRACE_S", 0.05)
    deployment, released = FakeDeployment(), threading.Event()

    def stuck(probe: Probe) -> str:
        monkeypatch.setattr(probe.client, "close", released.set)
        assert released.wait(60)
        return "released"

    expect = dataclasses.replace(EXPECT, check_timeout_s=0.05)
    run = SmokeRun(deployment.client, expect, asked={"models-ready": Asked(run=stuck)}, call=apart)
    report = run.of(["server-ready", "models-ready"])
    again = SmokeRun(deployment.client, EXPECT, call=apart).of(["metadata"])

    assert [check.status for check in (*report.checks, *again.checks)] == ["pass", "fail", "pass"]
    assert "does not end" in report.checks[1].reason
    assert released.wait(60)


def test_a_server_that_hangs_below_every_deadline_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a look at the server that never returns ends the run with 4, and does not hold it up."""
    monkeypatch.setattr(isolation, "GRACE_S", 0.05)
    hang = threading.Event()

    class Hanging:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def server(self, *, timeout_s: float) -> None:
            assert hang.wait(60)

    try:
        run = SmokeRun(Hanging, EXPECT, budget_s=0.05, call=apart)  # type: ignore[arg-type]
        report = run.of(["server-ready"])
    finally:
        hang.set()

    assert [check.status for check in report.checks] == ["fail"]
    assert report.exit_code == 4


def test_a_call_apart_hands_over_what_comes_of_it() -> None:
    """Values and exceptions are those of the work, which has a thread of its own."""

    def fail() -> None:
        raise KeyError("gone")

    assert apart(threading.get_ident, 60.0) != threading.get_ident()
    with pytest.raises(KeyError, match="gone"):
        apart(fail, 60.0)


def test_signals_act_where_a_call_waits_and_nowhere_else() -> None:
    """The first ends the wait, although the work goes on; whatever follows is not disturbed by a second."""
    released, kept = threading.Event(), []

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        assert released.wait(60)

    def keep(call: Caller) -> None:
        try:
            call(work, 60.0)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
            kept.append("whole")
            raise

    with pytest.raises(KeyboardInterrupt), interruptible() as call:
        keep(call)
    released.set()

    assert kept == ["whole"]


def test_a_signal_never_looks_like_a_failing_check() -> None:
    """However many come, the run ends with the signal's own exception."""

    def interrupted(_probe: Probe) -> str:
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGINT)
        return "done"

    done: list[CheckResult] = []
    asked = {"metadata": Asked(run=interrupted)}
    with pytest.raises(KeyboardInterrupt), interruptible() as call:
        SmokeRun(FakeDeployment().client, EXPECT, asked=asked, call=call).of(["metadata", "seeds"], done.append)

    assert done == []


def hanging(deployment: FakeDeployment, *, longer_than: int) -> TritonClient:
    """Return a client whose requests over gRPC for more tokens than that are never answered."""
    client = deployment.client()
    answered = client.generate_grpc

    def generate(request: GenerateRequest, **options: Any) -> Chunk:
        if request.max_tokens > longer_than:
            raise RequestFailed("timeout", "no further response arrived before the deadline")
        return answered(request, **options)

    client.generate_grpc = generate  # type: ignore[method-assign]
    return client


@pytest.mark.parametrize(
    ("longer_than", "statuses", "code"),
    [(0, ["fail", "fail", "fail", "skip", "skip"], 4), (1, ["fail"] * 5, 1)],
)
def test_a_server_that_takes_requests_and_answers_none_is_lost(
    longer_than: int, statuses: list[str], code: int
) -> None:
    """After three time-outs a question for one token tells whether the rest would only wait, too."""
    deployment = FakeDeployment()
    names = ["control", "stop-word", "bad-words", "end-id", "seeds"]
    asked = {name: Asked(run=lambda probe: probe.greedy().text) for name in names}

    run = SmokeRun(lambda: hanging(deployment, longer_than=longer_than), EXPECT, asked=asked)
    report = run.of(names)

    assert [check.status for check in report.checks] == statuses
    assert report.exit_code == code
    assert ("a question for one token over gRPC had no answer" in report.server_lost) == (code == 4)


def test_what_a_server_sends_never_ends_the_run_without_a_report() -> None:
    """An answer that nobody foresaw is a server that cannot be asked, not a bug."""

    class Odd:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def server(self, *, timeout_s: float) -> None:
            raise RecursionError("maximum recursion depth exceeded")

    report = SmokeRun(Odd, EXPECT).of(["server-ready"])  # type: ignore[arg-type]

    assert report.exit_code == 4
    assert "RecursionError" in report.server_lost


def test_a_server_that_is_too_slow_for_the_budget_is_called_so() -> None:
    """Nobody looks for a server that is there, only slow; a part of the budget may have gone for asking what it is."""

    class Slow:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def server(self, *, timeout_s: float) -> None:
            limits.append(timeout_s)
            raise RequestFailed("timeout", "h:1 did not answer in time")

    limits: list[float] = []
    report = SmokeRun(Slow, EXPECT, budget_s=7.0, monotonic=Clock()).of(["server-ready"])  # type: ignore[arg-type]
    SmokeRun(Slow, EXPECT, budget_s=7.0, spent_s=6.0, monotonic=Clock()).of(["server-ready"])  # type: ignore[arg-type]

    assert limits == pytest.approx([2.8, 1.0])
    assert "too slow for --quick, which has 7 s for all" in report.server_lost


def test_a_run_that_a_signal_ended_is_marked() -> None:
    """What ended is kept, what was running is undecided, the rest skipped; it is no pass, whatever had passed."""
    done = (CheckResult(name="server-ready", status="pass", duration_s=0.1),)

    report = cut_short(["server-ready", "models-ready", "metadata"], done, exit_code=130)

    assert [(check.status, check.reason) for check in report.checks] == [
        ("pass", ""),
        ("undecided", CUT_SHORT),
        ("skip", NOT_STARTED),
    ]
    document = report.as_dict()
    assert (document["interrupted"], document["passed"], document["exit_code"]) == (True, False, 130)


def test_quick_runs_what_a_readiness_gate_needs() -> None:
    """Checks are marked for it; where others are named it is just those, and what is left out is not run."""
    quick = [name for name, check in CHECKS.items() if check.quick]

    assert list(select([], [], quick=True)) == quick
    assert select(["seeds"], [], quick=True) == ("seeds",)
    assert set(select([], ["speculation-on"], quick=True)) == {*quick} - {"speculation-on"}


def test_whatever_a_check_saw_can_be_written() -> None:
    """Numbers of numpy, what is no number, halves of characters and odd keys do not lose the report."""
    details = {"p": math.nan, "n": np.int64(3), "f": np.float64(0.5), "t": "\ud800", 7: (1, {"x"}), "o": Path("a")}
    check = CheckResult(name="seeds", status="fail", duration_s=0.1, reason="\udc00", details=details)  # type: ignore[arg-type]

    text = json.dumps(SmokeReport(checks=(check,)).as_dict(), allow_nan=False, ensure_ascii=False)
    kept = json.loads(text.encode())["checks"][0]

    assert kept["reason"] == "\\udc00"
    assert kept["details"] == {"p": None, "n": 3, "f": 0.5, "t": "\\ud800", "7": [1, ["x"]], "o": "a"}


def test_a_pass_may_bring_details() -> None:
    """What a passed check measured is kept beside its line."""

    class Line(str):
        __slots__ = ()
        details: Mapping[str, object] = {"compared": 12}

    run = SmokeRun(FakeDeployment().client, EXPECT, asked={"seeds": Asked(run=lambda probe: Line("12 answers"))})
    (check,) = run.of(["seeds"]).checks

    assert (check.status, check.reason, check.details) == ("pass", "12 answers", {"compared": 12})
