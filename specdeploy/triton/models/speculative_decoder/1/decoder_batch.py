"""Requests of several texts: taken apart into rows, which are decoded as if they had come alone, and joined again.

Knows tensors with the batch dimension in front; knows nothing of what is in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from decoder_request import Tensor


def row_of(tensors: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """Return the inputs of one row, with a batch dimension of 1."""
    return {name: tensor[row : row + 1] for name, tensor in tensors.items()}


def joined(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the outputs of all rows as one batch.

    Rows of different lengths are filled up with 0, or with empty text; ``sequence_length`` says how long each is. An
    output that a row does not have is left out: absent is not zero.
    """
    first, *others = rows
    names = [name for name in first if all(name in row for row in others)]
    return {name: _stacked([row[name] for row in rows]) for name in names}


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    longest = np.max([tensor.shape[1:] for tensor in tensors], axis=0)
    filler = b"" if tensors[0].dtype == np.object_ else 0
    stacked = np.full((len(tensors), *longest), filler, tensors[0].dtype)
    for row, tensor in zip(stacked, tensors, strict=True):
        row[tuple(slice(0, length) for length in tensor.shape[1:])] = tensor[0]
    return stacked
