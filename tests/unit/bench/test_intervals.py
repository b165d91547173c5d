"""Intervals hold what they promise, for every distribution and also for few values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specdeploy.bench.intervals import percentile_interval, share_interval


@pytest.mark.parametrize("n", [20, 100, 500])
@pytest.mark.parametrize("percentile", [50, 90, 99])
@pytest.mark.parametrize("heavy", [False, True])
def test_a_percentiles_interval_covers_it(n: int, percentile: float, *, heavy: bool) -> None:
    """In at least 95 of 100 samples, less what chance does to 600 of them; a bound that is absent bounds nothing."""
    rng = np.random.default_rng([n, int(percentile), heavy])
    truth = float((stats.lomax(1.5) if heavy else stats.expon()).ppf(percentile / 100))
    covered = 0
    for _ in range(600):
        values = np.sort(rng.pareto(1.5, n) if heavy else rng.exponential(size=n))
        low, high = percentile_interval(values, percentile)
        covered += (low is None or low <= truth) and (high is None or truth <= high)
    assert covered / 600 > 0.95 - 0.026


@pytest.mark.parametrize(("percentile", "n"), [(50, 10), (90, 100), (95, 100), (99, 500)])
def test_it_covers_no_more_than_it_says(percentile: float, n: int) -> None:
    """Order statistics alone would cover up to 3.2 points more; here it is 2 at most, and chance in 2000 samples."""
    rng, truth, covered = np.random.default_rng([n, 1]), float(stats.expon().ppf(percentile / 100)), 0
    for values in np.sort(rng.exponential(size=(2000, n)), axis=1):
        low, high = percentile_interval(values, percentile)
        covered += low <= truth <= high
    assert 0.935 < covered / 2000 < 0.965


def test_ninety_nine_of_a_hundred_values_have_no_upper_bound() -> None:
    """A hundred values cannot bound their 99th percentile from above, and no number is made up for it."""
    low, high = percentile_interval(np.arange(100.0), 99)
    assert 96 < low < 97
    assert high is None
    assert percentile_interval(np.zeros(0), 50) == (None, None)


def test_the_median_of_ten() -> None:
    """Hettmansperger and Sheather: between the 2nd value (97.9 % covered, both ends) and the 3rd (89.1 %)."""
    covered = [1 - 2 * float(stats.binom.cdf(depth - 1, 10, 0.5)) for depth in (2, 3)]
    part = (covered[0] - 0.95) / (covered[0] - covered[1])
    step = (10 - 2) * part / (2 + (10 - 2 * 2) * part)
    assert percentile_interval(np.arange(1.0, 11.0), 50) == pytest.approx((2 + step, 9 - step))


def test_the_last_two_values_are_not_interpolated() -> None:
    """The highest of a few values lies nobody knows how far from the next."""
    assert percentile_interval(np.array([1.0, 2.0, 3.0, 1e9]), 99) == (3.0, None)


@given(n=st.integers(1, 300), percentile=st.floats(0.1, 99.9))
def test_bounds_lie_among_the_values(n: int, percentile: float) -> None:
    """And in order."""
    values = np.sort(np.random.default_rng(n).normal(size=n))
    low, high = percentile_interval(values, percentile)
    assert low is None or values[0] <= low <= values[-1]
    assert high is None or values[0] <= high <= values[-1]
    assert low is None or high is None or low <= high


@given(total=st.integers(1, 10_000), data=st.data())
def test_wilsons_interval(total: int, data: st.DataObject) -> None:
    """It equals scipy's, which is written another way, and is never without width."""
    hits = data.draw(st.integers(0, total))
    bounds = share_interval(hits, total)
    assert bounds is not None
    theirs = stats.binomtest(hits, total).proportion_ci(method="wilson")
    assert bounds == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert bounds[0] < bounds[1]
    assert share_interval(0, 0) is None
