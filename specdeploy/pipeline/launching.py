"""Which server a deployment gets: whose program, with which options, and what speaks against it on this machine.

Knows the configuration, the repository and the machine. Starts nothing; :mod:`specdeploy.pipeline.serving` does.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specdeploy.deploy.access import Access, access_of
from specdeploy.deploy.flags import Listening, Served, extra_words
from specdeploy.deploy.launch import mpirun_words, needs_mpirun
from specdeploy.errors import ConfigError, EnvironmentFault, ToolMissing
from specdeploy.pipeline.machine import container_settings
from specdeploy.pipeline.served import chosen_models, engine_paths, require_repository
from specdeploy.pipeline.workspace import workspace
from specdeploy.planning.placement import place
from specdeploy.system import host
from specdeploy.system.process import which
from specdeploy.triton.runtime import TRITON_VERSION, Runtime, cache_dir, find_runtime
from specdeploy.triton.runtime.interpreters import SERVER_PYTHONS
from specdeploy.triton.server import BACKEND
from specdeploy.triton.server.launchers import UNNAMED, ContainerLauncher, EmbeddedLauncher, LocalLauncher
from specdeploy.triton.server.rundir import RunDir
from specdeploy.triton.sources import backend_sources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.config.load import LoadedConfig
    from specdeploy.config.schema import DeployConfig
    from specdeploy.deploy.launch import Launch
    from specdeploy.planning.placement import Placement
    from specdeploy.triton.server.launchers import Launcher

_STAND_IN: Final = "backend tensorrtllm: specdeploy's CPU stand-in, not TensorRT-LLM"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """What ``serve`` would start.

    Args:
        runner: Who runs it: ``embedded``, ``local`` or ``container``.
        placement: Where the ranks go.
        launch: The command, secrets blotted out.
        notes: What a reader has to know of it.
    """

    runner: str
    placement: Placement
    launch: Launch
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "schema_version": "1.0",
            "kind": "launch",
            "runner": self.runner,
            "mode": self.placement.mode,
            "processes": self.placement.processes,
            "gpus": list(self.placement.gpus),
            **self.launch.as_dict(),
            "notes": list(self.notes),
        }


def plan(loaded: LoadedConfig) -> Planned:
    """Return what would be started, on any machine and with or without a repository.

    Raises:
        ConfigError: Keys contradict each other.
    """
    config = loaded.config
    runner, path = runner_of(loaded), workspace(loaded)
    launcher = _launcher(loaded, runner, access(loaded, secrets=None), _any_runtime())
    naming = dataclasses.replace(UNNAMED, listening=_planned_listening(config))
    return Planned(
        runner=runner,
        placement=place(config),
        launch=launcher.command(RunDir(path=path.run), naming),
        notes=tuple(_notes(loaded, runner)),
    )


def launcher_for(loaded: LoadedConfig, asked: Access) -> tuple[Launcher, tuple[str, ...]]:
    """Return who runs the server on this machine, and what its user should know.

    Raises:
        ConfigError: Keys contradict each other, or the repository is not there or not this deployment's.
        ToolMissing: A program is not here.
        EnvironmentFault: There are fewer GPUs than the engines are placed on.
    """
    runner = runner_of(loaded)
    extra_words(loaded.config.serve.extra_args)
    runtime = _require_runtime() if runner == "embedded" else _any_runtime()
    require_repository(loaded)
    _require_programs(loaded, runner)
    notes = _require_gpus(loaded.config, runner)
    return _launcher(loaded, runner, asked, runtime), (*((_STAND_IN,) if runner == "embedded" else ()), *notes)


def runner_of(loaded: LoadedConfig) -> str:
    """Return who runs the server.

    Raises:
        ConfigError: The embedded runtime is asked to serve engines for GPUs.
    """
    config = loaded.config
    wanted = config.serve.runner
    if wanted == "embedded" and config.profile != "cpu":
        raise ConfigError(
            f"serve.runner is embedded, whose Triton has no backend for engines of profile {config.profile}",
            hint="leave serve.runner out, or set it to local or container",
        )
    if wanted == "container" and config.profile == "cpu" and not config.container.image:
        raise ConfigError(
            "serve.runner is container, and NVIDIA's images have no backend for engines of profile cpu",
            hint="leave serve.runner out, or name an image that has one with container.image",
        )
    if wanted != "auto":
        return wanted
    if config.profile == "cpu":
        return "embedded"
    return "local" if which(_program(loaded)) is not None else "container"


def access(loaded: LoadedConfig, *, secrets: Mapping[str, str] | None) -> Access:
    """Return what the server asks of its clients; without *secrets*, every secret is blotted out.

    Raises:
        ConfigError: A restriction or the certificates are incomplete, or a variable is not set.
    """
    serve = loaded.config.serve
    written = (path for path in (serve.tls_cert, serve.tls_key, serve.tls_ca) if path)
    files = {path: str(loaded.resolve(path).resolve()) for path in written}
    # A plan is for another machine, perhaps, where the files are.
    for written_as, path in files.items() if secrets is not None else ():
        if not os.access(path, os.R_OK) or Path(path).is_dir():
            raise ConfigError(
                f"the certificate or key {written_as} cannot be read: there is no such file, or it is not ours to read",
                hint=f"serve.tls_cert, serve.tls_key and serve.tls_ca name files ({path})",
            )
    return access_of(serve, files=files, secrets=secrets)


def _launcher(loaded: LoadedConfig, runner: str, asked: Access, runtime: Runtime) -> Launcher:
    config, path = loaded.config, workspace(loaded)
    serve = dataclasses.replace(config.serve, models=chosen_models(config))
    served = Served(
        serve=dataclasses.replace(serve, tritonserver=_program(loaded)),
        repository=str(path.repository),
        listening=UNNAMED.listening,
        gpus=config.profile != "cpu",
        rate_limit=bool(config.repo.rate_limits),
        access=asked,
    )
    if runner == "embedded":
        return EmbeddedLauncher(runtime=runtime, served=served, backends={BACKEND: backend_sources()})
    local = LocalLauncher(served=served, placement=place(config))
    if runner == "local":
        return local
    # A path of this machine means nothing in an image, where the program is the one that the user named.
    served = dataclasses.replace(served, serve=serve)
    inside = dataclasses.replace(local, served=served)
    return ContainerLauncher(inside=inside, settings=container_settings(config), reads=_reads(loaded, asked))


def _reads(loaded: LoadedConfig, asked: Access) -> tuple[Path, ...]:
    """Return what a container has to see: the repository, what it names by paths, and certificates."""
    config, path = loaded.config, workspace(loaded)
    found = [path.repository]
    if config.profile == "llmapi":
        # Nothing is compiled: the checkpoints themselves are served.
        found += [path.target, *([path.draft] if config.draft.checkpoint else [])]
    else:
        # One that is not here may be a path of the image, or of a volume that container.extra_args mounts.
        engines = [engine for engine in engine_paths(path.repository) if engine.exists()]
        ours = any(engine.is_relative_to(path.engines) for engine in engines)
        found += [path.engines] if ours or not path.repository.is_dir() else []
        found += [engine for engine in engines if not engine.is_relative_to(path.engines)]
    return tuple(dict.fromkeys([*found, *map(Path, asked.files)]))


def _program(loaded: LoadedConfig) -> str:
    """Return the server's program; one that is named by a path is where the configuration says."""
    named = loaded.config.serve.tritonserver
    return str(loaded.resolve(named).resolve()) if "/" in named else named


