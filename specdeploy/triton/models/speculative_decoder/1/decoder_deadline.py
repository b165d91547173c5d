"""Calls with a deadline, for what blocks and cannot be interrupted: an engine that hangs.

A call runs on a thread of its own kind; when it takes too long its caller goes on without it, and the thread comes back
into use when the call does. Knows nothing of engines and of Triton.
"""

from __future__ import annotations

import collections
import queue
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class DeadlineError(Exception):
    """The call has not come back in time, or there is no thread left for it; the message says which."""


class _Call(Generic[T]):
    """One call and its outcome."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._value: T

    def run(self) -> None:
        """Make the call, on whatever thread this is."""
        try:
            self._value = self._function()
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits for it
            self._error = error
        finally:
            self._done.set()

    def outcome(self, limit_s: float) -> T:
        """Wait for the call and return its value, or raise what it raised."""
        if not self._done.wait(limit_s):
            raise DeadlineError(f"has not answered within {limit_s:g} s")
        if self._error is not None:
            raise self._error
        return self._value


class DeadlineCaller:
    """Makes calls on threads that are kept for the next ones.

    Args:
        limit_s: Longest time that a call may take, in seconds.
        most: The most calls at once, those included that were given up and have not come back.
    """

    def __init__(self, limit_s: float, most: int) -> None:
        self._limit_s = limit_s
        self._room = threading.BoundedSemaphore(most)
        self._most = most
        self._idle: collections.deque[queue.SimpleQueue[_Call[Any] | None]] = collections.deque()

    def __call__(self, function: Callable[[], T]) -> T:
        """Call *function* and return its value, or raise what it raises.

        Raises:
            DeadlineError: It takes longer than allowed, or too many calls have not come back.
        """
        if not self._room.acquire(blocking=False):
            raise DeadlineError(f"has not answered {self._most} earlier calls")
        call = _Call(function)
        self._thread().put(call)
        return call.outcome(self._limit_s)

    def close(self) -> None:
        """Let the idle threads end; one whose call never comes back ends with the process."""
        while self._idle:
            self._idle.pop().put(None)

    def _thread(self) -> queue.SimpleQueue[_Call[Any] | None]:
        """Return the inbox of a thread that has nothing to do."""
        try:
            return self._idle.pop()
        except IndexError:
            inbox: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(inbox,), name="draft", daemon=True).start()
            return inbox

    def _work(self, inbox: queue.SimpleQueue[_Call[Any] | None]) -> None:
        while (call := inbox.get()) is not None:
            call.run()
            del call  # it holds the request's tensors
            self._idle.append(inbox)
            self._room.release()
