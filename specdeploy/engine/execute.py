"""Carries out a build plan: the same path for every profile, so that an engine is either published whole or not at all.

For each engine: take it from the store when it is there; otherwise wait for the right to build it, look again, run its
steps, read what they made against what was planned, hash it, publish it. Knows nothing about what the steps do.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specdeploy.engine.chain import Chain, StepFailed
from specdeploy.engine.events import BuildEvent, CacheHit, Published, Waiting
from specdeploy.engine.profile import EngineManifest
from specdeploy.errors import BuildFailed, ToolMissing
from specdeploy.findings import has_errors
from specdeploy.system import host
from specdeploy.system.signals import Endings, stopped_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from specdeploy.engine.profile import EngineProfile
    from specdeploy.engine.store import EngineStore
    from specdeploy.planning.build import BuildPlan, PlannedEngine
    from specdeploy.system.clock import Clock
    from specdeploy.system.jobs import JobRunner

__all__ = ["BuildEvent", "Surroundings", "Tools", "execute"]

_FULL_DISK: Final = ("no space left", "disk quota exceeded", "enospc", "file too large")
# What a tool's last lines say, and what helps.
_CURES: Final = (
    (
        "out of memory",
        "Lower build.max_batch_size, build.max_seq_len or tensorrt_llm.max_num_tokens, or raise tp_size.",
    ),
    ("permission denied", "Look at the permissions of what the log names."),
)
_GO_ON: Final = "The log has all of it; when its cause is mended, `specdeploy build` goes on at this step."
_FULL_DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_POLL_S: Final = 0.1
# A file that a profile wants to read is a small one.
_MOST_INSPECTED_BYTES: Final = 16 * 1024 * 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tools:
    """How the executor asks what is installed; tests replace it.

    Args:
        missing: Of the packages and programs given, those that are not here.
        versions: Package to version, for those of the names given that are here.
    """

    missing: Callable[[Iterable[str]], Sequence[str]] = host.missing
    versions: Callable[[Iterable[str]], Mapping[str, str]] = host.versions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where this run takes place.

    Args:
        tools: How to ask what is installed there.
        environment: Variables that matter to the steps, secrets blotted out.
        host: Asked when an engine is done: GPU, driver, image, runner, as far as they are known.
        keep_steps: Whether what the steps before the last wrote stays in the store.
    """

    tools: Tools = dataclasses.field(default_factory=Tools)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    host: Callable[[], Mapping[str, Any]] = dict
    keep_steps: bool = False


def execute(  # all but the plan are keywords
    plan: BuildPlan,
    *,
    profile: EngineProfile,
    jobs: JobRunner,
    store: EngineStore,
    clock: Clock,
    timeout_s: float,
    on_event: Callable[[BuildEvent], None] | None = None,
    surroundings: Surroundings | None = None,
) -> tuple[EngineManifest, ...]:
    """Make every engine of the plan that the store does not have, and return all their manifests in its order.

    Args:
        plan: What is to be there; side by side when it says so.
        profile: What reads the finished engines.
        jobs: Where the steps run.
        store: Where engines are looked for and published.
        clock: Durations and dates.
        timeout_s: Seconds that one step may take.
        on_event: Called with every event as it happens, by one thread at a time.
        surroundings: What is installed where the steps run, and what the manifests say of it.

    Raises:
        ToolMissing: A step needs a package or a program that is not here; nothing was run for that engine.
        BuildFailed: A step failed, took too long, did not write what it promised, or the engine is not what was
            planned. The message ends with the last lines of its log. Nothing was published; what the steps before the
            failing one wrote is kept, and the next run goes on from there.
    """
    with contextlib.suppress(OSError):  # left-overs that we may not remove are no reason not to build
        store.clean()
    listen = _serialised(on_event or _ignore)
    chain = Chain(jobs=jobs, store=store, clock=clock, timeout_s=timeout_s, on_event=listen)
    build = _Executor(chain, profile, surroundings or Surroundings())
    if plan.side_by_side:
        return _side_by_side(build, plan.engines)
    return tuple(build.obtain(engine) for engine in plan.engines)


def _ignore(_event: BuildEvent) -> None:
    """Nobody listens."""


def _serialised(on_event: Callable[[BuildEvent], None]) -> Callable[[BuildEvent], None]:
    lock = threading.Lock()

    def listen(event: BuildEvent) -> None:
        with lock:
            on_event(event)

    return listen


def _side_by_side(build: _Executor, engines: Sequence[PlannedEngine]) -> tuple[EngineManifest, ...]:
    """Build in a thread each; the first failure, or a signal to us, ends the others' programs, too."""
    stop = threading.Event()

    def obtain(engine: PlannedEngine) -> EngineManifest:
        with stopped_by(stop):
            return build.obtain(engine)

    with concurrent.futures.ThreadPoolExecutor(len(engines), thread_name_prefix="build") as pool:
        futures = [pool.submit(obtain, engine) for engine in engines]
        try:
            _await(futures)
        finally:
            stop.set()
    return tuple(future.result() for future in futures)


def _await(futures: Sequence[concurrent.futures.Future[EngineManifest]]) -> None:
    """Wait until all are done, or raise what the first failure or a signal to us raises."""
    with Endings() as endings:
        left = set(futures)
        while left:
            done, left = concurrent.futures.wait(left, timeout=_POLL_S, return_when=concurrent.futures.FIRST_EXCEPTION)
            for future in done:
                future.result()
            endings.raise_if_asked()


