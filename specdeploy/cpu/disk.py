"""Writing large files on disks that may be full: one clear line instead of a traceback."""

from __future__ import annotations

import errno
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from specdeploy.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A full disk, a full quota, a file-size limit (``ulimit -f``; Python ignores the signal that comes with it).
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def room_for(path: Path, needed_bytes: int) -> Iterator[None]:
    """Translate "disk full" inside the block into an error that names ``path`` and ``needed_bytes``.

    Raises:
        EnvironmentFault: No space is left, a quota is used up, the file would pass the size limit, or the place
            cannot be written at all.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise EnvironmentFault(
                f"no space left to write {path}: {needed_bytes} bytes needed, {_free(path)} free ({error.strerror})",
                hint="free some space, raise the limit (`ulimit -f`), or choose another output directory",
            ) from error
        raise EnvironmentFault(
            f"cannot write {path}: {error.strerror or error}", hint="check the permissions of the output directory"
        ) from error


def _free(path: Path) -> str:
    """Return the free bytes of the disk that ``path`` is on, as text."""
    try:
        return str(shutil.disk_usage(path.parent).free)
    except OSError:
        return "an unknown number"


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 file; the errors are those of ``room_for``."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, contents: bytes) -> None:
    """Write a file that is already in memory; the errors are those of ``room_for``."""
    with room_for(path, len(contents)):
        path.write_bytes(contents)
