"""What prompts begin with."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.prompts import load_bundled, make_prefixes, shared_prefix, unique
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
    found = shared_prefix(CODE[:count], texts=("You are kind.",), share=share, seed=seed)
    shared = [prompt.text.startswith("You are kind.\n\n") for prompt in found]

    assert abs(sum(shared) - share * count) <= 0.5
    assert [bool(prompt.prefix) for prompt in found] == shared
    assert all(new == old for new, old, is_shared in zip(found, CODE, shared, strict=False) if not is_shared)


@given(share=st.floats(0, 1), sizes=st.lists(st.integers(1, 7), max_size=20), texts=st.integers(1, 5))
def test_short_parts_of_a_run_have_the_share_together(share: float, sizes: list[int], texts: int) -> None:
    """Dealt out in pieces of any size, neither the share nor a text is rounded away."""
    used: Counter[str] = Counter()
    first = 0
    for size in sizes:
        part = shared_prefix(CODE[:size], texts=[f"text {n}" for n in range(texts)], share=share, first=first)
        used.update(prompt.prefix for prompt in part if prompt.prefix)
        first += size

    assert abs(used.total() - share * first) <= 0.5
    assert max(used.values(), default=0) - min(used.values(), default=0) <= (1 if len(used) == texts else 0)
    assert len(used) == min(texts, used.total())


def test_which_requests_share_follows_from_the_seed() -> None:
    """The same run again sends the same; another seed chooses others, and so does another part of the run."""
    chosen = [
        [bool(prompt.prefix) for prompt in shared_prefix(CODE, texts=("S",), share=0.5, seed=seed, first=first)]
        for seed, first in ((0, 0), (0, 0), (1, 0), (0, 42))
    ]

    assert chosen[0] == chosen[1]
    assert chosen[0] not in chosen[2:]


@pytest.mark.parametrize("shared_first", [True, False])
def test_unique_inside_shared_shares_the_text_alone(shared_first: bool) -> None:
    """What comes behind the common text differs at once, in whatever order the two are applied."""
    found = unique(shared_prefix(CHAT, texts=("S",))) if shared_first else shared_prefix(unique(CHAT), texts=("S",))

    assert all(prompt.message.startswith("S\n\n[") for prompt in found)
    assert all(prompt.text.startswith("<|im_start|>user\nS\n\n[") for prompt in found)
    assert len({prompt.message[:12] for prompt in found}) == len(CHAT)
    assert [prompt.message.split("\n", 3)[3] for prompt in found] == [prompt.message for prompt in CHAT]


@given(tokens=st.integers(1, 500), seed=st.integers(0, 3))
def test_a_prefix_is_as_long_as_it_should_be(tokens: int, seed: int) -> None:
    """Counted by the model's tokenizer; the same seed makes the same text."""
    made = make_prefixes(1, tokens=tokens, tokenizer=WORDS, seed=seed)

    assert [WORDS.count(text) for text in made.texts] == [tokens]
    assert made == make_prefixes(1, tokens=tokens, tokenizer=WORDS, seed=seed)
    assert made.findings == ()


def test_several_prefixes_share_nothing() -> None:
    """Each differs from the others at once, and is as long as one alone would be."""
    made = make_prefixes(200, tokens=60, tokenizer=WORDS)

    assert len({text[:9] for text in made.texts}) == 200
    assert {WORDS.count(text) for text in made.texts} == {60}


def test_a_prefix_that_cannot_be_so_short_is_told() -> None:
    """The line that keeps several apart has tokens of its own."""
    (finding,) = make_prefixes(2, tokens=1, tokenizer=WORDS).findings

    assert (finding.code, finding.where) == ("load.synthetic-length", "load.prefix_tokens")
    assert "instead of 1" in finding.message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"share": 1.5}, "is 1.5"),
        ({"share": -0.1}, "is -0.1"),
        ({"share": float("nan")}, "is nan"),
        ({"share": True}, "is True"),
        ({"texts": ("a", " \n")}, "the common prefixes are"),
        ({"texts": ()}, "the common prefixes are"),
    ],
)
def test_a_share_that_is_none_is_refused(options: dict, words: str) -> None:
    """The message gives the value."""
    with pytest.raises(ConfigError, match=words) as caught:
        shared_prefix(CODE, **{"texts": ("S",), **options})

    assert caught.value.hint


@pytest.mark.parametrize(("count", "tokens"), [(0, 9), (10**6, 9), (1, 0), (1, 10**9), (True, 9)])
def test_prefixes_that_are_none_are_refused(count: int, tokens: int) -> None:
    """The message gives the value, and the hint its bounds."""
    with pytest.raises(ConfigError, match="common prefix") as caught:
        make_prefixes(count, tokens=tokens, tokenizer=WORDS)

    assert caught.value.hint