def _any_runtime() -> Runtime:
    """Return the installed runtime, or where it would be: a plan needs no more."""
    found = find_runtime()
    python = SERVER_PYTHONS[0]
    return found or Runtime(root=cache_dir() / f"triton-{TRITON_VERSION}-py{python}", python_version=python)


def _planned_listening(config: DeployConfig) -> Listening:
    serve, unnamed = config.serve, UNNAMED.listening
    return Listening(
        host=serve.host,
        http_port=str(serve.http_port or unnamed.http_port),
        grpc_port=str(serve.grpc_port or unnamed.grpc_port),
        metrics_port=str(serve.metrics_port or unnamed.metrics_port),
    )


def _notes(loaded: LoadedConfig, runner: str) -> list[str]:
    config, path = loaded.config, workspace(loaded)
    serve = config.serve
    ports = {"HTTP_PORT": serve.http_port, "GRPC_PORT": serve.grpc_port}
    ports |= {"METRICS_PORT": serve.metrics_port} if serve.metrics else {}
    free = [name for name, port in ports.items() if not port]
    found = []
    if free:
        found.append(f"{', '.join(free)}: free ports, taken at the start; NAME: new for every start")
    if runner == "embedded" and find_runtime() is None:
        found.append("the embedded runtime is not installed; `specdeploy runtime install`")
    if not path.repository.is_dir():
        found.append(f"the model repository {path.repository} is not there yet; `specdeploy repo` writes it")
    if config.profile == "llmapi" and len(place(config).gpus) > 1:
        found.append("one process: the LLM API starts its own workers for further GPUs")
    return found


