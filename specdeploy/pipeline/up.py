"""``up``: every stage in order, stopping at the first failure; whatever was measured until then is reported.

A smoke test that could not decide is no failure: the later stages measure all the same, and the verdict stays open.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING, Any, Protocol

from specdeploy.errors import EXIT_CANNOT_DECIDE, EXIT_OK
from specdeploy.pipeline import checking, engines, measure, prepare, serving
from specdeploy.pipeline.outputs import alone_in
from specdeploy.pipeline.workspace import workspace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from specdeploy.bench.driver import Progress
    from specdeploy.config.load import LoadedConfig
    from specdeploy.engine.execute import BuildEvent
    from specdeploy.findings import Finding
    from specdeploy.smoke.report import CheckResult


class Watcher(Protocol):
    """What the caller sees of a run while it happens."""

    def stage(self, text: str) -> None:
        """A stage begins."""

    def note(self, text: str) -> None:
        """Something inside a stage."""

    def findings(self, findings: Iterable[Finding]) -> None:
        """What a checker noticed."""

    def build(self, event: BuildEvent) -> None:
        """Something happened while building."""

    def check(self, result: CheckResult) -> None:
        """One smoke check ended."""

    def load(self, progress: Progress) -> None:
        """One request of the load test ended."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run of ``up`` came to.

    Args:
        exit_code: Of the first stage that failed; 3 when none did and the smoke test could not decide; 0 when all
            passed.
        stopped_at: The stage that failed; empty when none did.
        built: The engines.
        repository: The model repository.
        documents: ``deployment``, and ``smoke``, ``load`` and ``gate`` as they were written, None when the run stopped
            before.
        report: The HTML report; None when nothing was measured.
        duration_s: Seconds of the whole run.
    """

    exit_code: int
    stopped_at: str
    built: engines.Built
    repository: Path
    documents: dict[str, Any]
    report: Path | None
    duration_s: float


@dataclasses.dataclass(kw_only=True)
class _Measured:
    """What the stages against the running server leave behind, as far as they came."""

    exit_code: int = EXIT_OK
    stopped_at: str = ""
    smoke: dict[str, Any] | None = None
    load: dict[str, Any] | None = None
    gate: dict[str, Any] | None = None


def up(loaded: LoadedConfig, watcher: Watcher) -> Outcome:
    """Run check, build, repo, lint, serve, smoke, load, gate and report.

    Raises:
        ConfigError: A gate rule or the prompts cannot be read; nothing has run yet.
        EnvironmentFault: Another command measures into the same folder.
        SpecdeployError: A stage before the measurements failed, or the server did not start.
    """
    started = time.monotonic()
    place = workspace(loaded)
    # A rule or a prompt file that cannot be read is better known before the minutes of building and measuring.
    measure.preflight(loaded)
    built = _prepare(loaded, watcher)
    measured = _Measured()
    with contextlib.ExitStack() as stack:
        stack.enter_context(alone_in(place.reports))
        # Results of an earlier run must not be taken for this one's.
        for stale in (place.smoke_json, place.load_json, place.records_jsonl, place.gate_json, place.report_html):
            stale.unlink(missing_ok=True)
        stack.callback(_report, loaded, watcher)
        watcher.stage("serve: the real tritonserver, on free loopback ports")
        running = stack.enter_context(serving.serve(loaded, on_line=watcher.note))
        _measure(loaded, serving.addresses(running), watcher, measured)
    return Outcome(
        exit_code=measured.exit_code,
        stopped_at=measured.stopped_at,
        built=built,
        repository=place.repository,
        documents={
            "deployment": measure.deployment(loaded),
            "smoke": measured.smoke,
            "load": measured.load,
            "gate": measured.gate,
        },
        report=place.report_html if place.report_html.is_file() else None,
        duration_s=time.monotonic() - started,
    )


def _prepare(loaded: LoadedConfig, watcher: Watcher) -> engines.Built:
    watcher.stage("check: do the two checkpoints belong together?")
    checked = checking.check(loaded)
    checking.require_sound_plan(checked)
    watcher.findings(checked.findings)
    watcher.stage("build: compile target and draft")
    built = engines.build_checked(loaded, checked, watcher.build)
    watcher.stage("repo and lint: write the Triton model repository")
    watcher.findings(prepare.write_repository(loaded, built))
    place = workspace(loaded)
    watcher.note(f"{place.repository}: sound")
    return built


def _measure(loaded: LoadedConfig, at: serving.Addresses, watcher: Watcher, measured: _Measured) -> None:
    watcher.stage("smoke: is it up, wired, speculating, and still the target's?")
    smoke = measure.smoke(loaded, at, on_check=watcher.check)
    measured.smoke = smoke.as_dict()
    if smoke.exit_code == EXIT_CANNOT_DECIDE:
        measured.exit_code = EXIT_CANNOT_DECIDE
        watcher.note("the smoke test could not decide everything; the measurements go on")
    elif _stop(measured, "smoke", smoke.exit_code):
        return
    watcher.stage("load: speculation against control, in interleaved pairs")
    measured.load = measure.load(loaded, at, on_progress=watcher.load)
    if _stop(measured, "load", EXIT_CANNOT_DECIDE if measured.load["partial"] else EXIT_OK):
        return
    watcher.stage("gate: may it ship?")
    measured.gate = measure.gate(loaded)
    _stop(measured, "gate", measured.gate["exit_code"])


def _stop(measured: _Measured, stage: str, exit_code: int) -> bool:
    if exit_code != EXIT_OK:
        measured.exit_code, measured.stopped_at = exit_code, stage
    return exit_code != EXIT_OK


def _report(loaded: LoadedConfig, watcher: Watcher) -> None:
    """Report whatever was measured, also when a later stage raised."""
    place = workspace(loaded)
    if place.smoke_json.is_file() or place.load_json.is_file():
        watcher.stage("report: one HTML page")
        watcher.note(str(measure.report(loaded)))
