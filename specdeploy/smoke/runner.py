"""Runs the checks one after another; each is on its own, and a server that is gone ends the run."""

from __future__ import annotations

import dataclasses
import difflib
import threading
import time
from typing import TYPE_CHECKING, TypeAlias

from specdeploy.errors import ConfigError, SpecdeployError
from specdeploy.smoke import capabilities
from specdeploy.smoke.checks import CHECKS
from specdeploy.smoke.cures import CURES
from specdeploy.smoke.isolation import directly
from specdeploy.smoke.probe import Broken, NotApplicable, Probe, Undecided
from specdeploy.smoke.report import CheckResult, SmokeReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from specdeploy.smoke.expectations import Expectations
    from specdeploy.smoke.isolation import Caller
    from specdeploy.smoke.report import Status
    from specdeploy.triton.client import TritonClient
    from specdeploy.triton.protocol import Chunk, GenerateRequest

ClientFactory: TypeAlias = "Callable[[], TritonClient]"
Question: TypeAlias = "Callable[[Probe], str]"

_LIVE_TIMEOUT_S = 5.0
# Of a run's budget, so that a server which is gone leaves something of it; as much as each of its requests has, so that
# a slow one is not taken for gone, and at least this much.
_LIVE_SHARE = 0.4
_LEAST_LIVE_TIMEOUT_S = 0.5
# So many checks that end with a time-out make it likely that all that are left do; a question for one token then tells.
_PATIENCE = 3
_TRIAL_TIMEOUT_S = 10.0
NOT_STARTED = "the run was interrupted before"
# A call whose deadline is the end of the run may give up a little before it.
_TIMEOUT_SLACK_S = 0.25
_WITHOUT_BUDGET = "Run it again without --quick, or on a machine that is less busy."
_TIMEOUT = {"label": "timeout"}
#: The check whose question is answered, by no, when no server can be reached at all.
_READY = "server-ready"
CUT_SHORT = "the run was interrupted while it ran"


