"""The files of a user: prompts, conversations, traces."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.prompts import (
    PromptSet,
    Synthesiser,
    Trace,
    is_sharegpt,
    is_trace,
    parse_prompts,
    parse_sharegpt,
    parse_trace,
    parse_workload,
)
from specdeploy.errors import ConfigError
from tests.unit.bench.bench_tokenizers import WORDS

HUGE = 10**400
LENGTHS = {"timestamp": 0, "input_length": 20, "output_length": 5}


def jsonl(*lines) -> str:
    """Return JSON Lines."""
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def prompts(*lines):
    """Return the prompts of a file of these lines."""
    return parse_prompts(jsonl(*lines), source="mine.jsonl", name="mine").prompts


def trace(*lines, **options) -> Trace:
    """Return the trace of a file of these lines."""
    return parse_trace(jsonl(*lines), source="trace.jsonl", name="trace", **options)


def talk(*turns, **more) -> dict:
    """Return a conversation of turns (who, what)."""
    return {**more, "conversations": [{"from": who, "value": what} for who, what in turns]}


def sharegpt(*entries, **options) -> PromptSet:
    """Return the prompts of a file of these conversations."""
    return parse_sharegpt(json.dumps(list(entries)), source="talks.json", name="talks", **options)


class TestLines:
    """JSON Lines with a text or a message in each."""

    def test_a_message_goes_into_the_template(self) -> None:
        """``message``, or a ``text`` that says that it is chat, is what a user says."""
        message, chat = prompts({"message": "hello"}, {"text": "hello", "chat": True})

        assert message.text == chat.text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        assert message.message == chat.message == "hello"

    def test_a_text_beside_the_message_is_its_template(self) -> None:
        """Who has applied a template already keeps it, and the message stays exchangeable."""
        (prompt,) = prompts({"message": "hello", "text": "<sys>Be kind.</sys>hello<end>"})

        assert prompt.text == "<sys>Be kind.</sys>hello<end>"
        assert prompt.with_message("bye").text == "<sys>Be kind.</sys>bye<end>"

    def test_lengths_of_the_answer(self) -> None:
        """A prompt may say how long its answer is at most and at least; without, the run says it."""
        own, none = prompts({"text": "a", "max_tokens": 9, "min_tokens": 0}, {"text": "b", "max_tokens": None})

        assert (own.max_tokens, own.min_tokens) == (9, 0)
        assert (none.max_tokens, none.min_tokens) == (None, None)

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ({"text": "a", "max_tokens": 0}, ("mine.jsonl:1", "'max_tokens' is 0", "from 1 to 10,000,000")),
            ({"text": "a", "max_tokens": True}, ("'max_tokens' is True",)),
            ({"text": "a", "max_tokens": 2.5}, ("'max_tokens' is 2.5",)),
            ({"text": "a", "max_tokens": float("nan")}, ("'max_tokens' is nan",)),
            ({"text": "a", "max_tokens": HUGE}, ("'max_tokens' is 1000",)),
            ({"text": "a", "min_tokens": -1}, ("'min_tokens' is -1", "from 0")),
            ({"text": "a", "min_tokens": "9"}, ("'min_tokens' is '9'",)),
            (
                {"text": "a", "max_tokens": 3, "min_tokens": 4},
                ("'min_tokens' is 4", "at most 'max_tokens', which is 3"),
            ),
            ({"text": "a", "chat": "yes"}, ("'chat' is 'yes'", "true or false")),
            ({"message": 5}, ("'message' is 5",)),
            ({"message": "a", "text": "bc"}, ("'text' is 'bc'", "0 times")),
            ({"message": "a", "text": "aba"}, ("'text' is 'aba'", "2 times")),
            ({"text": "a \ud800 b"}, ("'text'", "surrogate")),
        ],
    )
    def test_a_wrong_value_is_named(self, line: dict, words: tuple[str, ...]) -> None:
        """Messages give file, line, key and value, and what it should be."""
        with pytest.raises(ConfigError) as caught:
            prompts(line)

        assert [word for word in words if word not in caught.value.message] == []
        assert caught.value.hint

    def test_lengths_without_time_are_pointed_to_traces(self) -> None:
        """A trace that lost its timestamps is told from a misspelt text."""
        with pytest.raises(ConfigError, match="'text' is missing") as caught:
            prompts({"input_length": 7, "output_length": 3})

        assert "timestamp" in caught.value.hint

    def test_deep_nesting_is_refused(self) -> None:
        """A file made to exhaust the reader is a wrong line like any other."""
        with pytest.raises(ConfigError, match=r"mine\.jsonl:1"):
            parse_prompts("[" * 200_000, source="mine.jsonl", name="mine")


class TestShareGpt:
    """Lists of conversations."""

    def test_the_first_human_turn_is_the_prompt(self) -> None:
        """Whoever speaks before; the conversation goes on without us, and the answer's length is not known."""
        talks = sharegpt(talk(("system", "s"), ("gpt", "hi"), ("human", "why?"), ("gpt", "so"), id="a"))

        assert [(prompt.id, prompt.message, prompt.max_tokens) for prompt in talks.prompts] == [("a", "why?", None)]
        assert talks.prompts[0].text.startswith("<|im_start|>user\nwhy?")
        assert talks.findings == ()

    def test_a_tokenizer_tells_how_long_the_answer_was(self) -> None:
        """The recorded answer sets the longest one; where there is none, the run does, and that is told."""
        talks = sharegpt(
            talk(("human", "one"), ("gpt", "a b c")),
            talk(("user", "two")),
            talk(("human", "three"), ("gpt", "")),
            talk(("human", "four"), ("human", "five")),
            count_tokens=lambda text: len(text.split()),
        )

        assert [prompt.max_tokens for prompt in talks.prompts] == [3, None, None, None]
        assert [prompt.min_tokens for prompt in talks.prompts] == [None] * 4
        assert [finding.code for finding in talks.findings] == ["load.answers-not-recorded"]
        assert "3 of 4" in talks.findings[0].message

    def test_conversations_without_a_human_are_left_out_and_counted(self) -> None:
        """Collections have such entries; what was left out is said."""
        talks = sharegpt(talk(("gpt", "hi")), talk(), talk(("human", " ")), talk(("human", "yes")))

        assert [prompt.message for prompt in talks.prompts] == ["yes"]
        assert talks.findings[0].code == "load.conversations-skipped"
        assert "3 of 4" in talks.findings[0].message

    def test_ids_that_come_again_stay_apart(self) -> None:
        """A collection may have an id twice; an entry without one is named by its place."""
        talks = sharegpt(talk(("human", "a"), id="x"), talk(("human", "b"), id="x"), talk(("human", "c")))

        assert [prompt.id for prompt in talks.prompts] == ["x", "x#2", "entry-3"]

    def test_a_prompt_file_may_be_a_list_of_conversations(self) -> None:
        """The shape of the file says what it is; layout does not matter."""
        text = json.dumps([talk(("human", "why?"))], indent=2)

        assert parse_prompts(text, source="f", name="f").prompts[0].message == "why?"

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{}", ("talks.json", "dict, not a list")),
            ("[]", ("talks.json", "no prompt")),
            ("[{", ("talks.json", "not JSON")),
            ("[5]", ("talks.json: entry 1", "int, not an object")),
            ('[{"id": "a"}]', ("talks.json: entry 1", "'conversations' is missing")),
            ('[{"conversations": 5}]', ("entry 1", "'conversations' is 5")),
            ('[{"conversations": ["a"]}]', ("entry 1, turn 1", "str, not an object")),
            ('[{"conversations": [{"value": "a"}]}]', ("entry 1, turn 1", "'from' is missing")),
            ('[{"conversations": [{"from": "human"}]}]', ("entry 1, turn 1", "'value' is missing")),
            ('[{"conversations": [{"from": "human", "value": 5}]}]', ("entry 1, turn 1", "'value' is 5")),
            ('[{"conversations": [{"from": [], "value": "a"}]}]', ("entry 1, turn 1", "'from' is []")),
            ('[{"id": 5, "conversations": [{"from": "human", "value": "a"}]}]', ("entry 1", "'id' is 5")),
        ],
    )
    def test_a_wrong_entry_is_named(self, text: str, words: tuple[str, ...]) -> None:
        """A list has no lines that matter: messages give file, entry, turn and key."""
        with pytest.raises(ConfigError) as caught:
            parse_sharegpt(text, source="talks.json", name="talks")

        assert [word for word in words if word not in caught.value.message] == []
        assert caught.value.hint


