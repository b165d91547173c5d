"""How a tool is made to fail: one fault a tool, kept in a file beside the tools so that it can change between calls.

A fault is written as ``name`` or ``name:value``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: Final = "faults.json"
TOOLS: Final = ("trtllm-build", "convert_checkpoint.py", "quantize.py")
NAMES: Final = (
    "out_of_memory",  # a CUDA out-of-memory traceback, exit 1
    "killed_half_way",  # SIGKILL between the first rank file and the second; with one rank, in the middle of it
    "wrong_exit_code",  # everything is written, exit 3
    "success_without_file",  # says that all went well, but writes the configuration alone
    "no_paged_fmha",  # trtllm-build records use_paged_context_fmha as false
    "other_version",  # trtllm-build records the release in the value (0.16.0 by default)
    "slow",  # prints a line each 0.1 s until the file in the value appears, 60 s at most, then works
    "fail_once",  # fails the first time, works from then on
    "no_driver",  # torch finds no driver: a container that was started without its GPUs
)
_SLOW_LIMIT_S: Final = 60.0
_OTHER_VERSION: Final = "0.16.0"


class OutOfMemoryError(RuntimeError):
    """What torch raises; named as torch's in the traceback."""

    __module__ = "torch"


class Faults:
    """The fault of one tool, asked at the moments when it could strike.

    Raises:
        ValueError: The file names a fault that there is not.
    """

    def __init__(self, root: Path, tool: str) -> None:
        self._root, self._tool = root, tool
        faults: dict[str, str] = json.loads((root / FILE).read_text(encoding="utf-8"))
        self._name, _, self._value = faults.get(tool, "").partition(":")

    @property
    def driver(self) -> bool:
        """Whether torch finds a driver."""
        return self._name != "no_driver"

    @property
    def exit_code(self) -> int:
        """The exit code of a run that came to its end."""
        return 3 if self._name == "wrong_exit_code" else 0

    @property
    def drops_paged_fmha(self) -> bool:
        """Whether the recorded plugin configuration says that paged context FMHA is off."""
        return self._name == "no_paged_fmha"

    def version(self, release: str) -> str:
        """Return the version that is recorded."""
        return (self._value or _OTHER_VERSION) if self._name == "other_version" else release

    def start(self) -> None:
        """Strike after the command line was accepted: ``slow`` and ``fail_once``."""
        if self._name == "slow":
            self._wait()
        marker = self._root / f"failed-once-{self._tool}"
        if self._name == "fail_once" and not marker.exists():
            marker.touch()
            raise OSError(116, "Stale file handle")

    def allocate(self) -> None:
        """Strike when the weights go to the GPU: ``out_of_memory``."""
        if self._name == "out_of_memory":
            raise OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
                "1.02 GiB is free."
            )

    def write_rank(self, path: Path, data: bytes, *, rank: int, ranks: int) -> None:
        """Write the file of one rank, unless the fault is that it is missing or half."""
        if self._name == "success_without_file":
            return
        if self._name == "killed_half_way" and ranks == 1:
            path.write_bytes(data[: len(data) // 2])
            self._die()
        if self._name == "killed_half_way" and rank == 1:
            self._die()
        path.write_bytes(data)

    def _wait(self) -> None:
        end = time.monotonic() + _SLOW_LIMIT_S
        while time.monotonic() < end and not (self._value and Path(self._value).exists()):
            print(f"{self._tool}: working, {end - time.monotonic():.1f} s at most", flush=True)
            time.sleep(0.1)

    def _die(self) -> None:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def write_faults(root: Path, faults: Mapping[str, str]) -> None:
    """Write the faults of a toolchain.

    Raises:
        ValueError: A tool or a fault that there is not.
    """
    for tool, fault in faults.items():
        if tool not in TOOLS or fault.partition(":")[0] not in NAMES:
            raise ValueError(f"no such fault: {tool}: {fault}; tools are {TOOLS}, faults are {NAMES}")
    (root / FILE).write_text(json.dumps(dict(faults)) + "\n", encoding="utf-8")
