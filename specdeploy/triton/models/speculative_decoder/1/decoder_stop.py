"""Ends calls that nobody waits for any more: long ones, which would otherwise run to the end of their answer.

A call blocks the thread that makes it, so another thread asks for it, a few times a second, whether its request has
ended, and has it stopped. Short calls are over before they are looked at and cost next to nothing. Knows nothing of
engines and of Triton.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PERIOD_S: Final = 0.1
"""As often as NVIDIA's backend looks for requests that were cancelled (``cancellation_check_period_ms``)."""

_IDLE_PERIODS: Final = 20


@dataclasses.dataclass(kw_only=True, eq=False)
class _Call:
    begun_s: float
    ended: Callable[[], str]
    stop: Callable[[], None]
    reason: str = ""


class CallStopper:
    """Makes calls, and has those stopped whose request has ended; may be used from any thread.

    Args:
        period_s: Calls are looked at so often, and not before they have lasted as long.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(self, period_s: float = PERIOD_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._period_s = period_s
        self._clock = clock
        self._one_at_a_time = threading.Lock()
        self._open: set[_Call] = set()
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, function: Callable[[], T], ended: Callable[[], str], stop: Callable[[], None]) -> tuple[T, str]:
        """Call *function*; return its value, and why it was stopped on the way, empty where it was not.

        Args:
            function: The call.
            ended: Says why nobody waits for it any more; empty while somebody does.
            stop: Has it come back early, from another thread.

        Raises:
            StoppedError: It was stopped, and came back with an error.
        """
        call = _Call(begun_s=self._clock(), ended=ended, stop=stop)
        with self._one_at_a_time:
            self._open.add(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="stop", daemon=True)
                self._thread.start()
        if not self._wanted.is_set():
            self._wanted.set()
        try:
            return function(), call.reason
        except Exception as error:
            if call.reason:
                raise StoppedError(call.reason) from error
            raise
        finally:
            with self._one_at_a_time:
                self._open.remove(call)

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._wanted.set()

    def _watch(self) -> None:
        idle = 0
        while not self._closed.wait(self._period_s):
            for call in self._due():
                # Whatever goes wrong, the other calls are still looked at.
                with contextlib.suppress(Exception):
                    call.reason = call.ended()
                    if call.reason:
                        call.stop()
            idle = 0 if self._open else idle + 1
            if idle >= _IDLE_PERIODS:
                # Nothing was called for a while: sleep until something is.
                self._wanted.clear()
                if not self._open:
                    self._wanted.wait()
                idle = 0

    def _due(self) -> list[_Call]:
        """Return the calls that have lasted for a period and are not being stopped."""
        latest_s = self._clock() - self._period_s
        with self._one_at_a_time:
            return [call for call in self._open if call.begun_s <= latest_s and not call.reason]


class StoppedError(Exception):
    """The call was stopped and has no value; the message is why."""
