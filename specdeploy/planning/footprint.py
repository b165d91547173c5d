"""What an engine takes of each GPU's memory: weights, KV cache, activations, logits and the runtime.

Weights and KV cache follow from sizes. Activations, logits and the runtime are *estimates*, labelled so in the plan:
TensorRT decides on activations when it builds (TensorRT-LLM, docs/source/reference/memory.md), and only a built engine
knows. Where the estimates come from stands at their constants. Knows one engine and one device at a time; what two of
them leave to each other is ``planning.memory``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, TypeVar

from specdeploy.checkpoint.trtllm import padded_vocab_size
from specdeploy.errors import ConfigError
from specdeploy.planning.precision import precision as format_of

if TYPE_CHECKING:
    from specdeploy.checkpoint.info import CheckpointInfo

_T = TypeVar("_T")
_MIB: Final = 1024**2
_KV_BYTES: Final = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
# Copies of a token's attention width that are alive at once, by tensor-parallel size, and the least that a pass takes:
# measured on TensorRT-LLM by NVIDIA (github.com/ai-dynamo/aiconfigurator, its model of the TensorRT-LLM backend).
_ACTIVATION_COPIES: Final = ((8, 5.0), (4, 5.0), (2, 6.5), (1, 11.0))
_MIXTURE_FACTOR: Final = 2.0
_LEAST_ACTIVATIONS: Final = 70 * _MIB
# CUDA context, cuBLAS and TensorRT's own memory of one engine: our round number, to be replaced by a measured one.
_RUNTIME: Final = 1024 * _MIB
# NCCL's buffers by the number of ranks, as users of TensorRT-LLM report them: rough.
_NCCL: Final = ((4, 392 * _MIB), (2, 342 * _MIB), (1, 0))
# The engine's output and the decoder's copy of it, both in 32 bits.
_LOGITS_COPIES: Final = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelMemory:
    """The parameters of a network by where they lie, and the sizes that its KV cache and activations depend on.

    Args:
        name: For messages.
        embedding_parameters: Of the input embedding.
        output_parameters: Of the output layer. One that is tied counts, too: converters write it out a second time.
        layer_parameters: Of the matrices in all decoder layers, which quantisation shrinks.
        other_parameters: Norms and biases, which stay at 16 bits.
        num_layers: Decoder layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_dim: Width of a head.
        vocab_size: Ids.
        mixture: Whether it has experts.
    """

    name: str
    embedding_parameters: int
    output_parameters: int
    layer_parameters: int
    other_parameters: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    mixture: bool = False

    @classmethod
    def of(cls, info: CheckpointInfo) -> ModelMemory:
        """Return the parameters of a checkpoint; one without a list of tensors counts its norms as matrices."""
        embedding = info.vocab_size * info.hidden_size
        other = sum(tensor.shape[0] for tensor in info.tensors if len(tensor.shape) == 1)
        stored = embedding * (1 if info.tie_word_embeddings else 2)
        return cls(
            name=info.name,
            embedding_parameters=embedding,
            output_parameters=embedding,
            layer_parameters=max(0, info.parameters - stored - other),
            other_parameters=other,
            num_layers=info.num_layers,
            num_heads=info.num_heads,
            num_kv_heads=info.num_kv_heads,
            head_dim=info.head_dim,
            vocab_size=info.vocab_size,
            mixture=info.num_experts is not None,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineMemorySpec:
    """One engine, as it is wanted.

    Args:
        role: ``target`` or ``draft``.
        model: Its network.
        precision: Of its weights, not ``auto``.
        kv_cache: ``auto`` (16 bits; 32 for an fp32 engine), ``fp8`` or ``int8``.
        tp_size: Ranks that share every layer.
        pp_size: Ranks that have some of the layers each.
        device_ids: GPUs of its ranks in order, those that share a layer first; empty for the first ones there are.
        max_num_tokens: Tokens that one pass holds.
        max_draft_tokens: Draft tokens that a pass verifies; 0 for a draft.
        tokens_per_block: Tokens in a block of the KV cache.
        parallel_embedding: Whether the input embedding is split over ``tp_size``; converters copy it unless told.
        head_bytes: Weights of a draft head that is built into it.
        stored_bytes: Weights of all ranks where they are known, as of a checkpoint that is converted; else None.
        kv_fraction: ``kv_cache_free_gpu_mem_fraction`` that it is served with; None to be advised.
    """

    role: str
    model: ModelMemory
    precision: str
    kv_cache: str = "auto"
    tp_size: int = 1
    pp_size: int = 1
    device_ids: tuple[int, ...] = ()
    max_num_tokens: int = 8192
    max_draft_tokens: int = 0
    tokens_per_block: int = 32
    parallel_embedding: bool = False
    head_bytes: int = 0
    stored_bytes: int | None = None
    kv_fraction: float | None = None

    @property
    def devices(self) -> tuple[int, ...]:
        """The GPUs of its ranks, in order."""
        return self.device_ids or tuple(range(self.tp_size * self.pp_size))

    def stage(self, device: int) -> int:
        """Return which pipeline stage lies on one of its devices."""
        return self.devices.index(device) // self.tp_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineMemory:
    """What one engine takes of one GPU, in bytes.

    Args:
        role: Of the engine.
        rank: Its rank there.
        weight_bytes: Weights with their scales.
        kv_bytes_per_token: Keys and values of one token, of the layers and heads that lie there.
        kv_cache_bytes: Of the wanted number of sequences, each as long as wanted, in whole blocks.
        activation_bytes: Estimate.
        logits_bytes: Estimate.
        runtime_bytes: Estimate.
    """

    role: str
    rank: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_cache_bytes: int
    activation_bytes: int
    logits_bytes: int
    runtime_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """All but the KV cache: what is taken before the first request."""
        return self.weight_bytes + self.activation_bytes + self.logits_bytes + self.runtime_bytes

    @property
    def total_bytes(self) -> int:
        """With the KV cache."""
        return self.fixed_bytes + self.kv_cache_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``, with the sums and with what is only estimated."""
        return {
            **dataclasses.asdict(self),
            "total_bytes": self.total_bytes,
            "estimates": ["activation_bytes", "logits_bytes", "runtime_bytes"],
        }


