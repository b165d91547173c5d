"""The three ports of a server: checked when given, found when 0."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import ipaddress
import socket
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError, ServerFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not bound here: the address that reaches it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Where a server listens; the URLs are ``host:port`` without a scheme, as Triton's clients take them.

    Args:
        host: Address that the server binds.
        http_port: Port of the HTTP endpoint.
        grpc_port: Port of the gRPC endpoint.
        metrics_port: Port of the Prometheus endpoint; 0 where there is none.
    """

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int

    @property
    def http_url(self) -> str:
        """The HTTP endpoint."""
        return self._url(self.http_port)

    @property
    def grpc_url(self) -> str:
        """The gRPC endpoint."""
        return self._url(self.grpc_port)

    @property
    def metrics_url(self) -> str | None:
        """The metrics endpoint; None where there is none."""
        return self._url(self.metrics_port) if self.metrics_port else None

    @property
    def reachable_host(self) -> str:
        """The address that a client on this machine connects to."""
        return _ANY.get(self.host, self.host)

    def _url(self, port: int) -> str:
        host = self.reachable_host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def choose_ports(host: str, wanted: Mapping[str, int]) -> dict[str, int]:
    """Return a port for each use: the one wanted if it is free, a free one where 0 is wanted.

    Args:
        host: Address that will be bound.
        wanted: Use (``http``, ``grpc``, ``metrics``) -> port, or 0.

    Raises:
        ConfigError: Two uses want one port, or *host* is no address of this machine.
        ServerFault: A wanted port is taken, or may not be bound by this user.
    """
    _require_address(host)
    given = [port for port in wanted.values() if port]
    for use, port in wanted.items():
        if port and given.count(port) > 1:
            raise ConfigError(f"port {port} is given twice, once for {use}", hint="give each its own, or 0")
    with contextlib.ExitStack() as held:
        # All are held until all are found, so that one free port is not handed out twice.
        bound = {use: held.enter_context(_bound(host, port, use)) for use, port in wanted.items()}
        return {use: int(probe.getsockname()[1]) for use, probe in bound.items()}


def _require_address(host: str) -> None:
    """Refuse a name: tritonserver's HTTP endpoint takes one without a word, and listens to nobody."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(
            f"serve.host is {host!r}, and tritonserver binds addresses only",
            hint="127.0.0.1 for this machine, 0.0.0.0 for every network",
        ) from None


@contextlib.contextmanager
def _bound(host: str, port: int, use: str) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the server does: a port whose last connection is only just closed counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise _refusal(host, port, use, error) from error
        yield probe


def _refusal(host: str, port: int, use: str, error: OSError) -> ConfigError | ServerFault:
    if error.errno == errno.EADDRINUSE:
        return ServerFault(
            f"port {port} on {host} is in use; it was to be the {use} port",
            hint=f"end what listens there, or set serve.{use}_port to another port, or to 0 for a free one",
        )
    if error.errno in {errno.EACCES, errno.EPERM}:
        return ServerFault(f"port {port} may not be bound by this user", hint=f"serve.{use}_port: 1024 or above, or 0")
    return ConfigError(f"serve.host {host!r} cannot be bound: {error.strerror or error}", hint="such as 127.0.0.1")
