"""Verification: exactness of both rules, and that the test of it would notice a wrong one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats
from tensorrtllm_cpu import verify
from tensorrtllm_cpu.sampling import draw

VOCAB = 4
TRIALS = 20_000


def probabilities(seed: int) -> np.ndarray:
    """Return next-token distributions after nothing (row ``VOCAB``) and after each token."""
    weights = np.random.default_rng(seed).random((VOCAB + 1, VOCAB)) ** 2
    return weights / weights.sum(axis=1, keepdims=True)


TARGET, DRAFT = probabilities(1), probabilities(2)


def two_tokens(rng: np.random.Generator, accept: verify.Acceptance | None) -> tuple[int, int]:
    """Decode two tokens, each round drafting two from ``DRAFT`` and verifying them against ``TARGET``."""
    out: list[int] = []
    while len(out) < 2:
        last = out[-1] if out else VOCAB
        drafts: list[int] = []
        for _ in range(2):
            drafts.append(draw(DRAFT[drafts[-1] if drafts else last], rng.random()))
        before = [last, *drafts]
        verdict = verify.by_rejection(
            drafts,
            lambda i, before=before: TARGET[before[i]],
            lambda i, before=before: DRAFT[before[i]],
            accept=accept or verify.at_random(rng.random),
            uniform=rng.random,
        )
        out += verdict.ids
    return out[0], out[1]


def goodness(accept: verify.Acceptance | None = None) -> float:
    """Return the p-value of the chi-square test of all pairs of tokens against the target's own distribution."""
    rng = np.random.default_rng(11)
    seen = Counter(two_tokens(rng, accept) for _ in range(TRIALS))
    pairs = [(first, second) for first in range(VOCAB) for second in range(VOCAB)]
    expected = [TRIALS * TARGET[VOCAB, first] * TARGET[first, second] for first, second in pairs]
    return float(stats.chisquare([seen[pair] for pair in pairs], expected).pvalue)


def test_rejection_sampling_gives_the_targets_distribution() -> None:
    """Whatever the draft model proposes, pairs of tokens are distributed as the target alone would write them."""
    assert goodness() > 1e-3


def test_a_wrong_acceptance_rule_is_noticed() -> None:
    """The test above fails for a rule that accepts with probability p, not p/q, and for one that is too willing."""
    rng = np.random.default_rng(3)

    assert goodness(lambda p, _q: rng.random() < p) < 1e-6
    assert goodness(lambda p, q: rng.random() * q < 1.2 * p) < 1e-6


def test_replacing_from_the_target_instead_of_the_residual_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replacement of a refused draft must leave out what acceptance already covered."""
    monkeypatch.setattr(verify, "residual", lambda p, _q: p)

    assert goodness() < 1e-6


def test_a_draft_that_its_model_could_not_have_drawn_is_matched_instead() -> None:
    """A greedy draft sent with truncated logits has q = 0; dividing by it would accept nearly everything."""
    rng = np.random.default_rng(4)
    impossible = np.array([0.0, 1.0, 0.0, 0.0])

    def first_token() -> int:
        return verify.by_rejection(
            [0],
            lambda _: TARGET[VOCAB],
            lambda _: impossible,
            accept=verify.at_random(rng.random),
            uniform=rng.random,
        ).ids[0]

    counts = np.bincount([first_token() for _ in range(TRIALS)], minlength=VOCAB)

    assert stats.chisquare(counts, TRIALS * TARGET[VOCAB]).pvalue > 1e-3


def test_equal_models_accept_everything() -> None:
    """P = q accepts every draft and adds one token of the target's own."""
    rng = np.random.default_rng(5)
    verdict = verify.by_rejection(
        [1, 2, 3],
        lambda _: TARGET[0],
        lambda _: TARGET[0],
        accept=verify.at_random(rng.random),
        uniform=rng.random,
    )

    assert verdict.accepted == 3
    assert verdict.ids[:3] == (1, 2, 3)
    assert len(verdict.ids) == 4


@pytest.mark.parametrize(("threshold", "accepted"), [(0.0, 1), (0.4, 1), (0.5, 0), (0.9, 0)])
def test_a_threshold_replaces_chance(threshold: float, accepted: int) -> None:
    """With draft_acceptance_threshold t a draft is accepted exactly when p > t * q."""
    p, q = np.array([0.4, 0.6]), np.array([0.8, 0.2])
    verdict = verify.by_rejection([0], lambda _: p, lambda _: q, accept=verify.above(threshold), uniform=lambda: 0.99)

    assert verdict.accepted == accepted


def test_matching_stops_at_the_first_difference() -> None:
    """The target is not asked past the token that differs, which is the one emitted."""
    asked: list[int] = []

    def choose(position: int) -> int:
        asked.append(position)
        return [5, 6, 7, 8][position]

    assert verify.by_match([5, 9, 7], choose) == verify.Verdict(ids=(5, 6), accepted=1)
    assert asked == [0, 1]


def test_matching_no_drafts_is_one_plain_step() -> None:
    """Without drafts the verdict is the target's next token."""
    assert verify.by_match([], lambda _: 3) == verify.Verdict(ids=(3,), accepted=0)
