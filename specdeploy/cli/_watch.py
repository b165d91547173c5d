"""What a run of ``up`` looks like on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdeploy.cli import _events, _render

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdeploy.bench.driver import Progress as LoadProgress
    from specdeploy.engine.events import BuildEvent
    from specdeploy.findings import Finding
    from specdeploy.smoke.report import CheckResult


class TerminalWatcher:
    """Shows stages, events and checks on standard error as they come."""

    def __init__(self) -> None:
        self._progress = _render.Progress()
        self._build = _events.BuildLines(self._progress)
        self._load: _events.LoadLines | None = None

    def stage(self, text: str) -> None:
        """A stage begins."""
        self.close()
        self._progress.stage(text)

    def note(self, text: str) -> None:
        """Something inside a stage."""
        self._progress.note(text)

    def findings(self, findings: Iterable[Finding]) -> None:
        """What a checker noticed."""
        _render.findings(findings, err=True)

    def build(self, event: BuildEvent) -> None:
        """Something happened while building."""
        self._build(event)

    def check(self, result: CheckResult) -> None:
        """One smoke check ended."""
        _events.check_line(result)

    def load(self, progress: LoadProgress) -> None:
        """One request of the load test ended."""
        if self._load is None:
            self._load = _events.LoadLines()
        self._load(progress)

    def close(self) -> None:
        """End a line that is being rewritten."""
        if self._load is not None:
            self._load.close()
            self._load = None
