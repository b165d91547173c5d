"""The file that Triton loads. Its code lies beside it in the package ``tensorrtllm_cpu``.

Triton puts this folder at the end of ``sys.path`` and imports this file as the top-level module ``model``, once per
model instance and in a process of its own. The package's name is unlike any other's, so a plain import finds it.
"""

from __future__ import annotations

from tensorrtllm_cpu.triton_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
