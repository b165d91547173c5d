"""The permutation test, Holm's rule, and the power that is stated: against known answers and simulated truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from specdeploy.holm import holm
from specdeploy.smoke.permutation import (
    Tally,
    detectable,
    excused_share,
    least_p_value,
    p_value,
    tally,
)

BASE = np.array([0.4, 0.3, 0.15, 0.1, 0.05])


def generator(seed: int = 7) -> np.random.Generator:
    """Random numbers that are the same each time."""
    return np.random.default_rng(seed)


def samples(rng: np.random.Generator, size: int, other: np.ndarray = BASE) -> Tally:
    """Draw two samples."""
    return tally(rng.choice(len(BASE), size, p=BASE).tolist(), rng.choice(len(BASE), size, p=other).tolist())


def test_a_tally_counts_the_most_frequent_first() -> None:
    """Tokens of either sample, with a count of 0 where one lacks them."""
    seen = tally([5, 5, 9], [9, 9, 5, 7])

    assert (seen.tokens, seen.control, seen.drafted) == ((5, 9, 7), (2, 1, 0), (1, 2, 1))
    assert seen.sizes == (3, 4)
    assert seen.distance == pytest.approx(5 / 12)


def test_the_p_value_is_that_of_all_permutations() -> None:
    """Where all ways to deal out the labels can be listed, their share of distances as large is what comes out."""
    control, drafted = [0, 0, 0, 1, 2], [0, 1, 1, 1, 2]
    everything = control + drafted

    def statistic(first: list[int], second: list[int]) -> float:
        pairs = [(first.count(token), second.count(token)) for token in range(3)]
        return sum((ours - theirs) ** 2 / (ours + theirs) for ours, theirs in pairs)

    observed = statistic(control, drafted)
    ways = [
        statistic([everything[i] for i in chosen], [everything[i] for i in range(10) if i not in chosen])
        for chosen in itertools.combinations(range(10), 5)
    ]
    exact = sum(way >= observed - 1e-9 for way in ways) / len(ways)

    assert p_value(tally(control, drafted), 0.001, generator()) == pytest.approx(exact, abs=0.01)


def test_one_distribution_is_rejected_as_rarely_as_promised() -> None:
    """Of 150 pairs of samples of one distribution about one in twenty is below 0.05: no more than chance explains."""
    rng = generator()
    below = sum(p_value(samples(rng, 60), 0.05, rng) <= 0.05 for _ in range(150))

    # 150 trials at 0.05 give 7.5 on average, and more than 16 less than once in 500 times.
    assert 1 <= below <= 16


def test_a_family_of_four_is_rejected_as_rarely_as_one() -> None:
    """Holm's rule keeps the chance that any of four comparisons fails at the level."""
    rng = generator()
    families = [holm([p_value(samples(rng, 40), 0.0125, rng) for _ in range(4)]) for _ in range(40)]

    # 40 trials at 0.05 give 2 on average, and more than 7 about once in 1000 times.
    assert sum(min(family) <= 0.05 for family in families) <= 7


def test_another_distribution_is_rejected() -> None:
    """A shift of 0.3 shows in 200 answers on each side, at the level of one comparison among four."""
    other = BASE + np.array([-0.3, 0.0, 0.1, 0.1, 0.1])

    assert p_value(samples(generator(), 200, other), 0.0025, generator()) < 0.0025


def test_the_stated_power_is_the_power() -> None:
    """At the distance that is stated, the test itself finds about four of five, and at half of it hardly any."""
    rng = generator()
    size, level = 150, 0.01
    stated = detectable(samples(rng, size), level, rng)
    assert stated is not None

    def found(distance: float) -> float:
        moved = BASE.copy()
        giving = np.array([True, False, False, True, False])
        moved[giving] *= 1 - distance / BASE[giving].sum()
        moved[~giving] *= 1 + distance / BASE[~giving].sum()
        return sum(p_value(samples(rng, size, moved), level, rng) <= level for _ in range(60)) / 60

    assert 0.6 <= found(stated) <= 0.97
    assert found(stated / 2) < 0.4


def test_more_answers_show_smaller_distances_and_very_few_show_none() -> None:
    """The stated distance falls about as the square root of the number of answers."""
    few, some, many = (detectable(samples(generator(), size), 0.0025, generator()) for size in (5, 100, 1600))

    assert few is None
    assert some is not None
    assert many is not None
    assert some / 6 < many < some / 2.5


def test_a_single_token_shows_nothing() -> None:
    """Where every answer has the same token no distance between these tokens exists."""
    assert detectable(tally([3] * 50, [3] * 50), 0.01, generator()) is None


@pytest.mark.parametrize(("size", "expected"), [(2, 1 / 3), (5, 2 / math.comb(10, 5))])
def test_the_least_p_value_is_that_of_samples_without_a_common_token(size: int, expected: float) -> None:
    """No answers of these numbers give less."""
    apart = p_value(tally([1] * size, [2] * size), 0.01, generator())

    assert least_p_value((size, size)) == pytest.approx(expected)
    assert apart == pytest.approx(expected, abs=0.01)


def test_unequal_sizes_have_no_mirror_image() -> None:
    """Then one way alone is the most extreme."""
    assert least_p_value((2, 3)) == pytest.approx(1 / 10)


def test_what_a_run_without_faults_excludes() -> None:
    """150 rejected drafts without a slip exclude a rule that lets 2 % through; none exclude nothing."""
    assert excused_share(150) == pytest.approx(0.0198, abs=1e-4)
    assert excused_share(0) == 1.0
    assert (1 - excused_share(150)) ** 150 == pytest.approx(0.05)
