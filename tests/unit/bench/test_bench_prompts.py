"""Prompt sets."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.prompts import BUNDLED, PromptSet, load_bundled, parse_prompts
from specdeploy.errors import ConfigError

SET = parse_prompts("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(7)), source="p.jsonl", name="p")


@pytest.mark.parametrize(("name", "least"), [("code", 24), ("chat", 16)])
def test_the_bundled_sets_are_large_enough_and_varied(name: str, least: int) -> None:
    """Every id and every text is its own, and there are enough for several pairs."""
    prompts = load_bundled(name).prompts

    assert len(prompts) >= least
    assert len({prompt.id for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)


def test_code_prompts_share_no_beginning() -> None:
    """No two begin alike for 16 characters, so that a KV cache reused by prefix does not flatter the numbers."""
    beginnings = {prompt.text[:16] for prompt in load_bundled("code").prompts}

    assert len(beginnings) == len(load_bundled("code"))


def test_code_prompts_are_plain_and_chat_prompts_are_chatml() -> None:
    """Code is continued as it stands; an instruction is one user turn and the beginning of the answer."""
    assert not any("<|im_" in prompt.text for prompt in load_bundled("code").prompts)
    for prompt in load_bundled("chat").prompts:
        assert prompt.text.startswith("<|im_start|>user\n")
        assert prompt.text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_an_unknown_set_names_those_there_are() -> None:
    """The message helps with a typo."""
    with pytest.raises(ConfigError) as caught:
        load_bundled("cod")

    assert all(name in caught.value.hint for name in BUNDLED)


def test_the_same_seed_gives_the_same_order() -> None:
    """Order is a function of the seed; another seed gives another order of the same prompts."""
    one, same, other = (load_bundled("code").shuffled(seed) for seed in (1, 1, 2))

    assert one == same
    assert one != other
    assert set(one.prompts) == set(other.prompts)


@given(n=st.integers(1, 7), offset=st.integers(0, 100))
def test_consecutive_selections_share_no_prompt_until_the_set_is_used_up(n: int, offset: int) -> None:
    """Pair after pair deals out new prompts, and after the last one begins anew."""
    dealt = [prompt for pair in range(len(SET) // n) for prompt in SET.select(n, offset + pair * n)]

    assert len(set(dealt)) == len(dealt)
    assert SET.select(n, offset) == SET.select(n, offset + len(SET))


def test_ids_and_categories_have_defaults() -> None:
    """A user's file needs nothing but texts; U+2028 inside one is no end of line, and blank lines are skipped."""
    prompts = parse_prompts('\n{"text": "a\u2028b"}\n\n', source="mine.jsonl", name="mine").prompts

    assert [(prompt.id, prompt.category, prompt.text) for prompt in prompts] == [
        ("line-2", "uncategorised", "a\u2028b")
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"text": "a"}\n{"txt": "b"}', ("mine.jsonl:2", "'text' is missing", "'txt'")),
        ('{"text": 5}', ("mine.jsonl:1", "'text'", "5")),
        ('{"text": ""}', ("mine.jsonl:1", "'text'")),
        ('{"text": "a", "id": null, "category": []}', ("mine.jsonl:1", "'category'")),
        ('["a"]', ("mine.jsonl:1", "list")),
        ('{"text": "a"', ("mine.jsonl:1", "not JSON")),
        ('{"id": "x", "text": "a"}\n{"id": "x", "text": "b"}', ("mine.jsonl", "'id'", "'x' comes twice")),
        ("\n \n", ("mine.jsonl", "no prompt")),
    ],
)
def test_a_wrong_line_is_named(text: str, words: tuple[str, ...]) -> None:
    """Messages give file, line and key."""
    with pytest.raises(ConfigError) as caught:
        parse_prompts(text, source="mine.jsonl", name="mine")

    assert [word for word in words if word not in caught.value.message] == []


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """No file makes the reader fail in another way."""
    try:
        prompts = parse_prompts(text, source="f", name="f")
    except ConfigError:
        return
    assert isinstance(prompts, PromptSet)
