"""What is known about a draft head (EAGLE, EAGLE-3, Medusa, ReDrafter, speculators) without loading its weights.

A head is no model of its own: it reads the target's hidden states and shares, mostly, its embedding. The formats have
no common marker, so the kind is told from the keys of ``config.json`` and from the names and shapes of the tensors.
Works on parsed JSON and tensor headers; reading them is ``checkpoint.read_head``, comparing a head with a target is
``checkpoint.head_compat``.

Where the layouts are from: EAGLE, github.com/SafeAILab/EAGLE; Medusa, github.com/FasterDecoding/Medusa; ReDrafter,
TensorRT-LLM's examples/redrafter/convert_checkpoint.py; speculators, github.com/vllm-project/speculators.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any, Final

from specdeploy.checkpoint.huggingface import positive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from specdeploy.checkpoint.info import TensorInfo

_BASE_MODEL_KEYS: Final = ("base_model_name_or_path", "target_model_name_or_path", "base_model")
_HEAD_COUNT_KEYS: Final = ("medusa_num_heads", "num_medusa_heads", "num_heads")
_AUX_LAYER_KEYS: Final = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids", "target_layer_ids")
# EAGLE-3 reads the target after an early, a middle and a late layer unless its configuration lists others.
_EAGLE3_LAYERS: Final = 3
# `medusa_head.3.0.linear.weight`, `blocks.3.layers.0.weight`, or the bare `3.0.linear.weight` of the original.
_NAMED_MEDUSA: Final = re.compile(r"^(?:medusa_heads?|blocks)\.(\d+)\.(.+)$")
_BARE_MEDUSA: Final = re.compile(r"^(\d+)\.(.+)$")
_MEDUSA_LAYER: Final = re.compile(r"^(?:medusa_layers\.|layers\.)?(\d+)\.(?:linear\.)?weight$")
_MEDUSA_LM_HEAD: Final = re.compile(r"^(?:lm_heads?\.(\d+)|(?:medusa_heads?|blocks)\.(\d+)\.lm_head)\.weight$")
_REDRAFTER_LAYER: Final = re.compile(r"^(?:lm_heads?|0)\.(\d+)\.linear\.weight$")
_DECODER_LAYER: Final = re.compile(r"^(?:layers\.(\d+)|midlayer(?:\.(\d+))?)\.")
_FUSION: Final = ("fc", "fusion_fc")
_UNKNOWN: Final = (
    "neither an EAGLE, EAGLE-3, Medusa or ReDrafter head nor one in the speculators format: no fc.weight, "
    "no medusa_num_heads, no exit_dim and no speculators_model_type"
)
_INTEGERS: Final = frozenset({"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"})


class BadHead(Exception):
    """The folder holds no head that is known, or one that contradicts itself; ``problems`` lists all that is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadFields:
    """What ``config.json`` and the tensors of a head say together; the names are those of ``HeadInfo``."""

    kind: str
    base_model: str | None
    hidden_size: int
    target_hidden_size: int
    vocab_size: int | None
    draft_vocab_size: int | None
    num_heads_in_config: int | None
    num_heads_in_weights: int | None
    num_layers: int | None
    has_fc_bias: bool | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadInfo:
    """A draft head in a folder.

    Args:
        kind: ``eagle`` (1 and 2), ``eagle3``, ``medusa``, ``redrafter``, or ``speculators-`` and its type there.
        path: The folder, absolute.
        name: Its last component.
        base_model: The target that it was trained for, as it names it; None when it does not.
        hidden_size: Width of its own residual stream.
        target_hidden_size: Width of the target's hidden states that it reads.
        vocab_size: Ids that it knows of, the target's; None when neither its configuration nor its tensors tell.
        draft_vocab_size: Ids that it proposes, where that is a part of the target's; None when it proposes all.
        num_heads_in_config: Medusa: heads by ``config.json``, which is often wrong.
        num_heads_in_weights: Medusa: heads that the weights hold.
        num_layers: Decoder layers (EAGLE), residual blocks in each head (Medusa), blocks (ReDrafter); None if untold.
        has_fc_bias: EAGLE: whether its fusing layer has a bias; None for heads without that layer.
        dtype: Of most of its weights, as torch spells it.
        parameters: Elements in the weights, without index tables such as ``d2t``.
        weight_bytes: Bytes of tensor data on disk.
        tensors: Every tensor, by name.
        fingerprint: SHA-256 of the content, for engine keys: a copy of the folder has the same one.
        stat_fingerprint: SHA-256 of names, sizes and modification times: equal means nothing was touched.
    """

    kind: str
    path: str
    name: str
    base_model: str | None
    hidden_size: int
    target_hidden_size: int
    vocab_size: int | None
    draft_vocab_size: int | None
    num_heads_in_config: int | None
    num_heads_in_weights: int | None
    num_layers: int | None
    has_fc_bias: bool | None
    dtype: str
    parameters: int
    weight_bytes: int
    tensors: tuple[TensorInfo, ...] = dataclasses.field(repr=False)
    fingerprint: str
    stat_fingerprint: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``, without the list of tensors."""
        fields = (field.name for field in dataclasses.fields(self) if field.name != "tensors")
        return {name: getattr(self, name) for name in fields}


def head_fields(config: Mapping[str, Any], tensors: Iterable[TensorInfo]) -> HeadFields:
    """Tell what kind of head it is, and its sizes.

    Args:
        config: ``config.json``.
        tensors: What the weight files hold.

    Raises:
        BadHead: It is none of the known heads, or its configuration and its weights contradict each other.
    """
    # Some exports keep the prefix of the module that the head was trained in.
    shapes = {tensor.name.removeprefix("model."): tensor.shape for tensor in tensors}
    kind = _kind(config, shapes)
    if kind is None:
        raise BadHead([_UNKNOWN])
    problems: list[str] = []
    fields = _reader(kind)(kind, config, shapes, problems)
    if problems:
        raise BadHead(problems)
    return fields


def count_parameters(tensors: Iterable[TensorInfo]) -> int:
    """Return the elements of all tensors but those of integers, which are tables and no weights."""
    return sum(math.prod(tensor.shape) for tensor in tensors if tensor.dtype not in _INTEGERS)


_Shapes = dict[str, tuple[int, ...]]


def _kind(config: Mapping[str, Any], shapes: _Shapes) -> str | None:
    named = config.get("speculators_model_type") or _section(config, "speculators_config").get("algorithm")
    if isinstance(named, str):
        return f"speculators-{named}"
    tests: tuple[tuple[str, bool], ...] = (
        ("medusa", _is_medusa(config, shapes)),
        ("redrafter", {"num_draft_layers", "exit_dim"} <= config.keys() or "rnn_u.weight" in shapes),
        ("eagle3", _is_eagle3(config, shapes)),
        ("eagle", "fc.weight" in shapes),
    )
    return next((kind for kind, matches in tests if matches), None)


def _is_medusa(config: Mapping[str, Any], shapes: _Shapes) -> bool:
    by_config = config.get("model_type") == "medusa" or any(key.startswith("medusa_num_") for key in config)
    return by_config or any(name.startswith(("medusa_head.", "medusa_heads.")) for name in shapes)


def _is_eagle3(config: Mapping[str, Any], shapes: _Shapes) -> bool:
    if "draft_vocab_size" in config or not {"d2t", "t2d"}.isdisjoint(shapes):
        return True
    fused = shapes.get("fc.weight", (1, 1))
    return any(name.startswith("midlayer.") for name in shapes) or (len(fused) == 2 and fused[1] == 3 * fused[0])


def _reader(kind: str) -> Callable[[str, Mapping[str, Any], _Shapes, list[str]], HeadFields]:
    if kind == "medusa":
        return _medusa
    return _redrafter if kind == "redrafter" else _eagle


def _eagle(kind: str, config: Mapping[str, Any], shapes: _Shapes, problems: list[str]) -> HeadFields:
    """Read any head whose first layer fuses an embedding with hidden states; speculators nest the layer's sizes."""
    keys = {**_section(config, "transformer_layer_config"), **config}
    fusion = next((name for name in _FUSION if f"{name}.weight" in shapes), None)
    fused = shapes[f"{fusion}.weight"] if fusion else None
    hidden = positive(keys.get("hidden_size")) or (fused[0] if fused else None)
    if hidden is None:
        problems.append("hidden_size is missing")
    elif fused and (len(fused) != 2 or fused[0] != hidden):
        problems.append(f"hidden_size is {hidden}, {fusion}.weight has the shape {list(fused)}")
    wide_kind = kind.endswith("eagle3")
    head_rows = next(iter(shapes.get("lm_head.weight", ())), None)
    vocab = positive(keys.get("vocab_size")) or next(iter(shapes.get("embed_tokens.weight", ())), None)
    draft_vocab = positive(keys.get("draft_vocab_size")) or next(iter(shapes.get("d2t", ())), None)
    if draft_vocab and head_rows and head_rows != draft_vocab:
        problems.append(f"draft_vocab_size is {draft_vocab}, lm_head.weight has {head_rows} rows")
    layers = {match.group() for name in shapes if (match := _DECODER_LAYER.match(name))}
    return HeadFields(
        kind=kind,
        base_model=_base_model(config),
        hidden_size=hidden or 0,
        target_hidden_size=_target_width(keys, fused, hidden or 0, problems)
        if wide_kind
        else _paired_width(fused, hidden),
        vocab_size=vocab,
        draft_vocab_size=draft_vocab if draft_vocab != vocab else None,
        num_heads_in_config=None,
        num_heads_in_weights=None,
        num_layers=len(layers) or positive(keys.get("num_hidden_layers")),
        has_fc_bias=f"{fusion}.bias" in shapes if fusion else None,
    )


