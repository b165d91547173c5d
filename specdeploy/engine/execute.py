"""Carries out a build plan: the same path for every profile, so that an engine is either published whole or not at all.

For each engine: take it from the store when it is there; otherwise wait for the right to build it, look again, run its
steps into a staging directory, check what they promised, hash it, publish it. Knows nothing about what the steps do.
"""

from __future__ import annotations

import collections
import dataclasses
import errno
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdeploy.engine.events import (
    BuildEvent,
    CacheHit,
    Published,
    StepFinished,
    StepOutput,
    StepStarted,
    Waiting,
)
from specdeploy.engine.profile import OUTPUT, SCRATCH, EngineManifest
from specdeploy.errors import BuildFailed, EnvironmentFault, ToolMissing
from specdeploy.system import files, host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from specdeploy.engine.profile import BuildStep
    from specdeploy.engine.store import EngineStore
    from specdeploy.planning.build import BuildPlan, PlannedEngine
    from specdeploy.system.clock import Clock
    from specdeploy.system.process import Runner

__all__ = ["BuildEvent", "Tools", "execute"]

_TAIL_LINES: Final = 15
_FULL_DISK: Final = ("no space left", "disk quota exceeded", "enospc", "file too large")
_FULL_DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tools:
    """How the executor asks what is installed; tests replace it.

    Args:
        missing: Of the packages and programs given, those that are not here.
        versions: Package to version, for those of the names given that are here.
    """

    missing: Callable[[Iterable[str]], Sequence[str]] = host.missing
    versions: Callable[[Iterable[str]], Mapping[str, str]] = host.versions


def execute(  # all but the plan are keywords
    plan: BuildPlan,
    *,
    runner: Runner,
    store: EngineStore,
    clock: Clock,
    timeout_s: float,
    on_event: Callable[[BuildEvent], None] | None = None,
    tools: Tools | None = None,
) -> tuple[EngineManifest, ...]:
    """Make every engine of the plan that the store does not have, and return all their manifests in its order.

    Args:
        plan: What is to be there.
        runner: Runs the steps.
        store: Where engines are looked for and published.
        clock: Durations and dates.
        timeout_s: Seconds that one step may take.
        on_event: Called with every event as it happens.
        tools: What is installed here.

    Raises:
        ToolMissing: A step needs a package or a program that is not here; nothing was run for that engine.
        BuildFailed: A step failed, took too long, or did not write what it promised. The message ends with the last
            lines of its log. Nothing was published or left behind for that engine.
    """
    store.clean()
    build = _Executor(runner, store, clock, timeout_s, on_event or _ignore, tools or Tools())
    return tuple(build.obtain(engine) for engine in plan.engines)


def _ignore(_event: BuildEvent) -> None:
    """Nobody listens."""


