"""HTTP/1.1 with a deadline for the whole exchange. Knows no Triton.

``http.client`` has a time-out for each read; here the time left shrinks with every read, so that a server that drips
bytes cannot hold a caller for ever.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import time
from typing import TYPE_CHECKING, Protocol, Self, cast
from urllib.parse import urlsplit

from specdeploy.errors import ConfigError
from specdeploy.triton.client.failures import socket_failures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

_PIECE = 65536


class Reply(Protocol):
    """An answer whose body is read piece by piece; leaving its ``with`` block ends the exchange."""

    status: int

    def read_some(self) -> bytes:
        """Return the bytes that are there (at least one), or nothing at the end of the body."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...


class Transport(Protocol):
    """Sends one HTTP request; the real one is ``HttpTransport``."""

    def send(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Reply:
        """Send a request and return once the status is known.

        Raises:
            RequestFailed: ``timeout`` or ``connection``; reading the reply may raise the same.
        """


def host_and_port(url: str, default_port: int) -> tuple[str, int]:
    """Split ``[http://]host[:port]``.

    Raises:
        ConfigError: Another scheme, or no host. A password in it is not repeated.
    """
    try:
        parts = urlsplit(url if "://" in url else f"//{url}", scheme="http")
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if scheme not in {"http", "grpc"} or not host or not is_host(host):
        raise ConfigError(
            f"{without_secrets(url)!r} is no address of a server", hint="Write host:port, such as 127.0.0.1:8000."
        )
    return host, port or default_port


def is_host(name: str) -> bool:
    """Say whether a name can be that of a host: `a..b` can not, and asking the resolver for it raises no OSError."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return name.isprintable() and " " not in name


def without_secrets(url: str) -> str:
    """Return an address, however malformed, without what may be a password or a key: all before an ``@``, the query."""
    _, at, place = url.rpartition("@")
    shown = re.split("[?#]", place, maxsplit=1)[0]
    return f"...@{shown}" if at else shown


def redirect_words(status: int, location: str | None) -> bytes:
    """Return what stands in for the body of a redirect, which often has none: where it leads, without secrets."""
    if not 300 <= status < 400 or not location:
        return b""
    return f"a redirect to {without_secrets(location):.200}, which is not followed".encode()


class HttpTransport:
    """HTTP to one server, a connection for each request, so that any number of threads may share it.

    Redirects are not followed, so what ``headers`` holds reaches this server only.

    Args:
        url: ``host:port`` of the server.
        default_port: The port where ``url`` names none.
        tls: Whether to speak TLS. The server's certificate must be that of the host and be signed by an authority that
            this machine trusts; ``SSL_CERT_FILE`` names another list of authorities.
        headers: Sent with every request; never part of a message.
        monotonic: The clock of deadlines.
    """

    def __init__(
        self,
        url: str,
        *,
        default_port: int = 8000,
        tls: bool = False,
        headers: Mapping[str, str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._port = host_and_port(url, default_port)
        self._tls = ssl.create_default_context() if tls else None
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._monotonic = monotonic

    @property
    def address(self) -> str:
        """Where it connects to, host:port."""
        return f"{self._host}:{self._port}"

    def send(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Reply:
        """Send a request and return once the status is known; see ``Transport``."""
        deadline = _Deadline(self._monotonic() + timeout_s, self._monotonic)
        with socket_failures(self.address):
            sock = self._connected(deadline)
            connection = http.client.HTTPConnection(self._host, self._port)
            connection.sock = cast("socket.socket", _DeadlineSocket(sock, deadline))
            try:
                connection.request(method, path, body=body, headers=self._headers)
                return _HttpReply(connection, sock, self.address)
            except BaseException:
                connection.close()
                sock.close()
                raise

    def _connected(self, deadline: _Deadline) -> socket.socket:
        sock = socket.create_connection((self._host, self._port), timeout=deadline.left())
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                return sock
            sock.settimeout(deadline.left())
            return self._tls.wrap_socket(sock, server_hostname=self._host)
        except BaseException:
            sock.close()
            raise


class _HttpReply:
    def __init__(self, connection: http.client.HTTPConnection, sock: socket.socket, address: str) -> None:
        self._connection, self._sock, self._address = connection, sock, address
        self._response = connection.getresponse()
        self.status = self._response.status
        self._redirect = redirect_words(self.status, self._response.getheader("Location"))
        self._told = False

    def read_some(self) -> bytes:
        if self._redirect:
            words, self._told = (b"" if self._told else self._redirect), True
            return words
        with socket_failures(self._address):
            piece = self._response.read1(_PIECE)
            if not piece and self._response.length:
                raise http.client.IncompleteRead(b"", self._response.length)
            return piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._connection.close()
        self._sock.close()


class _Deadline:
    def __init__(self, at: float, monotonic: Callable[[], float]) -> None:
        self._at, self._monotonic = at, monotonic

    def left(self) -> float:
        left = self._at - self._monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _DeadlineSocket:
    """The few methods of a socket that ``http.client`` uses."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock, self._deadline = sock, deadline

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(self._deadline.left())
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._sock, self._deadline), _PIECE)

    def close(self) -> None:
        """Leave the socket to the reply, which may still be reading."""


class _DeadlineReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock, self._deadline = sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed's buffer has no name at run time
        self._sock.settimeout(self._deadline.left())
        return self._sock.recv_into(buffer)
