"""Plays the part of ``tensorrt_llm`` that the model of the profile ``llmapi`` uses, strictly, over a table.

Goes into the model's version directory of a test's repository, which is where the server's Python looks first. Names,
defaults, refusals and the life of a result are those of TensorRT-LLM 1.0 to 1.4 as their sources have them; nothing
here proves that a model decodes, only that the model around it speaks to the LLM API as it is.
"""

from tensorrt_llm.llmapi.llm import LLM
from tensorrt_llm.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams", "__version__"]
__version__ = "1.2.1"
