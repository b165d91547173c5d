"""What the deployment is built for and where: the GPUs, the texts to calibrate on, and who runs the steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import specdeploy
from specdeploy.engine import Machine
from specdeploy.engine.execute import Surroundings, Tools
from specdeploy.engine.tensorrt_llm.flags import split_arguments
from specdeploy.engine.tensorrt_llm.releases import find_release
from specdeploy.engine.tensorrt_llm.surroundings import Seen
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding
from specdeploy.planning.gpus import KNOWN, GpuSpec, gpu_spec
from specdeploy.system import host
from specdeploy.system.container import ContainerJobs
from specdeploy.system.container_command import ContainerSettings, container_argv
from specdeploy.system.files import sha256_file
from specdeploy.system.jobs import LocalJobs
from specdeploy.system.mounts import with_link_targets
from specdeploy.system.process import SubprocessRunner, quote, run_capture
from specdeploy.system.slurm import SlurmJobs
from specdeploy.system.slurm_script import BatchScript, SlurmSettings, chain_scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdeploy.config.load import LoadedConfig
    from specdeploy.config.schema import DeployConfig
    from specdeploy.system.jobs import Job, JobRunner

_CAPABILITY: Final = re.compile(r"(\d+)\.(\d+)")
_GIGABYTE: Final = 10**9
_INSPECT_TIMEOUT_S: Final = 30.0
# What the steps inherit of our environment and what changes how they run.
_RELEVANT: Final = re.compile(r"CUDA_.*|NVIDIA_.*|NCCL_.*|TLLM_.*|TRTLLM_.*|TRT_LLM_.*|HF_.*|BUILDER_.*|OMP_.*")
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|BEARER|PWD|(?:^|_)(API)?KEY", re.IGNORECASE)
_USER_INFO: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")
# What the builder reads of its environment and what is not a flag.
_DECIDING: Final = ("BUILDER_FORCE_NUM_PROFILES",)
BLOTTED: Final = "***"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpus:
    """The GPUs that the engines are for.

    Args:
        spec: The kind.
        count: How many there are; None when it is not known.
        seen: The first that nvidia-smi shows here; None without one.
        visible: How many it shows.
    """

    spec: GpuSpec
    count: int | None
    seen: host.GpuInfo | None = None
    visible: int = 0

    @property
    def driver(self) -> str | None:
        """Version of NVIDIA's driver here; None when it cannot be seen."""
        return None if self.seen is None else self.seen.driver

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability; None when it is not known."""
        match = _CAPABILITY.fullmatch(self.spec.compute_capability or "")
        return None if match is None else (int(match[1]), int(match[2]))


NO_GPUS: Final = Gpus(spec=GpuSpec(name=""), count=None)


def find_gpus(config: DeployConfig) -> Gpus:
    """Return the GPUs that the configuration names, and of what it leaves open what nvidia-smi shows here."""
    wanted = config.gpu
    # What a node of a cluster has cannot be seen from here.
    seen = _visible() if config.build.runner != "slurm" or wanted.name == "auto" else ()
    first = seen[0] if seen else None
    memory = int(wanted.memory_gb * _GIGABYTE) or None
    if wanted.name != "auto":
        capability = wanted.name if _CAPABILITY.fullmatch(wanted.name) else None
        spec = gpu_spec(wanted.name, memory_bytes=memory, compute_capability=capability)
    elif first is not None:
        size = memory or first.memory_bytes
        spec = gpu_spec(first.name, memory_bytes=size, compute_capability=first.compute_capability or None)
    else:
        spec = GpuSpec(name="", memory_bytes=memory)
    return Gpus(spec=spec, count=wanted.count or len(seen) or None, seen=first, visible=len(seen))


def check_container_gpus(config: DeployConfig, needed: int) -> tuple[Finding, ...]:
    """Return whether a container gets as many GPUs as a step needs."""
    given = config.container.gpus
    listed = _container_devices(config)
    count = None if listed is None else len(listed)
    if config.build.runner != "container" or count is None or count >= needed:
        return ()
    message = f"container.gpus is {given}, and a step needs {needed} GPUs"
    hint = "Use all, or as many as the largest engine has ranks."
    return (Finding(severity="error", code="container.gpus", message=message, hint=hint, where="container.gpus"),)


def _container_devices(config: DeployConfig) -> tuple[str, ...] | None:
    """Return the GPUs that a container gets, as they are numbered inside; None when it gets all."""
    given = config.container.gpus
    if given.isdigit():
        return tuple(map(str, range(int(given))))
    if not given.startswith("device="):
        return None
    devices = given.removeprefix("device=").split(",")
    # Apptainer shows all of them whatever is chosen; the others number from 0 what they show.
    return tuple(devices) if config.container.engine == "apptainer" else tuple(map(str, range(len(devices))))


def build_devices(config: DeployConfig, gpus: Gpus) -> tuple[str, ...]:
    """Return the GPUs that building may use: what CUDA_VISIBLE_DEVICES grants, else all that are here.

    Where none are, as on a laptop that plans for another machine, those that the configuration counts.
    """
    granted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if granted is not None and config.build.runner == "local":
        return tuple(name for name in granted.split(",") if name.strip())
    listed = _container_devices(config) if config.build.runner == "container" else None
    return listed if listed is not None else tuple(map(str, range(gpus.visible or gpus.count or 0)))


def check_gpus(config: DeployConfig, gpus: Gpus) -> tuple[Finding, ...]:
    """Return what speaks against building for the GPUs: they are not known, or others are here."""
    where, named = "gpu.name", config.gpu.name
    if gpus.capability is None:
        message = f"what the engines are built for is not known: gpu.name is {named}"
        auto = named == "auto"
        return (
            Finding(
                # A plan can be made without; a build cannot, and says so.
                severity="warning" if auto else "error",
                code="gpu.unknown",
                message=message + (", and nvidia-smi lists none here; a plan can be made, a build not" if auto else ""),
                hint=f"Name it, such as one of {KNOWN}, or give its compute capability, such as 9.0.",
                where=where,
            ),
        )
    here = "" if gpus.seen is None else gpus.seen.compute_capability
    if gpus.seen is None or not here or here == gpus.spec.compute_capability:
        return ()
    return (
        Finding(
            # A plan for another machine is fine; a build here is refused.
            severity="warning",
            code="gpu.differs",
            message=f"gpu.name is {named} ({gpus.spec.compute_capability}), and here is a {gpus.seen.name} ({here})",
            hint="Engines run on the architecture that they were built on: build there, or set gpu.name to auto.",
            where=where,
        ),
    )


@functools.cache
def _visible() -> tuple[host.GpuInfo, ...]:
    """Ask nvidia-smi once a run: it takes up to a second."""
    return host.visible_gpus()


def machine(loaded: LoadedConfig, gpus: Gpus) -> Machine:
    """Return what a profile has to know of where it builds.

    Raises:
        ConfigError: ``tensorrt_llm.calib_dataset`` names nothing.
    """
    settings = loaded.config.tensorrt_llm
    calibration = loaded.resolve(settings.calib_dataset).resolve() if settings.calib_dataset else None
    if calibration is not None:
        _require_texts(calibration, file=settings.converter == "modelopt")
    return Machine(
        capability=gpus.capability,
        calibration="" if calibration is None else str(calibration),
        calibration_fingerprint="" if calibration is None else _fingerprint(calibration),
        modelopt_python=settings.python,
        package=str(Path(specdeploy.__file__).parent),
        # As every path of the file, relative to it; an absolute one may be that of an image.
        examples_dir=str(loaded.resolve(settings.examples_dir)),
        environment={name: os.environ[name] for name in _DECIDING if name in os.environ},
        named_files=_named_files(loaded.config),
    )


def _require_texts(path: Path, *, file: bool) -> None:
    """Refuse what the converter could not read: quantize.py takes a folder, our own program a file."""
    kind = "file with a text a line, or with JSON lines that have a `text`" if file else "folder of a data set"
    if not path.exists():
        raise ConfigError(f"tensorrt_llm.calib_dataset: there is no {path}", hint=f"Name a local {kind}.")
    if not file and path.is_dir() and not _files(path):
        raise ConfigError(f"tensorrt_llm.calib_dataset: {path} is empty", hint="Put the texts there.")
    if path.is_file() != file:
        raise ConfigError(
            f"tensorrt_llm.calib_dataset: {path} is a {'folder' if file else 'file'}",
            hint=f"The converter {'modelopt' if file else 'scripts'} takes a {kind}.",
        )


def image_digest(config: DeployConfig) -> str | None:
    """Ask the container engine which image the name means today; None when it does not say."""
    if config.container.engine == "apptainer":
        return None
    argv = [config.container.engine, "image", "inspect", "--format", "{{index .RepoDigests 0}}", image_name(config)]
    answer = run_capture(argv, timeout_s=_INSPECT_TIMEOUT_S)
    digest = answer.output.strip().rpartition("@")[2]
    return digest if answer.ok and digest.startswith("sha256:") else None


def _fingerprint(path: Path) -> str:
    """Return the SHA-256 of the relative names and contents of files; texts are small beside the checkpoints."""
    digest = hashlib.sha256()
    for file in _files(path):
        name = file.name if path.is_file() else str(file.relative_to(path))
        digest.update(f"{name}\0{sha256_file(file)}\0".encode())
    return digest.hexdigest()


def _files(path: Path) -> list[Path]:
    """Return a file, or all files below a folder, those behind links included."""
    if path.is_file():
        return [path]
    walked = os.walk(path, followlinks=True)
    return sorted(Path(folder) / name for folder, _, names in walked for name in names)


def _named_files(config: DeployConfig) -> dict[str, str]:
    """Return the files and folders that the user's own arguments name, and what is in them.

    What such a file holds goes into the engine, and where the steps run it has to be visible.
    """
    models = (config.target, config.draft)
    with contextlib.suppress(ValueError):  # an open quotation, which the profile's check reports
        words = split_arguments([line for m in models for line in (*m.extra_convert_args, *m.extra_build_args)])
        values = {word.partition("=")[2] or word for word in words}
        return {value: _fingerprint(Path(value)) for value in sorted(values) if value[:1] == "/" and _exists(value)}
    return {}


def _exists(path: str) -> bool:
    return Path(path).is_file() or Path(path).is_dir()


def seen_by(config: DeployConfig, gpus: Gpus) -> Seen:
    """Return what can be seen of where the release is to run."""
    local = config.build.runner == "local"
    return Seen(
        image=_seen_image(config),
        installed=host.package_version("tensorrt_llm") if local else None,
        python=host.python_version() if local else None,
        driver=gpus.driver,
        capability=gpus.capability,
    )


def _seen_image(config: DeployConfig) -> str | None:
    """Return the image that the steps run in; pyxis writes a # where others write a /."""
    if config.build.runner == "container":
        return image_name(config)
    if config.build.runner == "slurm" and config.slurm.container_image:
        return config.slurm.container_image.replace("#", "/")
    return None


