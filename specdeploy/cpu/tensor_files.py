"""Safetensors files, read and written one tensor at a time.

Knows the container: its header, shards and their index, the number formats and how to spot a truncated file. Does not
know what the tensors mean. The whole model is never in memory, and nothing but NumPy is needed (bfloat16 included).
The format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

INDEX_FILE: Final = "model.safetensors.index.json"
SINGLE_FILE: Final = "model.safetensors"

_STORED: Final[dict[str, np.dtype[Any]]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies: file, byte offset, stored format and shape."""

    path: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]


class TensorFolder:
    """The tensors of a checkpoint folder, by name; headers are read now, contents when asked for.

    Args:
        folder: A folder with ``model.safetensors``, or with an index and its shards.

    Raises:
        CheckpointError: Files are missing, truncated or malformed; the message names the file and what was seen.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tensors: dict[str, StoredTensor] = {}
        for path in _files(folder):
            self._tensors |= _read_header(path)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of tensor ``name``.

        Raises:
            CheckpointError: There is no such tensor.
        """
        return self._find(name).shape

    def read(self, name: str) -> NDArray[np.float32]:
        """Return tensor ``name`` as float32.

        Raises:
            CheckpointError: There is no such tensor, or it holds values that are not finite.
        """
        stored = self._find(name)
        raw = np.memmap(stored.path, dtype=_STORED[stored.dtype], mode="r", offset=stored.offset, shape=stored.shape)
        values = _widen_bfloat16(raw) if stored.dtype == "BF16" else np.asarray(raw, dtype=np.float32)
        if not np.isfinite(values).all():
            raise CheckpointError(
                f"{stored.path}: tensor {name} holds NaN or infinite values",
                hint="the file is corrupt or the training diverged; fetch or export the checkpoint again",
            )
        return values

    def _find(self, name: str) -> StoredTensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise CheckpointError(
                f"{self.folder}: tensor {name} is missing ({len(self._tensors)} tensors found)",
                hint="the checkpoint is incomplete, or config.json describes another model",
            ) from None


def write_tensors(path: Path, shapes: dict[str, tuple[int, ...]], load: Callable[[str], NDArray[np.float16]]) -> None:
    """Write a float16 safetensors file, tensor by tensor, in the order of ``shapes``.

    Args:
        path: The file to write.
        shapes: Name and shape of every tensor.
        load: Returns the named tensor; called once per name, in order.

    Raises:
        OSError: The file cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for name in shapes:
            file.write(np.ascontiguousarray(load(name), dtype="<f2").tobytes())


def _widen_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return float32 values of bfloat16 ``bits``: they are the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _files(folder: Path) -> Sequence[Path]:
    """Return the safetensors files of ``folder``, shards in the order of their names."""
    index = folder / INDEX_FILE
    if index.is_file():
        names = sorted(set(_weight_map(index).values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{folder}: {len(missing)} of {len(names)} shards in {INDEX_FILE} are missing, first {missing[0]}",
                hint="the download is incomplete; fetch the missing files",
            )
        return [folder / name for name in names]
    if not (folder / SINGLE_FILE).is_file():
        raise CheckpointError(
            f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is here",
            hint="only safetensors checkpoints are read; convert .bin or .pth files first",
        )
    return [folder / SINGLE_FILE]


def _weight_map(index: Path) -> dict[str, str]:
    """Return tensor name -> shard name from an index file."""
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(shard) for name, shard in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: not a safetensors index ({error!r})", hint="fetch the file again") from error


def _read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors that the header of ``path`` promises, after checking that the file holds them."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or not 2 <= length <= min(_MAX_HEADER_BYTES, size - _LENGTH_BYTES):
            raise _corrupt(path, f"header of {length} bytes in a file of {size} bytes")
        text = file.read(length)
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        return {name: _stored(path, name, entry, _LENGTH_BYTES + length, size) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(path, f"unreadable header ({error!r})") from error


def _stored(path: Path, name: str, entry: dict[str, Any], base: int, size: int) -> StoredTensor:
    """Check one header entry against the file."""
    dtype, shape = str(entry["dtype"]), tuple(int(length) for length in entry["shape"])
    begin, end = (int(offset) for offset in entry["data_offsets"])
    if dtype not in _STORED:
        raise CheckpointError(
            f"{path}: tensor {name} is stored as {dtype}, which is not read here ({', '.join(_STORED)} are)",
            hint="use the unquantized checkpoint in bfloat16, float16 or float32",
        )
    if base + end > size:
        raise _corrupt(path, f"truncated: tensor {name} ends at byte {base + end}, the file has {size}")
    if begin < 0 or end - begin != math.prod(shape) * _STORED[dtype].itemsize:
        raise _corrupt(path, f"tensor {name} of shape {shape} has {end - begin} bytes")
    return StoredTensor(path=path, offset=base + begin, dtype=dtype, shape=shape)


def _corrupt(path: Path, seen: str) -> CheckpointError:
    """Return the error for a damaged file."""
    return CheckpointError(f"{path}: not a whole safetensors file; {seen}", hint="fetch or copy the file again")
