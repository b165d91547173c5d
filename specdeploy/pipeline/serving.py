"""Start, find, look at and stop the server of a deployment. The repository is linted before anything is started."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from specdeploy.deploy.status import acceptance, model_statuses
from specdeploy.errors import ConfigError, ServerFault
from specdeploy.pipeline.launching import access, launcher_for, runner_of
from specdeploy.pipeline.prepare import lint, require_sound
from specdeploy.pipeline.served import engines_are_elsewhere, front_door
from specdeploy.pipeline.workspace import workspace
from specdeploy.triton.server import (
    ManagedServer,
    RunningServer,
    attach,
    last_exit,
    start_detached,
    stop_detached,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.config.load import LoadedConfig

_PROBE_TIMEOUT_S = 30.0
_START = "start one with `specdeploy serve --detach`"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where a deployment answers, each as ``host:port``; metrics may be unknown."""

    http_url: str
    grpc_url: str
    metrics_url: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        """Return plain data."""
        return dataclasses.asdict(self)


@contextlib.contextmanager
def serve(loaded: LoadedConfig, on_line: Callable[[str], None]) -> Iterator[RunningServer]:
    """Serve the deployment for the time of a ``with`` block.

    Raises:
        ConfigError: Keys contradict each other, or the repository is not there or not this deployment's.
        ToolMissing: A program that serves it is not on this machine.
        RepositoryError: The repository is not sound.
        EnvironmentFault: There are fewer GPUs than the engines are placed on.
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
    return addresses(_require(loaded, hint=f"{_START}, or let this command start its own with --serve"))


def require_measurable(loaded: LoadedConfig) -> None:
    """Stop when the commands that measure could not talk to the server as it is configured.

    Raises:
        ConfigError: It has TLS, or restricts a part of its API that they use.
    """
    serve = loaded.config.serve
    closed = [key for key in ("tls_cert", "http_restricted_api", "grpc_restricted_protocol") if getattr(serve, key)]
    asked = access(loaded, secrets=None)
    used = ("health", "metadata", "inference", "statistics")
    if asked.tls_cert or any(asked.headers(api) or asked.metadata(api) for api in used):
        raise ConfigError(
            f"serve.{closed[0]} closes what smoke and load use, and they send neither certificates nor headers yet",
            hint="measure without it, such as with another configuration of the same repository",
        )


def stop(loaded: LoadedConfig) -> bool:
    """Stop the server of this deployment; say whether there was one."""
    return stop_detached(workspace(loaded).run)


def status(loaded: LoadedConfig, *, probe: bool = False) -> dict[str, Any]:
    """Return what the running server says of itself; what it does not say is None.

    Args:
        loaded: The configuration.
        probe: Also send one request through the front door: a model whose process died still calls itself ready.

    Raises:
        ConfigError: A variable with a secret is not set.
        ServerFault: No server is running.
    """
    running = _require(loaded, hint=_START)
    samples = running.metrics()
    found = model_statuses(running.index(), running.api.statistics(), samples)
    drafts = acceptance(samples)
    ready = running.ready()
    # Only who is not told that it is ready may be one who may not ask.
    complaint = (None if ready else _not_allowed(running)) or (_probe(running) if probe else None)
    return {
        "schema_version": "1.1",
        "kind": "server",
        "pid": running.state.server.pid,
        "version": running.state.version or None,
        "started": running.state.started,
        "ready": ready and complaint is None,
        "answers": (complaint is None) if probe else None,
        "complaint": complaint,
        "unready_models": list(running.unready_models()),
        "models": [dataclasses.asdict(model) for model in found],
        "acceptance": None if drafts is None else drafts.as_dict(),
        "repository": str(running.state.repository),
        "log": str(running.log),
        **addresses(running).as_dict(),
    }


def addresses(running: RunningServer) -> Addresses:
    """Return where a running server answers."""
    ends = running.endpoints
    return Addresses(http_url=ends.http_url, grpc_url=ends.grpc_url, metrics_url=ends.metrics_url)


def _not_allowed(running: RunningServer) -> str | None:
    said = running.api.refusal()
    return said and f"the configuration has not the header and secret that the server wants ({said})"


def _probe(running: RunningServer) -> str | None:
    door = running.state.front_door
    return running.api.warm_up(door, _PROBE_TIMEOUT_S) if door else "it serves no front door"


def _require(loaded: LoadedConfig, *, hint: str) -> RunningServer:
    place = workspace(loaded)
    running = attach(place.run, access(loaded, secrets=os.environ))
    if running is None:
        ended = last_exit(place.run)
        raise ServerFault(
            f"no server of {loaded.config.name} is running" + (f"; of the last one: {ended}" if ended else ""),
            hint=hint,
        )
    return running


def _server(loaded: LoadedConfig, on_line: Callable[[str], None]) -> ManagedServer:
    place = workspace(loaded)
    asked = access(loaded, secrets=os.environ)
    launcher, notes = launcher_for(loaded, asked)
    # Where a container finds the engines, we may not be able to look.
    elsewhere = runner_of(loaded) == "container" and engines_are_elsewhere(place.repository)
    require_sound(place.repository, lint(place.repository, engines=not elsewhere))
    if elsewhere:
        on_line("the repository names engines that are not on this machine; the container has to have them")
    for note in notes:
        on_line(note)
    door = front_door(loaded)
    if loaded.config.serve.warmup and not door:
        on_line("the front door is not loaded; ready means that the models are")
    return ManagedServer(
        launcher,
        place.repository,
        loaded.config.serve,
        run_dir=place.run,
        front_door=door,
        access=asked,
        on_line=on_line,
    )
