"""Start, find and stop the server of a deployment. The repository is linted before anything is started."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.errors import ServerFault, ToolMissing
from specdeploy.pipeline.prepare import lint, require_sound
from specdeploy.pipeline.workspace import workspace
from specdeploy.triton.runtime import find_runtime
from specdeploy.triton.server import RunningServer, TritonServer, attach, last_exit, start_detached, stop_detached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.config.load import LoadedConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where a deployment answers, each as ``host:port``; metrics may be unknown."""

    http_url: str
    grpc_url: str
    metrics_url: str | None = None


@contextlib.contextmanager
def serve(loaded: LoadedConfig, on_line: Callable[[str], None]) -> Iterator[RunningServer]:
    """Serve the deployment for the time of a ``with`` block.

    Raises:
        ToolMissing: There is no Triton runtime on this machine.
        RepositoryError: The repository is not there or not sound.
        ServerFault: The server did not start; the message says why.
    """
    with _server(loaded, on_line) as running:
        yield running


def serve_detached(loaded: LoadedConfig, on_line: Callable[[str], None]) -> Addresses:
    """Start the server and leave it running; raises as :func:`serve` does."""
    return addresses(RunningServer(start_detached(_server(loaded, on_line))))


def find_running(loaded: LoadedConfig) -> Addresses:
    """Return where the running server of this deployment answers.

    Raises:
        ServerFault: None is running; the message says how the last one ended.
    """
    return addresses(_require(loaded))


def stop(loaded: LoadedConfig) -> bool:
    """Stop the server of this deployment; say whether there was one."""
    return stop_detached(workspace(loaded).run)


def status(loaded: LoadedConfig) -> dict[str, Any]:
    """Return what the running server says of itself.

    Raises:
        ServerFault: None is running.
    """
    running = _require(loaded)
    return {
        "schema_version": "1.0",
        "kind": "server",
        "pid": running.state.server.pid,
        "ready": running.ready(),
        "unready_models": list(running.unready_models()),
        "log": str(running.log),
        **dataclasses.asdict(addresses(running)),
    }


def addresses(running: RunningServer) -> Addresses:
    """Return where a running server answers."""
    ends = running.endpoints
    return Addresses(http_url=ends.http_url, grpc_url=ends.grpc_url, metrics_url=ends.metrics_url)


def _require(loaded: LoadedConfig) -> RunningServer:
    place = workspace(loaded)
    running = attach(place.run)
    if running is None:
        ended = last_exit(place.run)
        raise ServerFault(
            f"no server of {loaded.config.name} is running" + (f"; the last one {ended}" if ended else ""),
            hint="start one with `specdeploy serve --detach`, or let this command start its own with --serve",
        )
    return running


def _server(loaded: LoadedConfig, on_line: Callable[[str], None]) -> TritonServer:
    place, wanted = workspace(loaded), loaded.config.serve
    runtime = find_runtime()
    if runtime is None:
        raise ToolMissing(
            "no tritonserver on this machine: the embedded runtime is not installed",
            hint="install it with `specdeploy runtime install`; `specdeploy doctor` says what else is missing",
        )
    require_sound(place.repository, lint(place.repository))
    on_line("backend tensorrtllm: specdeploy's CPU stand-in, not TensorRT-LLM")
    return TritonServer(
        runtime,
        place.repository,
        run_dir=place.run,
        host=wanted.host,
        http_port=wanted.http_port,
        grpc_port=wanted.grpc_port,
        metrics_port=wanted.metrics_port,
        startup_timeout_s=wanted.startup_timeout_s,
        on_line=on_line,
    )
