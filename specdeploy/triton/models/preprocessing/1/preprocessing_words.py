"""Words to the tensors that the engines take them as: word lists and the embedding bias.

Knows TensorRT-LLM's encodings; knows nothing of tokenizers beyond a function that gives a word's ids, and nothing of
Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Encode: TypeAlias = Callable[[str], Sequence[int]]


class RequestError(ValueError):
    """The request cannot be tokenised as it is; the message goes to the client."""


def word_list(words: Sequence[str], encode: Encode) -> npt.NDArray[np.int32]:
    """Encode words as [1, 2, L].

    Row 0 holds the ids of all words one after the other, padded with 0; row 1 each word's end offset in row 0, padded
    with -1. A word without ids is left out; no word at all gives one column of padding.
    """
    encoded = [ids for word in words if (ids := encode(word))]
    flat = [token for ids in encoded for token in ids]
    ends = np.cumsum([len(ids) for ids in encoded], dtype=np.int32)
    rows = np.zeros((1, 2, max(len(flat), 1)), np.int32)
    rows[0, 0, : len(flat)] = flat
    rows[0, 1] = -1
    rows[0, 1, : len(ends)] = ends
    return rows


def stacked(name: str, rows: Sequence[npt.NDArray[Any]], pad_id: int) -> npt.NDArray[Any]:
    """Return one output of all rows as a batch; what is shorter is filled up as a single row would be."""
    longest = max(row.shape[-1] for row in rows)
    filler = np.zeros((*rows[0].shape[1:-1], longest), rows[0].dtype)
    if name == "INPUT_ID":
        filler[:] = pad_id
    if name in {"BAD_WORDS_IDS", "STOP_WORDS_IDS"}:
        filler[1] = -1
    batch = np.repeat(filler[np.newaxis], len(rows), axis=0)
    for filled, row in zip(batch, rows, strict=True):
        filled[..., : row.shape[-1]] = row[0]
    return batch


def embedding_bias(
    words: Sequence[str], weights: Sequence[float], encode: Encode, vocab_size: int
) -> npt.NDArray[np.float32]:
    """Add each word's weight to every id of it, as [1, vocab_size]; [1, 0] where there are no words.

    Raises:
        RequestError: There is not one weight for each word, or a word has an id outside the vocabulary.
    """
    if len(words) != len(weights):
        raise RequestError(
            f"embedding_bias_words has {len(words)} words and embedding_bias_weights {len(weights)} weights; "
            "each word needs one weight"
        )
    if not words:
        return np.empty((1, 0), np.float32)
    bias = np.zeros((1, vocab_size), np.float32)
    for word, weight in zip(words, weights, strict=True):
        ids = np.asarray(encode(word), np.int64)
        if ids.size and ids.max() >= vocab_size:
            raise RequestError(f"embedding_bias_words: {word!r} has id {ids.max()}, the vocabulary {vocab_size} ids")
        np.add.at(bias[0], ids, np.float32(weight))
    return bias
