"""A TensorRT-LLM checkpoint: what its ``config.json`` says, as typed values.

Such a folder is what ``convert_checkpoint.py``, ``quantize.py`` and ModelOpt write and ``trtllm-build`` reads: one
``config.json`` and a ``rank{N}.safetensors`` for each rank. Works on parsed JSON; reading the folder is
``checkpoint.read_trtllm``. The layout is documented in TensorRT-LLM's docs/source/legacy/architecture/checkpoint.md.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.checkpoint.huggingface import BadConfig, positive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.checkpoint.info import TensorInfo

# Whatever a speculative converter adds to the base model's configuration.
_SPECULATIVE_KEYS: Final = ("max_draft_len", "num_eagle_layers", "max_non_leaves_per_layer", "eagle_net_config")
_SPECULATIVE_PREFIXES: Final = ("num_medusa_", "medusa_", "redrafter_")
_MAPPING_SIZES: Final = ("world_size", "tp_size", "pp_size", "cp_size", "moe_tp_size", "moe_ep_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrtllmMapping:
    """How the network is spread over ranks; ``world_size`` is ``tp_size * pp_size * cp_size``."""

    world_size: int
    tp_size: int
    pp_size: int
    cp_size: int
    moe_tp_size: int | None
    moe_ep_size: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrtllmQuantization:
    """What is quantised, in TensorRT-LLM's names, such as ``FP8`` or ``W4A16_AWQ``; None where nothing is."""

    quant_algo: str | None
    kv_cache_quant_algo: str | None
    group_size: int | None
    exclude_modules: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrtllmFields:
    """What ``config.json`` says; the names are those of ``TrtllmCheckpoint``."""

    architecture: str
    dtype: str
    logits_dtype: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int | None
    max_position_embeddings: int | None
    mapping: TrtllmMapping
    quantization: TrtllmQuantization
    speculative: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrtllmRank:
    """The weights of one rank: file name, its bytes, and the tensors that it holds."""

    file: str
    size: int
    tensors: tuple[TensorInfo, ...] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrtllmCheckpoint:
    """A TensorRT-LLM checkpoint folder.

    Args:
        path: The folder, absolute.
        name: Its last component.
        architecture: The model class, such as ``LlamaForCausalLM`` or ``MedusaForCausalLM``.
        dtype: Of what is not quantised, such as ``bfloat16``.
        logits_dtype: Of the logits, mostly ``float32``; Triton's ``logits_datatype`` must agree.
        vocab_size: Ids, before the padding that tensor parallelism needs.
        hidden_size: Width of the residual stream.
        num_layers: Decoder layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_dim: Width of a head.
        intermediate_size: Width of the feed-forward part, None when not said.
        max_position_embeddings: Tokens of context, None when not said.
        mapping: Its ranks.
        quantization: Its quantisation.
        speculative: What a converter of a speculative method added, such as ``num_medusa_heads``; empty without one.
        ranks: One for each rank, in order.
        weight_bytes: Bytes of tensor data in all ranks.
        fingerprint: SHA-256 of the content: a copy of the folder has the same one.
        stat_fingerprint: SHA-256 of names, sizes and modification times.
    """

    path: str
    name: str
    architecture: str
    dtype: str
    logits_dtype: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int | None
    max_position_embeddings: int | None
    mapping: TrtllmMapping
    quantization: TrtllmQuantization
    speculative: Mapping[str, Any]
    ranks: tuple[TrtllmRank, ...]
    weight_bytes: int
    fingerprint: str
    stat_fingerprint: str

    @property
    def padded_vocab_size(self) -> int:
        """Width of the logits: the ids, rounded up to a multiple of the tensor-parallel size."""
        return padded_vocab_size(self.vocab_size, self.mapping.tp_size)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``; of the ranks only their files and sizes."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **fields,
            "mapping": dataclasses.asdict(self.mapping),
            "quantization": dataclasses.asdict(self.quantization),
            "speculative": dict(self.speculative),
            "ranks": [{"file": rank.file, "size": rank.size, "tensors": len(rank.tensors)} for rank in self.ranks],
        }


