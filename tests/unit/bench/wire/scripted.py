"""An HTTP server whose answers a test writes byte by byte, in the test's own event loop, and the other end of it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any, Self

from specdeploy.bench.wire.http import HttpWire

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Coroutine

    from specdeploy.bench.wire.call import Reply

    Script = Callable[["Client", int], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
REQUEST = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"


def chunk(data: bytes) -> bytes:
    """Frame bytes as one chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def events(*data: str) -> bytes:
    """Frame each text as one server-sent event in a chunk of its own."""
    return b"".join(chunk(f"data: {text}\n\n".encode()) for text in data)


def sized(status: int, body: bytes, *headers: bytes) -> bytes:
    """Build a whole answer with a Content-Length."""
    lines = [b"HTTP/1.1 %d Said So" % status, b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Client:
    """One connection, as the server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        #: Set once the other side has closed the connection.
        self.gone = asyncio.Event()

    async def write(self, *pieces: bytes) -> None:
        """Send pieces, each on its own."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    def hang_up(self) -> None:
        """Close the connection."""
        self.writer.close()

    async def request(self) -> bytes:
        """Read a request; nothing when the connection ends instead."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            return head + await self.reader.readexactly(int(length[1]) if length else 0)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
            return b""


class Server:
    """Listens on a free port of this machine. ``script(client, number)`` answers the request of that number, from 0.

    Args:
        script: Writes the answer.
        host: Where to listen.
        tls: The server's side of TLS.
    """

    def __init__(self, script: Script, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self._script = script
        self._host = host
        self._tls = tls
        self.clients: list[Client] = []
        self.requests: list[bytes] = []
        self.connected = asyncio.Condition()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for client in self.clients:
            client.writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self.clients:
            with contextlib.suppress(ConnectionError):
                await client.writer.wait_closed()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    async def connections(self, number: int) -> None:
        """Wait until so many connections have been made."""
        async with self.connected:
            await self.connected.wait_for(lambda: len(self.clients) >= number)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        client = Client(reader, writer)
        self.clients.append(client)
        async with self.connected:
            self.connected.notify_all()
        while request := await client.request():
            self.requests.append(request)
            with contextlib.suppress(ConnectionError):
                await self._script(client, len(self.requests) - 1)


def answering(*pieces: bytes) -> Script:
    """Answer every request with the same pieces."""

    async def script(client: Client, _number: int) -> None:
        await client.write(*pieces)

    return script


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario in an event loop of its own, with a time-out."""

    async def limited() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(limited())


@contextlib.asynccontextmanager
async def wire_to(server: Server, connections: int = 0, **more: Any):
    """Open a wire for the time of the block."""
    wire = HttpWire(server.url, **more)
    try:
        await wire.open(connections)
        yield wire
    finally:
        await wire.close()


async def ask(wire: Any, payload: Any = REQUEST, timeout_s: float = 30.0) -> Reply:
    """Send a request and wait for its reply."""
    reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    wire.start(payload, timeout_s, reply.set_result)
    return await reply


async def count_of(wire: Any, number: int) -> None:
    """Wait until a wire has received so many events."""
    while wire.received < number:  # noqa: ASYNC110 - a wire counts and tells nobody, which costs least
        await asyncio.sleep(0)
