"""What the compiler needs to know of a Llama-family ``config.json``, and what it refuses.

Knows Hugging Face's keys, old and new. Does not know tensors or ONNX. Every feature that would change the numbers and
is not built is refused here: a wrong engine would look like a bad draft.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ARCHITECTURES: Final = ("LlamaForCausalLM", "MistralForCausalLM")
# Each rope type that is built, with the numbers it needs.
ROPE_TYPES: Final = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_USE_THE_BUILDER: Final = (
    "use a plain Llama-family checkpoint, or compile this one with `python -m onnxruntime_genai.models.builder` "
    "(needs torch and transformers)"
)


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """The shape of a Llama-family model; ``rope_scaling`` is None or Hugging Face's mapping with ``rope_type``."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None


def read_llama_config(folder: Path) -> LlamaConfig:
    """Read ``config.json`` (and the token ids of ``generation_config.json``, which win) of a checkpoint folder.

    Raises:
        CheckpointError: The file is missing or malformed, or the model needs something the compiler does not build.
    """
    path = folder / "config.json"
    raw = _read_json(path)
    generation = folder / "generation_config.json"
    ids = raw | (_read_json(generation) if generation.is_file() else {})
    _refuse_unsupported(path, raw)
    try:
        config = _parse(raw, ids)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: cannot be understood, at {error}", hint="the file is incomplete; fetch it again"
        ) from error
    _check_shape(path, config)
    return config


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing",
            hint="give the folder of a Hugging Face checkpoint (config.json, safetensors, tokenizer)",
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})", hint="fetch the file again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, not an object", hint="fetch the file again")
    return value


def _refuse_unsupported(path: Path, raw: Mapping[str, Any]) -> None:
    """Raise for the first feature that the compiler does not build."""
    architecture = next(iter(raw.get("architectures") or ()), None)
    if architecture not in ARCHITECTURES:
        raise _unsupported(path, "architectures", raw.get("architectures"), f"{', '.join(ARCHITECTURES)} are")
    rope_type = _rope_type(_rope(raw))
    window = raw.get("sliding_window")
    refused = {
        "sliding_window": bool(window) and window < raw.get("max_position_embeddings", 0),
        "num_local_experts": bool(raw.get("num_local_experts")),
        "hidden_act": raw.get("hidden_act", "silu") not in {"silu", "swish"},
        "quantization_config": bool(raw.get("quantization_config")),
        "partial_rotary_factor": raw.get("partial_rotary_factor", 1.0) != 1.0,
        "rope_scaling": rope_type not in ROPE_TYPES,
    }
    for key, is_refused in refused.items():
        if is_refused:
            seen = rope_type if key == "rope_scaling" else raw.get(key)
            raise _unsupported(path, key, seen, "it would change the numbers")


def _unsupported(path: Path, key: str, seen: object, why: str) -> CheckpointError:
    """Return the refusal of ``key``."""
    return CheckpointError(f"{path}: {key} {seen!r} is not supported by this compiler ({why})", hint=_USE_THE_BUILDER)


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rope settings: ``rope_parameters`` of transformers 5, else ``rope_scaling``, else nothing."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _rope_type(rope: Mapping[str, Any]) -> str:
    """Return the rope type under its new or its old key."""
    return str(rope.get("rope_type", rope.get("type", "default")))


def _rope_scaling(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the rope type and its numbers, None for unscaled angles; a missing number is a KeyError."""
    kind = _rope_type(rope)
    return None if kind == "default" else {"rope_type": kind} | {key: float(rope[key]) for key in ROPE_TYPES[kind]}


def _parse(raw: Mapping[str, Any], ids: Mapping[str, Any]) -> LlamaConfig:
    """Build the value from the raw keys."""
    heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    rope = _rope(raw)
    eos = ids.get("eos_token_id")
    return LlamaConfig(
        architecture=str(raw["architectures"][0]),
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        max_positions=int(raw["max_position_embeddings"]),
        rms_norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
        rope_scaling=_rope_scaling(rope),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        bos_token_id=ids.get("bos_token_id"),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),),
        pad_token_id=ids.get("pad_token_id"),
    )


def _check_shape(path: Path, config: LlamaConfig) -> None:
    """Raise when the sizes cannot belong to one model, or not to one that the attention kernel takes."""
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"{path}: {config.num_heads} attention heads cannot share {config.num_kv_heads} key/value heads",
            hint="num_attention_heads must be a multiple of num_key_value_heads",
        )
    if config.head_dim % 16:
        raise _unsupported(path, "head_dim", config.head_dim, "rotary attention needs a multiple of 16")
