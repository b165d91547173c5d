"""The steps of one engine as jobs: where each writes, what it left from an earlier run, whether it kept its promises.

All steps but the last write to directories of the store that outlive a failure, so that the next run goes on where this
one stopped; the last writes to the engine's staging directory. Knows nothing about what the steps do or where they run.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdeploy.engine.events import BuildEvent, StepFinished, StepKept, StepOutput, StepStarted, Waiting
from specdeploy.engine.profile import OUTPUT, PREVIOUS, SCRATCH, engine_key
from specdeploy.errors import EnvironmentFault
from specdeploy.system import files
from specdeploy.system.jobs import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdeploy.engine.profile import BuildStep
    from specdeploy.engine.store import EngineStore
    from specdeploy.planning.build import PlannedEngine
    from specdeploy.system.clock import Clock
    from specdeploy.system.jobs import JobRunner

_TAIL_LINES: Final = 15


class StepFailed(Exception):
    """A step failed; ``message`` says how, ``log`` and ``lines`` what it printed last."""

    def __init__(self, message: str, *, hint: str, log: Path, lines: tuple[str, ...]) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.log = log
        self.lines = lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Placed:
    """A step and where it works."""

    step: BuildStep
    key: str
    output: Path
    previous: Path | None
    scratch: Path
    log: Path
    kept: bool

    @property
    def places(self) -> dict[str, str]:
        """Placeholder to directory."""
        previous = {} if self.previous is None else {PREVIOUS: str(self.previous)}
        return {OUTPUT: str(self.output), SCRATCH: str(self.scratch), **previous}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain:
    """Runs the steps of engines.

    Args:
        jobs: Where they run.
        store: Whose directories they write to.
        clock: Durations.
        timeout_s: Seconds that one step may take.
        on_event: Told of every event.
    """

    jobs: JobRunner
    store: EngineStore
    clock: Clock
    timeout_s: float
    on_event: Callable[[BuildEvent], None]

    def run(self, engine: PlannedEngine, staging: Path) -> dict[str, float]:
        """Run what is left to do of an engine, the last step into *staging*; return the seconds of each step that ran.

        Raises:
            StepFailed: A step failed, took too long, or did not write what it promised.
        """
        with contextlib.ExitStack() as stack:
            # Another engine may be made from the same converted checkpoint at the same time.
            for key in _keys(engine)[:-1]:
                waiting = Waiting(engine=engine.spec.name, key=key)
                stack.enter_context(self.store.lock(key, functools.partial(self.on_event, waiting)))
            # Beside the staging directory: what is thrown away may be as large as the engine, and /tmp may be small.
            prefix = f"{staging.name}-scratch-"
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=staging.parent, prefix=prefix)))
            return self._run(engine, self._prepared(engine, staging, scratch))

    def drop(self, engine: PlannedEngine) -> None:
        """Remove what the steps before the last left."""
        for key in _keys(engine)[:-1]:
            self.store.drop_step(key)

    def _prepared(self, engine: PlannedEngine, staging: Path, scratch: Path) -> list[_Placed]:
        """Return the steps that are left to do, each with its directories, a new log, and what it writes itself."""
        placed = _placed(engine, self.store, staging, scratch)
        done = [number for number, place in enumerate(placed[:-1]) if place.kept]
        for number in done[-1:]:
            place = placed[number]
            self.on_event(StepKept(engine=engine.spec.name, step=place.step.name, path=str(place.output)))
        left = placed[done[-1] + 1 :] if done else placed
        for place in left:
            if place.output != staging:
                self.store.begin_step(place.key)
            place.scratch.mkdir()
            files.write_atomic(place.log, "")
            for name, text in place.step.writes.items():
                files.write_atomic(place.output / name, text)
        return left

    def _run(self, engine: PlannedEngine, placed: list[_Placed]) -> dict[str, float]:
        reporter = _Reporter(self, engine, placed)
        jobs = [_job(engine, place, self.timeout_s) for place in placed if place.step.argv]
        try:
            self.jobs.run_chain(jobs, reporter)
        except EnvironmentFault as error:
            raise reporter.failure(f": {error.message}", error.hint) from error
        for place in placed:
            if not place.step.argv:
                reporter.check(place, 0)
        return reporter.durations


def preview_jobs(engine: PlannedEngine, store: EngineStore, timeout_s: float) -> tuple[Job, ...]:
    """Return the jobs of all steps of an engine as they would be run, for people to read; nothing is made for them."""
    staging = store.root / "staging"
    placed = _placed(engine, store, staging, store.root / "staging-scratch", writer="writer")
    return tuple(_job(engine, place, timeout_s) for place in placed if place.step.argv)


def _keys(engine: PlannedEngine) -> list[str]:
    """Return for each step the key of it and all before it."""
    return [engine_key(engine.steps[: number + 1]) for number in range(len(engine.steps))]


def _placed(
    engine: PlannedEngine, store: EngineStore, staging: Path, scratch: Path, *, writer: str = ""
) -> list[_Placed]:
    """Return where each step works; nothing is made there."""
    keys, last = _keys(engine), len(engine.steps) - 1
    kept = [store.kept_step(key) for key in keys[:last]]
    outputs = [old or store.step_directory(key, writer) for key, old in zip(keys[:last], kept, strict=True)]
    return [
        _Placed(
            step=step,
            key=keys[number],
            output=[*outputs, staging][number],
            previous=outputs[number - 1] if number else None,
            scratch=scratch / str(number),
            log=store.log(engine.key, f"{number + 1} {step.name}" if last else step.name),
            kept=number < last and kept[number] is not None,
        )
        for number, step in enumerate(engine.steps)
    ]


def _job(engine: PlannedEngine, place: _Placed, timeout_s: float) -> Job:
    step = place.step
    devices = {"CUDA_VISIBLE_DEVICES": ",".join(engine.devices)} if engine.devices and step.gpus else {}
    return Job(
        name=f"{engine.spec.role}: {step.name}",
        argv=tuple(_filled(argument, place.places) for argument in step.argv),
        env={name: _filled(value, place.places) for name, value in (devices | dict(step.env)).items()},
        log=place.log,
        timeout_s=timeout_s,
        gpus=step.gpus,
        reads=(*map(Path, step.inputs), *(() if place.previous is None else (place.previous,))),
        writes=(place.output, place.scratch),
        promises=tuple(place.output / name for name in step.outputs),
    )


class _Reporter:
    """Listens to the jobs of one engine: passes events on, remembers the last lines, checks every end."""

    def __init__(self, chain: Chain, engine: PlannedEngine, placed: list[_Placed]) -> None:
        self.durations: dict[str, float] = {}
        self._chain = chain
        self._engine = engine
        self._placed = {place.log: place for place in placed}
        self._last = len(engine.steps) - 1
        self._current = placed[0]
        self._recent: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._began = chain.clock.monotonic()

    def started(self, job: Job) -> None:
        self._current = self._placed[job.log]
        self._recent.clear()
        self._began = self._chain.clock.monotonic()
        name = self._engine.spec.name
        self._chain.on_event(StepStarted(engine=name, step=self._current.step.name, argv=job.argv, log=str(job.log)))

    def line(self, job: Job, text: str) -> None:
        self._recent.append(text)
        step = self._placed[job.log].step.name
        self._chain.on_event(StepOutput(engine=self._engine.spec.name, step=step, line=text))

    def ended(self, job: Job, exit_code: int) -> None:
        self.check(self._placed[job.log], exit_code)

    def check(self, place: _Placed, code: int) -> None:
        """Check the exit code, and then what counts: a tool can print success and write nothing."""
        self._current = place
        if code < 0:
            hint = "The kernel may have ended it for want of memory." if code == -signal.SIGKILL else ""
            raise self.failure(f" was ended by {_signal_name(-code)}", hint)
        if code > 0:
            raise self.failure(f" ended with exit code {code}")
        if absent := [name for name in place.step.outputs if not _is_filled(place.output / name)]:
            raise self.failure(f" ended with 0 but did not write {', '.join(absent)}")
        duration_s = self._chain.clock.monotonic() - self._began
        self.durations[place.step.name] = round(duration_s, 3)
        if place.step is not self._engine.steps[-1]:
            self._chain.store.keep_step(place.key)
        self._chain.on_event(StepFinished(engine=self._engine.spec.name, step=place.step.name, duration_s=duration_s))

    def failure(self, message: str, hint: str = "") -> StepFailed:
        place = self._current
        lines = tuple(self._recent) or files.tail(place.log, _TAIL_LINES)
        return StepFailed(f"step `{place.step.name}`{message}", hint=hint, log=place.log, lines=lines)


def _filled(text: str, places: Mapping[str, str]) -> str:
    """Put a directory in the place of the placeholder that an argument begins with; a user's path may hold braces."""
    for placeholder, path in places.items():
        if text == placeholder or text.startswith(f"{placeholder}/"):
            return path + text.removeprefix(placeholder)
    return text


def _signal_name(number: int) -> str:
    """Return a signal's name; the real-time ones have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0
