"""How the events of the long stages look on a terminal while they happen."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import click

from specdeploy.bench.pace import RecentRequests
from specdeploy.cli._streams import tell
from specdeploy.engine.events import CacheHit, Published, StepKept, StepOutput, StepStarted, Waiting
from specdeploy.report.gate_outcome import words
from specdeploy.report.text import one_line

if TYPE_CHECKING:
    from specdeploy.bench.driver import Progress as LoadProgress
    from specdeploy.bench.records import Arm
    from specdeploy.bench.search import Trial
    from specdeploy.cli._render import Progress
    from specdeploy.engine.events import BuildEvent
    from specdeploy.pipeline.generators import Together
    from specdeploy.pipeline.repeating import Look
    from specdeploy.smoke.report import CheckResult

_COLOURS: Final = {"pass": "green", "fail": "red", "undecided": "magenta", "skip": "yellow"}
_STATUS_WIDTH: Final = max(map(len, _COLOURS))
# On a terminal one line is rewritten; in a log (CI) a line now and then says that something still happens.
_LOG_EVERY_S: Final = 5.0


class _Ticker:
    """One changing line on a terminal, a line every few seconds in a log."""

    def __init__(self) -> None:
        # None where the process was started without one.
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._last_s = time.monotonic()

    def show(self, text: str) -> None:
        if self._live:
            tell(f"\r\x1b[2K    {text}", nl=False)
        elif time.monotonic() - self._last_s >= _LOG_EVERY_S:
            self._last_s = time.monotonic()
            tell(f"    {text}")

    def close(self) -> None:
        if self._live:
            tell("\r\x1b[2K", nl=False)


class BuildLines:
    """Shows build events: what is compiled, how far it is, what came out of the store."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._ticker = _Ticker()

    def __call__(self, event: BuildEvent) -> None:
        """Show one event."""
        if isinstance(event, StepOutput):
            self._ticker.show(event.line)
            return
        self._ticker.close()
        if isinstance(event, CacheHit):
            self._progress.note(f"{event.engine}: in the store already ({event.key[:16]})")
        elif isinstance(event, StepKept):
            self._progress.note(f"{event.engine}: {event.step} was done by an earlier run")
        elif isinstance(event, Waiting):
            self._progress.note(f"{event.engine}: another build is at work on it; waiting")
        elif isinstance(event, StepStarted):
            self._progress.note(f"{event.engine}: {event.step} (log: {event.log})")
        elif isinstance(event, Published):
            size = f"{event.size_bytes / 1e6:.1f} MB"
            self._progress.note(f"{event.engine}: built in {event.duration_s:.1f} s, {size} ({event.key[:16]})")


class LoadLines:
    """Shows how far a load test is, and how the last requests went."""

    def __init__(self) -> None:
        self._ticker = _Ticker()
        self._share = _Share()
        self._recent = RecentRequests()

    def __call__(self, progress: LoadProgress) -> None:
        """Show the state after one request."""
        self._recent.add(progress.record)
        parts = (
            self._share.words(progress.done, progress.total, progress.left_s),
            f"block {progress.block}/{progress.blocks} ({progress.record.arm} at {progress.record.point})",
            f"{progress.in_flight} in flight",
            str(self._recent.pace),
            f"{progress.errors} errors",
        )
        self._ticker.show(", ".join(filter(None, parts)))

    def trial(self, arm: Arm, trial: Trial) -> None:
        """Show what came of a load that a search has tried."""
        self._ticker.close()
        kept = "kept" if trial.kept else "too much"
        tell(f"    {arm} at {trial.load:.4g}: {trial.good} of {trial.requests} requests good: {kept}")
        self._share = _Share()

    def look(self, look: Look) -> None:
        """Show what came of a look of the gate."""
        self.begin()
        more = f"; {look.more} more pair(s)" if look.more else ""
        tell(f"    look {look.number}: {words(look.status)} after {look.pairs} pair(s) and {look.spent_s:.0f} s{more}")

    def begin(self) -> None:
        """End the changing line, and count from the start for another run."""
        self._ticker.close()
        self._share = _Share()

    def close(self) -> None:
        """End the changing line."""
        self._ticker.close()


class TogetherLines:
    """Shows how far the generators of a load test are, all together.

    Args:
        total: Requests of the plan; None when the time decides.
    """

    def __init__(self, total: int | None) -> None:
        self._ticker = _Ticker()
        self._share = _Share()
        self._total = total

    def __call__(self, state: Together) -> None:
        """Show the state."""
        parts = (
            self._share.words(state.done, self._total, state.left_s),
            f"block {state.block}/{state.blocks}",
            f"{state.in_flight} in flight",
            str(state.pace),
            f"{state.errors} errors",
            f"{state.generators} processes",
        )
        self._ticker.show(", ".join(filter(None, parts)))

    def close(self) -> None:
        """End the changing line."""
        self._ticker.close()


class _Share:
    """Says how far a run is, and how long the rest takes."""

    def __init__(self) -> None:
        self._started_s: float | None = None

    def words(self, done: int, total: int | None, left_s: float | None) -> str:
        """Return so many of all requests and the time that is left, by the plan or when requests go on as they did."""
        now_s = time.monotonic()
        # Counted from the first answer: before it a run may have waited long for its start.
        if self._started_s is None or not done:
            self._started_s, self._before = now_s, done
        if left_s is None and total is not None and done > self._before:
            left_s = (now_s - self._started_s) / (done - self._before) * (total - done)
        whole = "" if total is None else f"/{total}"
        return f"{done}{whole} requests{'' if left_s is None else f' ({left_s:.0f} s left)'}"


def check_line(result: CheckResult) -> None:
    """Print one line of the smoke test."""
    status = click.style(result.status.upper().ljust(_STATUS_WIDTH), fg=_COLOURS[result.status])
    tell(f"    {status} {result.name} ({result.duration_s:.2f} s) {one_line(result.reason)}")
