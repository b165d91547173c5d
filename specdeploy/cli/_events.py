"""How the events of the long stages look on a terminal while they happen."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import click

from specdeploy.bench.records import SPECULATION
from specdeploy.engine.events import CacheHit, Published, StepKept, StepOutput, StepStarted, Waiting
from specdeploy.report.text import one_line

if TYPE_CHECKING:
    from specdeploy.bench.driver import Progress as LoadProgress
    from specdeploy.cli._render import Progress
    from specdeploy.engine.events import BuildEvent
    from specdeploy.smoke.report import CheckResult

_COLOURS: Final = {"pass": "green", "fail": "red", "undecided": "magenta", "skip": "yellow"}
_STATUS_WIDTH: Final = max(map(len, _COLOURS))
# On a terminal one line is rewritten; in a log (CI) a line now and then says that something still happens.
_LOG_EVERY_S: Final = 5.0


class _Ticker:
    """One changing line on a terminal, a line every few seconds in a log."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last_s = time.monotonic()

    def show(self, text: str) -> None:
        if self._live:
            click.echo(f"\r\x1b[2K    {text}", nl=False, err=True)
        elif time.monotonic() - self._last_s >= _LOG_EVERY_S:
            self._last_s = time.monotonic()
            click.echo(f"    {text}", err=True)

    def close(self) -> None:
        if self._live:
            click.echo("\r\x1b[2K", nl=False, err=True)


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
    """Shows how far a load test is."""

    def __init__(self) -> None:
        self._ticker = _Ticker()
        self._started_s = time.monotonic()

    def __call__(self, progress: LoadProgress) -> None:
        """Show the state after one request."""
        left = (time.monotonic() - self._started_s) / progress.done * (progress.total - progress.done)
        arm = "speculation" if progress.record.arm == SPECULATION else "control"
        self._ticker.show(
            f"{progress.done}/{progress.total} requests, {progress.errors} errors, block {progress.block}/"
            f"{progress.blocks} ({arm}), {left:.0f} s left"
        )

    def close(self) -> None:
        """End the changing line."""
        self._ticker.close()


def check_line(result: CheckResult) -> None:
    """Print one line of the smoke test."""
    status = click.style(result.status.upper().ljust(_STATUS_WIDTH), fg=_COLOURS[result.status])
    click.echo(f"    {status} {result.name} ({result.duration_s:.2f} s) {one_line(result.reason)}", err=True)