@dataclasses.dataclass(frozen=True)
class _Executor:
    chain: Chain
    profile: EngineProfile
    surroundings: Surroundings

    @property
    def store(self) -> EngineStore:
        return self.chain.store

    def obtain(self, engine: PlannedEngine) -> EngineManifest:
        found = self._look(engine)
        if found is not None:
            return found
        name = engine.spec.name
        try:
            with self.store.lock(engine.key, lambda: self.chain.on_event(Waiting(engine=name, key=engine.key))):
                return self._look(engine) or self._build(engine)
        except OSError as error:
            if error.errno in _FULL_DISK_ERRORS:
                raise self._disk_full(engine, str(error)) from error
            raise BuildFailed(f"{name}: {error}", hint=f"Look at {self.store.root} and its permissions.") from error

    def _look(self, engine: PlannedEngine) -> EngineManifest | None:
        manifest = self.store.find(engine.key)
        if manifest is not None:
            path = str(self.store.path(engine.key))
            self.chain.on_event(CacheHit(engine=engine.spec.name, key=engine.key, path=path))
        return manifest

    def _build(self, engine: PlannedEngine) -> EngineManifest:
        self._require_tools(engine)
        clock = self.chain.clock
        began = clock.monotonic()
        try:
            with self.store.stage(engine.key) as staging:
                steps = self.chain.run(engine, staging)
                self._verify(engine, staging)
                duration_s = clock.monotonic() - began
                manifest = self.store.publish(staging, self._manifest(engine, duration_s, steps))
        except StepFailed as error:
            # The staging directory is gone here: what is free now is what the next attempt will have.
            raise self._failure(engine, error) from error
        if not self.surroundings.keep_steps:
            self.chain.drop(engine)
        self.chain.on_event(
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
        if missing := self.surroundings.tools.missing(sorted(needed)):
            raise ToolMissing(
                f"building {engine.spec.name} needs {', '.join(missing)}, which is not installed here",
                hint="`specdeploy doctor` says what each profile needs. Scripts of TensorRT-LLM lie in its image: set "
                "tensorrt_llm.examples_dir, or build there (build.runner: container or slurm).",
            )
        for path in {path for step in engine.steps for path in step.inputs}:
            if not Path(path).exists():
                raise BuildFailed(f"building {engine.spec.name} needs {path}, which is gone")

    def _verify(self, engine: PlannedEngine, staging: Path) -> None:
        """Read the engine against the plan; what the profile calls an error keeps it from being published."""
        sizes = {str(path.relative_to(staging)): path.stat().st_size for path in staging.rglob("*") if path.is_file()}
        readable = [
            name
            for name in self.profile.inspected
            if sizes.get(name, _MOST_INSPECTED_BYTES + 1) <= _MOST_INSPECTED_BYTES
        ]
        contents = {name: (staging / name).read_bytes() for name in readable}
        findings = self.profile.verify(engine.spec, contents, sizes)
        if has_errors(findings):
            raise BuildFailed(
                f"{engine.spec.name}: the finished engine is not what was planned; it was not published",
                findings=findings,
            )

    def _failure(self, engine: PlannedEngine, error: StepFailed) -> BuildFailed:
        tail = "\n".join(f"    {line}" for line in error.lines)
        text = "\n".join(error.lines).lower()
        if any(phrase in text for phrase in _FULL_DISK):
            return self._disk_full(engine, f"{error.message}\n{tail}")
        return BuildFailed(
            f"{engine.spec.name}: {error.message}; nothing was published. The end of {error.log}:\n"
            f"{tail or '    (empty)'}",
            hint=error.hint or next((cure for phrase, cure in _CURES if phrase in text), _GO_ON),
        )

    def _disk_full(self, engine: PlannedEngine, detail: str) -> BuildFailed:
        free = self.store.free_bytes()
        seen = "an unknown amount" if free is None else _amount(free)
        return BuildFailed(
            f"{engine.spec.name}: no space left while building; nothing was published. It needs about "
            f"{_amount(engine.estimated_bytes)}, and {seen} is free in {self.store.root}. {detail}",
            hint=f"Free space in {self.store.root}, or set build.engines_dir to a folder on a larger disk.",
        )

    def _manifest(self, engine: PlannedEngine, duration_s: float, steps: Mapping[str, float]) -> EngineManifest:
        spec, info = engine.spec, engine.spec.checkpoint
        needed = sorted({name for step in engine.steps for name in step.requires})
        given = {name: value for step in engine.steps for name, value in step.env.items()}
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
            argv=tuple(step.argv for step in engine.steps if step.argv),
            tool_versions=dict(self.surroundings.tools.versions(needed)),
            created=self.chain.clock.now_iso(),
            duration_s=round(duration_s, 3),
            size_bytes=0,
            parts={step.name: dict(step.parts) for step in engine.steps},
            facts=dict(self.profile.facts(spec)),
            environment={**self.surroundings.environment, **given},
            host=dict(self.surroundings.host()),
            steps=dict(steps),
        )


def _amount(size: float) -> str:
    """Return bytes for people, in decimal units as disks are sold."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
