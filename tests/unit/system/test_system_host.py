"""What a machine has, from faked answers of its tools."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from specdeploy.system.host import Probes, missing, package_version, probe_host, versions
from specdeploy.system.process import Captured

CPUINFO = "processor\t: 0\nmodel name\t: Example CPU @ 2.0GHz\nprocessor\t: 1\nmodel name\t: Example CPU @ 2.0GHz\n"
SMI = "NVIDIA H100 80GB HBM3, 81559, 570.86.15, 9.0\nNVIDIA Thor, [N/A], 570.86.15, 11.0\n"


def _probes(**changes):
    texts = {"/proc/cpuinfo": CPUINFO, "/proc/meminfo": "MemTotal:       16000 kB\nMemFree: 1 kB\n"}
    plain = Probes(
        which=lambda name: None,
        package_version=lambda name: None,
        capture=lambda argv: pytest.fail(f"{argv} must not run"),
        read_text=lambda path: texts.get(path, ""),
        cpu_cores=lambda: 2,
    )
    return dataclasses.replace(plain, **changes)


def _with_gpus(answer):
    return _probes(
        which=lambda name: Path("/usr/bin", name) if name == "nvidia-smi" else None, capture=lambda _: answer
    )


def test_a_bare_machine():
    """Nothing is installed, nothing is run, and nothing is invented."""
    host = probe_host(_probes())

    assert (host.cpu_model, host.cpu_cores, host.memory_bytes) == ("Example CPU @ 2.0GHz", 2, 16000 * 1024)
    assert (host.gpus, host.programs, host.packages) == ((), {}, {})
    assert (host.container_engines, host.has_slurm) == ((), False)
    json.dumps(host.as_dict())


def test_gpus_come_from_nvidia_smi():
    """Memory in bytes; what the driver does not say is None and not zero."""
    host = probe_host(_with_gpus(Captured(exit_code=0, output=SMI)))

    assert [gpu.name for gpu in host.gpus] == ["NVIDIA H100 80GB HBM3", "NVIDIA Thor"]
    assert [gpu.memory_bytes for gpu in host.gpus] == [81559 * 1024 * 1024, None]
    assert (host.gpus[0].driver, host.gpus[0].compute_capability) == ("570.86.15", "9.0")


@pytest.mark.parametrize(
    "answer",
    [
        Captured(exit_code=9, output="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        Captured(exit_code=None, output=""),
        Captured(exit_code=0, output="No devices were found"),
    ],
)
def test_a_broken_driver_is_no_gpu(answer):
    """nvidia-smi that fails, hangs, or has nothing to tell."""
    assert probe_host(_with_gpus(answer)).gpus == ()


def test_programs_and_packages_that_are_found():
    """With their paths and versions, and what follows from them."""
    here = {"podman": Path("/usr/bin/podman"), "sbatch": Path("/opt/slurm/sbatch")}

    host = probe_host(_probes(which=here.get, package_version={"onnx": "1.18", "torch": ""}.get))

    assert host.programs == {"podman": "/usr/bin/podman", "sbatch": "/opt/slurm/sbatch"}
    assert host.packages == {"onnx": "1.18", "torch": ""}
    assert (host.container_engines, host.has_slurm) == (("podman",), True)


@pytest.mark.parametrize("limit_file", ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"])
def test_a_containers_limit_counts_where_it_is_lower(limit_file):
    """A container sees the host's memory and may not use it."""
    texts = {"/proc/meminfo": "MemTotal: 16000 kB\n", limit_file: "1048576\n"}

    assert probe_host(_probes(read_text=lambda path: texts.get(path, ""))).memory_bytes == 1048576


def test_an_unlimited_container_has_the_hosts_memory():
    """Version 2 says `max`."""
    texts = {"/proc/meminfo": "MemTotal: 16000 kB\n", "/sys/fs/cgroup/memory.max": "max\n"}

    assert probe_host(_probes(read_text=lambda path: texts.get(path, ""))).memory_bytes == 16000 * 1024


def test_memory_that_cannot_be_seen_is_unknown():
    """Another system, or a stripped /proc."""
    assert probe_host(_probes(read_text=lambda path: "")).memory_bytes is None


def test_a_requirement_is_a_package_or_a_program():
    """Either will do; what is neither is missing, in the order asked."""
    probes = _probes(
        which=lambda name: Path("/bin/trtllm-build") if name == "trtllm-build" else None,
        package_version=lambda name: "1.0" if name == "onnx" else None,
    )

    assert missing(["torch", "onnx", "trtllm-build", "tensorrt_llm"], probes) == ("torch", "tensorrt_llm")


def test_package_versions_without_importing():
    """A distribution, a module without one, a part of one that is not here, and nothing at all."""
    assert package_version("pytest") == pytest.__version__
    assert package_version("json") == ""
    assert package_version("no_such_package") is None
    assert package_version("no_such_package.part") is None
    assert versions(["pytest", "no_such_package"]) == {"pytest": pytest.__version__}
