"""Another running deployment that answers for the control, such as that of the last release."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from specdeploy.cli._server import check_address
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.pipeline.serving import Addresses

R = TypeVar("R")


# A named tuple: importing dataclasses would cost --help a few milliseconds.
class OtherDeployment(NamedTuple):
    """What the command line said about it.

    Args:
        http: ``host:port`` of its HTTP endpoint.
        grpc: The same for gRPC.
    """

    http: str | None
    grpc: str | None

    @property
    def named(self) -> bool:
        """Whether there is one."""
        return self.http is not None or self.grpc is not None

    def addresses(self, *, openai: bool, compare: bool | None) -> Addresses | None:
        """Return where it answers; None when none was named.

        Args:
            openai: Whether OpenAI-compatible servers are measured.
            compare: What ``--compare`` and ``--no-compare`` say.

        Raises:
            ConfigError: The options contradict each other, or one is no address.
        """
        if not self.named:
            return None
        if openai:
            raise ConfigError(
                "--control-http and --control-grpc name a Triton deployment, and --openai another kind of server",
                hint="with --openai, name the control by --control URL",
            )
        if compare is False:
            raise ConfigError(
                "--no-compare leaves out the server of --control-http", hint="Leave out one of the two options."
            )
        if self.http is None or self.grpc is None:
            raise ConfigError("--control-http and --control-grpc go together", hint="give both, as host:port")
        for option, address in (("--control-http", self.http), ("--control-grpc", self.grpc)):
            check_address(option, address)
        from specdeploy.pipeline.serving import Addresses

        return Addresses(http_url=self.http, grpc_url=self.grpc)


def at_control(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options that say which deployment answers for the control, as ``other``."""

    @click.option(
        "--control-http", metavar="HOST:PORT", help="Compare with another running deployment, as it is set up."
    )
    @click.option("--control-grpc", metavar="HOST:PORT", help="The gRPC endpoint of that deployment.")
    @functools.wraps(command)
    def wrapped(*args: Any, control_http: str | None, control_grpc: str | None, **kwargs: Any) -> R:
        return command(*args, other=OtherDeployment(control_http, control_grpc), **kwargs)

    return wrapped
