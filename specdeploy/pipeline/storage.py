"""The engines of a store, for those who keep house: list, verify, prune, export."""

from __future__ import annotations

import dataclasses
import difflib
import shutil
import tarfile
from typing import TYPE_CHECKING, Any

from specdeploy.engine.store import MANIFEST, EngineStore
from specdeploy.errors import ConfigError, SpecdeployError
from specdeploy.pipeline.checking import check, require_sound_plan
from specdeploy.pipeline.workspace import workspace
from specdeploy.system.files import fresh_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from specdeploy.config.load import LoadedConfig
    from specdeploy.engine.profile import EngineManifest
    from specdeploy.findings import Finding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """One engine of the store.

    Args:
        manifest: What it is.
        path: Its directory.
        roles: What the present configuration uses it as; empty when it does not, None when that cannot be told.
    """

    manifest: EngineManifest
    path: Path
    roles: tuple[str, ...] | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        roles = None if self.roles is None else list(self.roles)
        return {"path": str(self.path), "roles": roles, **self.manifest.to_dict()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pruned:
    """What was removed (or, on a dry run, would be).

    Args:
        paths: Directories.
        busy: Those that a builder is at work on, which stay.
        size_bytes: What the directories held.
    """

    paths: tuple[Path, ...]
    busy: tuple[Path, ...]
    size_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return {
            "removed": [str(path) for path in self.paths],
            "busy": [str(path) for path in self.busy],
            "size_bytes": self.size_bytes,
        }


def list_engines(loaded: LoadedConfig) -> tuple[Stored, ...]:
    """Return the complete engines of the store, the oldest first."""
    store, used = _store(loaded), _used(loaded)
    return tuple(
        Stored(
            manifest=manifest,
            path=store.path(manifest.key),
            roles=None if used is None else tuple(role for role, key in used if key == manifest.key),
        )
        for manifest in store.manifests()
    )


def find_engine(loaded: LoadedConfig, key: str) -> Stored:
    """Return the engine whose key begins with *key*, or whose name or role in the configuration it is.

    Raises:
        ConfigError: None is, or several are.
    """
    engines = list_engines(loaded)
    found = [engine for engine in engines if _is_meant(engine, key)]
    if len(found) == 1:
        return found[0]
    names = [name for engine in engines for name in (engine.manifest.key[:16], engine.manifest.name)]
    if found:
        keys = ", ".join(engine.manifest.key[:16] for engine in found)
        raise ConfigError(f"{key!r} is several engines: {keys}", hint="Give more digits of the key.")
    near = difflib.get_close_matches(key, names, n=1)
    hint = f"Did you mean {near[0]}?" if near else "`specdeploy engines list` shows what there is."
    raise ConfigError(f"there is no engine {key!r} in {_store(loaded).root}", hint=hint)


def _is_meant(engine: Stored, key: str) -> bool:
    return engine.manifest.key.startswith(key) or engine.manifest.name == key or key in (engine.roles or ())


def verify_engines(loaded: LoadedConfig, keys: Sequence[str], *, full: bool) -> tuple[int, tuple[Finding, ...]]:
    """Check engines against their manifests; return how many, and everything that is wrong with them.

    Args:
        loaded: The configuration whose store it is.
        keys: Which of them; empty is every directory of the store.
        full: Whether to read every byte.

    Raises:
        ConfigError: A key is no engine.
    """
    store = _store(loaded)
    wanted = [find_engine(loaded, key).manifest.key for key in keys] if keys else store.directories()
    return len(wanted), tuple(finding for key in wanted for finding in store.verify(key, full=full))


def prune(loaded: LoadedConfig, *, unused: bool, keep: Sequence[LoadedConfig] = (), dry_run: bool) -> Pruned:
    """Remove what interrupted builds left and, with *unused*, engines that no configuration given plans.

    Args:
        loaded: The configuration whose store it is.
        unused: Whether to remove whole engines.
        keep: Further configurations that use the store.
        dry_run: Whether only to say what would be removed.

    Raises:
        SpecdeployError: *unused*, and the configuration cannot be planned: then nothing is known to be unused.
    """
    store = _store(loaded)
    doomed = list(store.leftovers())
    if unused:
        doomed += store.kept_steps()
        planned = {key for config in (loaded, *keep) for key in _used_keys(config)}
        doomed += [store.path(key) for key in store.directories() if key not in planned]
    return _removed(store, doomed, dry_run=dry_run)


def remove(loaded: LoadedConfig, keys: Sequence[str]) -> Pruned:
    """Remove engines, whole or damaged.

    Raises:
        ConfigError: A key is no engine, or several.
    """
    store = _store(loaded)
    doomed = [store.path(_short_key(loaded, store, key)) for key in keys]
    return _removed(store, doomed, dry_run=False)


def _short_key(loaded: LoadedConfig, store: EngineStore, key: str) -> str:
    """Return the directory's name for a key that begins so, complete or not, or for an engine's name or role."""
    found = [name for name in store.directories() if key and name.startswith(key[: len(name)])]
    return found[0] if len(found) == 1 else find_engine(loaded, key).manifest.key[:16]


def _removed(store: EngineStore, doomed: Sequence[Path], *, dry_run: bool) -> Pruned:
    sizes = {path: _size(path) for path in doomed}
    removed = [path for path in doomed if dry_run or store.remove(path)]
    return Pruned(
        paths=tuple(removed),
        busy=tuple(path for path in doomed if path not in removed),
        size_bytes=sum(sizes[path] for path in removed),
    )


def export(loaded: LoadedConfig, key: str, destination: Path) -> Path:
    """Copy an engine and its manifest to a new directory, or into a ``.tar`` file; whole or not at all.

    Raises:
        ConfigError: There is no such engine, it is damaged, or *destination* exists.
    """
    engine, store = find_engine(loaded, key), _store(loaded)
    if problems := store.verify(engine.manifest.key, full=True):
        raise ConfigError(f"{engine.manifest.name} is damaged and was not exported", findings=problems)
    if destination.exists():
        raise ConfigError(f"{destination} exists", hint="Name a new directory or .tar file.")
    names = [MANIFEST, *(file.path for file in engine.manifest.files)]
    with fresh_path(destination) as fresh:
        if destination.suffix == ".tar":
            with tarfile.open(fresh, "w") as archive:
                for name in names:
                    archive.add(engine.path / name, arcname=f"{engine.manifest.name}/{name}", recursive=False)
        else:
            for name in names:
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(engine.path / name, fresh / name)
    return destination


def _store(loaded: LoadedConfig) -> EngineStore:
    return EngineStore(workspace(loaded).engines)


def _planned(loaded: LoadedConfig) -> tuple[tuple[str, str], ...]:
    return tuple((engine.spec.role, engine.key) for engine in check(loaded).plan.engines)


def _used_keys(loaded: LoadedConfig) -> tuple[str, ...]:
    """Return the directories of the engines that a configuration uses; a doubt is an error, for engines are removed.

    Raises:
        ConfigError: It cannot be planned, or not for a GPU that is known.
    """
    checked = check(loaded)
    require_sound_plan(checked)
    unknown = [finding for finding in checked.findings if finding.code == "gpu.unknown"]
    if unknown:
        raise ConfigError("which engines are used cannot be told", findings=unknown)
    return tuple(engine.key[:16] for engine in checked.plan.engines)


def _used(loaded: LoadedConfig) -> tuple[tuple[str, str], ...] | None:
    """Return the planned engines; None when the checkpoints are not here, as where only engines are kept."""
    try:
        return _planned(loaded)
    except SpecdeployError:
        return None


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
