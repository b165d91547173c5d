"""Word lists and the embedding bias in TensorRT-LLM's encodings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preprocessing_words import RequestError, embedding_bias, word_list


def letters(word: str) -> list[int]:
    """Encode a word letter by letter."""
    return [ord(letter) % 100 for letter in word]


def decode(rows) -> list[list[int]]:
    """Read a word list as the engines do."""
    ends = [int(end) for end in rows[0, 1] if end >= 0]
    return [rows[0, 0, start:end].tolist() for start, end in zip([0, *ends], ends, strict=False)]


def test_a_word_list_has_ids_above_and_end_offsets_below() -> None:
    """[1, 2, L]: ids one word after the other, cumulative ends padded with -1."""
    rows = word_list(["ab", "c"], letters)

    assert rows.tolist() == [[[97, 98, 99], [2, 3, -1]]]
    assert rows.dtype == np.int32


@pytest.mark.parametrize("words", [[], [""]])
def test_no_word_is_one_column_of_padding(words) -> None:
    """The tensor is always there, because the ensemble passes it on."""
    assert word_list(words, letters).tolist() == [[[0], [-1]]]


@given(st.lists(st.text("abcdef", max_size=5), max_size=6))
def test_a_word_list_reads_back(words) -> None:
    """Every word with ids comes back."""
    assert [letters(word) for word in words if word] == decode(word_list(words, letters))


def test_a_bias_is_added_to_every_id_of_a_word() -> None:
    """Weights of one id add up."""
    bias = embedding_bias(["ab", "a"], [1.5, 2.0], letters, 100)

    assert bias.shape == (1, 100)
    assert {int(token): float(bias[0, token]) for token in np.flatnonzero(bias[0])} == {97: 3.5, 98: 1.5}


def test_no_bias_is_empty() -> None:
    """A request without a bias does not carry a vocabulary of zeros."""
    assert embedding_bias([], [], letters, 100).shape == (1, 0)


@pytest.mark.parametrize(
    ("words", "weights", "message"),
    [(["a"], [], "1 words and .* 0 weights"), (["a"], [1.0], "'a' has id 97, the vocabulary 50")],
)
def test_a_wrong_bias_is_refused(words, weights, message) -> None:
    """Words without weights, and ids outside the vocabulary, are named."""
    with pytest.raises(RequestError, match=message):
        embedding_bias(words, weights, letters, 50)
