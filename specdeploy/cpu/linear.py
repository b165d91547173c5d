"""Linear layers of the graph, in float or in blocks of 8 or 4 bits.

Knows how a matrix ``[out, in]`` becomes nodes and weights at each precision. Does not know where in a model it stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from specdeploy.cpu.graph_builder import MICROSOFT, GraphBuilder, Weight
from specdeploy.cpu.quantize import BLOCK, blocks_of, quantize

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

# Activations are quantised to 8 bits as well, and the dot products are integer: several times faster on a CPU.
_ACCURACY_LEVEL: Final = 4


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A weight matrix that is read when it is written out.

    Args:
        name: Its name in the graph.
        label: The part of the model it belongs to, for progress lines.
        rows: Output features.
        columns: Input features.
        load: Returns it, ``[rows, columns]``.
    """

    name: str
    label: str
    rows: int
    columns: int
    load: Callable[[], NDArray[np.float32]]


class Linear(Protocol):
    """A way to multiply by a matrix."""

    def __call__(self, builder: GraphBuilder, x: str, matrix: Matrix, output: str) -> str:
        """Add ``output = x W^T`` to the graph; return ``output``."""


def linear_float32(builder: GraphBuilder, x: str, matrix: Matrix, output: str) -> str:
    """Multiply in float32, the matrix stored as the checkpoint has it."""
    weight = Weight(name=matrix.name, dtype="float32", shape=(matrix.rows, matrix.columns))
    (name,) = builder.weights(matrix.label, lambda: [matrix.load()], weight)
    return multiply_transposed(builder, x, name, output)


def multiply_transposed(builder: GraphBuilder, x: str, weight: str, output: str) -> str:
    """Multiply by an existing float32 weight ``[out, in]``."""
    return builder.node("FusedMatMul", [x, weight], [output], domain=MICROSOFT, transB=1)


def linear_int8(builder: GraphBuilder, x: str, matrix: Matrix, output: str) -> str:
    """Multiply by 8-bit blocks."""
    return _linear_blocks(builder, x, matrix, output, bits=8)


def linear_int4(builder: GraphBuilder, x: str, matrix: Matrix, output: str) -> str:
    """Multiply by 4-bit blocks."""
    return _linear_blocks(builder, x, matrix, output, bits=4)


def _linear_blocks(builder: GraphBuilder, x: str, matrix: Matrix, output: str, *, bits: int) -> str:
    blocks = blocks_of(matrix.columns)
    codes = Weight(name=f"{matrix.name}_codes", dtype="uint8", shape=(matrix.rows, blocks, BLOCK * bits // 8))
    scales = Weight(name=f"{matrix.name}_scales", dtype="float32", shape=(matrix.rows * blocks,))
    names = builder.weights(matrix.label, lambda: quantize(matrix.load(), bits=bits), codes, scales)
    return builder.node(
        "MatMulNBits",
        [x, *names],
        [output],
        domain=MICROSOFT,
        K=matrix.columns,
        N=matrix.rows,
        bits=bits,
        block_size=BLOCK,
        accuracy_level=_ACCURACY_LEVEL,
    )