def padded_vocab_size(vocab_size: int, tp_size: int) -> int:
    """Return the ids rounded up to a multiple of the ranks that share the output layer, as TensorRT-LLM pads them."""
    return -(-vocab_size // tp_size) * tp_size


def is_trtllm_config(config: Mapping[str, Any]) -> bool:
    """Say whether a ``config.json`` is TensorRT-LLM's: one ``architecture``, where Hugging Face lists several."""
    return isinstance(config.get("architecture"), str) and "num_hidden_layers" in config


def trtllm_fields(config: Mapping[str, Any]) -> TrtllmFields:
    """Return the fields of ``config.json``, with TensorRT-LLM's defaults.

    Raises:
        BadConfig: Keys are missing or wrong; all of them are named, with the values seen.
    """
    problems: list[str] = []
    names = {"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}
    sizes = {
        field: _size(config, names.get(field, field), problems)
        for field in ("vocab_size", "hidden_size", "num_layers", "num_heads")
    }
    texts = ("architecture", "dtype")
    problems += [f"{key} must be text, it is {config.get(key)!r}" for key in texts if _text(config.get(key)) is None]
    mapping = _mapping(_section(config, "mapping", problems), problems)
    quantization = _quantization(_section(config, "quantization", problems))
    if problems:
        raise BadConfig(problems)
    head_dim = positive(config.get("head_size")) or positive(config.get("head_dim"))
    return TrtllmFields(
        architecture=config["architecture"],
        dtype=config["dtype"],
        logits_dtype=str(config.get("logits_dtype", "float32")),
        **sizes,
        num_kv_heads=positive(config.get("num_key_value_heads")) or sizes["num_heads"],
        head_dim=head_dim or sizes["hidden_size"] // sizes["num_heads"],
        intermediate_size=positive(config.get("intermediate_size")),
        max_position_embeddings=positive(config.get("max_position_embeddings")),
        mapping=mapping,
        quantization=quantization,
        speculative={key: value for key, value in config.items() if _is_speculative(key)},
    )


def _is_speculative(key: str) -> bool:
    return key in _SPECULATIVE_KEYS or key.startswith(_SPECULATIVE_PREFIXES)


def _size(config: Mapping[str, Any], key: str, problems: list[str]) -> int:
    value = positive(config.get(key))
    if value is None:
        problems.append(f"{key} must be a positive integer, it is {config.get(key)!r}")
    return value or 0


def _section(config: Mapping[str, Any], key: str, problems: list[str]) -> Mapping[str, Any]:
    value = config.get(key) or {}
    if isinstance(value, dict):
        return value
    problems.append(f"{key} must be an object, it is {value!r}")
    return {}


def _mapping(values: Mapping[str, Any], problems: list[str]) -> TrtllmMapping:
    sizes: dict[str, int | None] = {}
    for key in _MAPPING_SIZES:
        value = values.get(key)
        # TensorRT-LLM writes -1 for expert sizes that were left to it.
        unset = value is None or (key.startswith("moe_") and value == -1)
        sizes[key] = None if unset else positive(value)
        if not unset and sizes[key] is None:
            problems.append(f"mapping.{key} must be a positive integer, it is {value!r}")
    tp, pp, cp = (sizes[key] or 1 for key in ("tp_size", "pp_size", "cp_size"))
    world = sizes["world_size"] or tp * pp * cp
    if world != tp * pp * cp:
        problems.append(f"mapping.world_size is {world}, tp_size {tp} x pp_size {pp} x cp_size {cp} is {tp * pp * cp}")
    return TrtllmMapping(
        world_size=world,
        tp_size=tp,
        pp_size=pp,
        cp_size=cp,
        moe_tp_size=sizes["moe_tp_size"],
        moe_ep_size=sizes["moe_ep_size"],
    )


def _quantization(values: Mapping[str, Any]) -> TrtllmQuantization:
    excluded = values.get("exclude_modules")
    return TrtllmQuantization(
        quant_algo=_text(values.get("quant_algo")),
        kv_cache_quant_algo=_text(values.get("kv_cache_quant_algo")),
        group_size=positive(values.get("group_size")),
        exclude_modules=tuple(map(str, excluded)) if isinstance(excluded, list) else (),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
