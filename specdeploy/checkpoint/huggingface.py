"""The JSON of a Hugging Face folder to typed fields, with the defaults that transformers applies.

Works on parsed JSON and knows the key names of the common model families. Does not read files and knows no weights.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# The first key that is there counts: transformers' attribute maps, for the families that spell them in their own way.
_ALIASES: Final = {
    "vocab_size": ("vocab_size",),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length"),
}
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")
# Beyond these a configuration is damaged, and computing with it would take for ever.
_LARGEST: Final = {"num_layers": 10_000, "num_heads": 100_000}
_LARGEST_SIZE: Final = 10**9
_EPSILONS: Final = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")


class BadConfig(Exception):
    """Keys are missing or wrong; ``problems`` lists all of them, each with the value seen."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFields:
    """What ``config.json`` says about the network; the names are those of ``CheckpointInfo``."""

    architecture: str
    dtype: str | None
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    tie_word_embeddings: bool | None
    rms_norm_eps: float
    sliding_window: int | None
    num_experts: int | None
    quant_method: str | None


def model_fields(config: Mapping[str, Any]) -> ModelFields:
    """Return the network's fields from ``config.json``.

    Multimodal checkpoints keep those of the language model under ``text_config``. Defaults as in transformers: as many
    key-value heads as heads, heads as wide as the hidden size divided by their number, four times the hidden size as
    the feed-forward width, theta 10000. ``dtype`` and ``tie_word_embeddings`` are None when they are not said.

    Raises:
        BadConfig: A key without a default is missing, or one is no positive integer.
    """
    text = config.get("text_config")
    keys = {**config, **text} if isinstance(text, dict) else dict(config)
    problems: list[str] = []
    architectures = config.get("architectures")
    if not (isinstance(architectures, list) and architectures and isinstance(architectures[0], str)):
        problems.append(f"architectures must be a list with a class name, it is {architectures!r}")
    sizes = _sizes(keys, problems)
    if problems:
        raise BadConfig(problems)
    theta, scaling = _rope(keys)
    dtype = keys.get("dtype") or keys.get("torch_dtype")
    tied = keys.get("tie_word_embeddings")
    return ModelFields(
        architecture=config["architectures"][0],
        dtype=dtype.removeprefix("torch.") if isinstance(dtype, str) else None,
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=tied if isinstance(tied, bool) else None,
        rms_norm_eps=_number(next((keys[k] for k in _EPSILONS if k in keys), None), 1e-6),
        sliding_window=_sliding_window(keys),
        num_experts=next((count for name in _EXPERTS if (count := positive(keys.get(name))) and count > 1), None),
        quant_method=_quant_method(keys.get("quantization_config")),
        **sizes,
    )


def _sizes(keys: Mapping[str, Any], problems: list[str]) -> dict[str, int]:
    hidden = _size(keys, "hidden_size", problems)
    heads = _size(keys, "num_heads", problems)
    sizes = {
        "vocab_size": _size(keys, "vocab_size", problems),
        "hidden_size": hidden,
        "num_layers": _size(keys, "num_layers", problems),
        "num_heads": heads,
        "num_kv_heads": _size(keys, "num_kv_heads", problems, heads),
        "head_dim": _size(keys, "head_dim", problems, hidden // heads if heads else 0),
        "intermediate_size": _size(keys, "intermediate_size", problems, 4 * hidden),
        "max_position_embeddings": _size(keys, "max_position_embeddings", problems),
    }
    if sizes["num_kv_heads"] and heads % sizes["num_kv_heads"]:
        problems.append(f"{heads} heads cannot share {sizes['num_kv_heads']} key-value heads evenly")
    return sizes


def _size(keys: Mapping[str, Any], field: str, problems: list[str], default: int | None = None) -> int:
    """Return a positive integer; 0 when it is wrong, which *problems* then says."""
    names = _ALIASES[field]
    name = next((name for name in names if keys.get(name) is not None), None)
    if name is None:
        if default is None:
            problems.append(f"{names[0]} is missing")
        return default or 0
    value = keys[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        problems.append(f"{name} must be a positive integer, it is {value!r}")
        return 0
    if value > _LARGEST.get(field, _LARGEST_SIZE):
        problems.append(f"{name} is {value}, which no network has")
        return 0
    return value


def _rope(keys: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """Return theta and scaling; transformers 5 moved both into ``rope_parameters``."""
    moved = keys.get("rope_parameters")
    parameters = moved if isinstance(moved, dict) else {}
    theta = _number(parameters.get("rope_theta", keys.get("rope_theta")), 10000.0)
    scaling = keys.get("rope_scaling") or parameters
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else "default"
    return theta, None if kind == "default" else scaling


def _sliding_window(keys: Mapping[str, Any]) -> int | None:
    """Return the window that attention is limited to; Qwen2 names one that it does not use."""
    if keys.get("use_sliding_window") is False:
        return None
    kinds = keys.get("layer_types")
    if isinstance(kinds, list) and "sliding_attention" not in kinds:
        return None
    return positive(keys.get("sliding_window"))


def _quant_method(value: object) -> str | None:
    method = value.get("quant_method", value.get("quant_algo")) if isinstance(value, dict) else None
    return method.lower() if isinstance(method, str) else None


def positive(value: object) -> int | None:
    """Return a positive integer; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _number(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def token_ids(value: object) -> tuple[int, ...]:
    """Return an id, or a list of ids, as a tuple; -1 and None mean none (older Llama folders write -1)."""
    items = value if isinstance(value, list) else [value]
    return tuple(item for item in items if isinstance(item, int) and not isinstance(item, bool) and item >= 0)


def chosen_ids(key: str, generation: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return a special token's ids: the generation configuration goes before the model's, as when generating."""
    return token_ids(generation.get(key)) or token_ids(config.get(key))
