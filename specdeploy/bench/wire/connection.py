"""One HTTP connection of a load test.

A read is stamped, cut into events, and done with; nothing is decoded here. All connections read into one shared buffer:
asyncio's own reads allocate 256 KiB each, which costs more than all the rest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from specdeploy.bench.wire.exchange import Owner
from specdeploy.bench.wire.framing import ResponseReader
from specdeploy.triton.client.failures import RequestFailed, socket_failures
from specdeploy.triton.client.http import redirect_words
from specdeploy.triton.client.replies import SizeLimit

if TYPE_CHECKING:
    from specdeploy.bench.wire.call import Reply
    from specdeploy.bench.wire.exchange import Exchange

#: Longest error message that is kept (bytes).
_MAX_BODY: Final = 1 << 20
#: A connection that ends sooner than this (seconds), and unused, is not replaced: its server takes none.
_SOON_S: Final = 1.0


class Pool(Owner, Protocol):
    """The wire that the connections belong to."""

    received: int
    buffer: memoryview

    def made(self, connection: Connection) -> None:
        """Take note of a new connection."""

    def put_back(self, connection: Connection) -> None:
        """Take a connection over which another request can be sent."""

    def lost(self, connection: Connection, *, replace: bool) -> None:
        """Take note that a connection is no more."""

    def send_over_new(self, exchange: Exchange) -> None:
        """Open a connection for a request."""


class Connection(asyncio.BufferedProtocol):
    """A connection that carries one request at a time; asyncio sets ``TCP_NODELAY``."""

    _transport: asyncio.Transport

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._monotonic = pool.monotonic
        self._buffer = pool.buffer
        self._exchange: Exchange | None = None
        self._reader = ResponseReader()
        self._limit = SizeLimit()
        self._used = False
        self._since_s = pool.monotonic()

    @property
    def usable(self) -> bool:
        """Whether a request can be sent over it, as far as anybody knows."""
        return not self._transport.is_closing()

    @property
    def peer(self) -> tuple[str, int]:
        """Numeric address and port of the server."""
        host, port = self._transport.get_extra_info("peername")[:2]
        return host, port

    def send(self, exchange: Exchange) -> None:
        """Send a request; the one before it has ended."""
        self._exchange, exchange.link = exchange, self
        self._reader = ResponseReader()
        self._limit = SizeLimit()
        self._transport.write(exchange.payload)

    def abort(self) -> None:
        """Close the connection at once, under a request that has ended or is about to."""
        self._exchange = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and belong to the pool."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - asyncio's promise for a stream
        self._transport = transport
        self._pool.made(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return where to read to."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        now_s = self._monotonic()
        exchange, reader = self._exchange, self._reader
        if exchange is None:
            # Nobody has asked: some servers tell an idle client why they close the connection.
            self.abort()
            return
        try:
            body = reader.feed(self._buffer[:nbytes].tobytes())
            if body:
                self._take(exchange.reply, body, now_s)
        except RequestFailed as fault:
            exchange.fail(fault)
            return
        if reader.ended:
            self._finish(exchange, now_s)

    def eof_received(self) -> None:
        """Leave it to asyncio to close our side, too."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Find out what that means for the request."""
        now_s = self._monotonic()
        exchange, self._exchange = self._exchange, None
        self._pool.lost(self, replace=self._used or now_s - self._since_s > _SOON_S)
        if exchange is None:
            return
        if self._used and not self._reader.begun and not exchange.reply.resent:
            # The server closed an idle connection just when we used it; it cannot have seen the request.
            exchange.reply.resent = True
            exchange.link = None
            self._pool.send_over_new(exchange)
            return
        self._take_status(exchange.reply)
        exchange.end(now_s, self._fault(exc))

    def _take(self, reply: Reply, body: bytes, now_s: float) -> None:
        reply.status = self._reader.status
        if reply.status != 200:
            self._limit.body(len(body))
            reply.body = (reply.body + body)[:_MAX_BODY]
            return
        events = reply.splitter.feed(body)
        self._limit.events(len(body), len(events))
        if events:
            reply.events += events
            reply.arrived_s += [now_s] * len(events)
            self._pool.received += len(events)

    def _take_status(self, reply: Reply) -> None:
        reply.status = self._reader.status
        reply.body = redirect_words(reply.status, self._reader.location) or reply.body

    def _finish(self, exchange: Exchange, now_s: float) -> None:
        self._exchange = None
        self._used = True
        self._take_status(exchange.reply)
        if self._reader.reusable and self.usable:
            self._pool.put_back(self)
        else:
            self._transport.abort()
        exchange.end(now_s)

    def _fault(self, error: Exception | None) -> RequestFailed | None:
        """Say why a connection that ended leaves an answer incomplete; None if it does not."""
        try:
            with socket_failures(self._pool.address):
                if isinstance(error, OSError):
                    raise error
                self._reader.end_of_connection()
        except RequestFailed as fault:
            return fault
        return None
