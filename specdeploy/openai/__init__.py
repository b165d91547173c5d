"""The client of servers that speak OpenAI's completions API: vLLM, llama.cpp, trtllm-serve, Triton's front end."""

from __future__ import annotations

from specdeploy.openai.address import ServerAddress
from specdeploy.openai.client import OpenAIClient
from specdeploy.openai.dialect import Dialect, ask_dialect

__all__ = ["Dialect", "OpenAIClient", "ServerAddress", "ask_dialect"]
