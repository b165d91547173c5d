"""The ``llmapi`` profile: TensorRT-LLM 1.0 and later serve a checkpoint as it is, by the LLM API's configuration.

What is built is that configuration: written for the release, checked against its schema and our own rules, and
fingerprinted like any other engine.
"""

from __future__ import annotations

from specdeploy.engine.llmapi.profile import LlmApiProfile
from specdeploy.engine.llmapi.releases import LlmApiRelease, llmapi_release

__all__ = ["LlmApiProfile", "LlmApiRelease", "llmapi_release"]
