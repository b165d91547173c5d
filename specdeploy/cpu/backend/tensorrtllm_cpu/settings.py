"""What a model's ``config.pbtxt`` says to this backend: a frozen value out of Triton's ``model_config`` dictionary.

Parameters that steer a GPU are accepted and have no effect here, so that one file serves both backends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tensorrtllm_cpu.faults import EngineUnusable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_MAX_SEQUENCES: Final = 4
_BATCHING: Final = ("inflight_fused_batching", "inflight_batching")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parameters that matter on a CPU.

    ``max_seq_len`` None means the engine's own context length. ``decoupled`` is the model's transaction policy.
    """

    engine_dir: Path
    max_sequences: int
    max_seq_len: int | None
    reuse_kv_cache: bool
    exclude_input_in_output: bool
    decoupled: bool


def read_settings(config: Mapping[str, Any], model_dir: Path) -> Settings:
    """Return the settings of one model.

    Args:
        config: Triton's model configuration, as a dictionary.
        model_dir: The model's own directory, ``args["model_repository"]`` in Triton's words. A relative
            ``gpt_model_path`` is looked up in its parent, the model repository.

    Raises:
        EngineUnusable: A parameter is missing, malformed or asks for what a CPU engine cannot do.
    """
    parameters = _Parameters(config)
    if int(config.get("max_batch_size", 0)) < 1:
        raise EngineUnusable("max_batch_size is 0; the tensors of this backend have a batch dimension, set it to 1")
    batching = parameters.text("gpt_model_type") or _BATCHING[0]
    if batching not in _BATCHING:
        raise EngineUnusable(f"gpt_model_type is {batching!r}; set it to one of {', '.join(_BATCHING)}")
    if parameters.integer("max_beam_width", 1) != 1:
        raise EngineUnusable("max_beam_width is above 1, and CPU engines have no beam search; set it to 1")
    return Settings(
        engine_dir=_engine_dir(parameters, model_dir),
        max_sequences=parameters.integer("specdeploy_max_sequences", DEFAULT_MAX_SEQUENCES) or DEFAULT_MAX_SEQUENCES,
        max_seq_len=parameters.integer("specdeploy_max_seq_len", None),
        reuse_kv_cache=parameters.flag("enable_kv_cache_reuse", default=True),
        exclude_input_in_output=parameters.flag("exclude_input_in_output", default=False),
        decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled", False)),
    )


def _engine_dir(parameters: _Parameters, model_dir: Path) -> Path:
    """Return the absolute engine directory."""
    value = parameters.text("gpt_model_path")
    if value is None:
        raise EngineUnusable("the parameter gpt_model_path is not set; set it to the engine directory")
    return model_dir.parent / value


class _Parameters:
    """The string parameters of a model; empty ones and unfilled ``${placeholders}`` count as not set."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._values = {key: str(value["string_value"]) for key, value in config.get("parameters", {}).items()}

    def text(self, key: str) -> str | None:
        """Return a value, or None."""
        value = self._values.get(key, "").strip()
        return None if not value or value.startswith("${") else value

    def integer(self, key: str, default: int | None) -> int | None:
        """Return a positive whole number."""
        value = self.text(key)
        if value is None:
            return default
        if not value.isdecimal() or int(value) < 1:
            raise EngineUnusable(f"the parameter {key} is {value!r}; set it to a whole number of at least 1")
        return int(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean, spelled as NVIDIA's templates spell it."""
        value = self.text(key)
        known = {"true": True, "1": True, "false": False, "0": False}
        if value is None:
            return default
        if value.lower() not in known:
            raise EngineUnusable(f"the parameter {key} is {value!r}; set it to true or false")
        return known[value.lower()]
