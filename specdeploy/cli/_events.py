"""How the events of the long stages look on a terminal while they happen."""

from __future__ import annotations

import sys
import time
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Final

import click

from specdeploy.bench.records import SPECULATION
from specdeploy.cli._streams import tell
from specdeploy.engine.events import CacheHit, Published, StepKept, StepOutput, StepStarted, Waiting
from specdeploy.report.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.bench.driver import Progress as LoadProgress
    from specdeploy.bench.records import Arm, RequestRecord
    from specdeploy.bench.search import Trial
    from specdeploy.cli._render import Progress
    from specdeploy.engine.events import BuildEvent
    from specdeploy.pipeline.generators import Together
    from specdeploy.smoke.report import CheckResult

_COLOURS: Final = {"pass": "green", "fail": "red", "undecided": "magenta", "skip": "yellow"}
_STATUS_WIDTH: Final = max(map(len, _COLOURS))
# On a terminal one line is rewritten; in a log (CI) a line now and then says that something still happens.
_LOG_EVERY_S: Final = 5.0
# Requests of a load test that its line speaks of.
_RECENT: Final = 50


class _Ticker:
    """One changing line on a terminal, a line every few seconds in a log."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
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
        self._started_s = time.monotonic()
        self._recent: deque[RequestRecord] = deque(maxlen=_RECENT)

    def __call__(self, progress: LoadProgress) -> None:
        """Show the state after one request."""
        if self._recent and self._recent[-1].arm != progress.record.arm:
            self._recent.clear()
        self._recent.append(progress.record)
        arm = "speculation" if progress.record.arm == SPECULATION else "control"
        try:
            pace = tuple(self._pace())
        except ArithmeticError:
            # What a server counts may be too large to divide; a line that only shows it must not end the run.
            pace = ()
        parts = (
            self._share(progress),
            f"block {progress.block}/{progress.blocks} ({arm})",
            f"{progress.in_flight} in flight",
            *pace,
            f"{progress.errors} errors",
        )
        self._ticker.show(", ".join(parts))

    def trial(self, arm: Arm, trial: Trial) -> None:
        """Show what came of a load that a search has tried."""
        self._ticker.close()
        kept = "kept" if trial.kept else "too much"
        tell(f"    {arm} at {trial.load:.4g}: {trial.good} of {trial.requests} requests good: {kept}")
        self._started_s = time.monotonic()

    def close(self) -> None:
        """End the changing line."""
        self._ticker.close()

    def _share(self, progress: LoadProgress) -> str:
        """Say how far it is, and how long the rest takes when requests go on as they did."""
        if progress.total is None:
            return f"{progress.done} requests"
        left_s = (time.monotonic() - self._started_s) / progress.done * (progress.total - progress.done)
        return f"{progress.done}/{progress.total} requests ({left_s:.0f} s left)"

    def _pace(self) -> Iterator[str]:
        """Say what the last requests of this arm came to: tokens a second, time to first token, acceptance."""
        good = [record for record in self._recent if record.ok and record.first_s is not None]
        if not good:
            return
        took_s = max(record.ended_s for record in good) - min(record.sent_s for record in good)
        # A server that counts no tokens was not measured to make none.
        counted = [record.output_tokens for record in good if record.output_tokens is not None]
        if took_s > 0 and counted:
            yield f"{sum(counted) / took_s:.0f} tokens/s"
        yield f"TTFT {median((record.first_s or 0.0) - record.sent_s for record in good) * 1000:.0f} ms"
        drafted = sum(record.draft_tokens or 0 for record in good)
        if drafted:
            yield f"{sum(record.accepted_tokens or 0 for record in good) / drafted:.0%} accepted"


class TogetherLines:
    """Shows how far the generators of a load test are, all together."""

    def __init__(self) -> None:
        self._ticker = _Ticker()

    def __call__(self, together: Together) -> None:
        """Show the state."""
        whole = "" if together.total is None else f"/{together.total}"
        self._ticker.show(
            f"{together.done}{whole} requests, block {together.block}/{together.blocks}, "
            f"{together.in_flight} in flight, {together.errors} errors, {together.generators} processes"
        )

    def close(self) -> None:
        """End the changing line."""
        self._ticker.close()


def check_line(result: CheckResult) -> None:
    """Print one line of the smoke test."""
    status = click.style(result.status.upper().ljust(_STATUS_WIDTH), fg=_COLOURS[result.status])
    tell(f"    {status} {result.name} ({result.duration_s:.2f} s) {one_line(result.reason)}")
