"""Public names of the LLM API."""

from tensorrt_llm.llmapi.llm import LLM, RequestOutput
from tensorrt_llm.sampling_params import GuidedDecodingParams, SamplingParams

__all__ = ["LLM", "GuidedDecodingParams", "RequestOutput", "SamplingParams"]
