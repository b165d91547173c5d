"""A request on its way, over whatever wire: its deadline, its end, and that the end is told exactly once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from specdeploy.bench.wire.call import Reply
from specdeploy.triton.client.failures import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable

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
