"""HTTP/1.1 for a load test: many requests at a time from one event loop, for as little CPU time as possible.

Connections are opened beforehand and kept, so that no request waits for one; one that the server closes while it is
idle is replaced. Proxies are not used and redirects are not followed, so that what is measured, and an API key, stays
with this server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from typing import TYPE_CHECKING, Final

from specdeploy.bench.wire.connection import Connection
from specdeploy.bench.wire.exchange import Exchange, Exchanges
from specdeploy.triton.client.failures import RequestFailed, socket_failures
from specdeploy.triton.client.http import host_and_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.bench.wire.call import Done

_BUFFER: Final = 65536
#: Connections that are opened at the same time: what the backlog of a server's socket surely holds.
_AT_ONCE: Final = 64


class HttpWire(Exchanges):
    """A ``Wire`` to one server; its payloads are whole requests, head and body.

    Args:
        url: ``host:port`` of the server.

        tls: Whether to speak TLS, by the rules of ``HttpTransport``.

        monotonic: The clock of replies.
    """

    def __init__(self, url: str, *, tls: bool = False, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(monotonic)
        self._host, self._port = host_and_port(url, 8000)
        self._tls = ssl.create_default_context() if tls else None
        self._peer: tuple[str, int] | None = None
        self.buffer = memoryview(bytearray(_BUFFER))
        self._wanted = 0
        self._idle: list[Connection] = []
        self._alive: set[Connection] = set()
        self._gone = asyncio.Event()

    @property
    def address(self) -> str:
        """Where it connects to, host:port."""
        return f"{self._host}:{self._port}"

    async def open(self, connections: int, timeout_s: float = 30.0) -> None:
        """Connect beforehand; see ``Wire``."""
        self._wanted = max(self._wanted, connections)
        with socket_failures(self.address):
            async with asyncio.timeout(timeout_s):
                # The first alone: it resolves the name, and the others need not.
                at_once = 1
                while (missing := self._missing()) > 0:
                    await asyncio.gather(*(self.spawn(self._add()) for _ in range(min(missing, at_once))))
                    at_once = _AT_ONCE

    def start(self, payload: bytes, timeout_s: float, done: Done) -> Exchange:
        """Send a request; see ``Wire``."""
        exchange = self._take(payload, timeout_s, done)
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                connection.send(exchange)
                return exchange
        self.send_over_new(exchange)
        return exchange

    async def close(self) -> None:
        """Cancel what is in flight and disconnect; see ``Wire``."""
        self._closed = True
        self.cancel_all()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in tuple(self._alive):
            connection.abort()
        while self._alive:
            self._gone.clear()
            await self._gone.wait()

    def made(self, connection: Connection) -> None:
        """Take note of a new connection."""
        self._alive.add(connection)

    def put_back(self, connection: Connection) -> None:
        """Take a connection over which another request can be sent."""
        self._idle.append(connection)

    def lost(self, connection: Connection, *, replace: bool) -> None:
        """Take note that a connection is no more, and replace it if too few are left."""
        self._alive.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)
        self._gone.set()
        if replace and not self._closed and self._missing() > 0:
            self.spawn(self._replace())

    def send_over_new(self, exchange: Exchange) -> None:
        """Open a connection for a request."""
        exchange.reply.opened = True
        self.spawn(self._connect_and_send(exchange))

    def _missing(self) -> int:
        # Each task opens a connection.
        return self._wanted - len(self._alive) - len(self._tasks)

    async def _connect_and_send(self, exchange: Exchange) -> None:
        try:
            connection = await self._connect()
        except RequestFailed as fault:
            exchange.fail(fault)
            return
        if exchange.ended:
            self.put_back(connection)
        else:
            connection.send(exchange)

    async def _add(self) -> None:
        self.put_back(await self._connect())

    async def _replace(self) -> None:
        # A server that cannot be reached now is told by the next request.
        with contextlib.suppress(RequestFailed):
            await self._add()

    async def _connect(self) -> Connection:
        host, port = self._peer or (self._host, self._port)
        with socket_failures(self.address):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self),
                host,
                port,
                ssl=self._tls,
                server_hostname=None if self._tls is None else self._host,
            )
        if connection not in self._alive:
            raise RequestFailed("connection", f"{self.address} closed the connection at once")
        self._peer = self._peer or connection.peer
        return connection
