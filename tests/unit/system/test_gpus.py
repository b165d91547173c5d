"""GPU telemetry through a stand-in of NVML, and without any."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from specdeploy.system.gpus import GpuTelemetry


class Nvml:
    """Two GPUs, the second of which does not tell its power."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        """What NVML raises."""

    def __init__(self, *, driver: bool = True) -> None:
        self.open = False
        self._driver = driver

    def nvmlInit(self) -> None:  # noqa: N802
        """Find the driver."""
        if not self._driver:
            raise self.NVMLError
        self.open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Let go of it."""
        self.open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """Return 2."""
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        """Return the index."""
        return index

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> SimpleNamespace:  # noqa: N802
        """Return percent."""
        return SimpleNamespace(gpu=50 + gpu)

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:  # noqa: N802
        """Return bytes."""
        return SimpleNamespace(used=1000 + gpu)

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:  # noqa: N802
        """Return milliwatts."""
        if gpu:
            raise self.NVMLError
        return 350_500

    def nvmlDeviceGetClockInfo(self, gpu: int, kind: int) -> int:  # noqa: N802
        """Return MHz."""
        return 1700 + gpu + (kind - self.NVML_CLOCK_SM)


def test_every_gpu_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one does not tell is absent, and not zero; at the end NVML is closed."""
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)

    with GpuTelemetry() as gpus:
        values = gpus.read()

    assert values == {
        'nvml_gpu_utilization{gpu="0"}': 0.5,
        'nvml_gpu_utilization{gpu="1"}': 0.51,
        'nvml_gpu_memory_used_bytes{gpu="0"}': 1000.0,
        'nvml_gpu_memory_used_bytes{gpu="1"}': 1001.0,
        'nvml_gpu_power_watts{gpu="0"}': 350.5,
        'nvml_gpu_sm_clock_mhz{gpu="0"}': 1700.0,
        'nvml_gpu_sm_clock_mhz{gpu="1"}': 1701.0,
    }
    assert not nvml.open


@pytest.mark.parametrize("nvml", [None, Nvml(driver=False)])
def test_a_machine_without_gpus_tells_nothing(monkeypatch: pytest.MonkeyPatch, nvml: Nvml | None) -> None:
    """No package, or no driver below it."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml)

    with GpuTelemetry() as gpus:
        assert gpus.read() == {}
