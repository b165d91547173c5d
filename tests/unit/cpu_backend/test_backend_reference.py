"""Verification against speculative sampling as the papers write it, and its exactness by counting every outcome."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_model import TableEngine, TableModel
from tensorrtllm_cpu import verify

from tests.reference_speculative import sample, shaped
from tests.reference_speculative import verify as reference

VOCAB = 6
PROMPT = [1, 2, 3]
#: Cells of a random number: whatever is a multiple of a sixtieth, or smaller than 1 by one, is counted exactly.
CELLS = 60
PARTS = 6

MODELS = [TableModel(vocab=VOCAB, seed=seed) for seed in (1, 2)]

cuts = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.5, 1.0, 1.7]),
        "top_k": st.sampled_from([0, 2, 4]),
        "top_p": st.sampled_from([0.3, 0.8, 1.0]),
    }
)


def rows(model: TableModel, drafts: list[int], cut: dict[str, float]) -> list[list[float]]:
    """Return what a model says after the prompt, and after each of the drafts."""
    known = [[*PROMPT, *drafts[:i]] for i in range(len(drafts) + 1)]
    return [shaped(model.row(ids).astype(float).tolist(), **cut) for ids in known]


def engine_answer(drafts: list[int], seed: int, cut: dict[str, float], **inputs: object) -> list[int]:
    """Return what the engine answers to one request that carries drafts."""
    given_ = {"temperature": [cut["temperature"]], "runtime_top_k": [cut["top_k"]], "runtime_top_p": [cut["top_p"]]}
    return (
        TableEngine(MODELS[0]).run(PROMPT, len(drafts) + 1, draft_input_ids=drafts, seed=[seed], **given_, **inputs).ids
    )


@settings(max_examples=150)
@given(
    cut=cuts,
    seed=st.integers(0, 2**63),
    drawn=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4),
    threshold=st.sampled_from([None, None, 0.0, 0.3, 0.7, 1.0]),
    with_logits=st.booleans(),
)
def test_the_engine_does_what_the_papers_say(cut, seed, drawn, threshold, with_logits) -> None:
    """For any seed, cut and threshold, with the draft's logits or without: token for token the reference's answer."""
    drafts: list[int] = []
    for r in drawn:
        drafts.append(sample(rows(MODELS[1], drafts, cut)[-1], r))
    logits = np.array([MODELS[1].row([*PROMPT, *drafts[:i]]) for i in range(len(drafts))])
    inputs = {"draft_logits": logits} if with_logits else {}
    inputs |= {} if threshold is None else {"draft_acceptance_threshold": [threshold]}

    p, q = rows(MODELS[0], drafts, cut), rows(MODELS[1], drafts, cut)[:-1] if with_logits else None
    expected = reference(drafts, p, q, np.random.default_rng(seed).random, threshold=threshold)

    assert engine_answer(drafts, seed, cut, **inputs) == expected


@settings(max_examples=60)
@given(cut=cuts, seed=st.integers(0, 2**63), drafts=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4))
def test_drafts_that_nobody_drew_are_matched(cut, seed, drafts) -> None:
    """A token to which the draft's logits, as cut, give nothing cannot have come from them."""
    logits = np.array([MODELS[1].row([*PROMPT, *drafts[:i]]) for i in range(len(drafts))])
    p, q = rows(MODELS[0], drafts, cut), rows(MODELS[1], drafts, cut)[:-1]

    expected = reference(drafts, p, q, np.random.default_rng(seed).random)
    assert engine_answer(drafts, seed, cut, draft_logits=logits) == expected


@st.composite
def distributions(draw) -> list[Fraction]:
    """Return three probabilities in sixths."""
    first = draw(st.integers(0, PARTS))
    second = draw(st.integers(0, PARTS - first))
    return [Fraction(part, PARTS) for part in (first, second, PARTS - first - second)]


def floats(distribution: list[Fraction]) -> np.ndarray:
    """Return probabilities as the engine has them."""
    return np.array(distribution, float)


def counted(drafted: list[Fraction], emit) -> list[Fraction]:
    """Return the distribution of what is emitted first, over every draft and every cell of two random numbers."""
    out: dict[int, Fraction] = Counter()
    middles = [(cell + 0.5) / CELLS for cell in range(CELLS)]
    for token, weight in enumerate(drafted):
        if weight:
            for first, second in itertools.product(middles, repeat=2):
                out[emit(token, iter((first, second, 0.5)).__next__)] += weight / CELLS**2
    return [out.get(token, Fraction(0)) for token in range(len(drafted))]


@settings(max_examples=6)
@given(p=distributions(), q=distributions())
def test_what_is_emitted_has_the_targets_distribution_exactly(p, q) -> None:
    """Not by chance and a test of it: every outcome is counted, and the counts are the target's probabilities."""

    def engine(token: int, uniform) -> int:
        rule = verify.at_random(uniform)
        return verify.by_rejection([token], lambda _: floats(p), lambda _: floats(q), accept=rule, uniform=uniform).ids[
            0
        ]

    assert counted(q, engine) == p


@settings(max_examples=6)
@given(p=distributions(), q=distributions())
def test_the_reference_is_exact_too(p, q) -> None:
    """It would be no use otherwise."""
    lists = [floats(p).tolist()] * 2, [floats(q).tolist()]

    assert counted(q, lambda token, uniform: reference([token], *lists, uniform)[0]) == p


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_the_count_notices_a_rule_that_is_off(factor) -> None:
    """One that accepts half as often as it may, or half as often again."""
    p, q = [Fraction(3, 6), Fraction(2, 6), Fraction(1, 6)], [Fraction(1, 6), Fraction(1, 6), Fraction(4, 6)]

    target, draft = floats(p), floats(q)

    def engine(token: int, uniform) -> int:
        def rule(a: float, b: float) -> bool:
            return uniform() * b < factor * a

        return verify.by_rejection([token], lambda _: target, lambda _: draft, accept=rule, uniform=uniform).ids[0]

    assert counted(q, engine) != p
