"""The planning formula."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.errors import ConfigError
from specdeploy.planning.speedup import (
    break_even_draft_cost,
    expected_tokens_per_step,
    predict_speedup,
    tokens_per_step,
)

ACCEPTANCE = st.floats(0, 0.999)
DRAFTS = st.integers(1, 16)


@given(ACCEPTANCE, DRAFTS)
def test_tokens_per_step_is_the_closed_form(acceptance: float, drafts: int) -> None:
    """E = (1 - a ** (g + 1)) / (1 - a), between one token and all of them."""
    tokens = expected_tokens_per_step(acceptance, drafts)

    assert tokens == pytest.approx((1 - acceptance ** (drafts + 1)) / (1 - acceptance))
    assert 1 <= tokens <= drafts + 1


def test_a_draft_that_is_always_right_yields_every_token() -> None:
    """Where the closed form divides by zero: g + 1."""
    assert expected_tokens_per_step(1.0, 4) == 5.0


@given(ACCEPTANCE, DRAFTS)
def test_measured_positions_of_that_draft_give_the_same(acceptance: float, drafts: int) -> None:
    """p_i = a ** i is what constant acceptance looks like by position."""
    positions = [acceptance**position for position in range(1, drafts + 1)]

    assert tokens_per_step(positions) == pytest.approx(expected_tokens_per_step(acceptance, drafts))


@given(st.floats(0, 2), st.integers(0, 16), st.floats(0, 2))
def test_a_draft_that_is_never_right_only_costs(draft_cost: float, drafts: int, overhead: float) -> None:
    """Speed-up is 1 / (1 + what drafting costs)."""
    speedup = predict_speedup(tokens_per_step([]), drafts, draft_cost=draft_cost, overhead=overhead)

    assert speedup == pytest.approx(1 / (1 + drafts * draft_cost + overhead))


def test_known_answer() -> None:
    """Four tokens a step, four drafts at a tenth each, verifying costs 1.2, the loop 0.4: 4 / 2."""
    assert predict_speedup(4.0, 4, draft_cost=0.1, verify_cost=1.2, overhead=0.4) == pytest.approx(2.0)


@given(st.floats(1, 10), DRAFTS, st.floats(0.5, 1))
def test_break_even_breaks_even(tokens: float, drafts: int, verify_cost: float) -> None:
    """At the cost it returns the speed-up is 1."""
    cost = break_even_draft_cost(tokens, drafts, verify_cost=verify_cost)

    assert predict_speedup(tokens, drafts, draft_cost=cost, verify_cost=verify_cost) == pytest.approx(1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: expected_tokens_per_step(1.1, 4),
        lambda: expected_tokens_per_step(float("nan"), 4),
        lambda: expected_tokens_per_step(0.5, -1),
        lambda: predict_speedup(4, 4, draft_cost=-0.1),
        lambda: predict_speedup(4, 0, draft_cost=0.1, verify_cost=0.0),
        lambda: break_even_draft_cost(4, 0),
    ],
)
def test_nonsense_is_refused(call) -> None:
    """Probabilities lie between 0 and 1, costs are not negative, a step takes time."""
    with pytest.raises(ConfigError):
        call()