class _StepFailed(Exception):
    """A step failed; ``message`` says how. The log's tail is added where the log is known."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclasses.dataclass(frozen=True)
class _Executor:
    runner: Runner
    store: EngineStore
    clock: Clock
    timeout_s: float
    on_event: Callable[[BuildEvent], None]
    tools: Tools

    def obtain(self, engine: PlannedEngine) -> EngineManifest:
        found = self._look(engine)
        if found is not None:
            return found
        name = engine.spec.name
        try:
            with self.store.lock(engine.key, lambda: self.on_event(Waiting(engine=name, key=engine.key))):
                return self._look(engine) or self._build(engine)
        except OSError as error:
            if error.errno in _FULL_DISK_ERRORS:
                raise self._disk_full(engine, str(error)) from error
            raise BuildFailed(f"{name}: {error}", hint=f"Look at {self.store.root} and its permissions.") from error

    def _look(self, engine: PlannedEngine) -> EngineManifest | None:
        manifest = self.store.find(engine.key)
        if manifest is not None:
            path = str(self.store.path(engine.key))
            self.on_event(CacheHit(engine=engine.spec.name, key=engine.key, path=path))
        return manifest

    def _build(self, engine: PlannedEngine) -> EngineManifest:
        self._require_tools(engine)
        log = self.store.log(engine.key)
        files.write_atomic(log, "")
        recent: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        began = self.clock.monotonic()
        try:
            with self.store.stage(engine.key) as staging:
                for step in engine.steps:
                    self._run(engine, step, staging, recent)
                duration_s = self.clock.monotonic() - began
                manifest = self.store.publish(staging, self._manifest(engine, duration_s))
        except _StepFailed as error:
            # The staging directory is gone here: what is free now is what the next attempt will have.
            raise self._failure(engine, error, tuple(recent) or files.tail(log, _TAIL_LINES)) from error
        self.on_event(
            Published(
                engine=engine.spec.name,
                key=engine.key,
                path=str(self.store.path(engine.key)),
                size_bytes=manifest.size_bytes,
                duration_s=duration_s,
            )
        )
        return manifest

    def _require_tools(self, engine: PlannedEngine) -> None:
        needed = {name for step in engine.steps for name in step.requires}
        if missing := self.tools.missing(sorted(needed)):
            raise ToolMissing(
                f"building {engine.spec.name} needs {', '.join(missing)}, which is not installed here",
                hint="`specdeploy doctor` says what each profile needs and how to get it.",
            )
        for path in {path for step in engine.steps for path in step.inputs}:
            if not Path(path).exists():
                raise BuildFailed(f"building {engine.spec.name} needs {path}, which is gone")

    def _run(self, engine: PlannedEngine, step: BuildStep, staging: Path, recent: collections.deque[str]) -> None:
        def on_line(line: str) -> None:
            recent.append(line)
            self.on_event(StepOutput(engine=engine.spec.name, step=step.name, line=line))

        log, began = self.store.log(engine.key), self.clock.monotonic()
        # Beside the staging directory: what is thrown away may be as large as the engine, and /tmp may be small.
        with tempfile.TemporaryDirectory(dir=staging.parent, prefix=f"{staging.name}-scratch-") as scratch:
            places = {OUTPUT: str(staging), SCRATCH: scratch}
            argv = tuple(_filled(argument, places) for argument in step.argv)
            env = {name: _filled(value, places) for name, value in step.env.items()}
            self.on_event(StepStarted(engine=engine.spec.name, step=step.name, argv=argv, log=str(log)))
            try:
                code = self.runner.run(argv, env=env, cwd=None, log=log, timeout_s=self.timeout_s, on_line=on_line)
            except EnvironmentFault as error:
                raise _StepFailed(f"step `{step.name}`: {error.message}", error.hint) from error
        _check_step(step, code, staging)
        duration_s = self.clock.monotonic() - began
        self.on_event(StepFinished(engine=engine.spec.name, step=step.name, duration_s=duration_s))

    def _failure(self, engine: PlannedEngine, error: _StepFailed, lines: tuple[str, ...]) -> BuildFailed:
        tail = "\n".join(f"    {line}" for line in lines)
        text = "\n".join(lines).lower()
        if any(phrase in text for phrase in _FULL_DISK):
            return self._disk_full(engine, f"{error.message}\n{tail}")
        log = self.store.log(engine.key)
        return BuildFailed(
            f"{engine.spec.name}: {error.message}; nothing was published. The end of {log}:\n{tail or '    (empty)'}",
            hint=error.hint,
        )

    def _disk_full(self, engine: PlannedEngine, detail: str) -> BuildFailed:
        free = self.store.free_bytes()
        seen = "an unknown amount" if free is None else _amount(free)
        return BuildFailed(
            f"{engine.spec.name}: no space left while building; nothing was published. It needs about "
            f"{_amount(engine.estimated_bytes)}, and {seen} is free in {self.store.root}. {detail}",
            hint=f"Free space in {self.store.root}, or set build.engines_dir to a folder on a larger disk.",
        )

    def _manifest(self, engine: PlannedEngine, duration_s: float) -> EngineManifest:
        spec, info = engine.spec, engine.spec.checkpoint
        needed = sorted({name for step in engine.steps for name in step.requires})
        return EngineManifest(
            key=engine.key,
            profile=engine.profile,
            name=spec.name,
            precision=spec.precision,
            checkpoint_name=info.name,
            checkpoint_fingerprint=info.fingerprint,
            vocab_size=info.vocab_size,
            max_seq_len=engine.limit,
            num_layers=info.num_layers,
            num_kv_heads=info.num_kv_heads,
            head_dim=info.head_dim,
            eos_token_ids=info.eos_token_ids,
            files=(),
            argv=tuple(step.argv for step in engine.steps),
            tool_versions=dict(self.tools.versions(needed)),
            created=self.clock.now_iso(),
            duration_s=round(duration_s, 3),
            size_bytes=0,
        )


def _filled(text: str, places: Mapping[str, str]) -> str:
    for placeholder, path in places.items():
        text = text.replace(placeholder, path)
    return text


def _check_step(step: BuildStep, code: int, staging: Path) -> None:
    """Check the exit code, and then what counts: a tool can print success and write nothing."""
    if code < 0:
        hint = "The kernel may have ended it for want of memory." if code == -signal.SIGKILL else ""
        raise _StepFailed(f"step `{step.name}` was ended by {_signal_name(-code)}", hint)
    if code > 0:
        raise _StepFailed(f"step `{step.name}` ended with exit code {code}")
    if absent := [name for name in step.outputs if not _is_filled(staging / name)]:
        raise _StepFailed(f"step `{step.name}` ended with 0 but did not write {', '.join(absent)}")


def _amount(size: float) -> str:
    """Return bytes for people, in decimal units as disks are sold."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _signal_name(number: int) -> str:
    """Return a signal's name; the real-time ones have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0
