"""Reads a TensorRT-LLM checkpoint, with a tokenizer from elsewhere, as a ``CheckpointInfo``: it was converted before.

Converters write no tokenizer, so the folder of one has to be named; the checks of a pair are worthless without it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from specdeploy.checkpoint.info import CheckpointInfo
from specdeploy.checkpoint.read import read_tokenizer
from specdeploy.checkpoint.read_trtllm import read_trtllm_checkpoint
from specdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def read_converted(path: Path, tokenizer: Path | None, *, role: str, full_hash: bool = False) -> CheckpointInfo:
    """Read a converted checkpoint.

    Args:
        path: Its folder.
        tokenizer: The folder of its tokenizer, such as the checkpoint that it was converted from.
        role: What it is used as, for messages.
        full_hash: Whether the fingerprint covers every byte of the weights.

    Raises:
        CheckpointError: One of the folders is wrong, no tokenizer is named, or the configuration leaves out the length
            of its context.
    """
    converted = read_trtllm_checkpoint(path, full_hash=full_hash)
    if tokenizer is None:
        raise CheckpointError(
            f"{path} is a TensorRT-LLM checkpoint, which holds no tokenizer",
            hint=f"Name the folder that has it as {role}.tokenizer, such as the checkpoint that it was converted from.",
            code="checkpoint.tokenizer-missing",
        )
    if converted.max_position_embeddings is None:
        raise CheckpointError(
            f"{path / 'config.json'} does not say max_position_embeddings",
            hint="Convert it again.",
            code="checkpoint.bad-config",
        )
    ids = read_tokenizer(tokenizer)
    return CheckpointInfo(
        path=converted.path,
        name=converted.name,
        architecture=converted.architecture,
        dtype=converted.dtype,
        vocab_size=converted.vocab_size,
        hidden_size=converted.hidden_size,
        num_layers=converted.num_layers,
        num_heads=converted.num_heads,
        num_kv_heads=converted.num_kv_heads,
        head_dim=converted.head_dim,
        intermediate_size=converted.intermediate_size or 4 * converted.hidden_size,
        max_position_embeddings=converted.max_position_embeddings,
        # Baked into the weights' own tables; nothing here computes with them.
        rope_theta=10000.0,
        rope_scaling=None,
        tie_word_embeddings=False,
        rms_norm_eps=1e-6,
        **vars(ids),
        parameters=sum(math.prod(tensor.shape) for rank in converted.ranks for tensor in rank.tensors),
        weight_bytes=converted.weight_bytes,
        # Not the tensors of a Hugging Face checkpoint, which is what their names are compared with.
        tensors=(),
        fingerprint=converted.fingerprint,
        stat_fingerprint=converted.stat_fingerprint,
        converted=converted,
    )
