"""Can a GPU engine be made of one checkpoint as it is wanted? Everything that speaks against it, at once.

Compares a checkpoint's values with the wanted parallelism, precision and lengths; touches no file. An ``error`` means
that TensorRT-LLM refuses to convert or to build (or builds something wrong), mostly after minutes; a ``warning`` that
the result may disappoint, an ``info`` that it is worth knowing. All codes begin with ``fitness.`` and are stable.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from specdeploy.checkpoint.trtllm import padded_vocab_size
from specdeploy.findings import Finding, Severity
from specdeploy.planning.precision import precision as format_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from specdeploy.checkpoint.info import CheckpointInfo

_SHOWN: Final = 3
_KNOWN_ROPES: Final = frozenset({"linear", "dynamic", "yarn", "llama3", "longrope", "su", "mrope"})
# Families whose layers alternate between a window and the whole context, which the engine is built to follow.
_ALTERNATING: Final = frozenset({"Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"})
_LAYER: Final = (
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
)
_QK_NORMS: Final = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
_GEMMA_NORMS: Final = ("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight")
# What each layer holds, for the families whose converters need every one of these tensors.
_LAYERS: Final[Mapping[str, tuple[str, ...]]] = {
    "LlamaForCausalLM": _LAYER,
    "MistralForCausalLM": _LAYER,
    "Qwen2ForCausalLM": (
        *_LAYER,
        "self_attn.q_proj.bias",
        "self_attn.k_proj.bias",
        "self_attn.v_proj.bias",
    ),
    "Qwen3ForCausalLM": (*_LAYER, *_QK_NORMS),
    "GemmaForCausalLM": _LAYER,
    "Gemma2ForCausalLM": (*_LAYER, *_GEMMA_NORMS),
    "Gemma3ForCausalLM": (*_LAYER, *_GEMMA_NORMS, *_QK_NORMS),
}


def check_fitness(  # all but the checkpoint are keywords
    info: CheckpointInfo,
    *,
    role: str,
    precision: str,
    max_seq_len: int,
    tp_size: int = 1,
    pp_size: int = 1,
    ep_size: int = 1,
    supported_architectures: Collection[str] | None = None,
) -> tuple[Finding, ...]:
    """Return all findings about one checkpoint, errors first.

    Args:
        info: The checkpoint.
        role: ``target`` or ``draft``, for the findings' ``where``.
        precision: Of the engine's weights, such as ``int4_awq``.
        max_seq_len: Longest prompt plus answer, in tokens.
        tp_size: Ranks that share every layer.
        pp_size: Ranks that have some of the layers each.
        ep_size: Ranks that share the experts of a mixture; a part of ``tp_size``.
        supported_architectures: Model classes that the release's converters take; None leaves that unchecked.

    Raises:
        ConfigError: There is no such precision.
    """
    found = [
        *_check_architecture(info, supported_architectures),
        *_check_heads(info, tp_size),
        *_check_widths(info, tp_size, precision),
        *_check_stages(info, pp_size),
        *_check_experts(info, tp_size, ep_size),
        *_check_vocabulary(info, tp_size),
        *_check_types(info, precision),
        *_check_rope(info, max_seq_len),
        *_check_window(info, max_seq_len),
        *_check_tensors(info),
    ]
    order: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}
    return tuple(
        Finding(severity=severity, code=f"fitness.{code}", message=f"{info.name}: {message}", hint=hint, where=role)
        for severity, code, message, hint in sorted(found, key=lambda item: order[item[0]])
    )


# Severity, code without its room, message and hint; the checkpoint's name and role are added to all of them.
_Found = tuple[Severity, str, str, str]


def _check_architecture(info: CheckpointInfo, supported: Collection[str] | None) -> Iterator[_Found]:
    if supported is not None and info.architecture not in supported:
        near = difflib.get_close_matches(info.architecture, supported, n=1)
        hint = f"The nearest one that is taken is {near[0]}." if near else "Take another release or the profile llmapi."
        yield "error", "architecture-unsupported", f"no converter of the release takes {info.architecture}", hint


def _check_heads(info: CheckpointInfo, tp_size: int) -> Iterator[_Found]:
    heads, shared = info.num_heads, info.num_kv_heads
    fits = _dividing(heads, shared)
    hint = f"tp_size can be {', '.join(map(str, fits))}."
    if heads % tp_size:
        yield "error", "heads-not-divisible", f"{heads} attention heads do not divide by tp_size {tp_size}", hint
    if shared % tp_size and tp_size % shared:
        yield (
            "error",
            "kv-heads-not-divisible",
            f"{shared} key-value heads can neither be split nor be copied evenly over tp_size {tp_size}",
            hint,
        )
    elif tp_size > shared:
        copies = tp_size // shared
        yield (
            "info",
            "kv-heads-copied",
            f"each of its {shared} key-value heads lies on {copies} ranks, cache and all",
            "",
        )


def _dividing(heads: int, shared: int) -> list[int]:
    return [n for n in range(1, min(heads, 64) + 1) if heads % n == 0 and (shared % n == 0 or n % shared == 0)]


def _check_widths(info: CheckpointInfo, tp_size: int, precision: str) -> Iterator[_Found]:
    group = format_of(precision).group
    attention = info.num_heads * info.head_dim
    widths = {"hidden size": info.hidden_size, "intermediate size": info.intermediate_size}
    widths |= {"attention width": attention} if attention != info.hidden_size else {}
    for name, width in widths.items():
        if width % tp_size:
            message = f"its {name} {width} does not divide by tp_size {tp_size}"
            yield "error", "width-not-divisible", message, "Take a smaller tp_size."
        elif (width // tp_size) % group:
            message = f"its {name} {width} leaves {width // tp_size} to a rank, {precision} needs multiples of {group}"
            yield "error", "group-not-divisible", message, _group_cure(tuple(widths.values()), group)


def _group_cure(widths: tuple[int, ...], group: int) -> str:
    """Return the parallelism that would do, found by trying."""
    fits = [n for n in (1, 2, 4, 8) if all(width % n == 0 and (width // n) % group == 0 for width in widths)]
    return f"tp_size {' or '.join(map(str, fits))} would do." if fits else "Take another precision."


def _check_stages(info: CheckpointInfo, pp_size: int) -> Iterator[_Found]:
    layers = info.num_layers
    if pp_size > layers:
        yield "error", "too-many-stages", f"{layers} layers cannot fill pp_size {pp_size}", f"At most {layers}."
    elif layers % pp_size:
        even = [n for n in range(2, 9) if layers % n == 0]
        message = (
            f"{layers} layers do not split evenly over pp_size {pp_size}: the first stages hold one more and set the "
            "pace, and older releases leave the remainder out"
        )
        yield "warning", "stages-uneven", message, f"Even are {', '.join(map(str, even))}." if even else "Use tp_size."


def _check_experts(info: CheckpointInfo, tp_size: int, ep_size: int) -> Iterator[_Found]:
    if ep_size == 1:
        return
    if info.num_experts is None:
        yield "error", "no-experts", f"ep_size is {ep_size}, the network is dense", "Leave ep_size at 1."
        return
    if info.num_experts % ep_size:
        message = f"{info.num_experts} experts do not divide by ep_size {ep_size}"
        yield "error", "experts-not-divisible", message, "Take an ep_size that divides them."
    if tp_size % ep_size:
        message = f"ep_size {ep_size} does not divide tp_size {tp_size}, whose ranks share the experts"
        yield "error", "experts-ranks", message, "Take an ep_size that divides tp_size."


def _check_vocabulary(info: CheckpointInfo, tp_size: int) -> Iterator[_Found]:
    padded = padded_vocab_size(info.vocab_size, tp_size)
    if padded != info.vocab_size:
        message = f"{info.vocab_size} ids are padded to {padded} for tp_size {tp_size}: its logits have that width"
        yield "info", "vocabulary-padded", message, ""


def _check_types(info: CheckpointInfo, precision: str) -> Iterator[_Found]:
    if info.quant_method is not None:
        yield (
            "warning",
            "already-quantized",
            f"its weights are quantised already ({info.quant_method}), which converters only take for some methods",
            "Take the 16-bit checkpoint and let the build quantise it.",
        )
    elif info.dtype == "float32" and precision != "fp32":
        message = f"its float32 weights are cast to 16 bits on the way to {precision}: outputs differ a little"
        yield "warning", "float32-cast", message, "Compare with the 16-bit model, not with this checkpoint."
    elif info.dtype == "bfloat16" and precision == "fp16":
        message = "its bfloat16 weights and activations are cast to float16, where values above 65504 overflow"
        yield "warning", "bfloat16-cast", message, "Take bf16."
    if info.tie_word_embeddings:
        yield "info", "tied-embeddings", "its output layer is the embedding; converters write it out a second time", ""


def _check_rope(info: CheckpointInfo, max_seq_len: int) -> Iterator[_Found]:
    scaling = info.rope_scaling
    if scaling is None:
        return
    kind, factor = str(scaling.get("rope_type", scaling.get("type"))), scaling.get("factor")
    named = f"rotary scaling {kind}" + (f" by {factor:g}" if isinstance(factor, int | float) else "")
    if kind not in _KNOWN_ROPES:
        yield "warning", "rope-unknown", f"{named} is unusual; a converter may ignore it", "Compare answers first."
        return
    original = scaling.get("original_max_position_embeddings", info.max_position_embeddings)
    if not isinstance(original, int) or max_seq_len <= original:
        yield "info", "rope-scaled", f"{named}; max_seq_len {max_seq_len} stays in the original context", ""
    elif kind in {"llama3", "longrope", "su"}:
        yield "info", "rope-scaled", f"{named} carries it from {original} to max_seq_len {max_seq_len} tokens", ""
    else:
        message = f"{named} stretches {original} tokens to max_seq_len {max_seq_len}, and an engine applies it always"
        yield (
            "warning",
            "rope-stretched",
            message,
            f"Take max_seq_len {original} without the scaling if that is enough.",
        )


def _check_window(info: CheckpointInfo, max_seq_len: int) -> Iterator[_Found]:
    window = info.sliding_window
    if window is None or max_seq_len <= window:
        return
    if info.architecture in _ALTERNATING:
        yield "info", "sliding-window", f"some of its layers look back only {window} of {max_seq_len} tokens", ""
        return
    message = f"it was trained to look back {window} tokens, max_seq_len is {max_seq_len}"
    hint = f"Set max_attention_window_size to {window} when serving, or max_seq_len to at most {window}."
    yield "warning", "sliding-window", message, hint


def _check_tensors(info: CheckpointInfo) -> Iterator[_Found]:
    """Check that the shards hold the network that ``config.json`` describes; quantised ones name tensors otherwise."""
    layer = _LAYERS.get(info.architecture)
    if layer is None or not info.tensors or info.quant_method is not None:
        return
    shapes = {tensor.name: tensor.shape for tensor in info.tensors}
    wanted = ["model.embed_tokens.weight", "model.norm.weight"]
    wanted += [] if info.tie_word_embeddings else ["lm_head.weight"]
    wanted += [f"model.layers.{number}.{name}" for number in range(info.num_layers) for name in layer]
    missing = [name for name in wanted if name not in shapes]
    if missing:
        message = (
            f"{len(missing)} of {len(wanted)} tensors that {info.architecture} needs are missing: {_some(missing)}"
        )
        yield "error", "tensors-missing", message, "Copy the whole checkpoint, or correct its config.json."
    for name, shape in _expected_shapes(info).items():
        if shapes.get(name, shape) != shape:
            message = f"{name} has the shape {list(shapes[name])}, config.json makes it {list(shape)}"
            yield "error", "shape-differs", message, "Weights and config.json are of different models."


def _expected_shapes(info: CheckpointInfo) -> dict[str, tuple[int, ...]]:
    """Return the shapes that depend on every size in ``config.json``, of the first layer."""
    first = "model.layers.0."
    return {
        "model.embed_tokens.weight": (info.vocab_size, info.hidden_size),
        f"{first}self_attn.q_proj.weight": (info.num_heads * info.head_dim, info.hidden_size),
        f"{first}self_attn.k_proj.weight": (info.num_kv_heads * info.head_dim, info.hidden_size),
        f"{first}mlp.gate_proj.weight": (info.intermediate_size, info.hidden_size),
    }


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
