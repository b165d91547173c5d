"""Watches calls that block and cannot be interrupted, such as one to an engine that hangs.

A call is made on the thread that asks for it, which costs next to nothing. When it takes too long, a watching thread
tells so, and from then on whatever the call was made for is somebody else's: the call, should it come back, ends its
thread's part. Knows nothing of engines and of Triton.
"""

from __future__ import annotations

import collections
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
        limit_s: Longest time that a call may take, in seconds.
        most: So many calls that were given up and have not come back are the most; then none is made.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(self, limit_s: float, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._most = most
        self._clock = clock
        self._one_at_a_time = threading.Lock()
        # All calls may take equally long, so they are overdue in the order in which they began.
        self._open: collections.OrderedDict[object, tuple[float, Callable[[str], None]]] = collections.OrderedDict()
        self._lost = 0
        self._changed = threading.Event()
        self._asleep = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def __call__(self, function: Callable[[], T], lost: Callable[[str], None]) -> T:
        """Call *function* and return its value, or raise what it raises.

        Args:
            function: The call.
            lost: Told, on another thread, that the call takes too long, and how long; what comes after is up to it.

        Raises:
            DeadlineError: Too many calls have not come back; nobody is told.
            TakenOverError: It took too long, and ``lost`` has been told.
        """
        key = self._begin(lost)
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

    def _begin(self, lost: Callable[[str], None]) -> object:
        key = object()
        with self._one_at_a_time:
            if self._lost >= self._most:
                raise DeadlineError(f"has not answered {self._most} earlier calls")
            self._open[key] = (self._clock() + self._limit_s, lost)
            asleep, self._asleep = self._asleep, False
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
                self._thread.start()
        if asleep:
            self._changed.set()
        return key

    def _ends(self, key: object) -> bool:
        """Say whether the call came back in time: it is either still watched or somebody else's, never both."""
        with self._one_at_a_time:
            in_time = self._open.pop(key, None) is not None
            self._lost -= not in_time
        return in_time

    def _watch(self) -> None:
        while not self._closed:
            overdue, wait_s = self._overdue()
            for lost in overdue:
                lost(f"has not answered within {self._limit_s:g} s")
            self._changed.wait(wait_s)
            self._changed.clear()

    def _overdue(self) -> tuple[list[Callable[[str], None]], float | None]:
        """Take what is overdue out, and say how long nothing more will be; None where nothing is watched.

        The watch sleeps until the oldest call would be overdue, so that calls which end in time do not wake it.
        """
        found: list[Callable[[str], None]] = []
        with self._one_at_a_time:
            now_s = self._clock()
            while self._open:
                key, (due_s, lost) = next(iter(self._open.items()))
                if due_s > now_s:
                    return found, due_s - now_s
                del self._open[key]
                self._lost += 1
                found.append(lost)
            self._asleep = True
        return found, None
