"""Block quantisation: error bounds, exactness where it is possible, the packed layout."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from specdeploy.cpu.quantize import BLOCK, blocks_of, quantize, quantize_int4, quantize_int8

_MATRICES = npst.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 80)),
    elements=st.floats(-4, 4, width=32, allow_subnormal=False),
)


def _restore(codes, scales, bits, columns):
    """Undo the quantisation as MatMulNBits defines it: low nibble first, zero point in the middle."""
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)
    values = (codes.astype(np.float32) - 2 ** (bits - 1)) * scales.reshape(codes.shape[0], -1, 1)
    return values.reshape(codes.shape[0], -1)[:, :columns]


def _largest_per_weight(weight):
    """Return for every weight the largest magnitude of its block."""
    padded = np.pad(np.abs(weight), ((0, 0), (0, -weight.shape[1] % BLOCK))).reshape(len(weight), -1, BLOCK)
    return np.repeat(padded.max(-1), BLOCK, axis=1)[:, : weight.shape[1]]


@given(_MATRICES)
def test_int8_is_within_half_a_step(weight):
    """No weight moves by more than half of its block's step, the largest magnitude / 127."""
    codes, scales = quantize_int8(weight)
    assert codes.shape == (len(weight), blocks_of(weight.shape[1]), BLOCK)
    error = np.abs(_restore(codes, scales, 8, weight.shape[1]) - weight)
    assert (error <= _largest_per_weight(weight) / 127 * 0.501 + 1e-6).all()


@given(_MATRICES)
def test_int4_is_no_worse_than_the_plain_grid(weight):
    """The chosen scale never has a larger squared error than the largest magnitude / 8."""
    codes, scales = quantize_int4(weight)
    assert codes.shape == (len(weight), blocks_of(weight.shape[1]), BLOCK // 2)
    error = np.square(_restore(codes, scales, 4, weight.shape[1]) - weight).sum()
    step = _largest_per_weight(weight) / 8
    assert error <= np.square(step / 2).sum() * 1.001 + 1e-6


def test_int4_restores_a_grid_exactly():
    """Weights that lie on a 4-bit grid come back unchanged."""
    weight = (np.arange(64, dtype=np.float32).reshape(2, 32) % 16 - 8) * np.float32(0.25)
    np.testing.assert_array_equal(weight, _restore(*quantize_int4(weight), 4, 32))


def test_large_matrices_are_quantised_in_slices_without_a_seam():
    """Rows beyond one slice get the same codes as alone."""
    weight = np.random.default_rng(0).standard_normal((4100, 32)).astype(np.float32)
    for bits, one in ((4, quantize_int4), (8, quantize_int8)):
        codes, scales = quantize(weight, bits=bits)
        tail_codes, tail_scales = one(weight[4090:])
        np.testing.assert_array_equal(tail_codes, codes[4090:])
        np.testing.assert_array_equal(tail_scales, scales[4090:])