def image_name(config: DeployConfig) -> str:
    """Return the container image: the one that is named, or NVIDIA's of the release.

    Raises:
        ConfigError: None is named, and none is known for the release.
    """
    if config.container.image:
        return config.container.image
    image = find_release(config.release).image
    if image is None:
        raise ConfigError(f"no image of TensorRT-LLM {config.release} is known", hint="Set container.image.")
    return image.tag


def job_runner(config: DeployConfig) -> JobRunner:
    """Return what runs the build's steps."""
    if config.build.runner == "slurm":
        return SlurmJobs(slurm_settings(config))
    local = SubprocessRunner()
    if config.build.runner == "container":
        return ContainerJobs(container_settings(config), local)
    return LocalJobs(local)


def shown_commands(config: DeployConfig, jobs: Sequence[Job]) -> tuple[str, ...]:
    """Return how jobs are handed to a container engine or to Slurm, as text; nothing for those that run here."""
    if config.build.runner == "container":
        settings = container_settings(config)
        return tuple(quote(container_argv(settings, with_link_targets(job), "specdeploy-NAME")) for job in jobs)
    if config.build.runner == "slurm":
        return tuple(map(_submission, chain_scripts(slurm_settings(config), jobs), range(len(jobs) + 1)))
    return ()


def _submission(script: BatchScript, number: int) -> str:
    """Return a script below the command that submits it."""
    after = ["--dependency=afterok:<the job before>", "--kill-on-invalid-dep=yes"] if number else []
    array = [f"--array=0-{script.tasks - 1}"] if script.tasks else []
    return "\n".join([f"# sbatch {' '.join([*after, *array, str(script.path)])}", script.text])


