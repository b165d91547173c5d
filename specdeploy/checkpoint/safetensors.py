"""Reads the header of a safetensors file and proves that the data it promises is there, without reading the data.

The layout: eight bytes with the header's length N (little-endian), N bytes of JSON, then the data, whose every byte
belongs to exactly one tensor (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from typing import IO, TYPE_CHECKING, Any, Final

from specdeploy.checkpoint.info import TensorInfo
from specdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_LENGTH_BYTES: Final = 8
# The limit of the reference implementation.
_LONGEST_HEADER: Final = 100_000_000
_SAMPLE_BYTES: Final = 64 * 1024
# From the middle of a tensor on; a tensor that was trained or merged differs everywhere.
_TENSOR_SAMPLE_BYTES: Final = 4 * 1024
_LFS_POINTER: Final = b"version https://git-lfs"
_BITS: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightFile:
    """One safetensors file.

    Args:
        name: File name.
        size: Bytes in all.
        mtime_ns: When it was last written.
        digest: SHA-256 of the header, of the first and last 64 KiB of the data, and of 4 KiB in every tensor.
        tensors: What it holds, in the order of the data.
    """

    name: str
    size: int
    mtime_ns: int
    digest: str
    tensors: tuple[TensorInfo, ...]


def read_weight_file(path: Path) -> WeightFile:
    """Read and check one file; cost is that of its header, however large the data is.

    Raises:
        CheckpointError: It is truncated, damaged, or no safetensors file.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        header = _header(file, status.st_size, path)
        start = _LENGTH_BYTES + len(header)
        tensors = _tensors(_parsed(header, path), path)
        _check_layout(tensors, status.st_size - start, start, path)
        digest = hashlib.sha256(header)
        digest.update(_sample(file, start, status.st_size))
        for begin, end, _ in tensors:
            digest.update(os.pread(file.fileno(), _TENSOR_SAMPLE_BYTES, start + (begin + end) // 2))
    return WeightFile(
        name=path.name,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        digest=digest.hexdigest(),
        tensors=tuple(tensor for _, _, tensor in tensors),
    )


def _header(file: IO[bytes], size: int, path: Path) -> bytes:
    prefix = file.read(_LENGTH_BYTES)
    if len(prefix) < _LENGTH_BYTES:
        raise CheckpointError(
            f"{path} is truncated: {size} bytes, fewer than a safetensors file begins with",
            hint="Copy or download it again.",
            code="checkpoint.truncated",
        )
    length = int.from_bytes(prefix, "little")
    if length > min(_LONGEST_HEADER, size - _LENGTH_BYTES):
        file.seek(0)
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise CheckpointError(
                f"{path} is a Git LFS pointer, not the weights",
                hint="Run `git lfs pull` there.",
                code="checkpoint.lfs-pointer",
            )
        raise CheckpointError(
            f"{path} is no safetensors file or truncated: it announces a header of {length} bytes, the file has {size}",
            hint="Copy or download it again.",
            code="checkpoint.truncated",
        )
    return file.read(length)


def _parsed(header: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(header)
    except ValueError as error:
        raise CheckpointError(
            f"{path}: the safetensors header is not valid JSON: {error}",
            hint="Copy or download it again.",
            code="checkpoint.damaged",
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path}: the safetensors header is a {type(value).__name__}, not an object",
            hint="Copy or download it again.",
            code="checkpoint.damaged",
        )
    value.pop("__metadata__", None)
    return value


def _tensors(header: dict[str, Any], path: Path) -> list[tuple[int, int, TensorInfo]]:
    """Return (begin, end, tensor) in the order of the data, each checked against its own shape."""
    found = [(*_offsets(name, entry, path), _tensor(name, entry, path)) for name, entry in header.items()]
    for begin, end, tensor in found:
        if end - begin != tensor.nbytes:
            raise CheckpointError(
                f"{path}: {tensor.name} of type {tensor.dtype} and shape {list(tensor.shape)} takes {tensor.nbytes} "
                f"bytes, its header entry gives it {end - begin}",
                hint="Copy or download it again.",
                code="checkpoint.damaged",
            )
    return sorted(found, key=lambda item: item[:2])


def _offsets(name: str, entry: Any, path: Path) -> tuple[int, int]:  # noqa: ANN401  # parsed JSON
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not (isinstance(offsets, list) and len(offsets) == 2 and _are_sizes(offsets)):
        raise CheckpointError(
            f"{path}: the header entry of {name} has no valid data_offsets: {offsets!r}",
            hint="Copy or download it again.",
            code="checkpoint.damaged",
        )
    return offsets[0], offsets[1]


def _tensor(name: str, entry: dict[str, Any], path: Path) -> TensorInfo:
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise CheckpointError(f"{path}: {name} has the unknown type {dtype!r}", hint="A newer specdeploy may know it.")
    if not (isinstance(shape, list) and _are_sizes(shape)):
        raise CheckpointError(
            f"{path}: {name} has no valid shape: {shape!r}",
            hint="Copy or download it again.",
            code="checkpoint.damaged",
        )
    nbytes = -(-math.prod(shape) * _BITS[dtype] // 8)
    return TensorInfo(name=name, dtype=dtype, shape=tuple(shape), nbytes=nbytes, file=path.name)


def _are_sizes(values: list[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)


def _check_layout(tensors: list[tuple[int, int, TensorInfo]], seen: int, start: int, path: Path) -> None:
    """Check that the tensors cover the data without holes or overlaps and end where the file does."""
    position = 0
    for begin, end, tensor in tensors:
        if begin != position:
            raise CheckpointError(
                f"{path}: {tensor.name} begins at byte {begin} of the data, expected {position}",
                hint="Copy or download it again.",
                code="checkpoint.damaged",
            )
        position = end
    if position > seen:
        raise CheckpointError(
            f"{path} is truncated: expected {start + position} bytes, it has {start + seen}",
            hint="Copy or download it again.",
            code="checkpoint.truncated",
        )
    if position < seen:
        raise CheckpointError(
            f"{path} has {seen - position} bytes after its last tensor; expected {start + position}",
            hint="Copy or download it again.",
            code="checkpoint.damaged",
        )


def _sample(file: IO[bytes], start: int, size: int) -> bytes:
    """Return the first and the last 64 KiB of the data (all of it, when it is shorter)."""
    file.seek(start)
    head = file.read(_SAMPLE_BYTES)
    file.seek(max(start + len(head), size - _SAMPLE_BYTES))
    return head + file.read()