def engine_memory(spec: EngineMemorySpec, device: int, *, batch_size: int, seq_len: int) -> EngineMemory:
    """Return what an engine takes of one of its devices.

    Args:
        spec: The engine.
        device: One of ``spec.devices``.
        batch_size: Sequences that it holds at once.
        seq_len: Tokens of each.

    Raises:
        ConfigError: There is no such precision or type of KV cache.
    """
    rank = spec.devices.index(device)
    stage = rank // spec.tp_size
    per_token = kv_bytes_per_token(spec, stage)
    return EngineMemory(
        role=spec.role,
        rank=rank,
        weight_bytes=_weights(spec, stage),
        kv_bytes_per_token=per_token,
        kv_cache_bytes=batch_size * sequence_tokens(spec, seq_len) * per_token,
        activation_bytes=_activations(spec),
        logits_bytes=_logits(spec, batch_size) if stage == spec.pp_size - 1 else 0,
        runtime_bytes=_RUNTIME + _by_size(_NCCL, spec.tp_size * spec.pp_size),
    )


def stage_layers(num_layers: int, pp_size: int, stage: int) -> int:
    """Return how many layers a stage has: as equal as possible, the first ones have one more."""
    return num_layers // pp_size + (stage < num_layers % pp_size)


def kv_bytes_per_token(spec: EngineMemorySpec, stage: int = 0) -> int:
    """Return the bytes of one token's keys and values on one rank.

    ``2 * layers / pp * max(1, kv_heads / tp) * head_dim * bytes``: heads that are fewer than ranks are copied.
    """
    kind = ("fp32" if spec.precision == "fp32" else "fp16") if spec.kv_cache == "auto" else spec.kv_cache
    if kind not in _KV_BYTES:
        raise ConfigError(f"there is no KV cache of the type {spec.kv_cache!r}", hint=f"Use {', '.join(_KV_BYTES)}.")
    heads = max(1, -(-spec.model.num_kv_heads // spec.tp_size))
    return 2 * stage_layers(spec.model.num_layers, spec.pp_size, stage) * heads * spec.model.head_dim * _KV_BYTES[kind]


def sequence_tokens(spec: EngineMemorySpec, seq_len: int) -> int:
    """Return the tokens that a sequence occupies: with the drafts under test, in whole blocks."""
    return -(-(seq_len + spec.max_draft_tokens) // spec.tokens_per_block) * spec.tokens_per_block


def _weights(spec: EngineMemorySpec, stage: int) -> int:
    """Return the bytes of weights: matrices at the precision, embedding and output layer mostly at 16 bits."""
    if spec.stored_bytes is not None:
        return spec.stored_bytes // (spec.tp_size * spec.pp_size)
    model, stored = spec.model, format_of(spec.precision)
    other = 4.0 if spec.precision == "fp32" else 2.0
    ends = stored.bytes_per_weight if stored.whole_model else other
    share = stage_layers(model.num_layers, spec.pp_size, stage) / model.num_layers
    total = share * (model.layer_parameters * stored.bytes_per_weight / spec.tp_size + model.other_parameters * other)
    if stage == 0:
        total += model.embedding_parameters * ends / (spec.tp_size if spec.parallel_embedding else 1)
    if stage == spec.pp_size - 1:
        padding = padded_vocab_size(model.vocab_size, spec.tp_size) / model.vocab_size
        total += (model.output_parameters * padding * ends + spec.head_bytes) / spec.tp_size
    return int(total)


def _activations(spec: EngineMemorySpec) -> int:
    width = spec.model.num_heads * spec.model.head_dim * (4 if spec.precision == "fp32" else 2)
    copies = _by_size(_ACTIVATION_COPIES, spec.tp_size) * (_MIXTURE_FACTOR if spec.model.mixture else 1.0)
    return max(_LEAST_ACTIVATIONS, int(spec.max_num_tokens * width * copies))


def _logits(spec: EngineMemorySpec, batch_size: int) -> int:
    width = padded_vocab_size(spec.model.vocab_size, spec.tp_size)
    return _LOGITS_COPIES * batch_size * (spec.max_draft_tokens + 1) * width * 4


def _by_size(table: tuple[tuple[int, _T], ...], size: int) -> _T:
    """Return the entry of the largest size that is not above *size*."""
    return next(value for least, value in table if size >= least)
