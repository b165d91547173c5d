"""What counts as worse: the tests behind relative rules, by their definitions and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specdeploy.gate.regression import decide, of_pairs, of_runs
from tests.bench.gate import (
    NOISES,
    baseline_coverage,
    baseline_rates,
    paired_coverage,
    paired_rates,
    several_rates,
)

RATIOS = (0.91, 0.93, 0.88, 0.95, 0.90)


def test_pairs_are_tested_by_students_t_on_their_logarithms() -> None:
    """Against SciPy's own test of one sample."""
    change = of_pairs(RATIOS, higher_is_better=True, allowed=0.05, confidence=0.95)
    other = stats.ttest_1samp(np.log(RATIOS), 0.0, alternative="less")

    assert change.p == pytest.approx(other.pvalue)
    assert change.shift - change.half == pytest.approx(-other.confidence_interval(0.95).high)
    assert change.worse == pytest.approx(1 - stats.gmean(RATIOS))
    assert decide(change, change.p, 0.95) == "fail"


def test_the_order_of_pairs_is_an_effect_of_its_own() -> None:
    """What drifts makes every other ratio larger; by least squares, against SciPy's regression on the order."""
    ratios, first = (0.96, 0.86, 0.93, 0.88, 0.97), (True, False, True, False, True)
    change = of_pairs(ratios, first, higher_is_better=True, allowed=0.05, confidence=0.95)
    line = stats.linregress([-1 if old else 1 for old in first], np.log(ratios))

    assert change.shift == pytest.approx(-line.intercept)
    assert change.p == pytest.approx(stats.t.sf(-line.intercept / line.intercept_stderr, 3))
    assert change.half < of_pairs(ratios, higher_is_better=True, allowed=0.05, confidence=0.95).half


@pytest.mark.parametrize("first", [(), (True,) * 5, (True, False)])
def test_an_order_that_is_unknown_or_always_the_same_changes_nothing(first: tuple[bool, ...]) -> None:
    """There is nothing to tell it from."""
    known = of_pairs(RATIOS, first, higher_is_better=True, allowed=0.05, confidence=0.95)

    assert known == of_pairs(RATIOS, higher_is_better=True, allowed=0.05, confidence=0.95)


def test_directions_mirror_each_other() -> None:
    """Latency that grows is as bad as throughput that shrinks, and getting better never fails."""
    slower = of_pairs([1 / ratio for ratio in RATIOS], higher_is_better=False, allowed=0.05, confidence=0.95)
    faster = of_pairs(RATIOS, higher_is_better=False, allowed=0.05, confidence=0.95)

    assert slower.worse == pytest.approx(1 / stats.gmean(RATIOS) - 1)
    assert slower.p == pytest.approx(of_pairs(RATIOS, higher_is_better=True, allowed=0.05, confidence=0.95).p)
    assert faster.worse < 0
    assert decide(faster, faster.p, 0.95) == "pass"


def test_a_run_is_tested_against_the_prediction_interval_of_the_others() -> None:
    """``mean +- t s sqrt(1 + 1/n)`` in logarithms, with 0.3 of 5 % at the worse end, since days may be skewed."""
    runs, value = (100.0, 104.0, 97.0, 101.0, 99.0), 80.0
    change = of_runs(value, runs, higher_is_better=True, allowed=0.05, confidence=0.95)
    logs = np.log(runs)
    half = stats.t.ppf(1 - 0.3 * 0.05, 4) * logs.std(ddof=1) * math.sqrt(1.2)

    assert change.half == pytest.approx(half)
    assert change.shift == pytest.approx(logs.mean() - math.log(80.0))
    assert decide(change, change.p, 0.95) == "fail"


def test_what_is_zero_is_compared_by_difference() -> None:
    """An error rate that was always 0 and is not is infinitely worse; one that stays 0 is unchanged."""
    worse = of_runs(0.03, (0.0,) * 5, higher_is_better=False, allowed=0.05, confidence=0.95)
    same = of_runs(0.0, (0.0,) * 5, higher_is_better=False, allowed=0.05, confidence=0.95)
    some = of_runs(0.03, (0.01, 0.0, 0.02, 0.01, 0.01), higher_is_better=False, allowed=0.05, confidence=0.95)

    assert (worse.worse, decide(worse, worse.p, 0.95)) == (math.inf, "fail")
    assert (same.worse, decide(same, same.p, 0.95)) == (0.0, "pass")
    assert some.worse == pytest.approx(2.0)


def test_what_never_varies_needs_no_spread() -> None:
    """Counts of greedy decoding are the same every day: any drop beyond what is allowed is real."""
    runs = (2.9,) * 5
    drop = of_runs(2.7, runs, higher_is_better=True, allowed=0.05, confidence=0.95)
    dip = of_runs(2.8, runs, higher_is_better=True, allowed=0.05, confidence=0.95)

    assert (decide(drop, drop.p, 0.95), decide(dip, dip.p, 0.95)) == ("fail", "pass")


