"""Incremental text is exact, whole characters only, and stop words never leak."""

from __future__ import annotations

import functools

import pytest
from decoder_text import TextWriter, Vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers_for_tests import END, KINDS

TEXTS = st.text(st.one_of(st.sampled_from("the stop. \n😀ü日▁"), st.characters(codec="utf-8")), max_size=40)
STOPS = st.lists(st.text(st.sampled_from("the stop.\nü😀"), min_size=1, max_size=4), max_size=3)
BOTH = pytest.mark.parametrize("kind", KINDS)


@functools.cache
def vocabulary(kind: str) -> Vocabulary:
    """Return the vocabulary of one kind."""
    return Vocabulary(KINDS[kind]())


def encode(kind: str, text: str) -> list[int]:
    """Return the ids of a text."""
    return KINDS[kind]().encode(text, add_special_tokens=False).ids


def text_after(kind: str, prompt: list[int], ids: list[int]) -> str:
    """The definition: the text of everything, less the text of the prompt."""
    decode = vocabulary(kind).decode
    return decode([*prompt, *ids])[len(decode(prompt)) :]


def split(ids: list[int], data) -> list[list[int]]:
    """Cut the ids into arbitrary groups."""
    groups = []
    while ids:
        size = data.draw(st.integers(1, len(ids)))
        groups.append(ids[:size])
        ids = ids[size:]
    return groups


def write(writer: TextWriter, groups: list[list[int]]) -> tuple[list[str], int]:
    """Feed groups until a stop word; return the pieces and how many ids belong to the answer."""
    pieces, used = [], 0
    for group in groups:
        piece = writer.add(group)
        pieces.append(piece.text)
        used += piece.used
        if piece.stopped:
            return pieces, used
    return [*pieces, writer.finish()], used


@BOTH
@settings(deadline=None)
@given(prompt=TEXTS, text=TEXTS, data=st.data())
def test_the_pieces_of_a_text_are_the_text(kind, prompt, text, data) -> None:
    """However the tokens are grouped, the pieces joined are the text, and no piece holds a broken character."""
    before = encode(kind, prompt)
    ids = encode(kind, text)

    pieces, used = write(TextWriter(vocabulary(kind), before), split(ids, data))

    assert text_after(kind, before, ids) == "".join(pieces)
    assert used == len(ids)
    if "\ufffd" not in text_after(kind, before, ids):
        assert "\ufffd" not in "".join(pieces)


@BOTH
@settings(deadline=None, max_examples=200)
@given(prompt=TEXTS, data=st.data())
def test_the_pieces_of_any_ids_are_their_text(kind, prompt, data) -> None:
    """A model may write bytes that are no text at all; the pieces still join to what the tokenizer makes of them."""
    before = encode(kind, prompt)
    size = KINDS[kind]().get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=120))

    pieces, _ = write(TextWriter(vocabulary(kind), before), split(ids, data))

    assert text_after(kind, before, ids) == "".join(pieces)


@BOTH
def test_a_long_answer_is_exact_and_costs_the_same_at_its_end(kind) -> None:
    """Only a short window of ids is decoded anew with each piece."""
    ids = encode(kind, "the quick 😀 brown fox. " * 60)
    decoded = []
    plain = vocabulary(kind)
    counting = Vocabulary(KINDS[kind]())
    counting.decode = lambda window: decoded.append(len(window)) or plain.decode(window)

    pieces, _ = write(TextWriter(counting, encode(kind, "the")), [[token] for token in ids])

    assert "".join(pieces) == text_after(kind, encode(kind, "the"), ids)
    assert max(decoded) < 80


@BOTH
def test_a_word_after_the_prompt_keeps_its_space(kind) -> None:
    """The space between prompt and answer belongs to the answer, once."""
    ids = encode(kind, "the quick fox")
    prompt = encode(kind, "the")

    pieces, _ = write(TextWriter(vocabulary(kind), prompt), [[token] for token in ids[len(prompt) :]])

    assert "".join(pieces) == " quick fox"


def reference(kind: str, prompt: list[int], ids: list[int], stops: list[str]) -> tuple[str, int]:
    """Decode everything anew after each token, and stop where a stop word is first complete."""
    for used in range(1, len(ids) + 1):
        text = text_after(kind, prompt, ids[:used])
        found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
        if found:
            return text[: min(found)[1]], used
    return text_after(kind, prompt, ids), len(ids)


@BOTH
@settings(deadline=None, max_examples=200)
@given(text=TEXTS, stops=STOPS, data=st.data())
def test_stop_words_end_the_text_wherever_they_fall(kind, text, stops, data) -> None:
    """Across tokens and groups, text ends in front of the first complete stop word, and the ids with its last token."""
    prompt, ids = encode(kind, "fox"), encode(kind, text)

    pieces, used = write(TextWriter(vocabulary(kind), prompt, stops), split(ids, data))

    assert reference(kind, prompt, ids, stops) == ("".join(pieces), used)


@BOTH
@settings(deadline=None)
@given(text=TEXTS, stops=STOPS)
def test_no_piece_ever_shows_the_beginning_of_a_stop_word_that_completes(kind, text, stops) -> None:
    """What has left is always a beginning of the final text: nothing is taken back."""
    prompt, ids = encode(kind, "fox"), encode(kind, text)
    writer = TextWriter(vocabulary(kind), prompt, stops)
    final, used = reference(kind, prompt, ids, stops)
    shown = ""
    for token in ids[:used]:
        shown += writer.add([token]).text

        assert final.startswith(shown)


def test_a_held_back_beginning_is_given_out_when_it_comes_to_nothing() -> None:
    """Text that only looked like a stop word is not lost."""
    writer = TextWriter(vocabulary("byte level"), [], ["stop!"])
    groups = [[token] for token in encode("byte level", "sto")]

    pieces, _ = write(writer, groups)

    assert "".join(pieces[:-1]) == ""
    assert pieces[-1] == "sto"


@BOTH
def test_the_text_of_a_special_token_stands_for_the_token(kind) -> None:
    """Special tokens have no text, so a stop word that names one is matched by its id."""
    end = vocabulary(kind).special_tokens[END]
    ids = encode(kind, "the fox")

    piece = TextWriter(vocabulary(kind), encode(kind, "a"), [END]).add([*ids, end, *ids])

    assert (True, len(ids) + 1) == (piece.stopped, piece.used)
    assert piece.text.strip() == "the fox"


def test_of_several_stop_words_in_one_token_the_first_complete_one_counts() -> None:
    """As if the text had come character by character, so that it does not depend on the tokenizer's merges."""
    ids = encode("byte level", " stop")
    assert len(ids) == 1

    piece = TextWriter(vocabulary("byte level"), [], ["stop", "to"]).add(ids)

    assert piece.text == " s"
