"""Checkpoint folders made by hand with the standard library alone, and ``CheckpointInfo`` values without any folder."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

from specdeploy.checkpoint.info import CheckpointInfo, TokenizerInfo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "vocab_size": 6,
}
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [
        {"id": 4, "content": "<s>", "special": True},
        {"id": 5, "content": "</s>", "special": True},
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    "post_processor": None,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"], "dropout": None},
}
SETTINGS: dict[str, Any] = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ messages }}"}


def safetensors(tensors: Mapping[str, tuple[int, ...]], *, fill: int = 0) -> bytes:
    """Return a safetensors file of float32 tensors of the given shapes, every byte of data being *fill*."""
    return safetensors_header(tensors) + bytes([fill]) * sum(4 * math.prod(shape) for shape in tensors.values())


def safetensors_header(tensors: Mapping[str, tuple[int, ...]]) -> bytes:
    """Return how such a file begins: all but its data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, shape in tensors.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def write_folder(path: Path, **changes: Any) -> Path:
    """Write a one-file checkpoint; *changes* replace keys of ``config.json`` (None removes one)."""
    path.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    write_json(path / "config.json", config)
    write_json(path / "tokenizer.json", TOKENIZER)
    write_json(path / "tokenizer_config.json", SETTINGS)
    (path / "model.safetensors").write_bytes(
        safetensors({"model.embed_tokens.weight": (6, 8), "model.norm.weight": (8,)})
    )
    return path


def write_shards(path: Path, shards: int, tensors_each: int = 2) -> Path:
    """Write a checkpoint whose weights lie in *shards* files beside an index."""
    write_folder(path)
    (path / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        names = [f"layers.{shard}.{number}.weight" for number in range(tensors_each)]
        (path / file).write_bytes(safetensors(dict.fromkeys(names, (4, 4))))
        weight_map |= dict.fromkeys(names, file)
    write_json(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return path


def write_json(path: Path, value: object) -> None:
    """Write *value* as JSON."""
    path.write_text(json.dumps(value), encoding="utf-8")


def tokenizer(**changes: Any) -> TokenizerInfo:
    """Return a small tokenizer; with *changes* it has another digest, as a changed file would."""
    plain = TokenizerInfo(
        kind="BPE",
        vocab={"a": 0, "b": 1, "ab": 2, "c": 3},
        added_tokens={"<s>": 4, "</s>": 5},
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        merges_digest="m",
        options_digest="o",
        normalizer_digest="",
        pre_tokenizer_digest="p",
        post_processor_digest="",
        decoder_digest="d",
        chat_template="{{ messages }}",
        digest="t",
    )
    return dataclasses.replace(plain, **({"digest": "changed"} | changes if changes else {}))


def info(**changes: Any) -> CheckpointInfo:
    """Return a small checkpoint without a folder."""
    plain = CheckpointInfo(
        path="/checkpoints/big",
        name="big",
        architecture="LlamaForCausalLM",
        dtype="float32",
        vocab_size=6,
        hidden_size=8,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=2,
        intermediate_size=16,
        max_position_embeddings=2048,
        rope_theta=10000.0,
        rope_scaling=None,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        bos_token_id=4,
        eos_token_ids=(5,),
        pad_token_id=None,
        parameters=1000,
        weight_bytes=4000,
        tensors=(),
        tokenizer=tokenizer(),
        fingerprint="f" * 64,
        stat_fingerprint="s" * 64,
    )
    return dataclasses.replace(plain, **changes)
