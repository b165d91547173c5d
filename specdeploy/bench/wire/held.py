"""A wire that is slower by a known share: it holds back what arrives, to see whether that is noticed.

Nothing of a reply is read before it has ended, so the reply waits as a whole until its time is over, its events put to
the moments at which they would have come. Meanwhile its request is in flight, for whoever counts those.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from specdeploy.triton.client.failures import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from specdeploy.bench.wire.call import Call, Done, Reply, Wire

#: The loop sleeps in whole milliseconds and rounds up: it is woken one early and goes round until it is time.
_EARLY_S: Final = 0.001


def stretched(moments_s: Iterable[float], start_s: float, slowdown: float) -> list[float]:
    """Return moments as they would be, were everything since ``start_s`` slower by a share."""
    return [start_s + (1 + slowdown) * (moment_s - start_s) for moment_s in moments_s]


class HeldWire:
    """A ``Wire`` around another one.

    Args:
        wire: What sends.

        slowdown: By which share each answer takes longer; 0 holds nothing back.

        monotonic: The clock of the wire's replies.
    """

    def __init__(
        self, wire: Wire[Any], slowdown: float = 0.0, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wire = wire
        self._held: set[_Held] = set()
        self.slowdown = slowdown
        self.monotonic = monotonic
        self.answers = 0
        self.taken_s = 0.0

    @property
    def mean_s(self) -> float | None:
        """How long answers took on average, with what they were held back; None before the first one."""
        return self.taken_s / self.answers if self.answers else None

    @property
    def received(self) -> int:
        """Events of all requests so far."""
        return self._wire.received

    @property
    def in_flight(self) -> int:
        """Requests that have not ended, those included whose answer is held back."""
        return self._wire.in_flight + len(self._held)

    async def open(self, connections: int, timeout_s: float = 30.0) -> None:
        """Connect; see ``Wire``."""
        await self._wire.open(connections, timeout_s)

    def start(self, payload: Any, timeout_s: float, done: Done) -> _Held:  # noqa: ANN401 - whatever the wire sends
        """Send a request; see ``Wire``."""
        held = _Held(self, timeout_s, done)
        held.call = self._wire.start(payload, timeout_s, held.arrived)
        return held

    def cancel_all(self) -> None:
        """Cancel every request in flight, and those whose answer is held back."""
        self._wire.cancel_all()
        for held in tuple(self._held):
            held.cancel()

    async def close(self) -> None:
        """Cancel what is in flight and disconnect; see ``Wire``."""
        self.cancel_all()
        await self._wire.close()

    def hold(self, held: _Held) -> None:
        """Take note that an answer is held back."""
        self._held.add(held)

    def let_go(self, held: _Held, reply: Reply) -> None:
        """Take note that an answer is on its way again, or that it never was held."""
        self._held.discard(held)
        if reply.fault is None:
            self.answers += 1
            self.taken_s += reply.ended_s - reply.sent_s


class _Held:
    """One request, whose answer waits; a ``Call``."""

    __slots__ = ("_done", "_due_s", "_reply", "_timeout_s", "_timer", "_wire", "call")

    def __init__(self, wire: HeldWire, timeout_s: float, done: Done) -> None:
        self._wire = wire
        self._timeout_s = timeout_s
        self._done = done
        self._due_s = 0.0
        self._reply: Reply | None = None
        self._timer: asyncio.Handle | None = None
        self.call: Call | None = None

    def arrived(self, reply: Reply) -> None:
        """Take the reply; one that failed, or a wire that holds nothing back, hands it on at once."""
        if reply.fault is not None or not self._wire.slowdown:
            self._wire.let_go(self, reply)
            self._done(reply)
            return
        [due_s] = stretched([reply.ended_s], reply.sent_s, self._wire.slowdown)
        self._due_s = min(due_s, reply.sent_s + self._timeout_s)
        self._reply = reply
        self._wire.hold(self)
        if self._due_s < due_s:
            reply.fault = RequestFailed("timeout", "the answer was held back for longer than a request may take")
        self._wait()

    def cancel(self) -> None:
        """Give the request up, or its answer; see ``Call``."""
        if self._reply is not None:
            self._reply.fault = RequestFailed("cancelled", "cancelled before the answer was complete")
            self._release(self._wire.monotonic())
        elif self.call is not None:
            self.call.cancel()

    def _wait(self) -> None:
        now_s = self._wire.monotonic()
        if now_s >= self._due_s:
            self._release(now_s)
            return
        left_s = max(self._due_s - now_s - _EARLY_S, 0.0)
        self._timer = asyncio.get_running_loop().call_later(left_s, self._wait)

    def _release(self, now_s: float) -> None:
        """Hand the reply on, with what would have come by now."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        came = stretched(reply.arrived_s, reply.sent_s, self._wire.slowdown)
        if reply.fault is not None:
            came = [moment_s for moment_s in came if moment_s <= now_s]
        reply.arrived_s, reply.events, reply.ended_s = came, reply.events[: len(came)], now_s
        self._wire.let_go(self, reply)
        self._done(reply)
