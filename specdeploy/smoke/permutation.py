"""Are two samples of tokens drawn from one distribution? A permutation test, and how much it could have seen.

Pure statistics: values in, values out, every random number from a generator that the caller seeds. The test is exact at
any sample size: when both samples come from one distribution, which of the answers is called "with drafts" is a matter
of labels, and every way to deal the labels out is as likely as the one that was seen (Fisher 1935; Good, "Permutation
Tests", 2000, chapter 3). Several comparisons share one level by Holm's rule (Scandinavian Journal of Statistics 6,
1979, 65-70).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Counts = NDArray[np.int64]
    Floats = NDArray[np.float64]

#: Ways to deal out the labels, at least; the p-value cannot be less than one in so many.
_PERMUTATIONS: Final = 9999
#: Permutations for each one that the level would let pass: enough to know a p-value near the level to a fifth of it.
_PER_LEVEL: Final = 25
#: Pairs of samples for one point of the power curve, and for the level of its test.
_SIMULATED: Final = 400
_NULL_PER_LEVEL: Final = 20
_POWER: Final = 0.8
_HALVINGS: Final = 7
_ROUNDING: Final = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Tally:
    """How often each token came in two samples.

    Args:
        tokens: Every token that occurred, the most frequent first.

        control: How often each came without drafts.

        drafted: How often each came with drafts.
    """

    tokens: tuple[int, ...]
    control: tuple[int, ...]
    drafted: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """Answers without and with drafts."""
        return sum(self.control), sum(self.drafted)

    @property
    def distance(self) -> float:
        """Total-variation distance of the two samples, 0 to 1; chance alone makes it positive."""
        control, drafted = self.sizes
        apart = zip(self.control, self.drafted, strict=True)
        return sum(abs(ours / control - theirs / drafted) for ours, theirs in apart) / 2


def tally(control: Sequence[int], drafted: Sequence[int]) -> Tally:
    """Count tokens.

    Args:
        control: Token of each answer without drafts; at least one.

        drafted: Token of each answer with drafts; at least one.
    """
    tokens, index = np.unique(np.concatenate([control, drafted]).astype(np.int64), return_inverse=True)
    ours = np.bincount(index[: len(control)], minlength=len(tokens))
    theirs = np.bincount(index[len(control) :], minlength=len(tokens))
    order = np.argsort(-(ours + theirs), kind="stable")
    return Tally(
        tokens=tuple(tokens[order].tolist()),
        control=tuple(ours[order].tolist()),
        drafted=tuple(theirs[order].tolist()),
    )


def least_p_value(sizes: tuple[int, int]) -> float:
    """Return the smallest p-value that samples of these sizes can give: that of two samples without a common token.

    Of all ways to deal out the labels only the one that was seen is as extreme, and with equal sizes its mirror image.
    """
    ways = math.comb(sum(sizes), sizes[0])
    return (2 if sizes[0] == sizes[1] else 1) / ways


def p_value(seen: Tally, level: float, rng: np.random.Generator) -> float:
    """Return how likely samples of one distribution are at least as far apart as these.

    The distance is Pearson's chi-square of the two samples; its distribution comes from dealing out the labels anew,
    and not from a table that holds for large counts only.

    Args:
        seen: The two samples.

        level: The p-value that matters; the smaller, the more permutations.

        rng: Deals out the labels.
    """
    pooled = np.add(seen.control, seen.drafted)
    count = max(_PERMUTATIONS, math.ceil(_PER_LEVEL / level))
    dealt = rng.multivariate_hypergeometric(pooled, seen.sizes[0], size=count, method="marginals")
    statistics = _chi_square(dealt, pooled - dealt)
    observed = _chi_square(np.array([seen.control]), np.array([seen.drafted]))[0]
    return float(1 + np.count_nonzero(statistics >= observed - _ROUNDING)) / (count + 1)


def detectable(seen: Tally, level: float, rng: np.random.Generator) -> float | None:
    """Return the smallest total-variation distance that the test finds four times of five with samples like these.

    Simulated: the control draws from what both samples show together, the drafts from the same with some probability
    moved from about half of the tokens to the others, in proportion. A distance that is all in one token is found
    sooner, one that is spread over more tokens than were seen, later.

    Args:
        seen: The two samples.

        level: The p-value that rejects.

        rng: Draws the simulated samples.

    Returns:
        None when not even the largest distance that these tokens allow is found so often.
    """
    pooled = np.add(seen.control, seen.drafted)
    base = pooled / pooled.sum()
    giving = _heavier_half(base)
    most = float(base[giving].sum())
    if giving.all():
        return None
    bar = _level_of_statistic(base, seen.sizes, level, rng)
    if _found(base, _moved(base, giving, most), seen.sizes, bar, rng) < _POWER:
        return None
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = _found(base, _moved(base, giving, middle), seen.sizes, bar, rng) >= _POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


def excused_share(trials: int, confidence: float = 0.95) -> float:
    """Return the largest share of faults that a run without any fault leaves possible.

    From ``(1 - share) ** trials = 1 - confidence``: with that share or a larger one, ``trials`` independent trials
    would have shown a fault in ``confidence`` of all runs (the exact form of the "rule of three").

    Args:
        trials: How often a fault could have shown.

        confidence: How often it would have.
    """
    return 1.0 if trials < 1 else 1.0 - (1.0 - confidence) ** (1.0 / trials)


def _chi_square(ours: Counts, theirs: Counts) -> Floats:
    """Return Pearson's statistic of each row's pair of samples, ``[rows]``; tokens that none of them has count 0."""
    first, second = float(ours[0].sum()), float(theirs[0].sum())
    both = np.maximum(ours + theirs, 1)
    apart = ours * math.sqrt(second / first) - theirs * math.sqrt(first / second)
    return np.asarray((apart**2 / both).sum(axis=1), np.float64)


def _heavier_half(base: Floats) -> NDArray[np.bool_]:
    """Deal the tokens to two sides of about equal probability; return which are on the heavier one."""
    sides, side_of = [0.0, 0.0], np.zeros(len(base), np.int64)
    for index, share in enumerate(base):
        side_of[index] = int(sides[1] < sides[0])
        sides[side_of[index]] += share
    return np.asarray(side_of == int(sides[1] > sides[0]), np.bool_)


def _moved(base: Floats, giving: NDArray[np.bool_], amount: float) -> Floats:
    """Move probability from the tokens that give to the others, each in proportion to what it has."""
    given, taken = base[giving].sum(), base[~giving].sum()
    moved = np.where(giving, base * max(1.0 - amount / given, 0.0), base * (1.0 + amount / taken))
    return np.asarray(moved / moved.sum(), np.float64)


def _level_of_statistic(base: Floats, sizes: tuple[int, int], level: float, rng: np.random.Generator) -> float:
    """Return the statistic that two samples of one distribution exceed with probability ``level``."""
    count = max(2000, math.ceil(_NULL_PER_LEVEL / level))
    statistics = _chi_square(rng.multinomial(sizes[0], base, count), rng.multinomial(sizes[1], base, count))
    return float(np.quantile(statistics, 1.0 - level, method="higher"))


def _found(base: Floats, other: Floats, sizes: tuple[int, int], bar: float, rng: np.random.Generator) -> float:
    """Return how often the test tells two distributions apart."""
    ours, theirs = rng.multinomial(sizes[0], base, _SIMULATED), rng.multinomial(sizes[1], other, _SIMULATED)
    return float(np.count_nonzero(_chi_square(ours, theirs) > bar)) / _SIMULATED
