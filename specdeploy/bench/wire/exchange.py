"""A request on its way, over whatever wire: its deadline, its end, and that the end is told exactly once."""

from __future__ import annotations

import abc
import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from specdeploy.bench.wire.call import Reply
from specdeploy.triton.client.failures import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from specdeploy.bench.wire.call import Done


class Link(Protocol):
    """What carries one request at a time."""

    def abort(self) -> None:
        """End it at once, with whatever it carries."""


class Owner(Protocol):
    """The wire that a request was started on."""

    monotonic: Callable[[], float]

    @property
    def address(self) -> str:
        """Where it leads to, host:port."""

    def forget(self, exchange: Exchange) -> None:
        """Take note that a request has ended."""


class Exchange:
    """A request and what came of it so far; a ``Call``.

    Args:
        owner: The wire.

        payload: What is sent.

        done: Gets the reply at the end.
    """

    __slots__ = ("_done", "_owner", "_timer", "ended", "link", "payload", "reply")

    def __init__(self, owner: Owner, payload: Any, done: Done) -> None:  # noqa: ANN401 - bytes, or a protobuf message
        self._owner = owner
        self._done = done
        self._timer: asyncio.TimerHandle | None = None
        self.payload = payload
        self.link: Link | None = None
        self.ended = False
        self.reply = Reply(sent_s=owner.monotonic())

    def cancel(self) -> None:
        """Give the request up; see ``Call``."""
        self.fail(RequestFailed("cancelled", "cancelled before the answer was complete"))

    def expire_after(self, timeout_s: float) -> None:
        """Give the request up if it has not ended by then."""
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._expire)

    def fail(self, fault: RequestFailed) -> None:
        """End the request and what carries it; nothing, once it has ended."""
        if self.link is not None:
            self.link.abort()
        self.end(self._owner.monotonic(), fault)

    def end(self, now_s: float, fault: RequestFailed | None = None) -> None:
        """Hand the reply over, the first time."""
        if self.ended:
            return
        self.ended = True
        self.link = None
        if self._timer is not None:
            self._timer.cancel()
        self.reply.ended_s = now_s
        self.reply.fault = fault
        self._owner.forget(self)
        self._done(self.reply)

    def _expire(self) -> None:
        self.fail(RequestFailed("timeout", f"{self._owner.address} did not answer in time"))


class Exchanges(abc.ABC):
    """What the wires have in common: the requests in flight, and the tasks that carry something on.

    Args:
        monotonic: The clock of replies.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.received = 0
        self._exchanges: set[Exchange] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._exchanges)

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """Where it leads to, host:port."""

    def cancel_all(self) -> None:
        """Cancel every request in flight."""
        for exchange in tuple(self._exchanges):
            exchange.cancel()

    def forget(self, exchange: Exchange) -> None:
        """Take note that a request has ended."""
        self._exchanges.discard(exchange)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Carry something on."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _take(self, payload: Any, timeout_s: float, done: Done) -> Exchange:  # noqa: ANN401 - as above
        """Take a request that is to be sent now.

        Raises:
            RequestFailed: The wire is closed.
        """
        if self._closed:
            raise RequestFailed("connection", "the wire is closed")
        exchange = Exchange(self, payload, done)
        exchange.expire_after(timeout_s)
        self._exchanges.add(exchange)
        return exchange
