"""The settings of the deployed decoder, read from the parameters of its ``config.pbtxt``.

Knows the names of the parameters and their types; knows nothing of requests.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class SettingsError(ValueError):
    """A parameter of the model configuration is missing or malformed; the model does not load."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How this deployment decodes unless a request says otherwise.

    Attributes:
        target_model: Name of the target engine's Triton model.
        draft_model: Name of the draft engine's; empty decodes everything with the target alone.
        num_draft_tokens: Drafts per round.
        use_draft_logits: Whether sampled requests are verified by rejection sampling on the draft's logits.
        max_inflight: Requests decoded at once.
        max_seq_len: Longest prompt plus answer, in tokens.
        control_slice_tokens: Tokens per target call of a streamed answer without drafts.
        exclude_input: The text of the answer does not repeat the prompt.
        tokenizer_dir: Folder of ``tokenizer.json``, inside the model's version directory.
        stand_in: The engines are the CPU stand-ins for TensorRT-LLM's.
    """

    target_model: str
    draft_model: str
    num_draft_tokens: int
    use_draft_logits: bool = True
    max_inflight: int
    max_seq_len: int
    control_slice_tokens: int = 16
    exclude_input: bool = True
    tokenizer_dir: str = "tokenizer"
    stand_in: bool = False


def read_settings(parameters: Mapping[str, Mapping[str, str]]) -> Settings:
    """Read the ``parameters`` block of a model configuration, as Triton hands it over in JSON.

    Raises:
        SettingsError: A parameter is missing, is not a number, or is out of range.
    """
    values = {key: entry["string_value"] for key, entry in parameters.items()}
    return Settings(
        target_model=_text(values, "tensorrt_llm_model_name"),
        draft_model=values.get("tensorrt_llm_draft_model_name", ""),
        num_draft_tokens=_number(values, "num_draft_tokens", least=0),
        use_draft_logits=_flag(values, "use_draft_logits", default=True),
        max_inflight=_number(values, "max_inflight", least=1),
        max_seq_len=_number(values, "max_seq_len", least=2),
        control_slice_tokens=_number(values, "control_slice_tokens", least=1, default="16"),
        exclude_input=_flag(values, "exclude_input_in_output", default=True),
        tokenizer_dir=values.get("tokenizer_dir", "tokenizer"),
        stand_in=_flag(values, "engine_stand_in", default=False),
    )


def _text(values: Mapping[str, str], key: str) -> str:
    if not values.get(key):
        raise SettingsError(f"parameter {key!r} is missing from config.pbtxt")
    return values[key]


def _number(values: Mapping[str, str], key: str, *, least: int, default: str = "") -> int:
    text = _text({key: default, **values}, key)
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise SettingsError(f"parameter {key!r} of config.pbtxt is {text!r}; it must be a whole number from {least}")
    return number


def _flag(values: Mapping[str, str], key: str, *, default: bool) -> bool:
    text = values.get(key, "true" if default else "false").lower()
    if text not in {"true", "false"}:
        raise SettingsError(f"parameter {key!r} of config.pbtxt is {text!r}; it must be true or false")
    return text == "true"
