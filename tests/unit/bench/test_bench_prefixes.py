"""What prompts begin with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.prompts import load_bundled, prefix_text, shared_prefix, unique
from specdeploy.errors import ConfigError
from tests.unit.bench.bench_tokenizers import WORDS

CHAT = load_bundled("chat").prompts
CODE = load_bundled("code").prompts


def lines(prompts) -> list[str]:
    """Return the first line of each message."""
    return [prompt.message.split("\n", 1)[0] for prompt in prompts]


@given(seed=st.integers(0, 9), salt=st.text(max_size=3), first=st.integers(0, 10**6))
def test_no_two_requests_begin_alike(seed: int, salt: str, first: int) -> None:
    """Also when the same prompt is sent again and again, and however far the run has come."""
    marked = unique(CODE[:1] * 300, seed=seed, salt=salt, first=first)

    assert len(set(lines(marked))) == 300


def test_a_line_depends_on_the_number_of_its_request_alone() -> None:
    """A run that is dealt out in pieces has the lines of the whole."""
    whole = unique(CODE[:10], seed=3)

    assert whole == (*unique(CODE[:4], seed=3), *unique(CODE[4:10], seed=3, first=4))
    assert lines(whole) == lines(unique(CHAT[:10], seed=3))
    assert lines(whole) != lines(unique(CODE[:10], seed=4))


def test_the_line_stands_inside_the_message() -> None:
    """The chat template stays around it, ids and categories stay, and the rest of the text is as it was."""
    (marked,) = unique(CHAT[:1])

    assert marked.text.startswith("<|im_start|>user\n[")
    assert marked.message.split("\n", 1)[1] == CHAT[0].message
    assert (marked.id, marked.category, marked.after) == (CHAT[0].id, CHAT[0].category, CHAT[0].after)


def test_the_salt_decides_whether_arms_get_the_same_prompts() -> None:
    """One salt for both arms gives the same texts; a salt for each shares no line, at any number."""
    both = [unique(CODE, salt="pair 1") for _ in range(2)]
    control, speculation = unique(CODE * 20, salt="control"), unique(CODE * 20, salt="speculation")

    assert both[0] == both[1]
    assert set(lines(control)).isdisjoint(lines(speculation))


@given(share=st.floats(0, 1), count=st.integers(0, 42), seed=st.integers(0, 9))
def test_a_share_of_the_requests_begins_alike(share: float, count: int, seed: int) -> None:
    """It is that share, to the nearest request; the others are as they were."""
    found = shared_prefix(CODE[:count], prefix="You are kind.", share=share, seed=seed)
    shared = [prompt.text.startswith("You are kind.\n\n") for prompt in found]

    assert sum(shared) == round(share * count)
    assert all(new == old for new, old, is_shared in zip(found, CODE, shared, strict=False) if not is_shared)


def test_a_salt_changes_the_shared_text_and_not_who_shares_it() -> None:
    """The arms of a pair measure the same mixture, and the second does not find the first one's cache."""
    control, speculation = (shared_prefix(CHAT, prefix="S", salt=salt) for salt in ("control", "speculation"))
    chosen = [[new != old for new, old in zip(arm, CHAT, strict=True)] for arm in (control, speculation)]

    assert chosen[0] == chosen[1]
    assert not {p.text for p in control} & {p.text for p in speculation} - {p.text for p in CHAT}
    assert len({prompt.message[:12] for prompt in control if prompt not in CHAT}) == 1


def test_unique_inside_shared_shares_the_text_alone() -> None:
    """What comes behind the common text differs at once."""
    found = shared_prefix(unique(CHAT), prefix="S", share=1)

    assert all(prompt.message.startswith("S\n\n[") for prompt in found)
    assert len({prompt.message[:12] for prompt in found}) == len(CHAT)


@given(characters=st.integers(1, 5000), seed=st.integers(0, 3))
def test_a_prefix_of_characters_ends_with_a_word(characters: int, seed: int) -> None:
    """It is as long as asked for, less the word that does not fit."""
    text = prefix_text(characters=characters, seed=seed)

    assert max(characters - 20, 1) <= len(text) <= characters
    assert not text.endswith(" ")


@given(tokens=st.integers(1, 500))
def test_a_prefix_of_tokens_is_counted(tokens: int) -> None:
    """With the model's tokenizer the length is in its tokens."""
    assert WORDS.count(prefix_text(tokens=tokens, tokenizer=WORDS)) == tokens


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"share": 1.5}, "is 1.5"),
        ({"share": -0.1}, "is -0.1"),
        ({"share": float("nan")}, "is nan"),
        ({"share": True}, "is True"),
        ({"prefix": " \n"}, "the common prefix is"),
    ],
)
def test_a_share_that_is_none_is_refused(options: dict, words: str) -> None:
    """The message gives the value."""
    with pytest.raises(ConfigError, match=words) as caught:
        shared_prefix(CODE, **{"prefix": "S", **options})

    assert caught.value.hint


@pytest.mark.parametrize(
    "options",
    [{}, {"characters": 9, "tokens": 9}, {"characters": 0}, {"tokens": 0, "tokenizer": WORDS}, {"tokens": 9}],
)
def test_a_prefix_needs_one_length(options: dict) -> None:
    """Characters, or tokens with a tokenizer, and not nothing."""
    with pytest.raises(ConfigError, match="common prefix") as caught:
        prefix_text(**options)

    assert caught.value.hint
