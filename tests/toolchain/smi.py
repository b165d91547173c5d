"""``nvidia-smi``: the queries that tools ask, and the list of GPUs. Like the real one, it sees every GPU."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from tests.toolchain.machine import Machine
from tests.toolchain.release import driver_version

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TOOL: Final = "nvidia-smi"
_MEMORY_MIB: Final = (
    ("H200", 143771),
    ("H100", 81559),
    ("H20", 97871),
    ("A100", 81920),
    ("B200", 183359),
    ("L40S", 46068),
    ("L4", 23034),
    ("A10", 23028),
)
_UNITS: Final = {"memory.total": "MiB", "memory.used": "MiB", "memory.free": "MiB"}


def main(argv: Sequence[str], root: Path) -> int:
    """Answer; return the exit code."""
    machine = Machine.load(root)
    machine.record_call(TOOL, argv)
    if machine.gpus == 0:
        print(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
            "NVIDIA driver is installed and running.\n"
        )
        return 9
    parser = argparse.ArgumentParser(prog=TOOL)
    parser.add_argument("--query-gpu")
    parser.add_argument("--format", default="csv")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    args = parser.parse_args(argv)
    if args.query_gpu is None:
        for index in range(machine.gpus):
            print(f"GPU {index}: {machine.gpu_name} (UUID: {_values(machine, index)['uuid']})")
        return 0
    return _query(machine, args.query_gpu.split(","), set(args.format.split(",")))


def _query(machine: Machine, fields: list[str], style: set[str]) -> int:
    known = _values(machine, 0)
    for field in fields:
        if field not in known:
            print(f'Field "{field}" is not a valid field to query.\n')
            return 2
    if "noheader" not in style:
        print(", ".join(field + (f" [{_UNITS[field]}]" if field in _UNITS else "") for field in fields))
    for index in range(machine.gpus):
        values = _values(machine, index)
        units = {} if "nounits" in style else _UNITS
        print(", ".join(f"{values[field]} {units.get(field, '')}".rstrip() for field in fields))
    return 0


def _values(machine: Machine, index: int) -> dict[str, str]:
    memory = next((size for name, size in _MEMORY_MIB if name in machine.gpu_name), 81559)
    return {
        "index": str(index),
        "name": machine.gpu_name,
        "uuid": f"GPU-00000000-0000-0000-0000-{index:012d}",
        "memory.total": str(memory),
        "memory.used": "0",
        "memory.free": str(memory),
        "driver_version": driver_version(machine.release),
        "compute_cap": machine.compute_capability,
    }
