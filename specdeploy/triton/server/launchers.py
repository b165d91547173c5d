"""Who runs a server: the embedded runtime, a tritonserver of this machine, or one of an image.

Knows where each keeps its backends and what each needs of its environment. Starts nothing: what comes out is a command,
and what has to lie in the run directory.
"""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING, Final, Protocol

from specdeploy.deploy.flags import Listening, Served, front_flags
from specdeploy.deploy.launch import MARK, RUN_MARK, Launch, launch
from specdeploy.errors import EnvironmentFault
from specdeploy.system.container_command import ContainerSettings, client_env, container_argv, removal_argv
from specdeploy.system.jobs import Job
from specdeploy.system.mounts import job_mounts, require_present, with_link_targets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from specdeploy.planning.placement import Placement
    from specdeploy.triton.runtime import Runtime
    from specdeploy.triton.server.rundir import RunDir

# They could lead the model processes' Python away from the runtime's own packages.
_DROPPED: Final = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "LD_PRELOAD"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Naming:
    """What tells one start from another.

    Args:
        listening: Where the server will listen.
        shm_prefix: What the names of its shared memory begin with.
        container: Name of its container, if it gets one.
    """

    listening: Listening
    shm_prefix: str
    container: str


# For a plan, which takes no port and makes no names.
UNNAMED: Final = Naming(
    listening=Listening(host="", http_port="HTTP_PORT", grpc_port="GRPC_PORT", metrics_port="METRICS_PORT"),
    shm_prefix="specdeploy_NAME_",
    container="specdeploy-NAME",
)


