"""Adjusting logits and choosing by them, against slow readings of the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tensorrtllm_cpu.faults import RequestRefused
from tensorrtllm_cpu.sampling import SamplingParams, adjust, distribution, draw, log_probability, most_likely

NOTHING = np.empty(0, np.int32)


def logits_of(*values: float) -> np.ndarray:
    """Return float32 logits."""
    return np.array(values, np.float32)


def slow_distribution(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """Softmax, keep the k best, rescale, keep the fewest best that reach p, rescale: one token at a time."""
    weights = [math.exp((value - max(logits)) / temperature) for value in logits]
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    kept = order[:top_k] if top_k else order
    total, mass, nucleus = sum(weights[token] for token in kept), 0.0, []
    for token in kept:
        nucleus.append(token)
        mass += weights[token] / total
        if top_p and mass >= top_p:
            break
    share = sum(weights[token] for token in nucleus)
    return [weights[token] / share if token in nucleus else 0.0 for token in range(len(logits))]


@pytest.mark.parametrize(
    ("params", "greedy"),
    [
        (SamplingParams(), True),
        (SamplingParams(temperature=0.8), True),
        (SamplingParams(top_k=1, top_p=0.9), True),
        (SamplingParams(top_k=5, temperature=0.0), True),
        (SamplingParams(top_k=2), False),
        (SamplingParams(top_p=0.5), False),
    ],
)
def test_decoding_is_greedy_unless_top_k_or_top_p_asks_for_more(params: SamplingParams, greedy: bool) -> None:
    """As in the C++ backend: temperature alone does not make a request sampled, and temperature 0 makes it greedy."""
    assert params.greedy is greedy


def test_equal_logits_give_the_lowest_id() -> None:
    """Greedy decoding breaks ties the same way on every machine."""
    assert most_likely(logits_of(1, 3, 3, 3)) == 1


@settings(max_examples=300)
@given(
    values=st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=2, max_size=12),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.integers(0, 6),
    top_p=st.sampled_from([0.0, 0.1, 0.35, 0.6, 0.9, 0.99, 1.0]),
)
def test_the_distribution_is_the_definition(values: list[float], temperature: float, top_k: int, top_p: float) -> None:
    """Softmax, top-k and top-p agree with their definitions, ties included."""
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    if params.greedy:
        return
    adjusted = adjust(logits_of(*values), NOTHING, 0, params)
    expected = slow_distribution(values, temperature, top_k, top_p)
    # A cumulated mass within rounding of top_p may keep one token more or less; such a draw decides nothing here.
    cumulated = np.cumsum(sorted(slow_distribution(values, temperature, top_k, 0.0), reverse=True))
    if top_p and np.abs(cumulated - top_p).min() < 1e-6:
        return

    np.testing.assert_allclose(distribution(adjusted, params), expected, atol=1e-6)


def test_greedy_is_a_distribution_too() -> None:
    """All mass is on the most likely token."""
    assert distribution(logits_of(0, 2, 1), SamplingParams()).tolist() == [0, 1, 0]


def test_penalties_count_prompt_and_generated_tokens() -> None:
    """Repetition divides positive and multiplies negative logits; presence and frequency subtract."""
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    history = np.array([0, 1, 1, 2], np.int32)

    adjusted = adjust(logits_of(4, -1, 0, 3), history, 1, params)

    assert adjusted.tolist() == [4 / 2 - 0.75, -1 * 2 - 1.0, -0.75, 3]


def test_the_end_is_held_off_for_min_tokens() -> None:
    """The end id is impossible before min_tokens new tokens are there, and possible after."""
    params = SamplingParams(end_id=1, min_tokens=2)

    assert most_likely(adjust(logits_of(0, 9, 1), NOTHING, 1, params)) == 2
    assert most_likely(adjust(logits_of(0, 9, 1), NOTHING, 2, params)) == 1


def test_bias_and_bad_words_are_applied_without_touching_the_engines_logits() -> None:
    """Adjusting works on a copy; the raw logits may still be asked for."""
    raw = logits_of(5, 4, 3)
    params = SamplingParams(embedding_bias=logits_of(0, 0, 3), bad_words=((2,),))

    adjusted = adjust(raw, NOTHING, 0, params)

    assert most_likely(adjusted) == 0
    assert raw.tolist() == [5, 4, 3]


def test_nothing_to_adjust_is_no_copy() -> None:
    """Plain greedy decoding reads the engine's row in place."""
    raw = logits_of(1, 2)

    assert adjust(raw, NOTHING, 0, SamplingParams()) is raw


def test_forbidding_every_token_is_refused() -> None:
    """There is no token to choose, and the message says which inputs are to blame."""
    with pytest.raises(RequestRefused, match="bad words"):
        adjust(logits_of(1, 2), NOTHING, 0, SamplingParams(bad_words=((0,), (1,))))


def test_draws_follow_the_weights() -> None:
    """Drawn tokens are distributed as the weights say, also when these do not sum to one."""
    weights = np.array([3.0, 0.0, 1.0, 4.0])
    rng = np.random.default_rng(5)

    counts = np.bincount([draw(weights, rng.random()) for _ in range(8000)], minlength=4)

    assert counts[1] == 0
    assert stats.chisquare(counts[[0, 2, 3]], np.array([3, 1, 4]) * 1000).pvalue > 1e-3


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6).filter(lambda w: sum(w) > 1e-9))
def test_a_token_without_weight_is_never_drawn(weights: list[float]) -> None:
    """Not at either end of the unit interval."""
    for uniform in (0.0, 0.5, np.nextafter(1.0, 0.0)):
        assert weights[draw(np.array(weights), uniform)] > 0.0


def test_log_probabilities_are_those_of_softmax() -> None:
    """They sum to one, and a banned token has none."""
    row = logits_of(1, 2, -np.inf)

    assert sum(math.exp(log_probability(row, token)) for token in range(3)) == pytest.approx(1.0)
    assert log_probability(row, 2) == -math.inf
