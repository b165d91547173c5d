"""Which server a measuring command talks to: the one that serves this deployment, a named one, or one of its own."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import click

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.config.load import LoadedConfig
    from specdeploy.pipeline.serving import Addresses

P = ParamSpec("P")
R = TypeVar("R")


# A named tuple: importing dataclasses would cost --help a few milliseconds.
class ServerChoice(NamedTuple):
    """What the command line said about the server.

    Args:
        http: ``host:port`` of a server that we did not start.
        grpc: The same for gRPC.
        metrics: The same for metrics; may be left out.
        serve: Start a server for the duration of the command.
    """

    http: str | None
    grpc: str | None
    metrics: str | None
    serve: bool

    @property
    def named(self) -> bool:
        """Whether an option says anything about it."""
        return self.serve or any(address is not None for address in (self.http, self.grpc, self.metrics))

    @contextlib.contextmanager
    def endpoints(self, loaded: LoadedConfig) -> Iterator[Addresses]:
        """Yield where to send requests; a server that this starts is stopped at the end.

        Raises:
            ConfigError: the options contradict each other.
            ServerFault: no server of this deployment is running.
        """
        from specdeploy.cli import _render
        from specdeploy.pipeline import serving

        if (self.http is None) != (self.grpc is None):
            raise ConfigError("--http and --grpc go together", hint="give both, as host:port")
        if self.http is not None and self.grpc is not None:
            if self.serve:
                raise ConfigError("--serve starts a server, --http names another one", hint="give one of the two")
            for option, address in (("--http", self.http), ("--grpc", self.grpc), ("--metrics", self.metrics)):
                if address is not None:
                    check_address(option, address)
            yield serving.Addresses(http_url=self.http, grpc_url=self.grpc, metrics_url=self.metrics)
            return
        if self.metrics is not None:
            raise ConfigError("--metrics is for a server that is named", hint="give --http and --grpc, too")
        serving.require_measurable(loaded)
        if self.serve:
            with serving.serve(loaded, on_line=_render.Progress().note) as running:
                yield serving.addresses(running)
        else:
            yield serving.find_running(loaded)


def check_address(option: str, address: str) -> None:
    """Stop when an option does not say where a server is.

    Raises:
        ConfigError: It does not.
    """
    from specdeploy.triton.client.http import host_and_port, without_secrets

    host, _, port = address.rpartition(":")
    plain = host and (":" not in host or host.startswith("[")) and not set(host) & set("@/?#")
    try:
        # The last digits of what is no port may be more than Python reads.
        sound = bool(plain) and port.isdecimal() and len(port) <= len("65535") and 0 < int(port) < 2**16
        sound = sound and bool(host_and_port(address, 1))
    except ConfigError:
        sound = False
    if not sound:
        raise ConfigError(
            f"{option} {without_secrets(address)!r} is no address", hint="write host:port, such as 127.0.0.1:8000"
        )


def at_server(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options that say which server it talks to, as ``server``."""

    @click.option("--http", help="host:port of a running server's HTTP endpoint, if it is not ours.")
    @click.option("--grpc", help="host:port of its gRPC endpoint.")
    @click.option("--metrics", help="host:port of its metrics endpoint.")
    @click.option("--serve", "serve", is_flag=True, help="Start a server for the duration of the command.")
    @functools.wraps(command)
    def wrapped(*args: Any, http: str | None, grpc: str | None, metrics: str | None, serve: bool, **kwargs: Any) -> R:
        return command(*args, server=ServerChoice(http=http, grpc=grpc, metrics=metrics, serve=serve), **kwargs)

    return wrapped
