"""Triton's generate protocol as values: requests, responses, server-sent events, metadata. Pure; no socket here."""

from __future__ import annotations

from specdeploy.triton.protocol.about import (
    ModelMetadata,
    ModelStatistics,
    TensorSpec,
    read_metadata,
    read_statistics,
)
from specdeploy.triton.protocol.request import FRONT_DOOR_INPUTS, GenerateRequest, check_names
from specdeploy.triton.protocol.response import CHUNK_OUTPUTS, Chunk, decode_chunk, join_chunks
from specdeploy.triton.protocol.sse import EventSplitter
from specdeploy.triton.protocol.tensors import (
    MOST_COUNTED,
    MOST_POSITIONS,
    NUMPY_TYPES,
    MalformedResponse,
    Tensor,
    make_tensor,
    pack_bytes,
    unpack_bytes,
    unpack_tensor,
)

__all__ = [
    "CHUNK_OUTPUTS",
    "FRONT_DOOR_INPUTS",
    "MOST_COUNTED",
    "MOST_POSITIONS",
    "NUMPY_TYPES",
    "Chunk",
    "EventSplitter",
    "GenerateRequest",
    "MalformedResponse",
    "ModelMetadata",
    "ModelStatistics",
    "Tensor",
    "TensorSpec",
    "check_names",
    "decode_chunk",
    "join_chunks",
    "make_tensor",
    "pack_bytes",
    "read_metadata",
    "read_statistics",
    "unpack_bytes",
    "unpack_tensor",
]
