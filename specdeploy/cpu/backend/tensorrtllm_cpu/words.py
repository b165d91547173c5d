"""Stop and bad word lists: from the tensors of the TensorRT-LLM templates to token sequences, and matching them.

A list travels as one ``[2, L]`` tensor: row 0 holds the ids of all words, one after the other, row 1 the index just
past the end of each word; row 0 is padded with 0 and row 1 with -1. Knows ids only, no text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tensorrtllm_cpu.faults import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Word = tuple[int, ...]


def decode_word_list(name: str, tensor: NDArray[Any], *, vocab_size: int) -> tuple[Word, ...]:
    """Return the token sequences of a word list, in order, without empty ones.

    Args:
        name: The input's name, for the message.
        tensor: ``[2, L]``, or ``[1, 2, L]`` as Triton batches it.
        vocab_size: Ids at or above it are refused.

    Raises:
        RequestRefused: The shape is another one, the ends do not rise, or an id is not in the vocabulary.
    """
    if tensor.size == 0:
        return ()
    if tensor.ndim not in {2, 3} or tensor.shape[-2] != 2 or tensor.size != 2 * tensor.shape[-1]:
        raise RequestRefused(f"{name} has shape {list(tensor.shape)}; send [1, 2, L]: ids in row 0, ends in row 1")
    ids, ends = tensor.reshape(2, -1).astype(np.int64)
    return _split(name, ids.tolist(), [end for end in ends.tolist() if end >= 0], vocab_size)


def _split(name: str, ids: Sequence[int], ends: Sequence[int], vocab_size: int) -> tuple[Word, ...]:
    """Cut ``ids`` at ``ends``."""
    starts = [0, *ends]
    if any(start > end for start, end in zip(starts, ends, strict=False)) or (ends and ends[-1] > len(ids)):
        raise RequestRefused(f"{name} has the ends {list(ends)} for {len(ids)} ids; they must rise up to the length")
    words = [tuple(ids[start:end]) for start, end in zip(starts, ends, strict=False) if end > start]
    outside = [token for word in words for token in word if not 0 <= token < vocab_size]
    if outside:
        raise RequestRefused(f"{name} holds the token id {outside[0]}; the engine's vocabulary has {vocab_size} ids")
    return tuple(words)


def ends_with(history: NDArray[np.int32], word: Word) -> bool:
    """Say whether ``history`` ends with ``word``; an empty word always matches."""
    count = len(word)
    return len(history) >= count and history[len(history) - count :].tolist() == list(word)


def forbidden_next(history: NDArray[np.int32], words: Sequence[Word]) -> list[int]:
    """Return the ids that would complete one of ``words`` when they came next."""
    return [word[-1] for word in words if ends_with(history, word[:-1])]
