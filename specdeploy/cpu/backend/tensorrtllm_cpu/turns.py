"""One forward pass at a time, over all engines of a server: each has every core, as each kernel has the GPU.

Two engines at once on the same cores take longer than one after the other: threads that wait for a part of their pass
hold a core that the other engine's thread needs. Every engine is a process of its own, so they take turns by locks of
the kernel, which drops them when a process dies. Of two engines neither has two turns while the other waits; of more,
those that wait come in any order. Knows folders and locks; does not know what a pass is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: All engines of a server load this package from the same folder, and leave nothing in it.
_FOLDER: Final = Path(__file__).parent
#: How long a pass waits for another engine's before it goes beside it (seconds): that one may be stopped for good.
PATIENCE_S: Final = 2.0
#: For how many times as long it does not wait then, so that one that is stopped costs the others a tenth of their time.
_REST: Final = 10
#: How often it looks.
_LOOK_S: Final = 0.0005


class Turns:
    """The turns of one engine; of one thread.

    Args:
        folder: A folder that all the engines share, and its parent. Where one cannot be locked there are no turns.
        patience_s: How long to wait for others (seconds).
    """

    def __init__(self, folder: Path = _FOLDER, *, patience_s: float = PATIENCE_S) -> None:
        self._next = _Lock(folder.parent)
        self._pass = _Lock(folder)
        self._patience_s = patience_s
        # Who has waited in vain goes beside the others for a while.
        self._waits_from = 0.0

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the others' pass to end, and keep them waiting for the block."""
        now = time.monotonic()
        until = now + self._patience_s if now >= self._waits_from else now
        # An engine that has just had its turn cannot overtake one that waits: that one is next.
        if self._next.take(until) and self._pass.take(until):
            self._waits_from = 0.0
        elif until > now:
            self._waits_from = until + _REST * self._patience_s
        self._next.drop()
        try:
            yield
        finally:
            self._pass.drop()


class _Lock:
    """An exclusive lock on a folder; one that is always free where the folder cannot be locked."""

    def __init__(self, folder: Path) -> None:
        # None where it cannot be opened, by the rights of its parents or for want of descriptors.
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._descriptor)

    def take(self, until: float) -> bool:
        """Take the lock, waiting at most until a time of the monotonic clock; False when it was not to be had."""
        if self._descriptor is None:
            return True
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    return False
                time.sleep(_LOOK_S)
            except OSError:
                # A network file system without locks.
                return True
            else:
                return True

    def drop(self) -> None:
        """Give the lock back, if it was taken."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
