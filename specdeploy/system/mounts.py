"""Which directories of the host a job in a container has to see, each at the path that it has outside.

Knows paths and symbolic links. Does not know how an engine spells a mount.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdeploy.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdeploy.system.jobs import Job

# An image brings its own: a link into the host's (of a virtual environment, say) must not cover them.
_OF_THE_IMAGE: Final = frozenset({"bin", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mount:
    """A host path that is visible under the same name inside; read-only unless *writable*."""

    path: Path
    writable: bool


def job_mounts(job: Job) -> tuple[Mount, ...]:
    """Return what *job* needs mounted, outer paths before inner ones.

    A path that an outer mount shows already, with the rights it needs, gets none of its own.

    Raises:
        ValueError: A path is not absolute.
    """
    writable = {*job.writes, *(promise.parent for promise in job.promises)}
    wanted = sorted({*job.reads, *writable}, key=lambda path: (len(path.parts), path))
    mounts: dict[Path, bool] = {}
    for path in wanted:
        if not path.is_absolute() or ".." in path.parts:
            raise ValueError(f"the job {job.name!r} names {path}, which is not an absolute path")
        shown_writable = _rights(path, mounts)
        if shown_writable is None or (path in writable and not shown_writable):
            mounts[path] = path in writable
    return tuple(Mount(path=path, writable=rights) for path, rights in mounts.items())


def _rights(path: Path, mounts: dict[Path, bool]) -> bool | None:
    """Say whether *path* is writable through the nearest of its parents that is mounted; None when none is."""
    return next((mounts[parent] for parent in path.parents if parent in mounts), None)


def with_link_targets(job: Job) -> Job:
    """Return *job* with the directories added to its reads that symbolic links in them lead to.

    A snapshot in a Hugging Face cache holds nothing but links into a folder beside it; mounted alone, it is empty.
    """
    found = {target for path in job.reads for target in _link_targets(path)}
    targets = (target for target in found if len(target.parts) > 1 and target.parts[1] not in _OF_THE_IMAGE)
    return dataclasses.replace(job, reads=(*job.reads, *sorted(targets)))


def _link_targets(path: Path) -> Iterable[Path]:
    if path.is_dir():
        inside = path.resolve()
        for folder, folders, names in os.walk(path):
            for entry in (Path(folder, name) for name in (*folders, *names)):
                if entry.is_symlink() and entry.exists() and not entry.resolve().is_relative_to(inside):
                    yield entry.resolve().parent
    elif path.is_symlink():
        yield path.resolve().parent


def require_present(job: Job, mounts: Iterable[Mount]) -> None:
    """Refuse paths that are not there: some engines would make an empty directory of root's in their place.

    Raises:
        EnvironmentFault: One is missing.
    """
    for mount in mounts:
        if not mount.path.exists():
            raise EnvironmentFault(f"{mount.path}, which {job.name} needs, is not there")
