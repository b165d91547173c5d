"""A real tritonserver: started, watched, explained when it fails, and never left behind.

Knows processes, ports and readiness. Does not know requests; :mod:`specdeploy.triton.client` does. What is here starts
the server of the embedded runtime; :mod:`.launchers` has the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.config.schema import ServeConfig
from specdeploy.deploy.flags import Served
from specdeploy.triton.server.launchers import UNNAMED, EmbeddedLauncher
from specdeploy.triton.server.managed import ManagedServer, start_detached
from specdeploy.triton.server.ports import Endpoints
from specdeploy.triton.server.running import RunningServer, attach, last_exit, stop_detached
from specdeploy.triton.server.state import ServerState
from specdeploy.triton.sources import backend_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from specdeploy.triton.runtime import Runtime

__all__ = [
    "BACKEND",
    "Endpoints",
    "ManagedServer",
    "RunningServer",
    "ServerState",
    "TritonServer",
    "attach",
    "last_exit",
    "start_detached",
    "stop_detached",
]

BACKEND: Final = "tensorrtllm"


class TritonServer(ManagedServer):
    """The embedded runtime's server for the time of a ``with`` block; see :class:`ManagedServer`.

    Args:
        runtime: The embedded runtime.
        repository: The model repository.
        run_dir: Log, state and backends; made when absent, an earlier one of ours is reused.
        host: Address to bind.
        http_port: 0 takes a free one.
        grpc_port: 0 takes a free one.
        metrics_port: 0 takes a free one.
        startup_timeout_s: Not ready after this many seconds is an error.
        on_line: Called with each step of the start, such as a model that has loaded.
        backends: Further backends (name -> file -> bytes); None takes the CPU engine's.
    """

    def __init__(  # noqa: PLR0913 - the keys of the configuration's `serve` block, by name only
        self,
        runtime: Runtime,
        repository: Path,
        *,
        run_dir: Path,
        host: str = "127.0.0.1",
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        startup_timeout_s: float = 120.0,
        on_line: Callable[[str], None] | None = None,
        backends: Mapping[str, Mapping[str, bytes]] | None = None,
    ) -> None:
        serve = ServeConfig(
            host=host,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            startup_timeout_s=startup_timeout_s,
        )
        served = Served(serve=serve, repository=str(repository.absolute()), listening=UNNAMED.listening, gpus=False)
        brought = {BACKEND: backend_sources()} if backends is None else backends
        launcher = EmbeddedLauncher(runtime=runtime, served=served, backends=brought)
        super().__init__(launcher, repository, serve, run_dir=run_dir, on_line=on_line)
