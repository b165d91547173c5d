"""The settings of the deployed decoder, read from the parameters of its ``config.pbtxt``.

Knows the names of the parameters and their types; knows nothing of requests.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

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
        max_draft_tokens: The most that a request may ask for; 0 is no limit.
        ngram_size: Drafts are looked up in the text: what followed its last tokens before, at most this many of them;
            0 does not.
        draft_timeout_ms: Longest time that one call to the draft engine may take before the target goes on alone.
        fast_logits: The draft's logits stay on the GPUs, and what it answers in their place is handed on unread.
        engine_speculates: Method by which the engine drafts on its own; empty when the decoder drafts.
        engine_reports: Whether such an engine says what was drafted and accepted.
        engine_input_names: The decoder's name of an input -> the engines' name, where they differ.
        use_draft_logits: Whether sampled requests are verified by rejection sampling on the draft's logits.
        adaptive: Draft lengths follow what is accepted and what rounds take.
        draft_len_schedule: (requests, drafts): from so many requests decoded at once, at most so many drafts.
        max_inflight: Requests decoded at once.
        max_seq_len: Longest prompt plus answer, in tokens.
        control_slice_tokens: Tokens per target call of a streamed answer without drafts.
        exclude_input: The text of the answer does not repeat the prompt.
        tokenizer_dir: Folder of ``tokenizer.json``, inside the model's version directory.
        stand_in: The engines are the CPU stand-ins for TensorRT-LLM's.
        decoupled: Whether a request may have several responses; without, none can be streamed.
        preprocessing_model: Name of the model that is asked for the ids of a request that brings text; empty is none.
        otlp_traces_endpoint: Where spans go of requests that Triton traces; empty leaves it to the environment.
    """

    target_model: str
    draft_model: str
    num_draft_tokens: int
    max_draft_tokens: int = 0
    ngram_size: int = 0
    draft_timeout_ms: int = 10_000
    fast_logits: bool = False
    engine_speculates: str = ""
    engine_reports: bool = False
    engine_input_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    use_draft_logits: bool = True
    adaptive: bool = False
    draft_len_schedule: tuple[tuple[int, int], ...] = ()
    max_inflight: int
    max_seq_len: int
    control_slice_tokens: int = 16
    exclude_input: bool = True
    tokenizer_dir: str = "tokenizer"
    stand_in: bool = False
    decoupled: bool = True
    preprocessing_model: str = ""
    otlp_traces_endpoint: str = ""

    @property
    def drafts(self) -> bool:
        """Whether the decoder has drafts to verify, from an engine or from the text."""
        return bool(self.draft_model or self.ngram_size)


def read_settings(parameters: Mapping[str, Mapping[str, str]], *, decoupled: bool = True) -> Settings:
    """Read the ``parameters`` block of a model configuration, as Triton hands it over in JSON.

    Args:
        parameters: The block.
        decoupled: The configuration's transaction policy; see :func:`is_decoupled`.

    Raises:
        SettingsError: A parameter is missing, is not a number, or is out of range.
    """
    values = {key: entry["string_value"] for key, entry in parameters.items()}
    return Settings(
        target_model=_text(values, "tensorrt_llm_model_name"),
        draft_model=values.get("tensorrt_llm_draft_model_name", ""),
        num_draft_tokens=_number(values, "num_draft_tokens", least=0),
        max_draft_tokens=_number(values, "max_draft_tokens", least=0, default="0"),
        ngram_size=_number(values, "ngram_size", least=0, default="0"),
        draft_timeout_ms=_number(values, "draft_timeout_ms", least=1, default="10000"),
        fast_logits=_flag(values, "fast_logits", default=False),
        engine_speculates=values.get("engine_speculates", ""),
        engine_reports=_flag(values, "engine_reports", default=False),
        engine_input_names=_pairs(values, "engine_input_names"),
        use_draft_logits=_flag(values, "use_draft_logits", default=True),
        adaptive=_flag(values, "adaptive_drafts", default=False),
        draft_len_schedule=_schedule(values, "draft_len_schedule"),
        max_inflight=_number(values, "max_inflight", least=1),
        max_seq_len=_number(values, "max_seq_len", least=2),
        control_slice_tokens=_number(values, "control_slice_tokens", least=1, default="16"),
        exclude_input=_flag(values, "exclude_input_in_output", default=True),
        tokenizer_dir=values.get("tokenizer_dir", "tokenizer"),
        stand_in=_flag(values, "engine_stand_in", default=False),
        decoupled=decoupled,
        preprocessing_model=values.get("preprocessing_model_name", ""),
        otlp_traces_endpoint=values.get("otlp_traces_endpoint", ""),
    )


def is_decoupled(config: Mapping[str, Any]) -> bool:
    """Say whether a model configuration, as Triton hands it over in JSON, lets a request have several responses."""
    return bool(config.get("model_transaction_policy", {}).get("decoupled", False))


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


def _pairs(values: Mapping[str, str], key: str) -> dict[str, str]:
    """Read ``ours=theirs,...``."""
    pairs = [entry.partition("=") for entry in values.get(key, "").split(",") if entry]
    if not all(ours and theirs for ours, _, theirs in pairs):
        raise SettingsError(f"parameter {key!r} of config.pbtxt is {values[key]!r}; it must be ours=theirs,...")
    return {ours: theirs for ours, _, theirs in pairs}


def _schedule(values: Mapping[str, str], key: str) -> tuple[tuple[int, int], ...]:
    """Read ``requests:drafts,...``."""
    pairs = [entry.partition(":") for entry in values.get(key, "").split(",") if entry]
    if not all(left.isdecimal() and right.isdecimal() for left, _, right in pairs):
        raise SettingsError(f"parameter {key!r} of config.pbtxt is {values[key]!r}; it must be requests:drafts,...")
    return tuple((int(left), int(right)) for left, _, right in pairs)


def _flag(values: Mapping[str, str], key: str, *, default: bool) -> bool:
    text = values.get(key, "true" if default else "false").lower()
    if text not in {"true", "false"}:
        raise SettingsError(f"parameter {key!r} of config.pbtxt is {text!r}; it must be true or false")
    return text == "true"
