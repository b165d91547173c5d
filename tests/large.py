"""Checkpoints as large as the ones people deploy, that take no room: real shapes and headers over sparse files."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Llama:
    """The sizes of one model."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int = 128256


LLAMA_70B = Llama(layers=80, hidden=8192, intermediate=28672, heads=64, kv_heads=8)
LLAMA_8B = Llama(layers=32, hidden=4096, intermediate=14336, heads=32, kv_heads=8)


def write_large_checkpoint(path: Path, model: Llama, *, shards: int = 30) -> Path:
    """Write a folder that reads as a bfloat16 Llama of the given sizes with a tokenizer of 128,000 tokens."""
    path.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    }
    (path / "config.json").write_text(json.dumps(config))
    _write_tokenizer(path, model.vocab)
    tensors = list(_tensors(model))
    weight_map: dict[str, str] = {}
    per_shard = math.ceil(len(tensors) / shards)
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        held = tensors[number * per_shard : (number + 1) * per_shard]
        _write_shard(path / name, held)
        weight_map |= {tensor: name for tensor, _ in held}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def _tensors(model: Llama) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = model.hidden // model.heads * model.kv_heads
    yield "model.embed_tokens.weight", (model.vocab, model.hidden)
    for layer in range(model.layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.self_attn.q_proj.weight", (model.hidden, model.hidden)
        yield f"{prefix}.self_attn.k_proj.weight", (width, model.hidden)
        yield f"{prefix}.self_attn.v_proj.weight", (width, model.hidden)
        yield f"{prefix}.self_attn.o_proj.weight", (model.hidden, model.hidden)
        yield f"{prefix}.mlp.gate_proj.weight", (model.intermediate, model.hidden)
        yield f"{prefix}.mlp.up_proj.weight", (model.intermediate, model.hidden)
        yield f"{prefix}.mlp.down_proj.weight", (model.hidden, model.intermediate)
        yield f"{prefix}.input_layernorm.weight", (model.hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (model.hidden,)
    yield "model.norm.weight", (model.hidden,)
    yield "lm_head.weight", (model.vocab, model.hidden)


def _write_shard(path: Path, tensors: list[tuple[str, tuple[int, ...]]]) -> None:
    header, position = {}, 0
    for name, shape in tensors:
        end = position + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + position)


def _write_tokenizer(path: Path, vocab: int) -> None:
    """Write a byte-level BPE with as many tokens and merges as a Llama 3 has; its words mean nothing."""
    base = [chr(0x100 + number) for number in range(256)]
    words = [f"{base[number % 256]}{base[number // 256 % 256]}{number // 65536 or ''}" for number in range(vocab - 512)]
    tokens = {token: number for number, token in enumerate([*base, *words])}
    merges = [[base[number % 256], base[number // 256 % 256]] for number in range(len(words))]
    special = [
        {"id": 128000 + number, "content": f"<|special_{number}|>", "special": True} for number in range(vocab - 128000)
    ]
    model = {"type": "BPE", "vocab": tokens, "merges": merges, "byte_fallback": False}
    document = {"version": "1.0", "added_tokens": special, "model": model, "decoder": {"type": "ByteLevel"}}
    (path / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False))
