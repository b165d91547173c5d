"""Block quantisation of weight matrices into the layout of ONNX Runtime's ``MatMulNBits``.

Pure. Symmetric: a weight is ``(code - 2 ** (bits - 1)) * scale``, one scale for each block of 32 weights of a row.
The layout: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK: Final = 32
_ROWS_AT_ONCE: Final = 4096
# Where the largest weight of a block may land on the 4-bit grid: clipping it a little costs less than a coarser step
# for the other 31. Tried in turn, the least squared error wins.
_INT4_REACHES: Final = (8.0, 7.5, 7.0, 8.5, 9.0, 9.5)


def blocks_of(columns: int) -> int:
    """Return how many blocks a row of ``columns`` weights has; the last may be padded with zeros."""
    return -(-columns // BLOCK)


def quantize(weight: NDArray[np.float32], *, bits: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Quantise a matrix.

    Args:
        weight: ``[N, K]``.
        bits: 4 or 8.

    Returns:
        Codes ``[N, blocks, 32 * bits / 8]`` and scales ``[N * blocks]``.
    """
    one = quantize_int4 if bits == 4 else quantize_int8
    # In slices: the temporaries of a large vocabulary's head would be several times its size.
    slices = [one(weight[start : start + _ROWS_AT_ONCE]) for start in range(0, len(weight), _ROWS_AT_ONCE)]
    return np.concatenate([codes for codes, _ in slices]), np.concatenate([scales for _, scales in slices])


def quantize_int8(weight: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Quantise ``[N, K]`` to codes ``[N, blocks, 32]`` and scales ``[N * blocks]``, 8 bits symmetric."""
    blocks = _blocks(weight)
    scales = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127.0)
    codes = np.rint(blocks * _reciprocal(scales)) + np.float32(128.0)
    return codes.astype(np.uint8), scales.reshape(-1).astype(np.float32)


def quantize_int4(weight: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Quantise ``[N, K]`` to packed codes ``[N, blocks, 16]`` and scales ``[N * blocks]``, 4 bits symmetric.

    The grid reaches from -8 to 7 steps; the sign of the scale puts the block's largest weight at the longer end, and
    its size is the one of several with the least squared error.
    """
    blocks = _blocks(weight)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[..., None], axis=-1)
    best_scales = extreme / np.float32(-_INT4_REACHES[0])
    best_codes, best_error = _round_int4(blocks, best_scales)
    for reach in _INT4_REACHES[1:]:
        scales = extreme / np.float32(-reach)
        codes, error = _round_int4(blocks, scales)
        better = error < best_error
        best_scales, best_codes = np.where(better, scales, best_scales), np.where(better, codes, best_codes)
        best_error = np.minimum(error, best_error)
    offset = (best_codes + np.float32(8.0)).astype(np.uint8)
    packed = offset[..., 0::2] | (offset[..., 1::2] << np.uint8(4))
    return packed, best_scales.reshape(-1).astype(np.float32)


def _round_int4(
    blocks: NDArray[np.float32], scales: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the nearest codes, -8 to 7, and the squared error of each block."""
    codes = np.clip(np.rint(blocks * _reciprocal(scales)), -8, 7)
    error = np.square(blocks - codes * scales).sum(axis=-1, keepdims=True)
    return codes, error


def _blocks(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return ``[N, K]`` as ``[N, blocks, 32]``, padded with zeros."""
    rows, columns = weight.shape
    padding = blocks_of(columns) * BLOCK - columns
    padded = np.pad(weight, ((0, 0), (0, padding))) if padding else weight
    return padded.reshape(rows, -1, BLOCK)


def _reciprocal(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return ``1 / scales``, 0 where a block is all zeros or too small for the result to be a float32."""
    usable = np.abs(scales) >= np.finfo(np.float32).tiny
    return np.divide(np.float32(1.0), scales, out=np.zeros_like(scales), where=usable)
