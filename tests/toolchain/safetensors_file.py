"""The safetensors container: an eight-byte length, a JSON header, the data."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_CODES: Final = {"float16": ("F16", 2), "bfloat16": ("BF16", 2), "float32": ("F32", 4)}
_ELEMENTS: Final = 16


class SafetensorError(Exception):
    """What the safetensors package raises; named as its own in the traceback."""

    __module__ = "safetensors_rust"


def read_header(path: Path) -> dict[str, Any]:
    """Return the tensors of a file by name.

    Raises:
        SafetensorError: The file is cut short or has no valid header.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise SafetensorError("Error while deserializing header: header too small")
        (length,) = struct.unpack("<Q", start)
        if length + 8 > size:
            raise SafetensorError("Error while deserializing header: invalid header length")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    if size != 8 + length + end:
        raise SafetensorError("Error while deserializing header: incomplete metadata, file not fully covered")
    return header


def zeros(names: Iterable[str], dtype: str) -> bytes:
    """Return a file of small tensors of zeros."""
    code, width = _CODES[dtype]
    header, end = {}, 0
    for name in names:
        header[name] = {"dtype": code, "shape": [_ELEMENTS], "data_offsets": [end, end + _ELEMENTS * width]}
        end += _ELEMENTS * width
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(end)
