"""Prompts of a wanted length."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.prompts import CHATML, Lengths, Synthesiser, Tokenizer, load_bundled, synthetic_prompts
from specdeploy.errors import ConfigError
from tests.unit.bench.bench_tokenizers import FIVES, TOKENIZERS, WORDS

TEMPLATE = "Ask: {message} Answer:"


def made(tokens: int, tokenizer=WORDS, *, blocks=(), key="k", **options):
    """Make one prompt."""
    return Synthesiser(tokenizer, **options).prompt(tokens, id="a", category="b", key=key, blocks=blocks)


@given(name=st.sampled_from(sorted(TOKENIZERS)), tokens=st.integers(6, 400), seed=st.integers(0, 5))
def test_a_prompt_has_exactly_the_tokens_that_were_asked_for(name: str, tokens: int, seed: int) -> None:
    """Counted by encoding the final text anew, whatever the tokenizer does at its ends."""
    tokenizer = TOKENIZERS[name]
    one = made(tokens, tokenizer, seed=seed)

    assert tokenizer.count(one.prompt.text) == one.tokens == tokens


@given(tokens=st.integers(8, 200))
def test_a_template_is_counted(tokens: int) -> None:
    """The length is that of what a completion endpoint gets."""
    one = made(tokens, template=TEMPLATE)

    assert WORDS.count(one.prompt.text) == tokens
    assert one.prompt.text == f"Ask: {one.prompt.message} Answer:"


@given(
    name=st.sampled_from(sorted(TOKENIZERS)),
    tokens=st.integers(12, 300),
    template=st.sampled_from(["{message}", TEMPLATE]),
)
def test_a_prompt_of_blocks_has_exactly_its_tokens(name: str, tokens: int, template: str) -> None:
    """However little room the last block has, and however often blocks are joined."""
    tokenizer = TOKENIZERS[name]
    blocks = range(-(-tokens // 16))
    one = made(tokens, tokenizer, blocks=blocks, block_tokens=16, template=template)

    assert tokenizer.count(one.prompt.text) == one.tokens
    assert abs(one.tokens - tokens) <= 1


def test_a_length_that_cannot_be_had_is_told() -> None:
    """The nearest text is taken, and one finding names the worst."""
    found = synthetic_prompts(3, tokenizer=FIVES, inputs=Lengths(mean=12))

    assert [FIVES.count(prompt.text) for prompt in found.prompts] == [10, 10, 10]
    assert [finding.code for finding in found.findings] == ["load.synthetic-length"]
    assert "3 of 3" in found.findings[0].message
    assert "10 tokens instead of 12" in found.findings[0].message


def test_lengths_follow_their_distribution() -> None:
    """Means and deviations of prompts and answers are near those asked for; an answer is made exactly so long."""
    found = synthetic_prompts(
        200, tokenizer=WORDS, inputs=Lengths(mean=60, stddev=10), outputs=Lengths(mean=30, stddev=5), seed=1
    )
    inputs = [WORDS.count(prompt.text) for prompt in found.prompts]
    outputs = [prompt.max_tokens or 0 for prompt in found.prompts]

    assert statistics.mean(inputs) == pytest.approx(60, abs=3)
    assert statistics.stdev(inputs) == pytest.approx(10, abs=3)
    assert statistics.mean(outputs) == pytest.approx(30, abs=2)
    assert outputs == [prompt.min_tokens for prompt in found.prompts]
    assert found.findings == ()


def test_the_same_seed_makes_the_same_prompts() -> None:
    """Prompts follow from the seed, and the first ones do not change when there are more."""
    few, many, other = (
        synthetic_prompts(count, tokenizer=WORDS, inputs=Lengths(mean=40, stddev=9), seed=seed)
        for count, seed in ((3, 1), (6, 1), (3, 2))
    )

    assert few.prompts == many.prompts[:3]
    assert {prompt.text for prompt in few.prompts}.isdisjoint(prompt.text for prompt in other.prompts)


def test_texts_are_real_sentences() -> None:
    """A draft can predict them as it predicts what people write: they are those of the bundled prose."""
    text = made(60).prompt.text
    known = " ".join(prompt.message for prompt in load_bundled("summarisation").prompts)

    assert all(sentence in known for sentence in text.split(". "))


def test_without_a_length_the_answer_is_the_runs() -> None:
    """No distribution of answers leaves them to the run."""
    (prompt,) = synthetic_prompts(1, tokenizer=WORDS, inputs=Lengths(mean=9)).prompts

    assert (prompt.max_tokens, prompt.min_tokens) == (None, None)


def test_a_block_is_cut_from_its_own_beginning() -> None:
    """A request that ends inside a block begins like one that has the whole of it."""
    part, whole = made(40, blocks=(1, 2), block_tokens=32), made(64, blocks=(1, 2), block_tokens=32)

    assert whole.prompt.text.startswith(part.prompt.text[:-12])


@pytest.mark.parametrize(
    ("mean", "stddev"), [(0, 0), (float("nan"), 0), (True, 0), (10**400, 0), ("9", 0), (9, -1), (9, float("inf"))]
)
def test_lengths_that_are_none_are_refused(mean: object, stddev: object) -> None:
    """The message gives the value and its bounds."""
    with pytest.raises(ConfigError, match="length in tokens is") as caught:
        Lengths(mean=mean, stddev=stddev)

    assert caught.value.hint.startswith("It must be a number from")


@pytest.mark.parametrize("count", [0, -1, 10**9, float("nan")])
def test_a_number_of_prompts_that_is_none_is_refused(count: object) -> None:
    """So it is with how many there shall be."""
    with pytest.raises(ConfigError, match="the number of synthetic prompts"):
        synthetic_prompts(count, tokenizer=WORDS, inputs=Lengths(mean=9))


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (Tokenizer(encode=lambda _: [], decode=lambda _: ""), "makes 0 tokens"),
        (Tokenizer(encode=WORDS.encode, decode=lambda _: ""), "to nothing"),
    ],
)
def test_a_tokenizer_that_makes_nothing_is_refused(tokenizer: Tokenizer, words: str) -> None:
    """It ends with a message, not in a loop."""
    with pytest.raises(ConfigError, match=words):
        made(20, tokenizer)


@pytest.mark.cpu
@pytest.mark.model
def test_a_real_tokenizer_is_met_exactly(smollm2) -> None:
    """Byte-pair encoding of a served model: every length, in its chat template, in blocks and without."""
    tokenizers = pytest.importorskip("tokenizers")
    real = tokenizers.Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    tokenizer = Tokenizer(encode=lambda text: real.encode(text, add_special_tokens=False).ids, decode=real.decode)

    for tokens in (*range(12, 60), 700, 3000):
        blocks = range(-(-tokens // 32))
        assert made(tokens, tokenizer, template=CHATML, key=str(tokens)).tokens == tokens
        assert abs(made(tokens, tokenizer, template=CHATML, blocks=blocks, block_tokens=32).tokens - tokens) <= 1