def run_smoke(
    client_factory: ClientFactory,
    expectations: Expectations,
    *,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    quick: bool = False,
    on_check: Callable[[CheckResult], None] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> SmokeReport:
    """Run the selected checks in order and return what they found; a failing check never raises.

    When the server no longer answers at all, or several checks ended with a time-out and a short question for one token
    does, too, the checks that are left are skipped with the reason.

    Args:
        client_factory: Makes a client; every check gets one of its own, and it is closed.

        expectations: What the deployment promises.

        only: Names of the checks to run; empty runs all.

        skip: Names of the checks to leave out.

        quick: Run only those that a readiness gate needs, unless ``only`` names others.

        on_check: Called with each outcome as soon as it is known.

        monotonic: The clock of durations and time limits.

        sleep: Waits between two looks at a counter.

    Raises:
        ConfigError: ``only`` or ``skip`` names no check.
    """
    run = SmokeRun(client_factory, expectations, monotonic=monotonic, sleep=sleep)
    return run.of(select(only, skip, quick=quick), on_check)


def select(only: Iterable[str], skip: Iterable[str], *, quick: bool = False) -> tuple[str, ...]:
    """Return the names of the checks to run, in their own order.

    Raises:
        ConfigError: A name is not that of a check.
    """
    wanted, unwanted = set(only), set(skip)
    unknown = sorted((wanted | unwanted) - CHECKS.keys())
    for name in unknown:
        near = difflib.get_close_matches(name, CHECKS, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"The checks are {', '.join(CHECKS)}."
        raise ConfigError(f"there is no smoke check {name!r}", hint=hint)
    if quick and not wanted:
        wanted = {name for name, check in CHECKS.items() if check.quick}
    return tuple(name for name in CHECKS if (not wanted or name in wanted) and name not in unwanted)


@dataclasses.dataclass(frozen=True)
class _Found:
    """What came of a check: its status and reason, data, and a cure that is nearer than that of the check."""

    status: Status
    reason: str
    details: Mapping[str, object] = dataclasses.field(default_factory=dict)
    hint: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked instead of what the registry asks: a check about something the caller has, as recorded answers.

    Args:
        run: As in ``Check``.

        limit_s: What it may take (seconds); None is the limit of every check.
    """

    run: Question
    limit_s: float | None = None


class SmokeRun:
    """One run against one deployment.

    Args:
        client_factory: Makes a client; every check gets one of its own, and it is closed.

        expectations: What the deployment promises.

        asked: Check -> what to ask instead of what the registry asks.

        budget_s: What the whole run may take (seconds); a check for which nothing is left is undecided. None is no
            limit but those of each check.

        spent_s: What of that is gone already (seconds).

        call: How a check is called.

        monotonic: The clock of durations and time limits.

        sleep: Waits between two looks at a counter.
    """

    def __init__(
        self,
        client_factory: ClientFactory,
        expectations: Expectations,
        *,
        asked: Mapping[str, Asked] | None = None,
        budget_s: float | None = None,
        spent_s: float = 0.0,
        call: Caller = directly,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client_factory = client_factory
        self._expect = expectations
        self._asked = dict(asked or {})
        self._budget_s = budget_s
        self._spent_s = spent_s
        self._call = call
        self._monotonic = monotonic
        self._sleep = sleep
        self._ends_at: float | None = None

    def of(self, selected: Iterable[str], on_check: Callable[[CheckResult], None] | None = None) -> SmokeReport:
        """Run these checks in this order; see :func:`run_smoke`. A signal's exception ends it and is not kept."""
        tell = on_check or _ignore
        self._ends_at = None if self._budget_s is None else self._monotonic() + self._budget_s - self._spent_s
        results: list[CheckResult] = []
        lost = self._lost()
        late = 0
        for name in selected:
            reason = lost or self._beyond(name)
            if reason:
                result = _unreached(name, reason) if lost else _skipped(name, reason)
            else:
                result = self._one(name)
                lost = self._lost() if result.status == "fail" else ""
                late += self._is_late(result)
                if late >= _PATIENCE and not lost:
                    lost, late = self._stuck(late), 0
            results.append(result)
            tell(result)
        return SmokeReport(checks=tuple(results), server_lost=lost)

    def _one(self, name: str) -> CheckResult:
        started = self._monotonic()
        found = self._outcome(self._asked.get(name) or Asked(run=CHECKS[name].run))
        return CheckResult(
            name=name,
            status=found.status,
            duration_s=self._monotonic() - started,
            reason=found.reason,
            hint=(found.hint or CURES.get(name, "")) if found.status in {"fail", "undecided"} else "",
            details=found.details,
        )

    def _outcome(self, asked: Asked) -> _Found:
        limit_s = self._within_budget(asked.limit_s or self._expect.check_timeout_s)
        if limit_s <= 0:
            reason = f"the run's {self._budget_s:g} s were over before its turn came"
            return _Found("undecided", reason, hint=_WITHOUT_BUDGET)
        try:
            said = self._ask(asked.run, limit_s)
            found = _Found("pass", str(said), getattr(said, "details", {}))
        except NotApplicable as error:
            found = _Found("skip", str(error))
        except Undecided as error:
            found = _Found("undecided", str(error), error.details)
        except Broken as error:
            found = _Found(self._blame(), str(error), error.details)
        except SpecdeployError as error:
            found = _Found(self._blame(), error.message, _label(error), hint=error.hint)
        except Exception as error:  # noqa: BLE001 - one check's crash is that check's failure, and the others still run
            found = _Found("fail", _told(error))
        return found

    def _ask(self, question: Question, limit_s: float) -> str:
        expect = dataclasses.replace(self._expect, check_timeout_s=limit_s)
        client, over = self._client_factory(), threading.Event()

        def ask() -> str:
            try:
                with client:
                    return question(Probe(client, expect, monotonic=self._monotonic, sleep=self._sleep))
            finally:
                over.set()

        try:
            return self._call(ask, limit_s)
        finally:
            if not over.is_set():
                # It was left behind. What it waits for over gRPC ends now; disconnecting may itself take a while.
                threading.Thread(target=client.close, name="smoke-close", daemon=True).start()

    def _within_budget(self, limit_s: float) -> float:
        return limit_s if self._ends_at is None else round(min(limit_s, self._ends_at - self._monotonic()), 2)

    def _blame(self) -> Status:
        """What fails when the whole run's time is over might have passed with more of it."""
        over = self._ends_at is not None and self._monotonic() >= self._ends_at - _TIMEOUT_SLACK_S
        return "undecided" if over else "fail"

    def _beyond(self, name: str) -> str:
        """Say what the server lacks for a check; nothing when it has all."""
        missing = CHECKS[name].needs - self._expect.capabilities
        return "; ".join(capabilities.MISSING[need] for need in sorted(missing))

    def _lost(self) -> str:
        """Say why the server cannot be reached; nothing when it can."""
        share_s = _LIVE_TIMEOUT_S if self._budget_s is None else self._budget_s * _LIVE_SHARE
        limit_s = max(self._within_budget(min(share_s, _LIVE_TIMEOUT_S)), _LEAST_LIVE_TIMEOUT_S)

        def look() -> None:
            with self._client_factory() as client:
                client.server(timeout_s=limit_s)

        try:
            self._call(look, limit_s)
        except SpecdeployError as error:
            if _label(error) == _TIMEOUT and self._budget_s is not None:
                return (
                    f"the server cannot be reached: it did not answer within {limit_s:g} s, so it hangs or is too slow "
                    f"for --quick, which has {self._budget_s:g} s for all"
                )
            return f"the server cannot be reached: {error.message}"
        except Broken as error:
            return f"the server cannot be reached: {error}"
        except Exception as error:  # noqa: BLE001 - whatever a server sends, it must not end the run without a result
            return f"the server cannot be reached: {_told(error)}"
        return ""

    def _is_late(self, result: CheckResult) -> bool:
        """Whether a check ended because an answer did not come in time, whatever it made of that."""
        timed_out = result.details.get("label") == "timeout" or result.duration_s >= self._expect.request_timeout_s
        return timed_out and result.status in {"fail", "undecided"}

    def _stuck(self, late: int) -> str:
        """Say which way to the server no longer brings an answer, though it is live; nothing when each does."""
        limit_s = self._within_budget(min(_TRIAL_TIMEOUT_S, self._expect.request_timeout_s))
        if limit_s <= 0:
            return ""
        ways = {"over HTTP": Probe.whole_http}
        if capabilities.GRPC in self._expect.capabilities:
            ways = {"over gRPC": Probe.whole, **ways}
        for way, whole in ways.items():
            if not self._answers(whole, limit_s):
                return (
                    f"the server takes requests and does not answer them: {late} checks ended with a time-out, and a "
                    f"question for one token {way} had no answer within {limit_s:g} s"
                )
        return ""

    def _answers(self, whole: Callable[[Probe, GenerateRequest], Chunk], limit_s: float) -> bool:
        """Whether anything is said to a question for one token; what is said is judged by the checks."""
        try:
            self._ask(lambda probe: whole(probe, probe.request(max_tokens=1)).text, limit_s)
        except Broken:
            return False
        except SpecdeployError as error:
            return _label(error) != _TIMEOUT
        except Exception:  # noqa: BLE001 - an answer of another kind is an answer
            return True
        return True


def unasked(selected: Iterable[str], reason: str) -> SmokeReport:
    """Return the report of a run that never came to ask the server.

    Args:
        selected: What was to run.

        reason: Why it did not.
    """
    return SmokeReport(checks=tuple(_unreached(name, reason) for name in selected), server_lost=reason)


def not_begun(selected: Iterable[str], *, exit_code: int) -> SmokeReport:
    """Return the report of a run that a signal ended before it began.

    Args:
        selected: What was to run.

        exit_code: What the process ends with.
    """
    return SmokeReport(checks=tuple(_skipped(name, NOT_STARTED) for name in selected), interrupted=exit_code)


def cut_short(selected: Iterable[str], done: Iterable[CheckResult], *, exit_code: int) -> SmokeReport:
    """Return the report of a run that a signal ended.

    Args:
        selected: What was to run.

        done: What had ended, in the same order.

        exit_code: What the process ends with.
    """
    results = tuple(done)
    left = list(selected)[len(results) :]
    rest = [
        CheckResult(
            name=name,
            status="undecided" if index == 0 else "skip",
            duration_s=0.0,
            reason=CUT_SHORT if index == 0 else NOT_STARTED,
        )
        for index, name in enumerate(left)
    ]
    return SmokeReport(checks=(*results, *rest), interrupted=exit_code)


def _unreached(name: str, reason: str) -> CheckResult:
    """Return what is known of a check when the server cannot be reached: nothing, unless that is what it asks."""
    if name != _READY:
        return _skipped(name, reason)
    return CheckResult(name=name, status="fail", duration_s=0.0, reason=reason, hint=CURES[name])


def _skipped(name: str, reason: str) -> CheckResult:
    return CheckResult(name=name, status="skip", duration_s=0.0, reason=reason)


def _label(error: SpecdeployError) -> dict[str, object]:
    label = getattr(error, "label", None)
    return {} if label is None else {"label": label}


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _ignore(_result: CheckResult) -> None:
    pass