def container_settings(config: DeployConfig) -> ContainerSettings:
    """Return how containers are run."""
    wanted = config.container
    return ContainerSettings(
        image=image_name(config),
        engine=wanted.engine,
        gpus=wanted.gpus,
        shm_size=wanted.shm_size,
        user=wanted.user,
        extra_args=wanted.extra_args,
    )


def slurm_settings(config: DeployConfig) -> SlurmSettings:
    """Return what is asked of Slurm."""
    wanted = dataclasses.asdict(config.slurm)
    return SlurmSettings(**wanted)


def _tools(config: DeployConfig) -> Tools:
    """Return how to ask for programs: those of a container or a node cannot be seen from here."""
    if config.build.runner == "local":
        return Tools()
    return Tools(missing=lambda _names: (), versions=lambda _names: {})


def surroundings(config: DeployConfig, gpus: Gpus) -> Surroundings:
    """Return what is installed where the steps run, and what the manifests say of this run."""
    # A container and a node have an environment of their own.
    inherited = os.environ if config.build.runner == "local" else {}
    kept = {name: value for name, value in sorted(inherited.items()) if _RELEVANT.fullmatch(name)}
    return Surroundings(
        tools=_tools(config),
        environment={name: _blotted(name, value) for name, value in kept.items()},
        host=functools.partial(_host_facts, config, gpus),
        keep_steps=config.build.keep_converted,
    )


def _blotted(name: str, value: str) -> str:
    """Return a variable's value without what may be a secret: all of it by its name, or the user in an address."""
    return BLOTTED if _SECRET.search(name) else _USER_INFO.sub(BLOTTED, value)


def _host_facts(config: DeployConfig, gpus: Gpus) -> dict[str, Any]:
    """Return where an engine was made; asked when it is, for only then is an image surely here."""
    runner = config.build.runner
    facts: dict[str, Any] = {"runner": runner}
    if config.profile != "cpu":
        facts |= {
            "gpu": gpus.spec.name or None,
            "gpu_seen": None if gpus.seen is None else gpus.seen.name,
            "compute_capability": gpus.spec.compute_capability,
            "driver": gpus.driver,
        }
    if runner == "container":
        facts |= {"image": image_name(config), "image_digest": image_digest(config)}
    if runner == "slurm" and config.slurm.container_image:
        facts["image"] = config.slurm.container_image
    return facts
