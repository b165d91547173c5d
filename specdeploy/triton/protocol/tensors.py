"""Tensors on the wire: Triton's data types, their numpy types, and the raw bytes of the KServe protocol.

Knows nothing of what a tensor means; ``request`` and ``response`` do.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdeploy.errors import ConfigError, ServerFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

#: Triton's name of a data type -> the numpy type of its values.
NUMPY_TYPES: Final[Mapping[str, type[Any]]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT8": np.int8,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}


#: The largest count and token id that is taken from a server: what INT32 holds, the type of them in front doors.
#: Statistics add up millions of them in 64 bits.
MOST_COUNTED: Final = 2**31 - 1
#: The longest acceptance histogram: no engine drafts nearly so much in a step.
MOST_POSITIONS: Final = 4096


class MalformedResponse(ServerFault):
    """The server answered with something that is not the protocol."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Tensor:
    """One named input of a request.

    Args:
        name: The input's name.

        datatype: Triton's name of the type, a key of ``NUMPY_TYPES``.

        data: The values, shape [1, n]; ``bytes`` objects for ``BYTES``.
    """

    name: str
    datatype: str
    data: NDArray[Any]

    def raw(self) -> bytes:
        """Return the values as ``raw_input_contents`` of the KServe protocol."""
        if self.datatype == "BYTES":
            return pack_bytes(self.data.reshape(-1).tolist())
        return np.ascontiguousarray(self.data).tobytes()


def make_tensor(name: str, datatype: str, value: object) -> Tensor:
    """Turn a plain value (or a flat list of them) into a tensor of shape [1, n].

    Raises:
        ConfigError: The value does not fit the type.
    """
    if datatype not in NUMPY_TYPES:
        raise ConfigError(f"input {name!r} has the type {datatype}, which cannot be sent as a plain value")
    items = list(value) if isinstance(value, list | tuple) else [value]
    data = np.empty((1, len(items)), dtype=NUMPY_TYPES[datatype])
    for index, item in enumerate(items):
        data[0, index] = _element(name, datatype, item)
    return Tensor(name=name, datatype=datatype, data=data)


def pack_bytes(items: Iterable[bytes]) -> bytes:
    """Join byte strings as Triton does: each after its length, 4 bytes, little-endian."""
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def unpack_bytes(raw: bytes) -> list[bytes]:
    """Split what ``pack_bytes`` joined.

    Raises:
        MalformedResponse: The lengths do not add up to the size of ``raw``.
    """
    items = []
    offset = 0
    while offset < len(raw):
        start = offset + 4
        (length,) = struct.unpack_from("<I", raw, offset) if start <= len(raw) else (len(raw),)
        offset = start + length
        if offset > len(raw):
            raise MalformedResponse(f"a BYTES tensor of {len(raw)} bytes announces an element that ends at {offset}")
        items.append(raw[start:offset])
    return items


def unpack_tensor(name: str, datatype: str, shape: Sequence[int], raw: bytes) -> NDArray[Any]:
    """Turn the raw bytes of an output back into an array of the given shape.

    Raises:
        MalformedResponse: Unknown type, or the size of the data and the shape disagree.
    """
    if datatype not in NUMPY_TYPES:
        raise MalformedResponse(f"output {name!r} has the unknown type {datatype!r}")
    try:
        flat = (
            np.array(unpack_bytes(raw), dtype=np.object_)
            if datatype == "BYTES"
            else np.frombuffer(raw, dtype=NUMPY_TYPES[datatype])
        )
        return flat.reshape(tuple(shape))
    except ValueError as error:
        raise MalformedResponse(
            f"output {name!r}: {len(raw)} bytes are no {datatype} of shape {list(shape)}"
        ) from error


def _element(name: str, datatype: str, item: object) -> object:
    """Check one value against the type and return what numpy is to hold."""
    if datatype == "BYTES" and isinstance(item, str):
        return item.encode()
    if datatype == "BOOL" and isinstance(item, bool):
        return item
    if datatype.startswith("FP") and isinstance(item, int | float) and not isinstance(item, bool):
        return float(item)
    if "INT" in datatype and isinstance(item, int) and not isinstance(item, bool):
        return _whole_number(name, datatype, item)
    raise ConfigError(f"input {name!r} is {datatype}; it cannot hold {item!r}")


def _whole_number(name: str, datatype: str, item: int) -> int:
    limits = np.iinfo(NUMPY_TYPES[datatype])
    if not limits.min <= item <= limits.max:
        raise ConfigError(f"input {name!r} is {datatype} ({limits.min} to {limits.max}); it cannot hold {item}")
    return item
