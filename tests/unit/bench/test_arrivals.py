"""Schedules of open loops: the right number, scattered as asked, the same for the same seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.arrivals import PROCESSES, Stage, replayed, schedule, steady
from specdeploy.bench.stages import parse_stages
from specdeploy.errors import ConfigError

RATES = st.floats(0.1, 200)


@given(rate=RATES, count=st.integers(1, 400))
def test_a_constant_rate_is_a_grid(rate: float, count: int) -> None:
    """Request k of a constant rate is sent at k / rate, from 0 on, and there are rate * duration of them."""
    offsets = schedule("constant", steady(rate, count / rate), 0)
    assert np.allclose(offsets, np.arange(count) / rate)


@pytest.mark.parametrize(("burstiness", "variation"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_gaps_have_the_mean_and_the_variation_asked_for(burstiness: float, variation: float) -> None:
    """Gaps last 1 / rate on average, however bursty, and vary by 1 / sqrt(burstiness) of that."""
    gaps = np.diff(schedule("gamma", steady(50, 1000), 7, burstiness=burstiness))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.03)


def test_poisson_has_no_memory() -> None:
    """Counts in windows of a second vary as much as their mean, and one does not tell the next."""
    offsets = schedule("poisson", steady(20, 2000), 3)
    counts = np.bincount(offsets.astype(int), minlength=2000)
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.15)
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 0.1


@given(process=st.sampled_from(PROCESSES), seed=st.integers(0, 2**32), rate=RATES)
def test_the_same_seed_gives_the_same_schedule(process: str, seed: int, rate: float) -> None:
    """A schedule can be made again anywhere from its seed; it starts at 0 or later, ends in time and is in order."""
    made = [schedule(process, steady(rate, 20), seed) for _ in range(2)]  # type: ignore[arg-type]
    assert np.array_equal(*made)
    assert np.isfinite(made[0]).all()
    assert (np.diff(made[0]) >= 0).all()
    assert ((made[0] >= 0) & (made[0] <= 20)).all()


@given(
    stages=st.lists(
        st.builds(Stage, start=st.floats(0, 50), end=st.floats(0, 50), duration_s=st.floats(0.5, 20)), max_size=5
    )
)
def test_ramps_and_stages_let_the_integral_of_the_rate_through(stages: list[Stage]) -> None:
    """Until any moment, a constant process has sent the integral of the rate, to within the one that is due."""
    if not sum(stage.expected for stage in stages) > 0:
        with pytest.raises(ConfigError, match="sends nothing"):
            schedule("constant", stages, 0)
        return
    offsets = schedule("constant", stages, 0)
    begun = through = 0.0
    for stage in stages:
        begun, through = begun + stage.duration_s, through + stage.expected
        assert (offsets <= begun + 1e-9).sum() == pytest.approx(through, abs=1.0001)


def test_a_ramp_gets_denser() -> None:
    """From 0 to 10 requests a second in 10 s: a quarter of them in the first half."""
    offsets = schedule("constant", [Stage(start=0, end=10, duration_s=10)], 0)
    assert len(offsets) == 50
    assert (offsets < 5).sum() == 13
    assert offsets[0] == 0


def test_a_trace_is_replayed_from_its_first_request() -> None:
    """Gaps are those of the trace, or shorter by the factor asked for."""
    assert replayed([5.0, 5.5, 7.0]).tolist() == [0.0, 0.5, 2.0]
    assert replayed([5.0, 5.5, 7.0], speed=2).tolist() == [0.0, 0.25, 1.0]
    assert replayed([]).tolist() == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_what_is_no_rate_is_refused(value: float) -> None:
    """The message names what is wrong, and the value."""
    with pytest.raises(ConfigError, match=f"start of a load stage is {value}"):
        Stage(start=value, end=1, duration_s=1)
    with pytest.raises(ConfigError, match=r"request rate is|start of a load stage"):
        steady(value, 1)
    with pytest.raises(ConfigError, match=f"burstiness is {value}"):
        schedule("gamma", steady(1, 10), 0, burstiness=value)
    with pytest.raises(ConfigError, match="times as fast"):
        replayed([0.0], speed=value)


def test_a_schedule_that_nobody_can_hold_is_refused() -> None:
    """A slip of the unit (a rate per hour, a duration in milliseconds) does not eat the memory."""
    with pytest.raises(ConfigError, match="more than 10,000,000"):
        schedule("poisson", steady(1e6, 3600), 0)


@pytest.mark.parametrize(("times", "said"), [([0, 2, 1], "request 3 .* earlier"), ([0, math.nan], "not a finite")])
def test_a_trace_out_of_order_is_refused(times: list[float], said: str) -> None:
    """The first request that is out of order is named."""
    with pytest.raises(ConfigError, match=said):
        replayed(times)


@pytest.mark.parametrize("stages", [["1e300 for 1e-300s"], ["1..1e7 for 1s"]])
def test_a_rate_that_nobody_sends_is_refused(stages: list[str]) -> None:
    """A rate beyond a million a second is refused with the limit, before anything is computed of it."""
    with pytest.raises(ConfigError, match="request rate is 1e") as failed:
        parse_stages(stages)
    assert "1e+06" in failed.value.hint
