"""Building an ONNX graph whose weights are written later, to one external file.

Knows nodes, names, initializers and the layout of the external file. Does not know models. A graph is planned first:
every weight has a place and a size before a byte is written, so that the bytes needed are known when a disk is full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx

from specdeploy.cpu.disk import room_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

MICROSOFT: Final = "com.microsoft"
DATA_FILE: Final = "model.onnx.data"
_ALIGNMENT: Final = 64


@dataclass(frozen=True, kw_only=True)
class Weight:
    """An initializer in the external file: ONNX name, NumPy dtype, shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes it takes, without padding."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True)
class WeightGroup:
    """Weights that come out of one computation.

    ``load`` returns one array per weight, in their order. ``label`` is what progress lines call the part.
    """

    label: str
    weights: tuple[Weight, ...]
    load: Callable[[], Sequence[NDArray[Any]]]


class GraphBuilder:
    """Collects nodes, small constants and weight groups; names are unique and stable."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.groups: list[WeightGroup] = []

    def node(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], *, domain: str = "", **attributes: float
    ) -> str:
        """Add a node named after its first output; return that output."""
        name = f"{outputs[0]}/{op}"
        node = onnx.helper.make_node(op, inputs, outputs, name=name, domain=domain)
        node.attribute.extend(onnx.helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
        self.nodes.append(node)
        return outputs[0]

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a small constant that is stored inside the graph; return its name."""
        self.constants.append(onnx.numpy_helper.from_array(value, name))
        return name

    def weights(self, label: str, load: Callable[[], Sequence[NDArray[Any]]], *weights: Weight) -> tuple[str, ...]:
        """Add a group of weights; return their names."""
        self.groups.append(WeightGroup(label=label, weights=weights, load=load))
        return tuple(weight.name for weight in weights)

    def model(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto], producer: str
    ) -> onnx.ModelProto:
        """Return the finished model; its weights point into ``DATA_FILE``."""
        external = [_external(weight, offset) for weight, offset in _places(self.groups)]
        graph = onnx.helper.make_graph(self.nodes, "decoder", inputs, outputs, [*self.constants, *external])
        opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(MICROSOFT, 1)]
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name=producer)


def write_weights(folder: Path, groups: Sequence[WeightGroup], on_part: Callable[[str], None]) -> None:
    """Write the external file, group by group.

    Args:
        folder: Where ``DATA_FILE`` goes.
        groups: The groups, in the order in which the graph was built.
        on_part: Told each label when it begins.

    Raises:
        EnvironmentFault: The disk is full.
    """
    path = folder / DATA_FILE
    label = ""
    with room_for(path, data_size_bytes(groups)), path.open("wb") as file:
        for group in groups:
            if group.label != label:
                label = group.label
                on_part(label)
            for weight, array in zip(group.weights, group.load(), strict=True):
                file.write(bytes(-file.tell() % _ALIGNMENT))
                file.write(_as_stored(weight, array))


def parts_of(groups: Iterable[WeightGroup]) -> int:
    """Return how often ``write_weights`` will call ``on_part``."""
    labels = [group.label for group in groups]
    return sum(1 for before, label in zip(["", *labels], labels, strict=False) if label != before)


def data_size_bytes(groups: Sequence[WeightGroup]) -> int:
    """Return the size of the external file."""
    return max(offset + weight.size_bytes for weight, offset in _places(groups))


def _places(groups: Iterable[WeightGroup]) -> list[tuple[Weight, int]]:
    """Return every weight with its offset in the external file."""
    places, offset = [], 0
    for weight in (weight for group in groups for weight in group.weights):
        offset += -offset % _ALIGNMENT
        places.append((weight, offset))
        offset += weight.size_bytes
    return places


def _as_stored(weight: Weight, array: NDArray[Any]) -> memoryview:
    """Return the bytes of ``array`` in the promised dtype and shape."""
    if array.shape != weight.shape:
        message = f"{weight.name}: planned shape {weight.shape}, computed {array.shape}"
        raise AssertionError(message)
    return np.ascontiguousarray(array, dtype=weight.dtype).reshape(-1).view(np.uint8).data


def _external(weight: Weight, offset: int) -> onnx.TensorProto:
    """Return the initializer that points at ``offset`` of the external file."""
    tensor = onnx.TensorProto(
        name=weight.name,
        data_type=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(weight.dtype)),
        dims=weight.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in (("location", DATA_FILE), ("offset", offset), ("length", weight.size_bytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
