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


def test_ninety_nine_of_a_hundred_values_have_no_upper_bound() -> None:
    """A hundred values cannot bound their 99th percentile from above, and no number is made up for it."""
    low, high = percentile_interval(np.arange(100.0), 99)
    assert (low, high) == (96.0, None)
    assert percentile_interval(np.zeros(0), 50) == (None, None)


def test_the_median_of_ten() -> None:
    """The textbook's case: the 2nd and the 9th of ten values bound the median at 97.9 %."""
    assert percentile_interval(np.arange(1.0, 11.0), 50) == (2.0, 9.0)


@given(n=st.integers(1, 300), percentile=st.floats(0.1, 99.9))
def test_bounds_are_values_around_the_percentile(n: int, percentile: float) -> None:
    """They are in order, and among the values."""
    values = np.sort(np.random.default_rng(n).normal(size=n))
    low, high = percentile_interval(values, percentile)
    assert low is None or low in values
    assert high is None or high in values
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
