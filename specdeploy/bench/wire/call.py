"""What a load test sends requests by, and what comes of one: bytes and arrival times, kept as they are.

Nothing is decoded while answers arrive: a decoder that works between two arrivals would be measured, too. The dialects
read a ``Reply`` once it is complete.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from specdeploy.triton.protocol import EventSplitter

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.triton.client.failures import RequestFailed

PayloadT_contra = TypeVar("PayloadT_contra", contravariant=True)


@dataclasses.dataclass(slots=True, kw_only=True)
class Reply:
    """What came of one request. Times are of ``time.monotonic`` (seconds).

    Args:
        sent_s: When it was sent; where a connection had to be opened first, when that began.

        ended_s: When the answer was complete, or was given up.

        arrived_s: When each event was complete: the time of the read that brought its last byte.

        events: The events: the data of a server-sent event (``bytes``), or a message of gRPC. Not decoded.

        status: The HTTP status; 0 when none came.

        body: The body of an answer with another status than 200, which is no stream.

        splitter: What the events were cut out by; holds what came after the last of them.

        fault: Why there is no complete answer; None when there is one, which may still be an error of the server's.

        opened: Whether a connection had to be opened for it: its first event waited for that, too.

        resent: Whether it was sent a second time, over a new connection, because the server had closed the first one
            without a byte of an answer.
    """

    sent_s: float
    ended_s: float = 0.0
    arrived_s: list[float] = dataclasses.field(default_factory=list)
    events: list[Any] = dataclasses.field(default_factory=list)
    status: int = 0
    body: bytes = b""
    splitter: EventSplitter = dataclasses.field(default_factory=EventSplitter)
    fault: RequestFailed | None = None
    opened: bool = False
    resent: bool = False


Done: TypeAlias = "Callable[[Reply], None]"


class Call(Protocol):
    """A request in flight."""

    def cancel(self) -> None:
        """Give it up: end its connection and hand over what came so far, with the label ``cancelled``.

        Does nothing once the request has ended.
        """


class Wire(Protocol[PayloadT_contra]):
    """Sends any number of requests at a time from one event loop. All of it belongs to that loop's thread."""

    @property
    def received(self) -> int:
        """Events of all requests so far."""

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""

    async def open(self, connections: int, timeout_s: float = 30.0) -> None:
        """Connect so often that ``connections`` requests at a time need not wait for it.

        More requests at a time than that open further connections, each when it is needed.

        Raises:
            RequestFailed: ``connection`` or ``timeout``: the server cannot be reached.
        """

    def start(self, payload: PayloadT_contra, timeout_s: float, done: Done) -> Call:
        """Send a request now.

        Args:
            payload: What a dialect's ``prepare`` returned.

            timeout_s: From now to the end of the answer.

            done: Gets the reply, exactly once, and never before this returns. It may start the next request.

        Raises:
            RequestFailed: ``connection``: the wire is closed.
        """

    def cancel_all(self) -> None:
        """Cancel every request in flight."""

    async def close(self) -> None:
        """Cancel what is in flight and disconnect; a second time does nothing."""
