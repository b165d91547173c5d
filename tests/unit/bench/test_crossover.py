"""Up to which load speculation pays."""

from __future__ import annotations

import pytest

from specdeploy.bench.crossover import crossover
from specdeploy.bench.paired import PairedRatio, PairedSummary
from specdeploy.bench.records import LoadPoint


def at(load: int, avg: float, low: float | None = None, high: float | None = None) -> PairedSummary:
    """The speed-up at a concurrency, with its interval."""
    ratio = PairedRatio(avg=avg, ci_low=low, ci_high=high, pairs=5, excluded=0, ratios=(avg,) * 5)
    return PairedSummary(
        point=LoadPoint(concurrency=load), speedup=ratio, request_latency=None, time_to_first_token=None
    )


def test_it_pays_up_to_where_the_interval_stays_above_one_and_costs_from_where_it_stays_below() -> None:
    """Between the two it cannot be told; the average falls through 1 between 4 and 16, in the middle of the logs."""
    found = crossover([at(16, 0.5, 0.4, 0.6), at(1, 2.5, 2.4, 2.6), at(4, 2.0, 0.9, 4.0), at(64, 0.4, 0.3, 0.5)])

    assert found is not None
    assert (found.pays_up_to, found.costs_from, found.at) == (1, 16, pytest.approx(8.0))


def test_always_and_never() -> None:
    """Where the speed-up does not cross 1 there is no load at which it does."""
    always = crossover([at(1, 2.0, 1.8, 2.2), at(8, 1.5, 1.4, 1.6)])
    never = crossover([at(1, 0.8, 0.7, 0.9), at(8, 0.6, 0.5, 0.7)])

    assert always is not None
    assert (always.pays_up_to, always.costs_from, always.at) == (8, None, None)
    assert never is not None
    assert (never.pays_up_to, never.costs_from, never.at) == (None, 1, None)


def test_a_curve_that_crosses_twice_names_no_load() -> None:
    """Noise, or something that is not batching: one number would hide that."""
    found = crossover([at(1, 1.2, 0.9, 1.5), at(2, 0.9, 0.7, 1.2), at(4, 1.1, 0.9, 1.3), at(8, 0.8, 0.7, 0.9)])

    assert found is not None
    assert (found.pays_up_to, found.costs_from, found.at) == (None, 8, None)


def test_one_pair_proves_nothing() -> None:
    """Without an interval it neither pays nor costs."""
    found = crossover([at(1, 2.0), at(8, 0.5)])

    assert found is not None
    assert (found.pays_up_to, found.costs_from) == (None, None)


def test_one_load_has_no_crossover() -> None:
    """Two are needed; open loops do not count."""
    open_loop = PairedSummary(point=LoadPoint(rate=5.0), speedup=None, request_latency=None, time_to_first_token=None)
    assert crossover([at(1, 2.0, 1.9, 2.1), open_loop]) is None
