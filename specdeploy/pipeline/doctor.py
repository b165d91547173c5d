"""What this machine has, and what each engine profile still lacks to run here."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.engine.cpu import CpuProfile
from specdeploy.errors import EXIT_ENVIRONMENT, EXIT_OK
from specdeploy.findings import Finding, has_errors
from specdeploy.system.host import HostInfo, missing, probe_host
from specdeploy.triton.runtime import find_runtime, runtime_findings

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileState:
    """One engine profile and what it lacks here."""

    name: str
    lacks: tuple[Finding, ...]

    @property
    def ready(self) -> bool:
        """Whether it can run here; warnings do not stop it."""
        return not has_errors(self.lacks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The machine and the profiles."""

    host: HostInfo
    tritonserver: str | None
    profiles: tuple[ProfileState, ...]

    @property
    def exit_code(self) -> int:
        """0 when some profile can run here."""
        return EXIT_OK if any(profile.ready for profile in self.profiles) else EXIT_ENVIRONMENT

    @property
    def host_rows(self) -> list[tuple[str, str]]:
        """What was found, as rows of a table."""
        host, memory = self.host, self.host.memory_bytes
        gpus = [f"{gpu.name} (driver {gpu.driver})" for gpu in host.gpus]
        return [
            ("Python", f"{host.python} ({host.python_executable})"),
            ("platform", host.platform),
            ("processor", f"{host.cpu_model or 'unknown'}, {host.cpu_cores} cores"),
            ("memory", "unknown" if memory is None else f"{memory / 2**30:.1f} GiB"),
            ("NVIDIA GPU", _listed(gpus)),
            ("tritonserver", self.tritonserver or "not found"),
            ("TensorRT-LLM", _tensorrt_llm(host)),
            ("container engine", _listed(host.container_engines)),
            ("Slurm", host.programs.get("sbatch", "not found")),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the machine-readable document."""
        return {
            "schema_version": "1.0",
            "kind": "doctor",
            "host": self.host.as_dict(),
            "tritonserver": self.tritonserver,
            "profiles": {
                profile.name: {
                    "ready": profile.ready,
                    "lacks": [finding.as_dict() for finding in profile.lacks],
                }
                for profile in self.profiles
            },
        }


def diagnose() -> Diagnosis:
    """Look at this machine; runs a few short probes, changes nothing."""
    host, runtime = probe_host(), find_runtime()
    server = host.programs.get("tritonserver")
    if runtime is not None:
        server = f"{runtime.version}, embedded ({runtime.tritonserver})"
    profiles = [ProfileState(name="cpu", lacks=(*_cpu_lacks(), *runtime_findings()))]
    profiles += [ProfileState(name=name, lacks=_gpu_lacks(name, host)) for name in ("tensorrt_llm", "llmapi")]
    return Diagnosis(host=host, tritonserver=server, profiles=tuple(profiles))


def _cpu_lacks() -> tuple[Finding, ...]:
    absent = missing(CpuProfile().requirements())
    if not absent:
        return ()
    return (
        Finding(
            severity="error",
            code="doctor.package-missing",
            message=f"these packages are not installed: {', '.join(absent)}",
            hint="pip install 'specdeploy[cpu]'",
        ),
    )


def _gpu_lacks(profile: str, host: HostInfo) -> tuple[Finding, ...]:
    """Say what a GPU profile lacks to build and to serve here; planning needs none of it."""
    lacks: list[Finding] = []
    if "tritonserver" not in host.programs and not host.container_engines:
        lacks.append(
            _lack(
                "no-server",
                "there is no tritonserver, and no container engine to run NVIDIA's image with: nothing is served here",
                "serve inside nvcr.io/nvidia/tritonserver:<release>-trtllm-python-py3, or install docker, podman or "
                "apptainer (serve.runner: container)",
            )
        )
    # On a cluster the GPUs and the programs that build are on its nodes.
    if host.has_slurm:
        return tuple(lacks)
    if not host.gpus:
        lacks.append(_lack("no-gpu", "no NVIDIA GPU is visible (nvidia-smi lists none)"))
    if profile == "tensorrt_llm" and _tensorrt_llm(host) == "not found" and not host.container_engines:
        lacks.append(
            _lack(
                "no-tensorrt-llm",
                "trtllm-build is not installed, and there is no container engine to run NVIDIA's image with",
                "run inside nvcr.io/nvidia/tritonserver:<release>-trtllm-python-py3, install docker, podman or "
                "apptainer (build.runner: container), or use a cluster (build.runner: slurm)",
            )
        )
    return tuple(lacks)


def _lack(code: str, message: str, hint: str = "") -> Finding:
    return Finding(severity="error", code=f"doctor.{code}", message=message, hint=hint)


def _tensorrt_llm(host: HostInfo) -> str:
    if "tensorrt_llm" in host.packages:
        return host.packages["tensorrt_llm"] or "installed, version unknown"
    return host.programs.get("trtllm-build", "not found")


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items) or "not found"