class TestTrace:
    """Requests with their times."""

    def test_times_are_seconds_after_the_first_request(self) -> None:
        """Milliseconds from any zero, such as the epoch, become offsets; equal times are a burst."""
        found = trace(
            {"timestamp": 1_700_000_000_000, "text": "a"},
            {"timestamp": 1_700_000_000_000, "message": "b", "max_tokens": 9},
            {"timestamp": 1_700_000_001_500.5, "text": "c"},
        )

        assert found.offsets_s == pytest.approx((0, 0, 1.5005), abs=1e-6)
        assert [prompt.message for prompt in found.prompts] == ["a", "b", "c"]
        assert [prompt.max_tokens for prompt in found.prompts] == [None, 9, None]
        assert found.prompt_set.prompts == found.prompts
        assert len(found) == 3

    def test_lengths_are_filled_with_text(self) -> None:
        """The prompt has the tokens of the trace, and the answer exactly as many as were recorded."""
        (prompt,) = trace(LENGTHS, synthesiser=Synthesiser(WORDS)).prompts

        assert WORDS.count(prompt.text) == 20
        assert (prompt.max_tokens, prompt.min_tokens) == (5, 5)

    def test_equal_first_blocks_are_equal_text(self) -> None:
        """As far as two requests have the same numbers, they have the same text, and no further."""
        synthesiser = Synthesiser(WORDS, block_tokens=16)
        one, two, other = trace(
            {**LENGTHS, "input_length": 64, "hash_ids": [3, 5, 8, 9]},
            {**LENGTHS, "input_length": 40, "hash_ids": [3, 5, 7]},
            {**LENGTHS, "input_length": 33, "hash_ids": [4, 5, 8]},
            synthesiser=synthesiser,
        ).prompts

        shared = _common(one.text, two.text)
        assert 32 <= WORDS.count(shared) <= 34
        assert WORDS.count(_common(one.text, other.text)) <= 2
        assert [WORDS.count(prompt.text) for prompt in (one, two, other)] == [64, 40, 33]

    def test_a_misfit_is_told(self) -> None:
        """A length that the template leaves no room for is made as nearly as can be, and a finding says so."""
        found = trace({**LENGTHS, "input_length": 1}, synthesiser=Synthesiser(WORDS, template="a b c {message} d"))

        assert [finding.code for finding in found.findings] == ["load.synthetic-length"]
        assert "instead of 1" in found.findings[0].message

    @pytest.mark.parametrize(
        ("lines", "words"),
        [
            (({"timestamp": -1, "text": "a"},), ("trace.jsonl:1", "'timestamp' is -1")),
            (({"timestamp": True, "text": "a"},), ("'timestamp' is True",)),
            (({"timestamp": "5", "text": "a"},), ("'timestamp' is '5'",)),
            (({"timestamp": float("nan"), "text": "a"},), ("'timestamp' is nan",)),
            (({"timestamp": float("inf"), "text": "a"},), ("'timestamp' is inf",)),
            (({"timestamp": HUGE, "text": "a"},), ("'timestamp' is 1000",)),
            (
                ({"timestamp": 5, "text": "a"}, {"timestamp": 4, "text": "b"}),
                ("trace.jsonl:2", "'timestamp' is 4", "5 or later"),
            ),
            (
                ({"timestamp": 0, "text": "a"}, {"timestamp": 10**9, "text": "b"}),
                ("trace.jsonl:2", "within 7 days"),
            ),
            (({"timestamp": 0, "text": "a"}, {"text": "b"}), ("trace.jsonl:2", "'timestamp' is missing")),
            (({"timestamp": 0},), ("trace.jsonl:1", "'text' is missing")),
            (({"timestamp": 0, "text": "a", "input_length": 1},), ("'input_length' is 1", "'text'")),
            (({"timestamp": 0, "input_length": 1},), ("'output_length' is missing",)),
            (({**LENGTHS, "input_length": 0},), ("'input_length' is 0",)),
            (({**LENGTHS, "output_length": 0},), ("'output_length' is 0",)),
            (({**LENGTHS, "input_length": HUGE},), ("'input_length' is 1000",)),
            (({**LENGTHS, "hash_ids": "abc"},), ("'hash_ids' is 'abc'",)),
            (({**LENGTHS, "hash_ids": [-1]},), ("'hash_ids' is [-1]",)),
            (({**LENGTHS, "hash_ids": [True]},), ("'hash_ids' is [True]",)),
            (({**LENGTHS, "hash_ids": [1, 2]},), ("'hash_ids' is [1, 2]", "1 numbers", "block of 512", "has 2")),
            (({**LENGTHS, "id": "x"}, {**LENGTHS, "id": "x"}), ("'id'", "'x' comes twice")),
            ((), ("trace.jsonl", "no request")),
        ],
    )
    def test_a_wrong_line_is_named(self, lines: tuple[dict, ...], words: tuple[str, ...]) -> None:
        """Messages give file, line, key and value, and what it should be."""
        with pytest.raises(ConfigError) as caught:
            trace(*lines, synthesiser=Synthesiser(WORDS))

        assert [word for word in words if word not in caught.value.message] == []
        assert caught.value.hint

    def test_lengths_need_a_tokenizer(self) -> None:
        """Without one nothing is invented."""
        with pytest.raises(ConfigError, match="a length and no text"):
            trace(LENGTHS)


