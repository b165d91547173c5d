"""The ``tensorrt_llm`` profile: checkpoints converted, then compiled by ``trtllm-build``, for releases 0.17 to 1.2.

Pure: commands, tables and comparisons. Nothing here needs a GPU or TensorRT-LLM itself.
"""

from __future__ import annotations

from specdeploy.engine.tensorrt_llm.profile import TensorrtLlmProfile

__all__ = ["TensorrtLlmProfile"]
