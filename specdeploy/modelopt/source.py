"""What a Hugging Face folder says about itself, and whether ModelOpt can make of it what was asked.

Reads ``config.json`` and looks for the files; opens no weights.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import CheckpointError
from specdeploy.modelopt.formats import FORMATS
from specdeploy.modelopt.refusal import Refusal, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from specdeploy.modelopt.options import Conversion

# Architecture to ModelOpt's decoder type, for those whose config.json ModelOpt 0.37 writes right without TensorRT-LLM.
# It also writes GPT-2, StarCoder2, Nemotron, MPT and RecurrentGemma, but not all of what their engines need to know
# (GPT-2 gets rotary positions), and stops at every other architecture once the weights are loaded.
DECODER_TYPES: Final[Mapping[str, str]] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "GemmaForCausalLM": "gemma",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """What ``config.json`` says; a size that it leaves out is None.

    Args:
        architecture: Class name, such as ``LlamaForCausalLM``.
        layers: Decoder layers.
        hidden: Width of the residual stream.
        intermediate: Width of the feed-forward part.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Width of one head.
        quantized_by: How the weights are already quantised, when they are.
    """

    architecture: str
    layers: int | None = None
    hidden: int | None = None
    intermediate: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    quantized_by: str | None = None


def read_source(folder: Path) -> Source:
    """Read what the checkpoint in ``folder`` says about itself.

    Raises:
        CheckpointError: There is no folder, no readable ``config.json``, no architecture in it, or no safetensors file.
    """
    config = _config(folder)
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise CheckpointError(f"{folder / 'config.json'} names no architecture", hint='add "architectures": ["..."]')
    if not any(folder.glob("*.safetensors")):
        raise CheckpointError(
            f"{folder} holds no .safetensors file", hint="other weight formats can run code; convert them first"
        )
    heads, hidden = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    derived = hidden // heads if hidden and heads else None
    return Source(
        architecture=architectures[0],
        layers=_size(config, "num_hidden_layers"),
        hidden=hidden,
        intermediate=_size(config, "intermediate_size"),
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads") or heads,
        head_dim=_size(config, "head_dim") or derived,
        quantized_by=_quantized_by(config),
    )


def check_source(source: Source, wanted: Conversion, *, with_tensorrt_llm: bool) -> None:
    """Raise when the checkpoint cannot become what is ``wanted``.

    Args:
        source: The checkpoint.
        wanted: The conversion.
        with_tensorrt_llm: Whether TensorRT-LLM is installed beside ModelOpt, which then asks it for the configuration.

    Raises:
        CheckpointError: Tells every reason.
    """
    refusals = [*_architecture_refusals(source, with_tensorrt_llm), *_size_refusals(source, wanted)]
    refuse(refusals, CheckpointError)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}",
            hint="--checkpoint is a Hugging Face checkpoint folder",
        ) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is not a JSON object", hint="--checkpoint is a Hugging Face checkpoint folder")
    return config


def _size(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and value > 0 else None


def _quantized_by(config: Mapping[str, Any]) -> str | None:
    quantization = config.get("quantization_config")
    if not quantization:
        return None
    return str(quantization.get("quant_method", "?")) if isinstance(quantization, dict) else "?"


def _architecture_refusals(source: Source, with_tensorrt_llm: bool) -> Iterator[Refusal]:
    if source.architecture not in DECODER_TYPES and not with_tensorrt_llm:
        yield Refusal(
            message=f"{source.architecture}: ModelOpt alone converts {', '.join(DECODER_TYPES)}",
            hint="run where TensorRT-LLM is installed beside ModelOpt, or use TensorRT-LLM's convert_checkpoint.py",
        )
    if source.quantized_by is not None:
        yield Refusal(
            message=f"the checkpoint is already quantised ({source.quantized_by})",
            hint="start from the checkpoint in float16 or bfloat16",
        )


def _size_refusals(source: Source, wanted: Conversion) -> Iterator[Refusal]:
    """Yield what does not divide; ModelOpt finds out after calibrating, or not at all."""
    tp, fewer_ranks = wanted.tp_size, "choose another --tp-size"
    for name, size in (("attention heads", source.heads), ("feed-forward width", source.intermediate)):
        if size is not None and size % tp:
            yield Refusal(message=f"--tp-size {tp} does not divide the {name}, {size}", hint=fewer_ranks)
    if source.kv_heads is not None and source.kv_heads % tp:
        if tp % source.kv_heads:
            message = f"--tp-size {tp} and the {source.kv_heads} key and value heads do not divide one another"
            yield Refusal(message=message, hint=fewer_ranks)
        elif FORMATS[wanted.qformat].per_channel:
            message = f"--qformat {wanted.qformat} cannot share {source.kv_heads} key and value heads among {tp} ranks"
            yield Refusal(message=message, hint=f"use --tp-size {source.kv_heads} or fewer")
    if source.layers is not None and source.layers % wanted.pp_size:
        message = f"--pp-size {wanted.pp_size} does not divide the layers, {source.layers}"
        yield Refusal(message=message, hint="choose another --pp-size")
    yield from _block_refusals(source, wanted)


def _block_refusals(source: Source, wanted: Conversion) -> Iterator[Refusal]:
    block = wanted.block_size
    if block is None:
        return
    attention = source.heads * source.head_dim if source.heads and source.head_dim else None
    widths = {"width": source.hidden, "attention width": attention, "feed-forward width": source.intermediate}
    for name, width in widths.items():
        if width is not None and (width // wanted.tp_size) % block:
            yield Refusal(
                message=f"a rank's share of the {name}, {width} / {wanted.tp_size}, is no multiple of "
                f"--qformat {wanted.qformat}'s block of {block}",
                hint="choose a smaller --tp-size or another --qformat",
            )