def _require_runtime() -> Runtime:
    runtime = find_runtime()
    if runtime is None:
        raise ToolMissing(
            "no tritonserver on this machine: the embedded runtime is not installed",
            hint="install it with `specdeploy runtime install`; `specdeploy doctor` says what else is missing",
        )
    return runtime


def _require_programs(loaded: LoadedConfig, runner: str) -> None:
    config = loaded.config
    if runner == "container":
        engine = config.container.engine
        if which(engine) is None:
            raise ToolMissing(
                f"the container engine {engine} is not on PATH",
                hint="install it, choose another container.engine, or serve with serve.runner local",
            )
    elif runner == "local":
        program = _program(loaded)
        if which(program) is None:
            raise ToolMissing(
                f"there is no tritonserver here: {program} is not a program on PATH",
                hint="name it with serve.tritonserver, or serve in a container with serve.runner container",
            )
        launcher = mpirun_words(config.serve)[0]
        if needs_mpirun(place(config)) and which(launcher) is None:
            raise ToolMissing(
                f"the engines' ranks are started by mpirun, and {launcher} is not a program on PATH",
                hint="install Open MPI, name it with serve.mpirun, or serve in a container with serve.runner container",
            )


def _require_gpus(config: DeployConfig, runner: str) -> tuple[str, ...]:
    """Refuse engines on GPUs that are not there; where nobody can tell, say so instead."""
    if config.profile == "cpu":
        return ()
    last = max(place(config).gpus, default=0)
    granted = _granted(config, runner)
    if granted is not None and last >= granted[0]:
        raise ConfigError(
            f"an engine is placed on GPU {last}, counted from 0, and {granted[1]} gives the server {granted[0]}",
            hint="give it as many as the engines have ranks, or place them with target.gpu_ids and draft.gpu_ids",
        )
    visible = len(host.visible_gpus())
    if visible and last >= visible:
        raise EnvironmentFault(
            f"an engine is placed on GPU {last}, counted from 0, and nvidia-smi shows {visible} here",
            hint="serve on a machine that has them, or build engines with a smaller tp_size",
        )
    return () if visible else ("nvidia-smi shows no GPU here; whether there are enough is not known",)


def _granted(config: DeployConfig, runner: str) -> tuple[int, str] | None:
    """Return how many GPUs the server gets and what says so; None when it gets all."""
    if runner == "container":
        given = config.container.gpus
        if given.isdecimal():
            return int(given), f"container.gpus {given}"
        if given.startswith("device="):
            return len(given.split(",")), f"container.gpus {given}"
        return None
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if devices is None:
        return None
    names = [name.strip() for name in devices.split(",")]
    # CUDA takes those in front of the first that it does not know, such as -1.
    seen = list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))
    return len(seen), f"CUDA_VISIBLE_DEVICES={devices}"