def _target_width(keys: Mapping[str, Any], fused: tuple[int, ...] | None, hidden: int, problems: list[str]) -> int:
    """Return the width of one of the target's hidden states, several of which EAGLE-3 fuses side by side."""
    settings = {**_section(keys, "eagle_config"), **keys}
    listed = next((settings[key] for key in _AUX_LAYER_KEYS if isinstance(settings.get(key), list)), None)
    layers = len(listed) if listed else _EAGLE3_LAYERS
    said = positive(keys.get("target_hidden_size"))
    if fused is None or len(fused) != 2:
        return said or hidden
    if fused[1] % layers or (said and fused[1] != said * layers):
        expected = f"{layers} x {said or 'the width'}"
        problems.append(f"fc.weight reads {fused[1]} values, expected {expected} of the target's hidden states")
    return fused[1] // layers


def _paired_width(fused: tuple[int, ...] | None, hidden: int | None) -> int:
    """Return the width that EAGLE-1 and -2 read beside an embedding of their own width."""
    if hidden is None or fused is None or len(fused) != 2 or fused[1] <= hidden:
        return hidden or 0
    return fused[1] - hidden


def _medusa(kind: str, config: Mapping[str, Any], shapes: _Shapes, problems: list[str]) -> HeadFields:
    heads = _medusa_heads(shapes)
    if not heads:
        problems.append("no tensor is named like a Medusa head, such as medusa_head.0.0.linear.weight")
    blocks = {int(match[1]): shape for rest, shape in heads.get(0, {}).items() if (match := _MEDUSA_LAYER.match(rest))}
    # The last layer of a head is its output, rows by the vocabulary; the ones before it are square.
    square = {number: shape for number, shape in blocks.items() if len(shape) == 2 and shape[0] == shape[1]}
    output = next((shape for number, shape in blocks.items() if number not in square), None)
    rows = output or next((shape for name, shape in shapes.items() if _MEDUSA_LM_HEAD.match(name)), None)
    hidden = next((shape[0] for shape in square.values()), None) or positive(config.get("hidden_size"))
    if hidden is None:
        problems.append("hidden_size is neither in config.json nor in the shapes of the heads")
    said = next((count for key in _HEAD_COUNT_KEYS if (count := positive(config.get(key)))), None)
    return HeadFields(
        kind=kind,
        base_model=_base_model(config),
        hidden_size=hidden or 0,
        target_hidden_size=hidden or 0,
        vocab_size=rows[0] if rows else positive(config.get("vocab_size")),
        draft_vocab_size=None,
        num_heads_in_config=said,
        num_heads_in_weights=len(heads) or None,
        num_layers=len(square) or positive(config.get("medusa_num_layers")),
        has_fc_bias=None,
    )


