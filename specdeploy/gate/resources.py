"""What a deployment takes, rather than how fast it is: memory while it works, size and build time of its engines.

Defines the metrics, and where their numbers stand in ``load.json``; reads none. Memory is what the server's gauges say
under a load. What is of the engines alone holds under every load, and comes from their manifests by way of the
repository that was served, never from what some store holds now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.bench.metrics import Metric

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What the gauges of a load have of each.
MEMORY_STATS: Final = ("avg", "max")
#: Whose engine; none is all of them together.
ROLES: Final = ("target", "draft")

#: Memory under a load, by key.
MEMORY: Final[Mapping[str, Metric]] = {
    metric.key: metric
    for metric in (
        Metric(
            key="gpu_memory_used",
            title="GPU memory used",
            unit="B",
            better="lower",
            kind="scalar",
            formula="readings of each GPU while the arm's blocks ran, by Triton, else by NVML; of the GPU that used "
            "most; its mean, or as `.max` the largest",
            undefined="neither Triton's metrics page nor NVML told it, or no reading fell into a block",
        ),
        Metric(
            key="cpu_memory_used",
            title="Host memory used",
            unit="B",
            better="lower",
            kind="scalar",
            formula="readings of the server's whole machine while the arm's blocks ran, by Triton; their mean, or as "
            "`.max` the largest",
            undefined="Triton's metrics page did not tell it, or no reading fell into a block",
        ),
    )
}
#: Key -> the gauges that hold it, the preferred ones first; of several with one name each is a device.
GAUGES: Final[Mapping[str, tuple[str, ...]]] = {
    "gpu_memory_used": ("nv_gpu_memory_used_bytes", "nvml_gpu_memory_used_bytes"),
    "cpu_memory_used": ("nv_cpu_memory_used_bytes",),
}

#: What is of the engines, by key.
ENGINES: Final[Mapping[str, Metric]] = {
    metric.key: metric
    for metric in (
        Metric(
            key="engine_size",
            title="Engine size",
            unit="B",
            better="lower",
            kind="scalar",
            formula="bytes of an engine's files; all engines together where none is named",
            undefined="the run names no engines, or what is served is not compiled (profile llmapi)",
        ),
        Metric(
            key="build_time",
            title="Build time",
            unit="s",
            better="lower",
            kind="scalar",
            formula="seconds that making an engine took, all steps; the sum of all engines' where none is named; an "
            "engine from the store keeps the time of its build",
            undefined="as engine_size; or the engine was not built here as a whole",
        ),
    )
}
#: Key -> the field of an engine in ``deployment.engines``.
ENGINE_FIELDS: Final[Mapping[str, str]] = {"engine_size": "size_bytes", "build_time": "build_s"}

#: Key -> how a number is had that a run lacks.
CURES: Final[Mapping[str, str]] = {
    "gpu_memory_used": "it is read every load.telemetry_s from Triton's metrics page, or by NVML for a server on this "
    "machine (pip install 'specdeploy[nvml]')",
    "cpu_memory_used": "it is read every load.telemetry_s from Triton's metrics page",
    "engine_size": "build engines with this version, then `specdeploy repo` and `specdeploy load`",
    "build_time": "build the engines from their first step with this version, then `specdeploy repo` and "
    "`specdeploy load`",
}
