"""Holm's rule, by its definition."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.holm import holm


def test_holm_by_hand() -> None:
    """The smallest is multiplied by their number, the next by one less, and none falls below one before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([]) == ()
    assert holm([0.9, 0.8]) == (1.0, 1.0)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_holm_is_between_no_correction_and_bonferronis(ps: list[float]) -> None:
    """And keeps the order."""
    adjusted = holm(ps)

    for p, after in zip(ps, adjusted, strict=True):
        assert p <= after <= min(1.0, len(ps) * p) + 1e-12
    order = sorted(range(len(ps)), key=ps.__getitem__)
    assert all(adjusted[a] <= adjusted[b] for a, b in itertools.pairwise(order))
