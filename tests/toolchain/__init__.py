"""A stand-in for the TensorRT-LLM toolchain: programs as strict as the real ones, with nothing installed.

``install_toolchain`` writes ``trtllm-build``, ``nvidia-smi`` and the converters of one release into a folder. They are
real programs for real processes, need only a bare Python, read real checkpoints and write checkpoints and engine
folders of the real layout. What they do not do is compute: tensors are zeros and engines are a few kilobytes.
"""

from __future__ import annotations

from tests.toolchain.install import Toolchain, install_toolchain, read_calls, set_faults

__all__ = ["Toolchain", "install_toolchain", "read_calls", "set_faults"]
