"""``plan`` and ``build``: what the store lacks of a deployment's engines, and making it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.engine.chain import preview_jobs
from specdeploy.engine.execute import execute
from specdeploy.engine.profile import engine_key
from specdeploy.engine.store import EngineStore
from specdeploy.errors import ConfigError, RepositoryError
from specdeploy.pipeline.checking import Checked, check, has_builder, profile_of, require_sound_plan
from specdeploy.pipeline.machine import NO_GPUS, check_gpus, find_gpus, job_runner, shown_commands, surroundings
from specdeploy.pipeline.workspace import workspace
from specdeploy.planning.misses import Miss, explain_miss
from specdeploy.system.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from specdeploy.config.load import LoadedConfig
    from specdeploy.config.schema import DeployConfig
    from specdeploy.engine.execute import BuildEvent
    from specdeploy.engine.profile import EngineManifest
    from specdeploy.pipeline.machine import Gpus


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan beside what the store holds.

    Args:
        checked: What the plan is made from.
        hits: Key to the directory of each engine that is there.
        misses: Key to why it is not, of each engine that has to be built.
        kept: Keys of steps whose result is there from an earlier run.
        handed_over: Key to how the steps of an engine are given to a container engine or to Slurm, as text.
    """

    checked: Checked
    hits: Mapping[str, Path]
    misses: Mapping[str, Miss]
    kept: frozenset[str]
    handed_over: Mapping[str, tuple[str, ...]]

    def as_dict(self) -> dict[str, Any]:
        """Return the machine-readable document."""
        document = self.checked.as_dict() | {"kind": "plan"}
        engines = self.checked.plan.as_dict()
        for engine in engines["engines"]:
            key = engine["key"]
            engine["cached"] = str(self.hits[key]) if key in self.hits else None
            engine["handed_over"] = list(self.handed_over.get(key, ()))
            engine["miss"] = self.misses[key].as_dict() if key in self.misses else None
        return document | engines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """The engines, ready to be served: the target's, and the draft's where the method has one; and what was checked."""

    engines: tuple[EngineManifest, ...]
    paths: tuple[Path, ...]
    checked: Checked

    @property
    def target(self) -> EngineManifest:
        """The target's engine."""
        return self.engines[0]

    @property
    def draft(self) -> EngineManifest | None:
        """The draft's engine, which may be the target's; None for methods without one."""
        return self.engines[1] if len(self.engines) > 1 else None

    def rows(self) -> tuple[tuple[str, EngineManifest, Path], ...]:
        """Return (role, manifest, directory) of each."""
        return tuple(zip(("target", "draft"), self.engines, self.paths, strict=False))


def plan(loaded: LoadedConfig) -> Planned:
    """Return the plan and what of it the store holds already; nothing is written."""
    checked, store = check(loaded), EngineStore(workspace(loaded).engines)
    stored = store.manifests()
    hits: dict[str, Path] = {}
    misses: dict[str, Miss] = {}
    kept: set[str] = set()
    for engine in checked.plan.engines:
        if not engine.key:
            continue
        if store.find(engine.key) is not None:
            hits[engine.key] = store.path(engine.key)
        else:
            damage = store.verify(engine.key) if store.path(engine.key).is_dir() else ()
            reasons = tuple(f"the stored engine is damaged: {finding.message}" for finding in damage)
            nearest = explain_miss(engine, stored)
            misses[engine.key] = Miss(nearest=engine.key, reasons=reasons) if reasons else nearest
            keys = (engine_key(engine.steps[:number]) for number in range(1, len(engine.steps)))
            kept |= {key for key in keys if store.kept_step(key) is not None}
    return Planned(
        checked=checked,
        hits=hits,
        misses=misses,
        kept=frozenset(kept),
        handed_over={
            engine.key: shown_commands(loaded.config, preview_jobs(engine, store, loaded.config.build.timeout_s))
            for engine in checked.plan.engines
            if engine.key in misses
        },
    )


def build(loaded: LoadedConfig, on_event: Callable[[BuildEvent], None]) -> Built:
    """Check the checkpoints and make the engines that the store does not hold yet.

    Raises:
        IncompatiblePair: something speaks against the deployment.

        BuildFailed: a step ended with an error; nothing was published.
    """
    checked = check(loaded)
    require_sound_plan(checked)
    return build_checked(loaded, checked, on_event)


def build_checked(loaded: LoadedConfig, checked: Checked, on_event: Callable[[BuildEvent], None]) -> Built:
    """Make the engines of what was checked already; see :func:`build`."""
    config = loaded.config
    gpus = find_gpus(config) if config.profile != "cpu" else NO_GPUS
    _require_gpus(config, gpus)
    store = EngineStore(workspace(loaded).engines)
    manifests = execute(
        checked.plan,
        profile=profile_of(loaded, gpus),
        jobs=job_runner(config),
        store=store,
        clock=SystemClock(),
        on_event=on_event,
        timeout_s=config.build.timeout_s,
        surroundings=surroundings(config, gpus),
    )
    return _built(store, manifests, checked)


def _require_gpus(config: DeployConfig, gpus: Gpus) -> None:
    """Refuse to build for a GPU that is not known, or on another one: the engine would be stored as what it is not."""
    if has_builder(config) and (findings := check_gpus(config, gpus)):
        refused = [dataclasses.replace(finding, severity="error") for finding in findings]
        raise ConfigError("engines cannot be built for these GPUs here", findings=refused)


def _built(store: EngineStore, manifests: Sequence[EngineManifest], checked: Checked) -> Built:
    paths = tuple(store.path(manifest.key) for manifest in manifests)
    return Built(engines=tuple(manifests), paths=paths, checked=checked)


def find_built(loaded: LoadedConfig) -> Built:
    """Return the engines of this configuration from the store, without building.

    Raises:
        RepositoryError: an engine is not there.
    """
    store = EngineStore(workspace(loaded).engines)
    checked = check(loaded)
    require_sound_plan(checked)
    planned = checked.plan.engines
    manifests = [store.find(engine.key) for engine in planned]
    if missing := [engine.spec.name for engine, found in zip(planned, manifests, strict=True) if found is None]:
        raise RepositoryError(
            f"no engine in {store.root} for {', '.join(missing)}", hint="run `specdeploy build` first"
        )
    return _built(store, [manifest for manifest in manifests if manifest is not None], checked)
