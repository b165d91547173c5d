"""Word lists, as the preprocessing model of the templates encodes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorrtllm_cpu.faults import RequestRefused
from tensorrtllm_cpu.words import decode_word_list, ends_with, forbidden_next

WORDS = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4).map(tuple), max_size=5)


def encode(words: list[tuple[int, ...]]) -> np.ndarray:
    """Encode as the templates do: ids padded with 0, ends padded with -1."""
    ids = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words], dtype=np.int64).tolist()
    width = max(len(ids), len(ends))
    return np.array([[ids + [0] * (width - len(ids)), ends + [-1] * (width - len(ends))]], np.int32)


@given(WORDS)
def test_a_word_list_comes_back_as_it_was_encoded(words: list[tuple[int, ...]]) -> None:
    """Decoding is the inverse of the templates' encoding, also for no words at all."""
    assert decode_word_list("stop_words_list", encode(words), vocab_size=100) == tuple(words)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (np.zeros((1, 3, 4), np.int32), "shape"),
        (np.array([[[5, 6], [2, 1]]], np.int32), "rise"),
        (np.array([[[5, 6], [3, -1]]], np.int32), "rise"),
        (np.array([[[500, 6], [1, 2]]], np.int32), "500"),
        (np.array([[[-3, 6], [1, 2]]], np.int32), "-3"),
    ],
)
def test_a_malformed_word_list_is_refused_by_name(tensor: np.ndarray, said: str) -> None:
    """The message names the input and shows what is wrong."""
    with pytest.raises(RequestRefused, match=said) as caught:
        decode_word_list("bad_words_list", tensor, vocab_size=100)

    assert "bad_words_list" in str(caught.value)


def test_a_word_is_found_at_the_end_only() -> None:
    """A word in the middle, or longer than the history, does not match."""
    history = np.array([1, 2, 3], np.int32)

    assert ends_with(history, (2, 3))
    assert not ends_with(history, (1, 2))
    assert not ends_with(history, (0, 1, 2, 3))


def test_only_the_completing_token_of_a_word_is_forbidden() -> None:
    """One-token words are always forbidden, longer ones once their beginning is there."""
    history = np.array([1, 2], np.int32)

    assert forbidden_next(history, [(9,), (2, 7), (1, 2, 8), (1, 6)]) == [9, 7, 8]