def test_a_workload_is_told_by_its_keys() -> None:
    """A timestamp in the first line makes a trace; a list is of conversations; the rest are prompts."""
    timed, plain = jsonl({"timestamp": 0, "text": "a"}), jsonl({"text": "a"})
    listed = json.dumps([talk(("human", "a"))])

    kinds = [type(parse_workload(text, source="f", name="f")) for text in (f"\n{timed}", plain, listed)]

    assert kinds == [Trace, PromptSet, PromptSet]
    assert is_sharegpt(listed)
    assert not is_sharegpt(plain)
    assert is_trace(timed)
    assert not is_trace(plain)


VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
)
KEYS = st.sampled_from(
    ["id", "text", "message", "chat", "max_tokens", "timestamp", "input_length", "output_length", "hash_ids"]
)


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=5), max_size=3))
def test_any_lines_are_read_or_refused(lines: list[dict]) -> None:
    """No combination of keys and values makes a reader fail in another way."""
    try:
        found = parse_workload(jsonl(*lines), source="f", name="f")
    except ConfigError:
        return
    assert len(found.prompts) == len(lines)


@given(st.recursive(VALUES, lambda inner: st.lists(inner) | st.dictionaries(st.just("conversations"), inner)))
def test_any_list_is_read_or_refused(value: object) -> None:
    """So it is with conversations."""
    with contextlib.suppress(ConfigError):
        parse_sharegpt(json.dumps([value]), source="f", name="f")


def _common(one: str, other: str) -> str:
    return one[: next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))]


def test_the_documented_examples_are_read() -> None:
    """What the hints tell people to write can be read."""
    assert prompts({"text": "..."})
    assert trace({"timestamp": 1500, "text": "..."})
    lengths = {"timestamp": 1500, "input_length": 700, "output_length": 52, "hash_ids": [0, 1]}
    assert trace(lengths, synthesiser=Synthesiser(WORDS)).findings == ()
