"""What the GPUs of this machine are doing, through NVML, where there are any and `nvidia-ml-py` is installed.

Triton's metrics tell the same of a server elsewhere; NVML needs no metrics endpoint, and knows clocks, too.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType


#: What is read -> how NVML is asked for it.
_QUESTIONS: Final[Mapping[str, Callable[[Any, Any], float]]] = {
    "gpu_utilization": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "gpu_memory_used_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "gpu_power_watts": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "gpu_sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
}


class GpuTelemetry:
    """Readings of every GPU; a context manager, which reads nothing where there is no NVML."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._gpus: list[Any] = []

    def __enter__(self) -> Self:
        """Open NVML, if it is there."""
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
        except Exception:  # noqa: BLE001 - no package, no driver, no device: each is a machine without GPUs for us
            return self
        self._nvml = nvml
        with contextlib.suppress(nvml.NVMLError):
            self._gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close NVML."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def read(self) -> dict[str, float]:
        """Return what can be read now: ``nvml_NAME{gpu="INDEX"}`` -> ratio, bytes, watts or MHz."""
        return {
            f'nvml_{name}{{gpu="{index}"}}': value
            for index, gpu in enumerate(self._gpus)
            for name, ask in _QUESTIONS.items()
            if (value := self._asked(ask, gpu)) is not None
        }

    def _asked(self, ask: Callable[[Any, Any], float], gpu: Any) -> float | None:  # noqa: ANN401 - NVML's handle
        """Return an answer; not every device has each: a MIG instance has no utilisation, some boards no power."""
        try:
            return float(ask(self._nvml, gpu))
        except self._nvml.NVMLError:
            return None