def test_a_comparison_that_sees_nothing_does_not_pass() -> None:
    """Where chance explains more than twice what is allowed; and what is worse by chance, perhaps, is open, too."""
    blurred = of_pairs((0.7, 1.4, 0.8, 1.3, 1.0), higher_is_better=True, allowed=0.05, confidence=0.95)
    unproven = of_pairs((0.7, 1.4, 0.5, 1.2, 0.8), higher_is_better=True, allowed=0.05, confidence=0.95)
    better = of_pairs((1.5, 2.9, 1.6, 2.5, 2.0), higher_is_better=True, allowed=0.05, confidence=0.95)

    assert decide(blurred, blurred.p, 0.95) == "blurred"
    assert decide(unproven, unproven.p, 0.95) == "unproven"
    assert decide(better, better.p, 0.95) == "pass"


@given(
    st.lists(st.floats(0.001, 1000), min_size=2, max_size=8),
    st.floats(0, 0.9),
    st.booleans(),
    st.floats(0.5, 0.999),
)
def test_any_pairs_give_finite_numbers(ratios, allowed, higher, confidence) -> None:
    """What becomes of them can be written as JSON."""
    change = of_pairs(ratios, higher_is_better=higher, allowed=allowed, confidence=confidence)

    assert all(map(math.isfinite, (change.worse, change.shift, change.half, change.p)))
    assert 0 <= change.p <= 1


@pytest.mark.parametrize("noise", NOISES)
def test_five_pairs_rarely_raise_a_false_alarm_and_mostly_catch_ten_per_cent(noise: str) -> None:
    """Under 5 %, and over 85 %; the seed is fixed, `make bench` repeats it more often."""
    assert paired_rates(noise, 0.0, repeats=1500)["fail"] < 0.05
    assert paired_rates(noise, 0.10, repeats=1500)["fail"] > 0.85


@pytest.mark.parametrize("noise", NOISES)
def test_a_stored_baseline_rarely_raises_a_false_alarm(noise: str) -> None:
    """Also with heavy tails; its noise hides a regression often, and then the gate says so and does not pass."""
    unchanged, worse = (baseline_rates(noise, loss, repeats=1500) for loss in (0.0, 0.20))

    assert unchanged["fail"] < 0.05
    assert worse["fail"] > 0.5
    assert worse["pass"] < 0.05


@pytest.mark.parametrize("noise", NOISES)
def test_the_interval_of_pairs_covers_what_it_says(noise: str) -> None:
    """Within 2 points of 95 %, in spite of drift, and with any noise."""
    assert 0.93 <= paired_coverage(noise, repeats=3000) <= 0.97


@pytest.mark.parametrize("noise", NOISES)
def test_the_interval_of_one_more_day_covers_what_it_says(noise: str) -> None:
    """Within 2 points of 97 %, less what chance does to 3000 of them."""
    assert 0.945 <= baseline_coverage(noise, repeats=3000) <= 0.99


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("days", "rules"), [(5, 4), (10, 5), (20, 10)])
def test_several_rules_against_a_baseline_raise_no_more_false_alarms_than_one(noise, days, rules) -> None:
    """Whatever the days are distributed like: what is calibrated holds where many rules share the rate of errors."""
    alarms = several_rates(noise, 0.0, 1500, days=days, rules=rules)["fail"]

    # 1500 gates at 5 % give 75 on average, and more than 95 about once in 100 times.
    assert alarms * 1500 <= 95


def test_what_is_calibrated_is_students_where_it_was_asked_for() -> None:
    """At 0.05 it is Student's 0.015, whatever the number of days; below that more, and never above 1."""
    for days in (3, 5, 10, 30):
        runs = np.exp(np.random.default_rng(1).normal(0, 0.05, days)).tolist()
        centre, spread = np.log(runs).mean(), np.log(runs).std(ddof=1) * math.sqrt(1 + 1 / days)
        at = float(stats.t.isf(0.015, days - 1))
        change = of_runs(math.exp(centre + at * spread), runs, higher_is_better=False, allowed=0.05, confidence=0.95)
        assert change.p == pytest.approx(0.05)
        assert change.half == pytest.approx(at * spread)


@pytest.mark.parametrize("confidence", [0.5, 0.75, 0.8, 0.9, 0.9999])
@pytest.mark.parametrize("days", [3, 8, 20, 30])
def test_no_confidence_makes_a_limit_that_is_none(days: int, confidence: float) -> None:
    """All that may be configured; and p is never less than Student's."""
    runs = np.exp(np.random.default_rng(2).normal(0, 0.05, days)).tolist()
    change = of_runs(1.2, runs, higher_is_better=False, allowed=0.05, confidence=confidence)

    logs = np.log(runs)
    students = stats.t.sf((math.log(1.2) - logs.mean()) / (logs.std(ddof=1) * math.sqrt(1 + 1 / days)), days - 1)
    assert 0 <= change.half < math.inf
    assert students * (1 - 1e-9) <= change.p <= 1
