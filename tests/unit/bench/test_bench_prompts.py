"""Prompt sets."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.prompts import BUNDLED, PLAIN, PromptSet, load_bundled, make_prompt, parse_prompts
from specdeploy.errors import ConfigError

SET = parse_prompts("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(7)), source="p.jsonl", name="p")


MESSAGES = [name for name in BUNDLED if name not in {"code", "mixed"}]


@pytest.mark.parametrize(("name", "least"), [("code", 42), ("mixed", 162), *((name, 24) for name in MESSAGES)])
def test_the_bundled_sets_are_large_enough_and_varied(name: str, least: int) -> None:
    """Every id and every text is its own, and there are enough for several pairs."""
    prompts = load_bundled(name).prompts

    assert len(prompts) >= least
    assert len({prompt.id for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)


def test_code_prompts_share_no_beginning() -> None:
    """No two begin alike for 16 characters, so that a KV cache reused by prefix does not flatter the numbers."""
    beginnings = {prompt.text[:16] for prompt in load_bundled("code").prompts}

    assert len(beginnings) == len(load_bundled("code"))


def test_code_prompts_are_plain_and_the_others_are_chatml() -> None:
    """Code is continued as it stands; an instruction is one user turn and the beginning of the answer."""
    assert not any("<|im_" in prompt.text for prompt in load_bundled("code").prompts)
    assert all(prompt.message == prompt.text for prompt in load_bundled("code").prompts)
    for prompt in (prompt for name in MESSAGES for prompt in load_bundled(name).prompts):
        assert prompt.text.startswith("<|im_start|>user\n")
        assert prompt.text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_chat_endpoint_gets_the_message_alone() -> None:
    """A server that has a template of its own must not find another one inside the message."""
    first = load_bundled("chat").prompts[0]

    assert first.message.startswith("Explain in simple words how plants make food")
    assert first.text == f"<|im_start|>user\n{first.message}<|im_end|>\n<|im_start|>assistant\n"
    assert not any("<|im_" in prompt.message for name in MESSAGES for prompt in load_bundled(name).prompts)


def test_another_chat_template_changes_the_text_and_not_the_message() -> None:
    """The template is the caller's; braces that are not the message's place stand for themselves."""
    ours, theirs = load_bundled("chat"), load_bundled("chat", template="{system}[INST] {message} [/INST]")

    assert [prompt.message for prompt in theirs.prompts] == [prompt.message for prompt in ours.prompts]
    assert theirs.prompts[0].text == f"{{system}}[INST] {ours.prompts[0].message} [/INST]"


@pytest.mark.parametrize(("template", "times"), [("<user>", "0 times"), ("{message}{message}", "2 times")])
def test_a_template_has_one_place_for_the_message(template: str, times: str) -> None:
    """What would send no message, or two, is refused with an example."""
    with pytest.raises(ConfigError, match=times) as caught:
        load_bundled("mixed", template=template)

    assert "{message}" in caught.value.hint


def test_messages_share_no_beginning_in_any_set() -> None:
    """In front of the differences stands nothing but the template."""
    beginnings = [prompt.message[:16] for name in MESSAGES for prompt in load_bundled(name).prompts]

    assert len(set(beginnings)) == len(beginnings)


def test_mixed_is_every_set_spread_evenly() -> None:
    """Any stretch of the mixed set has something of every set, and results are grouped by them."""
    mixed, names = load_bundled("mixed"), BUNDLED[:-1]

    assert {prompt.category for prompt in mixed.prompts} == set(names)
    assert {prompt.text for prompt in mixed.prompts} == {p.text for name in names for p in load_bundled(name).prompts}
    for start in range(len(mixed) - 11):
        assert {prompt.category for prompt in mixed.prompts[start : start + 12]} == set(names)


def test_passages_to_summarise_are_long_and_of_plain_letters() -> None:
    """A passage has 120 to 250 words; without letters beyond ASCII every tokenizer can be cut anywhere in it."""
    for prompt in load_bundled("summarisation").prompts:
        passage = max(prompt.message.split("\n\n"), key=len)
        assert 120 <= len(passage.split()) <= 250
        assert passage.isascii()


def test_multilingual_prompts_are_in_nine_other_languages() -> None:
    """Each language has at least two prompts, most of which in no Latin letters."""
    prompts = load_bundled("multilingual").prompts
    languages = [prompt.category for prompt in prompts]

    assert set(languages) == {
        *("german", "french", "spanish", "russian", "chinese", "japanese", "arabic", "hindi", "portuguese")
    }
    assert min(languages.count(language) for language in languages) >= 2
    assert sum(not any("a" <= letter <= "z" for letter in prompt.message) for prompt in prompts) >= 12


@given(message=st.text(), other=st.text())
def test_another_message_stands_in_the_same_template(message: str, other: str) -> None:
    """Whatever is put into a message, the template stays around it."""
    prompt = make_prompt(message, id="a", category="b", template="<s>{message}</s>").with_message(other)

    assert (prompt.text, prompt.message) == (f"<s>{other}</s>", other)
    assert make_prompt(message, id="a", category="b", template=PLAIN).text == message


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
