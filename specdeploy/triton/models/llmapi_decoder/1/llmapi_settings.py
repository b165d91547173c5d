"""What the deployment is: the arguments of ``tensorrt_llm.LLM``, and how requests are served unless they say otherwise.

Reads ``model.yaml``, which speaks of the engine, and the parameters of ``config.pbtxt``, which speak of requests. Knows
which keys name folders and how long a draft is; knows nothing of requests, and leaves every other key to the LLM API.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

import yaml
from decoder_settings import Settings, SettingsError, read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MODEL_YAML: Final = "model.yaml"
"""The document's default name; the parameter ``model_yaml`` gives another, relative to the version directory."""

_FOLDERS: Final = ("model", "tokenizer")
_DRAFT_FOLDERS: Final = ("speculative_model", "speculative_model_dir")
_DRAFT_LENGTHS: Final = ("max_draft_len", "num_nextn_predict_layers")

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?")
_NO_CANDIDATE: Final = 10**6
_PENALTIES_SINCE: Final = (1, 3, 0, 24)
"""The first release whose documentation lists penalties for its default sampler.

Before, that sampler took them and did nothing: NVIDIA/TensorRT-LLM issue 9442, mended by pull request 16485.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment:
    """What this deployment serves.

    Attributes:
        arguments: Of ``tensorrt_llm.LLM``, with the folders found.
        settings: How requests are served; ``num_draft_tokens`` is what the engine drafts, always.
        speculates: The engine drafts.
        guided: The engine was asked for a guided decoding backend.
    """

    arguments: Mapping[str, Any]
    settings: Settings
    speculates: bool
    guided: bool

    def applies_penalties(self, version: str) -> bool:
        """Tell whether the engine of a TensorRT-LLM release acts on penalties, rather than passing them over."""
        if self.arguments.get("sampler_type") == "TRTLLMSampler" or self.arguments.get("enable_trtllm_sampler"):
            return True
        found = _VERSION.match(version)
        if found is None:
            return False
        major, minor, patch, candidate = found.groups(default=_NO_CANDIDATE)
        return (int(major), int(minor), int(patch), int(candidate)) >= _PENALTIES_SINCE


def read_deployment(
    parameters: Mapping[str, Mapping[str, str]], document: str, root: Path, *, decoupled: bool = True
) -> Deployment:
    """Read a deployment.

    Args:
        parameters: The ``parameters`` block of the model configuration, as Triton hands it over in JSON.
        document: The text of ``model.yaml``.
        root: Root of the model repository, where relative folders begin.
        decoupled: Whether a request may have several responses.

    Raises:
        SettingsError: The document is no mapping, or a parameter is missing, no number, or out of range.
    """
    arguments = _arguments(document)
    speculation = arguments.get("speculative_config") or {}
    if not isinstance(speculation, dict):
        raise SettingsError(f"speculative_config of {MODEL_YAML} is {speculation!r}; it must be a mapping")
    settings = read_settings(_parameters(parameters, arguments, speculation), decoupled=decoupled)
    guided = bool(arguments.get("guided_decoding_backend"))
    placed: dict[str, Any] = {key: _placed(arguments[key], root) for key in _FOLDERS if key in arguments}
    if speculation:
        found = {key: _placed(speculation[key], root) for key in _DRAFT_FOLDERS if key in speculation}
        placed["speculative_config"] = {**speculation, **found}
    return Deployment(
        # Ids go in and come out; text is ours. Only a grammar makes the engine itself need the tokenizer.
        arguments={"skip_tokenizer_init": not guided, **arguments, **placed},
        settings=settings,
        speculates=bool(speculation),
        guided=guided,
    )


def _arguments(document: str) -> dict[str, Any]:
    try:
        arguments = yaml.safe_load(document)
    except yaml.YAMLError as error:
        raise SettingsError(f"{MODEL_YAML} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(arguments, dict) or not arguments.get("model"):
        raise SettingsError(f"{MODEL_YAML} names no model; it must hold the arguments of tensorrt_llm.LLM")
    return {key: value for key, value in arguments.items() if key != "triton_config"}


def _parameters(
    parameters: Mapping[str, Mapping[str, str]], arguments: Mapping[str, Any], speculation: Mapping[str, Any]
) -> dict[str, Mapping[str, str]]:
    """Return the parameters as the decoder's settings want them: completed from the document, which has the last word.

    Where other profiles name engine models, the LLM API is an engine that drafts on its own.
    """
    lengths = [speculation[key] for key in _DRAFT_LENGTHS if key in speculation]
    completed = {"max_inflight": arguments.get("max_batch_size"), "max_seq_len": arguments.get("max_seq_len")}
    decided = {
        "tensorrt_llm_model_name": "model",
        "engine_speculates": speculation.get("decoding_type", "speculative_config") if speculation else "",
        "num_draft_tokens": next(iter(lengths), None) if speculation else 0,
    }
    return {**_entries(completed), **parameters, **_entries(decided)}


def _entries(values: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    return {key: {"string_value": str(value)} for key, value in values.items() if value is not None}


def _placed(value: object, root: Path) -> object:
    """Return a folder's path; a name that is no folder below the root may be one of a model hub and stays."""
    if not isinstance(value, str):
        return value
    folder = root / value
    return str(folder) if value.startswith(".") or folder.exists() else value
