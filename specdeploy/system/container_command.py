"""The command line that runs a job in a container, for docker, podman and apptainer.

Knows the engines' options. Runs nothing. Values of variables may be secrets: they travel in the environment of the
engine's client, and its command line, which every user of the machine can read, holds only their names.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError, EnvironmentFault
from specdeploy.system.mounts import job_mounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.system.jobs import Job
    from specdeploy.system.mounts import Mount

ENGINES: Final = ("docker", "podman", "apptainer")
_GPUS: Final = re.compile(r"all|[1-9][0-9]*|device=[^,\s]+(,[^,\s]+)*")
_SIZE: Final = re.compile(r"[1-9][0-9]*[bkmgBKMG]?")
# The client reads these itself: with the job's value it would look for programs, credentials or its daemon elsewhere.
_CLIENT_VARIABLES: Final = re.compile(r"(DOCKER|CONTAINERS?|XDG|LD)_.*|PATH|HOME|TMPDIR|.*_(proxy|PROXY)")
# Python asks who the user is, and a number that the image's list of users does not know has no name and no home.
_NAMELESS_USER: Final = {"HOME": "/tmp", "USER": "specdeploy", "LOGNAME": "specdeploy"}  # noqa: S108
_UNBUFFERED: Final = {"PYTHONUNBUFFERED": "1"}
_APPTAINER_HOME: Final = "/tmp:/home/specdeploy"  # noqa: S108


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContainerSettings:
    """How jobs are run in containers.

    Args:
        engine: ``docker``, ``podman`` or ``apptainer``.

        image: ``name:tag`` or ``name@sha256:...``; for apptainer also the path of a ``.sif`` file.

        gpus: What a job that needs GPUs sees: ``all``, a count, or ``device=0,1``.

        shm_size: Shared memory, such as ``1g``; NCCL and Triton need more than the engines' 64 MiB. Apptainer has the
            host's.

        user: ``name``, ``uid`` or ``uid:gid`` inside; empty is who we are, so that what is written belongs to us.
            Apptainer always runs as who we are.

        extra_args: Options of the engine, put in front of the image as they are.

    Raises:
        ConfigError: A value cannot be what it should.
    """

    image: str
    engine: str = "docker"
    gpus: str = "all"
    shm_size: str = "1g"
    user: str = ""
    extra_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ConfigError(f"the container engine {self.engine!r} is not one of {', '.join(ENGINES)}")
        if not self.image or self.image.startswith("-"):
            raise ConfigError(f"{self.image!r} is not the name of a container image")
        if not _GPUS.fullmatch(self.gpus):
            raise ConfigError(f"the container's GPUs {self.gpus!r} are neither all, nor a count, nor device=0,1")
        if not _SIZE.fullmatch(self.shm_size):
            raise ConfigError(f"the container's shared memory {self.shm_size!r} is not a size such as 1g")
        if self.engine == "apptainer" and self.user:
            raise ConfigError("apptainer runs containers as the user who starts them; leave the user empty")


def container_argv(settings: ContainerSettings, job: Job, name: str) -> tuple[str, ...]:
    """Return the command line that runs *job* in a container called *name*.

    Raises:
        EnvironmentFault: A path holds a character that the engine cannot take in a mount.
    """
    mounts = job_mounts(job)
    if settings.engine == "apptainer":
        return (*_apptainer(settings, job, mounts), *job.argv)
    return (*_docker(settings, job, mounts, name), *job.argv)


def client_env(settings: ContainerSettings, job: Job) -> dict[str, str]:
    """Return the variables that the client of the engine is started with, to hand them on to *job*."""
    if settings.engine == "apptainer":
        chosen = _apptainer_devices(settings) if job.gpus else {}
        inside = {**_UNBUFFERED, "PYTHONNOUSERSITE": "1", **chosen, **job.env}
        return {f"APPTAINERENV_{name}": value for name, value in inside.items()}
    return {name: value for name, value in job.env.items() if not _CLIENT_VARIABLES.fullmatch(name)}


def removal_argv(settings: ContainerSettings, name: str) -> tuple[str, ...] | None:
    """Return what removes the container *name*, running or not; None where ending the client ends everything."""
    return None if settings.engine == "apptainer" else (settings.engine, "rm", "--force", "--volumes", name)


def _docker(settings: ContainerSettings, job: Job, mounts: tuple[Mount, ...], name: str) -> tuple[str, ...]:
    return (
        settings.engine,
        "run",
        "--rm",
        f"--name={name}",
        *(_podman_gpus(settings, job) if settings.engine == "podman" else _docker_gpus(settings, job)),
        f"--shm-size={settings.shm_size}",
        # Pinned memory and deep stacks, as NVIDIA's images ask for when they start.
        "--ulimit=memlock=-1",
        "--ulimit=stack=67108864",
        *_user(settings),
        *(f"--mount={_bind(mount)}" for mount in mounts),
        *_docker_env(settings, job.env),
        *settings.extra_args,
        settings.image,
    )


def _bind(mount: Mount) -> str:
    # Not --volume: it would make a missing path as an empty directory of root's.
    path = _plain(mount, ',"\n')
    return f"type=bind,source={path},target={path}{'' if mount.writable else ',readonly'}"


def _plain(mount: Mount, forbidden: str) -> str:
    path = str(mount.path)
    found = [character for character in forbidden if character in path]
    if found:
        raise EnvironmentFault(
            f"{path} cannot be mounted into a container: its name holds {found[0]!r}",
            hint="Rename it, or give another path.",
        )
    return path


def _docker_gpus(settings: ContainerSettings, job: Job) -> tuple[str, ...]:
    if not job.gpus:
        return ()
    # The value is a line of CSV: a list of devices needs quotes of its own inside it.
    quoted = f'"{settings.gpus}"' if "," in settings.gpus else settings.gpus
    return (f"--gpus={quoted}",)


def _podman_gpus(settings: ContainerSettings, job: Job) -> tuple[str, ...]:
    """Name the devices that the NVIDIA Container Toolkit describes (CDI); SELinux would keep them from the process."""
    if not job.gpus:
        return ()
    devices = (f"--device=nvidia.com/gpu={device}" for device in _devices(settings) or ("all",))
    return (*devices, "--security-opt=label=disable")


def _devices(settings: ContainerSettings) -> tuple[str, ...]:
    """Return the GPUs by number or UUID; empty is all of them. A count takes the first ones."""
    if settings.gpus == "all":
        return ()
    if settings.gpus.isdigit():
        return tuple(str(number) for number in range(int(settings.gpus)))
    return tuple(settings.gpus.removeprefix("device=").split(","))


def _user(settings: ContainerSettings) -> Iterator[str]:
    if settings.user:
        yield f"--user={settings.user}"
        return
    yield f"--user={os.getuid()}:{os.getgid()}"
    if settings.engine == "podman" and os.getuid() != 0:
        # Without a daemon of root's, users inside are numbered apart from those outside.
        yield "--userns=keep-id"


def _docker_env(settings: ContainerSettings, env: Mapping[str, str]) -> Iterator[str]:
    defaults = {**_UNBUFFERED, **({} if settings.user else _NAMELESS_USER)}
    for name, value in defaults.items():
        if name not in env:
            yield f"--env={name}={value}"
    for name, value in env.items():
        yield f"--env={name}={value}" if _CLIENT_VARIABLES.fullmatch(name) else f"--env={name}"


def _apptainer(settings: ContainerSettings, job: Job, mounts: tuple[Mount, ...]) -> tuple[str, ...]:
    return (
        "apptainer",
        "exec",
        "--cleanenv",
        # Our own home would bring packages of another Python into the image's.
        f"--home={_APPTAINER_HOME}",
        *(("--nv",) if job.gpus else ()),
        *(f"--bind={_colon_bind(mount)}" for mount in mounts),
        *settings.extra_args,
        _apptainer_image(settings.image),
    )


def _colon_bind(mount: Mount) -> str:
    path = _plain(mount, ",:\n")
    return f"{path}:{path}:{'rw' if mount.writable else 'ro'}"


def _apptainer_devices(settings: ContainerSettings) -> dict[str, str]:
    # --nv shows every GPU; CUDA is told which to use.
    devices = _devices(settings)
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}


def _apptainer_image(image: str) -> str:
    is_file = image.endswith((".sif", ".sqsh")) or image.startswith(("/", "."))
    return image if is_file or "://" in image else f"docker://{image}"