class Launcher(Protocol):
    """How one server is started."""

    @property
    def title(self) -> str:
        """What it is, for progress lines."""

    @property
    def version(self) -> str:
        """Version of Triton; empty when only the server knows."""

    @property
    def cure(self) -> str:
        """What to do when its program cannot be run."""

    @property
    def slack_s(self) -> float:
        """Seconds that it may take to end, on top of those for requests in flight."""

    @property
    def engine(self) -> str:
        """The container engine that keeps it, whatever becomes of its client; empty when none does."""

    def prepare(self, run: RunDir) -> None:
        """Put what the server needs into its run directory."""

    def command(self, run: RunDir, naming: Naming) -> Launch:
        """Return what starts it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddedLauncher:
    """The embedded runtime: a server without backends of its own, which are put into the run directory.

    Args:
        runtime: The runtime.
        served: What is served; where it listens is decided later.
        backends: Further backends: name -> file -> bytes.
    """

    runtime: Runtime
    served: Served
    backends: Mapping[str, Mapping[str, bytes]]
    cure: str = "install the runtime again with `specdeploy runtime install`"
    slack_s: float = 7.0
    engine: str = ""

    @property
    def title(self) -> str:
        """What it is."""
        return f"tritonserver {self.version}"

    @property
    def version(self) -> str:
        """Version of Triton."""
        return self.runtime.version

    def prepare(self, run: RunDir) -> None:
        """Write the backends."""
        try:
            _write_backends(run.backends, self.runtime, self.backends)
        except OSError as error:
            raise EnvironmentFault(f"the run directory {run.path} cannot be written: {error}") from error

    def command(self, run: RunDir, naming: Naming) -> Launch:
        """Return what starts it; the first python3 on PATH decides whose packages the model processes see."""
        first, *others = front_flags(dataclasses.replace(self.served, listening=naming.listening))
        argv = (
            str(self.runtime.tritonserver),
            first,
            f"--backend-directory={run.backends}",
            *others,
            # So that what a killed server leaves in shared memory can be told from others'; each backend is told by
            # itself.
            *(
                f"--backend-config={backend},shm-region-prefix-name={naming.shm_prefix}"
                for backend in sorted({"python", *self.backends})
            ),
        )
        env = {"LD_LIBRARY_PATH": str(self.runtime.library_path)}
        return Launch(argv=argv, env=env, without=_DROPPED, path=str(self.runtime.python.parent))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalLauncher:
    """A tritonserver that is installed here, with the backends that it brings.

    Args:
        served: What is served; where it listens is decided later.
        placement: Where the ranks of its engines go.
    """

    served: Served
    placement: Placement
    version: str = ""
    cure: str = "name the program with serve.tritonserver, or serve in a container with serve.runner container"
    # Unloading large engines takes its time, and so does ending several ranks.
    slack_s: float = 30.0
    engine: str = ""

    @property
    def title(self) -> str:
        """What it is."""
        return self.served.serve.tritonserver

    def prepare(self, run: RunDir) -> None:
        """Do nothing: the server brings its backends."""

    def command(self, run: RunDir, naming: Naming) -> Launch:
        """Return what starts it."""
        del run
        return launch(dataclasses.replace(self.served, listening=naming.listening), self.placement, naming.shm_prefix)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContainerLauncher:
    """A tritonserver of an image, in a container that shares the machine's network.

    The network is the machine's so that loopback means the same inside and outside. What the server reads is mounted
    read-only at the same paths; it writes nothing.

    Args:
        inside: What is started in the container.
        settings: Engine, image and what the container gets.
        reads: Paths that must be visible inside.
    """

    inside: LocalLauncher
    settings: ContainerSettings
    reads: tuple[Path, ...]
    version: str = ""
    # Removing a container takes the engine a moment more.
    slack_s: float = 40.0

    @property
    def title(self) -> str:
        """What it is."""
        return f"{self.inside.title} of {self.settings.image} ({self.settings.engine})"

    @property
    def engine(self) -> str:
        """The container engine; empty for one whose containers are processes of ours like any other."""
        return "" if removal_argv(self.settings, UNNAMED.container) is None else self.settings.engine

    @property
    def cure(self) -> str:
        """What to do when the engine cannot be run."""
        return f"look at `{self.settings.engine} info`, or choose another container.engine"

    def prepare(self, run: RunDir) -> None:
        """Refuse paths that are not there, in whose place some engines would make empty directories of root's."""
        job = self._job(run, self.inside.command(run, UNNAMED))
        require_present(job, job_mounts(job))

    def command(self, run: RunDir, naming: Naming) -> Launch:
        """Return what starts the container; it is removed by its name whatever becomes of the engine's client."""
        inside = self.inside.command(run, naming)
        job = self._job(run, inside)
        settings = dataclasses.replace(self.settings, extra_args=(*self.settings.extra_args, *self._options(inside)))
        env = client_env(settings, job)
        if settings.engine == "apptainer":
            # What it runs are processes of ours like any other, and they lose our environment with `--cleanenv`.
            env[f"APPTAINERENV_{MARK}"] = naming.shm_prefix
            env[f"APPTAINERENV_{RUN_MARK}"] = str(run.path.resolve())
        return Launch(
            argv=container_argv(settings, job, naming.container),
            env=env,
            cleanup=removal_argv(settings, naming.container) or (),
        )

    def _job(self, run: RunDir, inside: Launch) -> Job:
        """Return the server as a job, which is what containers know how to run."""
        job = Job(
            name="tritonserver",
            argv=inside.argv,
            env=inside.env,
            log=run.log,
            timeout_s=0,  # nobody times it: it serves until it is stopped
            gpus=len(self.inside.placement.gpus) if self.inside.served.gpus else 0,
            reads=self.reads,
        )
        return with_link_targets(job)

    def _options(self, inside: Launch) -> tuple[str, ...]:
        if self.settings.engine == "apptainer":
            # It has the machine's network as it is.
            return (f"--pwd={inside.cwd}",)
        # Somebody has to reap what the server's processes leave; podman needs a program for it that is often absent.
        init = ("--init",) if self.settings.engine == "docker" else ()
        return (*init, "--network=host", f"--workdir={inside.cwd}")


def _write_backends(root: Path, runtime: Runtime, backends: Mapping[str, Mapping[str, bytes]]) -> None:
    python = root / "python"
    python.mkdir(parents=True)
    # Copies: Triton refuses a library or a directory that is linked from outside for backends made of Python.
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        shutil.copy2(runtime.python_backend / name, python / name)
    (python / runtime.stub.name).symlink_to(runtime.stub)
    for backend, files in backends.items():
        for name, data in files.items():
            file = root / backend / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
