"""The machine that a toolchain pretends to run on: its release, its GPUs, and the errors of a missing one."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTINGS: Final = "toolchain.json"
CALLS: Final = "calls.jsonl"
_WATCHED: Final = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What ``install_toolchain`` was told, as the tools read it back from ``<root>/toolchain.json``.

    Args:
        root: Folder of the toolchain.
        release: The TensorRT-LLM release that is played.
        gpus: GPUs in the machine.
        gpu_name: Name of each.
        compute_capability: Of each, such as ``9.0``.
    """

    root: Path
    release: str
    gpus: int
    gpu_name: str
    compute_capability: str

    @classmethod
    def load(cls, root: Path) -> Machine:
        """Read the settings in ``root``."""
        return cls(root=root, **json.loads((root / SETTINGS).read_text(encoding="utf-8")))

    @property
    def sm(self) -> int:
        """The compute capability as the builder compares it: 90 for 9.0."""
        major, minor = self.compute_capability.split(".")
        return 10 * int(major) + int(minor)

    def visible_gpus(self) -> int:
        """Return how many GPUs ``CUDA_VISIBLE_DEVICES`` leaves; as in CUDA, the first invalid entry ends the list."""
        listed = os.environ.get("CUDA_VISIBLE_DEVICES")
        if listed is None:
            return self.gpus
        count = 0
        for entry in listed.split(","):
            if not self._is_gpu(entry.strip()):
                break
            count += 1
        return min(count, self.gpus)

    def require_cuda(self, *, driver: bool = True) -> None:
        """Fail as torch does when it is asked about a GPU that it cannot reach.

        Args:
            driver: Whether the machine has a driver; a container that was started without its GPUs has none.

        Raises:
            AssertionError: There is no GPU at all: torch is the build without CUDA.
            RuntimeError: Torch has CUDA, but no driver or no visible GPU.
        """
        if not driver:
            raise RuntimeError(
                "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a "
                "driver from http://www.nvidia.com/Download/index.aspx"
            )
        if self.gpus == 0:
            raise AssertionError("Torch not compiled with CUDA enabled")
        if self.visible_gpus() == 0:
            raise RuntimeError("No CUDA GPUs are available")

    def record_call(self, tool: str, argv: Sequence[str]) -> None:
        """Append one line to ``calls.jsonl``."""
        call = {
            "tool": tool,
            "program": sys.argv[0],
            "argv": list(argv),
            "cwd": str(Path.cwd()),
            "pid": os.getpid(),
            "env": {name: os.environ[name] for name in _WATCHED if name in os.environ},
        }
        with (self.root / CALLS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(call) + "\n")

    def _is_gpu(self, entry: str) -> bool:
        return entry.startswith(("GPU-", "MIG-")) or (entry.isdecimal() and int(entry) < self.gpus)
