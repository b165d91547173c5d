"""Watches calls that block and cannot be interrupted, such as one to an engine that hangs.

A call is made on the thread that asks for it, which costs next to nothing. When it takes too long, a watching thread
tells so, and from then on whatever the call was made for is somebody else's: the call, should it come back, ends its
thread's part. Knows nothing of engines and of Triton.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class DeadlineError(Exception):
    """The call is not made, since too many have not come back; the message says so."""


class TakenOverError(Exception):
    """The call came back after it was given up: another thread does what this one was at."""


class CallWatch:
    """Makes calls, and gives up those that take too long; may be used from any thread.

    Args:
        most: So many calls that were given up and have not come back are the most; then none is made.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._one_at_a_time = threading.Lock()
        self._numbers = itertools.count()
        # When each call is due, how long it may take, and whom to tell.
        self._open: dict[int, tuple[float, float, Callable[[str], None]]] = {}
        self._lost = 0
        self._changed = threading.Event()
        # Until then the watch sleeps.
        self._wakes_s = math.inf
        self._closed = False
        self._thread: threading.Thread | None = None

    def __call__(self, function: Callable[[], T], lost: Callable[[str], None], limit_s: float) -> T:
        """Call *function* and return its value, or raise what it raises.

        Args:
            function: The call.
            limit_s: Longest time that it may take, in seconds.
            lost: Told, on another thread, that the call takes too long, and how long; what comes after is up to it.

        Raises:
            DeadlineError: Too many calls have not come back; nobody is told.
            TakenOverError: It took too long, and ``lost`` has been told.
        """
        key = self._begin(lost, limit_s)
        try:
            value = function()
        except Exception as error:
            if self._ends(key):
                raise
            raise TakenOverError from error
        if not self._ends(key):
            raise TakenOverError
        return value

    def close(self) -> None:
        """Stop watching; a call that never comes back ends with the process."""
        self._closed = True
        self._changed.set()

    def _begin(self, lost: Callable[[str], None], limit_s: float) -> int:
        with self._one_at_a_time:
            if self._lost >= self._most:
                raise DeadlineError(f"has not answered {self._most} earlier calls")
            key, due_s = next(self._numbers), self._clock() + limit_s
            self._open[key] = (due_s, limit_s, lost)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
                self._thread.start()
            sooner = due_s < self._wakes_s
        if sooner:
            self._changed.set()
        return key

    def _ends(self, key: int) -> bool:
        """Say whether the call came back in time: it is either still watched or somebody else's, never both."""
        with self._one_at_a_time:
            in_time = self._open.pop(key, None) is not None
            self._lost -= not in_time
        return in_time

    def _watch(self) -> None:
        while not self._closed:
            overdue, wait_s = self._overdue()
            for limit_s, lost in overdue:
                # Whoever is told deals with what goes wrong; the others are still watched.
                with contextlib.suppress(Exception):
                    lost(f"has not answered within {limit_s:g} s")
            self._changed.wait(wait_s)
            self._changed.clear()

    def _overdue(self) -> tuple[list[tuple[float, Callable[[str], None]]], float | None]:
        """Take what is overdue out, and say how long nothing more will be; None where nothing is watched.

        The watch sleeps until the next call would be overdue, so that calls which end in time do not wake it, and it
        may look at all that are open.
        """
        with self._one_at_a_time:
            now_s = self._clock()
            keys = [key for key, (due_s, _, _) in self._open.items() if due_s <= now_s]
            overdue = [self._open.pop(key)[1:] for key in keys]
            self._lost += len(overdue)
            self._wakes_s = min((due_s for due_s, _, _ in self._open.values()), default=math.inf)
        return overdue, None if self._wakes_s == math.inf else min(self._wakes_s - now_s, threading.TIMEOUT_MAX)
