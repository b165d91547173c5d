"""The engine store: a folder of finished engines, each under the hash of everything that decided its content.

::

    engines/
      0123456789abcdef/      first 16 digits of the key: manifest.json and the engine's files
      .staging-<key>-<pid>/  being built; renamed into place when it is complete
      .broken-<key>/         was found damaged and moved aside; the next one replaces it
      .steps/<key>-<pid>/    what a step before the last writes, for the next one
      .steps/<key>.json      which of these is complete, and the sizes of its files
      .locks/<key>.lock      held by whoever builds that engine
      logs/<key>-<step>.log  what a step of its build printed

An engine is in the store when its directory and a manifest that describes all of its files are; everything else is
left over from something. The manifest is written last and the directory renamed after that, so no crash leaves half an
engine under a final name. Knows nothing about how engines are made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import time
from typing import TYPE_CHECKING, Final

from specdeploy.engine.profile import EngineFile, EngineManifest
from specdeploy.errors import BuildFailed, ConfigError
from specdeploy.findings import Finding
from specdeploy.system import files
from specdeploy.system.signals import Endings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MANIFEST: Final = "manifest.json"
_SHORT: Final = 16
_STAGING: Final = ".staging-"
_BROKEN: Final = ".broken-"
_STEPS: Final = ".steps"
# What else lies in the folder is not ours.
_KEY: Final = re.compile(rf"[0-9a-f]{{{_SHORT}}}")
_LOCK_POLL_S: Final = 0.1


class EngineStore:
    """A store in the folder *root*, which is made when it is first written to."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, key: str) -> Path:
        """Return the directory of an engine, whether or not it exists."""
        return self.root / key[:_SHORT]

    def log(self, key: str, step: str) -> Path:
        """Return the log file of a step of an engine's build."""
        name = re.sub(r"[^a-z0-9]+", "-", step.lower()).strip("-")
        return self.root / "logs" / f"{key[:_SHORT]}-{name}.log"

    def kept_step(self, key: str) -> Path | None:
        """Return the directory of what a step before the last wrote; None unless every file is there with its size."""
        try:
            note = json.loads(self._step_note(key).read_bytes())
            directory, sizes = self.root / _STEPS / str(note["directory"]), dict(note["sizes"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return directory if sizes and _sizes(directory) == sizes else None

    def step_directory(self, key: str, writer: str = "") -> Path:
        """Return where a step is written: by this process, since another one, even one left over, writes elsewhere."""
        return self.root / _STEPS / f"{key[:_SHORT]}-{writer or os.getpid()}"

    def begin_step(self, key: str) -> Path:
        """Return an empty directory for a step; only for the holder of its lock."""
        directory = self.step_directory(key)
        self._step_note(key).unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        return directory

    def keep_step(self, key: str) -> None:
        """Note that what :meth:`begin_step` gave is complete."""
        directory = self.step_directory(key)
        files.write_json_atomic(self._step_note(key), {"directory": directory.name, "sizes": _sizes(directory)})

    def drop_step(self, key: str) -> None:
        """Remove what a step wrote, unless another builder holds its lock: then that one reads it, and removes it."""
        with files.locked_if_free(self._lock_path(key[:_SHORT])) as free:
            if free:
                self._step_note(key).unlink(missing_ok=True)
                for directory in (self.root / _STEPS).glob(f"{key[:_SHORT]}-*"):
                    shutil.rmtree(directory, ignore_errors=True)

    def _step_note(self, key: str) -> Path:
        return self.root / _STEPS / f"{key[:_SHORT]}.json"

    def find(self, key: str) -> EngineManifest | None:
        """Return the manifest of a complete engine, or None.

        Complete means: the manifest is readable and of this key, and every file it lists is there with its size. The
        content is not read; see :meth:`verify`.
        """
        manifest = self._manifest(key)
        return manifest if manifest is not None and not self._damage(manifest) else None

    def manifests(self) -> tuple[EngineManifest, ...]:
        """Return the manifests of all complete engines, the oldest first."""
        found = (manifest for key in self.directories() if (manifest := self._manifest(key)) is not None)
        complete = (manifest for manifest in found if not self._damage(manifest))
        return tuple(sorted(complete, key=lambda manifest: (manifest.created, manifest.key)))

    def directories(self) -> tuple[str, ...]:
        """Return the short keys of all engine directories, complete or not, in their order."""
        return tuple(sorted(path.name for path in self.root.glob("*") if _KEY.fullmatch(path.name) and path.is_dir()))

    def verify(self, key: str, *, full: bool = False) -> tuple[Finding, ...]:
        """Return what is wrong with an engine: its files and their sizes, and with *full* their content (SHA-256)."""
        where = str(self.path(key))
        if not self.path(key).is_dir():
            return (_finding("engine.missing", f"there is no engine {key[:_SHORT]}", "Build it.", where),)
        manifest = self._manifest(key)
        if manifest is None:
            message = f"{MANIFEST} is missing, damaged, or of another engine"
            return (_finding("engine.manifest-damaged", message, "Build it again.", where),)
        return self._damage(manifest) or (self._altered(manifest) if full else ())

    @contextlib.contextmanager
    def lock(self, key: str, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold the right to build an engine for the block; a second builder waits, after calling *on_wait*.

        Signals end the waiting, and in a thread ``system.signals.stopped_by`` does: so it asks now and then, since
        nothing but the lock itself would wake a thread that the kernel makes wait for it.
        """
        path = self._lock_path(key[:_SHORT])
        with contextlib.ExitStack() as stack:
            while not stack.enter_context(files.locked_if_free(path)):
                stack.close()
                if on_wait is not None:
                    on_wait()
                    on_wait = None
                with Endings():
                    time.sleep(_LOCK_POLL_S)
            yield

    @contextlib.contextmanager
    def stage(self, key: str) -> Iterator[Path]:
        """Give an empty directory to build an engine in; it is gone after the block unless it was published.

        Only for the holder of the lock. A damaged engine under the final name is moved aside first.
        """
        self._move_broken_aside(key)
        staging = self.root / f"{_STAGING}{key[:_SHORT]}-{os.getpid()}"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def publish(self, staging: Path, manifest: EngineManifest) -> EngineManifest:
        """Hash what is in *staging*, write the manifest there, and rename it to its final place.

        Args:
            staging: A directory of :meth:`stage`, on the same file system.
            manifest: Everything but the files and the size, which are filled in here.

        Raises:
            BuildFailed: The directory holds links, which would leave a part of the engine elsewhere.
        """
        listed = tuple(_engine_file(path, staging) for path in sorted(staging.rglob("*")) if not path.is_dir())
        complete = dataclasses.replace(manifest, files=listed, size_bytes=sum(file.size for file in listed))
        for file in listed:
            _sync(staging / file.path)
        files.write_json_atomic(staging / MANIFEST, complete.to_dict())
        staging.rename(self.path(manifest.key))
        files.sync_directory(self.root)
        return complete

    def clean(self) -> tuple[Path, ...]:
        """Remove the staging directories that dead builders left, and return them.

        A staging directory is only used by the holder of its engine's lock, which the kernel releases when the holder
        dies: if the lock is free, nobody is at work there.
        """
        removed: list[Path] = []
        for staging in sorted(self.root.glob(f"{_STAGING}*")):
            short = staging.name.removeprefix(_STAGING).partition("-")[0]
            with files.locked_if_free(self._lock_path(short)) as free:
                if free:
                    shutil.rmtree(staging, ignore_errors=True)
                    removed.append(staging)
        return tuple(removed)

    def leftovers(self) -> tuple[Path, ...]:
        """Return what interrupted builds left: staging directories, half-done steps, engines found damaged.

        What a builder is at work on is not among them, and neither is a complete step, which the next build goes on
        from or which is kept on purpose.
        """
        steps = [path for path in self.root.glob(f"{_STEPS}/*") if path.is_dir()]
        half_done = [path for path in steps if self.kept_step(_short_of(path)) != path]
        found = [*self.root.glob(f"{_STAGING}*"), *self.root.glob(f"{_BROKEN}*"), *half_done]
        return tuple(path for path in sorted(found) if self._is_idle(_short_of(path)))

    def kept_steps(self) -> tuple[Path, ...]:
        """Return the complete results of single steps that no builder is at work on."""
        found = (self.kept_step(path.stem) for path in sorted(self.root.glob(f"{_STEPS}/*.json")))
        return tuple(path for path in found if path is not None and self._is_idle(_short_of(path)))

    def remove(self, path: Path) -> bool:
        """Remove an engine's directory, or one of :meth:`leftovers`; say whether it was, for a builder may be there."""
        with files.locked_if_free(self._lock_path(_short_of(path))) as free:
            if free:
                # Not one file after the other under its name: a reader must not meet half an engine.
                doomed = self.root / f"{_BROKEN}{_short_of(path)}-{os.getpid()}"
                path.rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)
        return free

    def _is_idle(self, short: str) -> bool:
        with files.locked_if_free(self._lock_path(short)) as free:
            return free

    def free_bytes(self) -> int | None:
        """Return the free space where the store is, in bytes; None when it cannot be seen."""
        try:
            return shutil.disk_usage(self.root).free
        except OSError:
            return None

    def _lock_path(self, short: str) -> Path:
        return self.root / ".locks" / f"{short}.lock"

    def _manifest(self, key: str) -> EngineManifest | None:
        try:
            manifest = EngineManifest.from_dict(json.loads((self.path(key) / MANIFEST).read_bytes()))
        except (OSError, ValueError, ConfigError):
            return None
        # An engine without files is none, whatever the manifest says.
        return manifest if manifest.key.startswith(key) and manifest.files else None

    def _damage(self, manifest: EngineManifest) -> tuple[Finding, ...]:
        """Return a finding for every file that is missing or has another size; looks at directory entries only."""
        found: list[Finding] = []
        for file in manifest.files:
            path = self.path(manifest.key) / file.path
            try:
                size = path.stat().st_size
            except OSError:
                found.append(_finding("engine.file-missing", f"{file.path} is missing", "Build it again.", str(path)))
                continue
            if size != file.size:
                message = f"{file.path} has {size} bytes, the manifest says {file.size}"
                found.append(_finding("engine.size-differs", message, "Build it again.", str(path)))
        return tuple(found)

    def _altered(self, manifest: EngineManifest) -> tuple[Finding, ...]:
        root = self.path(manifest.key)
        return tuple(
            _finding(
                "engine.content-differs",
                f"{file.path} was changed: its SHA-256 differs",
                f"`specdeploy engines remove {manifest.key[:_SHORT]}`, then build it again.",
                str(root),
            )
            for file in manifest.files
            if files.sha256_file(root / file.path) != file.sha256
        )

    def _move_broken_aside(self, key: str) -> None:
        if self.path(key).exists():
            broken = self.root / f"{_BROKEN}{key[:_SHORT]}"
            shutil.rmtree(broken, ignore_errors=True)
            self.path(key).rename(broken)


def _sizes(directory: Path) -> dict[str, int]:
    """Return the size of every file below a directory, by its relative name."""
    return {str(path.relative_to(directory)): path.stat().st_size for path in directory.rglob("*") if path.is_file()}


def _short_of(path: Path) -> str:
    """Return the short key that a directory of the store is of."""
    return path.name.removeprefix(_STAGING).removeprefix(_BROKEN).partition("-")[0]


def _engine_file(path: Path, root: Path) -> EngineFile:
    if path.is_symlink() or not path.is_file():
        raise BuildFailed(f"the build left {path.name}, which is a link or no regular file; nothing was published")
    return EngineFile(path=str(path.relative_to(root)), size=path.stat().st_size, sha256=files.sha256_file(path))


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _finding(code: str, message: str, hint: str, where: str) -> Finding:
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)
