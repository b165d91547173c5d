"""What this machine has: Python, processor, memory, GPUs, tools and packages.

Knows how to ask without side effects: packages are located, never imported, and every program that is asked has a
time-out. Does not know what a profile needs; that is the profile's ``requirements``.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specdeploy.system import process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

CONTAINER_ENGINES: Final = ("docker", "podman", "apptainer")
SLURM_PROGRAMS: Final = ("sbatch", "srun", "sacct")
PROGRAMS: Final = (*CONTAINER_ENGINES, *SLURM_PROGRAMS, "nvidia-smi", "tritonserver", "trtllm-build")
PACKAGES: Final = (
    "tensorrt_llm",
    "onnxruntime_genai",
    "onnx",
    "tokenizers",
    "safetensors",
    "tritonclient",
    "torch",
    "transformers",
)
_PROBE_TIMEOUT_S: Final = 10.0
_GPU_QUERY: Final = ("name", "memory.total", "driver_version", "compute_cap")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuInfo:
    """One NVIDIA GPU as nvidia-smi names it; ``memory_bytes`` is the whole of it, not what is free."""

    name: str
    memory_bytes: int | None
    driver: str
    compute_capability: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostInfo:
    """This machine, as plain values; None and absent entries mean that it could not be seen.

    Args:
        python: Version, such as ``3.11.7``.

        python_executable: The interpreter that runs us, and that build steps run in.

        platform: Operating system, kernel and C library in one line.

        cpu_model: As the kernel names it.

        cpu_cores: Logical processors that this process may use (its affinity, not the machine's total).

        memory_bytes: Physical memory, or the container's limit where that is lower.

        gpus: What nvidia-smi lists; empty without it.

        programs: Program name to its path, for those found.

        packages: Importable package to its version (empty when it has none), for those found.
    """

    python: str
    python_executable: str
    platform: str
    cpu_model: str | None
    cpu_cores: int
    memory_bytes: int | None
    gpus: tuple[GpuInfo, ...]
    programs: Mapping[str, str]
    packages: Mapping[str, str]

    @property
    def container_engines(self) -> tuple[str, ...]:
        """Container engines on PATH."""
        return tuple(name for name in CONTAINER_ENGINES if name in self.programs)

    @property
    def has_slurm(self) -> bool:
        """Whether jobs can be handed to Slurm from here."""
        return "sbatch" in self.programs

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for reports and ``--json``."""
        return dataclasses.asdict(self)


def package_version(name: str) -> str | None:
    """Return the version of an importable package, ``""`` when it has none, None when it is not here.

    The package is located, not imported: importing TensorRT-LLM takes half a minute and prints.
    """
    try:
        if importlib.util.find_spec(name) is None:
            return None
    except (ImportError, ValueError):
        return None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def read_text(path: str) -> str:
    """Return a kernel file's text, or ``""`` where this system has no such file."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probes:
    """How the machine is asked; tests replace single fields."""

    which: Callable[[str], Path | None] = process.which
    package_version: Callable[[str], str | None] = package_version
    capture: Callable[[Sequence[str]], process.Captured] = lambda argv: process.run_capture(
        argv, timeout_s=_PROBE_TIMEOUT_S
    )
    read_text: Callable[[str], str] = read_text
    cpu_cores: Callable[[], int] = lambda: len(os.sched_getaffinity(0))


def probe_host(probes: Probes | None = None) -> HostInfo:
    """Look at this machine; takes as long as nvidia-smi does, and no time without it."""
    ask = probes or Probes()
    programs = {name: str(path) for name in PROGRAMS if (path := ask.which(name)) is not None}
    return HostInfo(
        python=platform.python_version(),
        python_executable=sys.executable,
        platform=platform.platform(),
        cpu_model=_cpu_model(ask.read_text("/proc/cpuinfo")),
        cpu_cores=ask.cpu_cores(),
        memory_bytes=_memory_bytes(ask),
        gpus=visible_gpus(ask),
        programs=programs,
        packages=versions(PACKAGES, package=ask.package_version),
    )


def visible_gpus(probes: Probes | None = None) -> tuple[GpuInfo, ...]:
    """Return the GPUs that nvidia-smi lists; none without it."""
    ask = probes or Probes()
    return _gpus(ask) if ask.which("nvidia-smi") is not None else ()


def python_version() -> str:
    """Return the version of the Python that runs us, such as ``3.11.7``."""
    return platform.python_version()


def versions(names: Iterable[str], package: Callable[[str], str | None] = package_version) -> dict[str, str]:
    """Return name to version for those of *names* that are importable here."""
    return {name: version for name in names if (version := package(name)) is not None}


def missing(names: Iterable[str], probes: Probes | None = None) -> tuple[str, ...]:
    """Return those of *names* that are neither an importable package, nor a program on PATH, nor (with a /) a file."""
    ask = probes or Probes()
    return tuple(name for name in names if not _is_here(name, ask))


def _is_here(name: str, ask: Probes) -> bool:
    if "/" in name:
        return Path(name).is_file()
    return ask.package_version(name) is not None or ask.which(name) is not None


def _cpu_model(cpuinfo: str) -> str | None:
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"model name", "Model", "cpu model"}:
            return value.strip()
    return platform.processor() or None


def _memory_bytes(ask: Probes) -> int | None:
    """Return the least of the machine's memory and the control group's limit (versions 2 and 1)."""
    fields = dict(line.split(":", 1) for line in ask.read_text("/proc/meminfo").splitlines() if ":" in line)
    total = fields.get("MemTotal", "").split()
    limits = [int(total[0]) * 1024] if total and total[0].isdigit() else []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = ask.read_text(path).strip()
        limits += [int(text)] if text.isdigit() else []
    return min(limits, default=None)


def _gpus(ask: Probes) -> tuple[GpuInfo, ...]:
    answer = ask.capture(["nvidia-smi", f"--query-gpu={','.join(_GPU_QUERY)}", "--format=csv,noheader,nounits"])
    if not answer.ok:
        return ()
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.output.splitlines()]
    return tuple(_gpu(row) for row in rows if len(row) == len(_GPU_QUERY))


def _gpu(row: list[str]) -> GpuInfo:
    name, mebibytes, driver, capability = row
    memory = int(mebibytes) * 1024 * 1024 if mebibytes.isdigit() else None
    return GpuInfo(name=name, memory_bytes=memory, driver=driver, compute_capability=capability)