def _medusa_heads(shapes: _Shapes) -> dict[int, _Shapes]:
    """Return head to its tensors, without the head's prefix; bare numbers count only when nothing is named."""
    for pattern in (_NAMED_MEDUSA, _BARE_MEDUSA):
        heads: dict[int, _Shapes] = {}
        for name, shape in shapes.items():
            if match := pattern.match(name):
                heads.setdefault(int(match[1]), {})[match[2]] = shape
        if heads:
            return heads
    return {}


def _redrafter(kind: str, config: Mapping[str, Any], shapes: _Shapes, problems: list[str]) -> HeadFields:
    """Read a ReDrafter head: TensorRT-LLM's converter needs ``num_draft_layers``, ``exit_dim`` and ``rnn``."""
    sizes = {key: positive(config.get(key)) for key in ("hidden_size", "exit_dim", "num_draft_layers")}
    problems += [f"{key} must be a positive integer, it is {config.get(key)!r}" for key, v in sizes.items() if not v]
    if not isinstance(config.get("rnn"), bool):
        problems.append(f"rnn must be true or false, it is {config.get('rnn')!r}")
    elif config["rnn"] and "rnn_u.weight" not in shapes:
        problems.append("rnn is true, and there is no rnn_u.weight")
    held = len({match[1] for name in shapes if (match := _REDRAFTER_LAYER.match(name))})
    layers = sizes["num_draft_layers"]
    if layers and held != layers:
        problems.append(f"num_draft_layers is {layers}, the weights hold {held}")
    output = next(
        (shapes[name] for prefix in ("lm_head", "lm_heads", "0") if (name := f"{prefix}.{held}.weight") in shapes), None
    )
    if output and sizes["exit_dim"] and output[-1] != sizes["exit_dim"]:
        problems.append(f"exit_dim is {sizes['exit_dim']}, the output layer reads {output[-1]} values")
    hidden = sizes["hidden_size"] or 0
    return HeadFields(
        kind=kind,
        base_model=_base_model(config),
        hidden_size=hidden,
        target_hidden_size=hidden,
        vocab_size=output[0] if output else positive(config.get("vocab_size")),
        draft_vocab_size=None,
        num_heads_in_config=None,
        num_heads_in_weights=None,
        num_layers=layers,
        has_fc_bias=None,
    )


def _base_model(config: Mapping[str, Any]) -> str | None:
    verifier = _section(_section(config, "speculators_config"), "verifier").get("name_or_path")
    named = (verifier, *(config.get(key) for key in _BASE_MODEL_KEYS))
    return next((name for name in named if isinstance(name, str) and name), None)


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}
