"""Rotary position embedding tables: the angles of every position, computed once and baked into the engine.

Pure. Formulae: RoFormer, https://arxiv.org/abs/2104.09864, section 3.4.2; position interpolation ("linear"),
https://arxiv.org/abs/2306.15595; the piecewise rule of Llama 3.1 ("llama3"), as published with its weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from specdeploy.cpu.llama_config import LlamaConfig


def rope_tables(config: LlamaConfig) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cosines and sines, each of shape ``[max_positions, head_dim / 2]``.

    Angles are computed in double precision: in single precision the last positions of a long context would be off
    by more than an engine's own rounding.
    """
    frequencies = _inverse_frequencies(config.head_dim, config.rope_theta)
    if config.rope_scaling is not None:
        frequencies = _scaled(frequencies, config.rope_scaling)
    angles = np.outer(np.arange(config.max_positions), frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _inverse_frequencies(head_dim: int, theta: float) -> NDArray[np.float64]:
    """Return ``theta ** (-2 i / head_dim)`` for ``i = 0 .. head_dim / 2 - 1``."""
    return np.asarray(theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim))


def _scaled(frequencies: NDArray[np.float64], scaling: Mapping[str, Any]) -> NDArray[np.float64]:
    """Apply ``linear`` or ``llama3`` scaling."""
    factor = float(scaling["factor"])
    if scaling["rope_type"] == "linear":
        return frequencies / factor
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    # Turns within the original context: many -> keep the frequency, few -> divide it, between -> blend.
    turns = frequencies * float(scaling["original_max_position_embeddings"]) / (2.0 * np.pi)
    keep = np.clip((turns - float(low)) / (float(high) - float(low)), 0.0, 1.0)
    return keep * frequencies + (1.0 - keep) * frequencies / factor
