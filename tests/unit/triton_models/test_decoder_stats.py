"""Whole-request statistics and their invariants."""

from __future__ import annotations

import pytest
from decoder_stats import ReportCounter, StepCounter
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def steps(draw):
    """Draw a draft length and steps that fit it."""
    longest = draw(st.integers(1, 8))
    drafted = st.integers(1, longest)
    pairs = drafted.flatmap(lambda number: st.tuples(st.just(number), st.integers(0, number)))
    return longest, draw(st.lists(pairs, max_size=30))


@given(steps())
def test_the_counts_keep_their_invariants(case) -> None:
    """Sum h = S, sum j h[j] = A, A <= D <= k S, S <= D, after every step."""
    longest, pairs = case
    counter = StepCounter(longest)

    for drafted, accepted in pairs:
        counter.record(drafted=drafted, accepted=accepted)
        now = counter.snapshot()

        assert sum(now.histogram) == now.steps
        assert sum(j * number for j, number in enumerate(now.histogram)) == now.accepted
        assert now.accepted <= now.drafted <= longest * now.steps
        assert now.steps <= now.drafted

    end = counter.snapshot()
    assert (len(pairs), sum(d for d, _ in pairs), sum(a for _, a in pairs)) == (end.steps, end.drafted, end.accepted)
    assert len(end.histogram) == longest + 1


@pytest.mark.parametrize(("drafted", "accepted"), [(0, 0), (5, 0), (2, 3), (2, -1)])
def test_an_impossible_step_is_refused(drafted, accepted) -> None:
    """A step without drafts, over the draft length, or with more accepted than drafted cannot be counted."""
    with pytest.raises(ValueError, match=f"accepted {accepted} of {drafted}"):
        StepCounter(4).record(drafted=drafted, accepted=accepted)


def test_the_rate_of_nothing_is_zero_and_says_so() -> None:
    """Without drafts the rate is 0.0, beside a count of 0 drafted tokens."""
    empty = StepCounter(0).snapshot()

    assert (empty.acceptance_rate, empty.drafted, empty.histogram) == (0.0, 0, (0,))


def test_a_snapshot_does_not_change() -> None:
    """What was answered stays what it was."""
    counter = StepCounter(2)
    before = counter.snapshot()
    counter.record(drafted=2, accepted=1)

    assert (before.steps, counter.snapshot().steps, counter.snapshot().acceptance_rate) == (0, 1, 0.5)


def test_reports_of_an_engine_are_added_up() -> None:
    """Steps and their histogram are not known, so they are absent; the sums are."""
    counter = ReportCounter()
    for reported in ((6, 2), (4, 3)):
        counter.record(reported)
    now = counter.snapshot()

    assert (now.drafted, now.accepted, now.acceptance_rate) == (10, 5, 0.5)
    assert (now.steps, now.histogram) == (None, None)


def test_one_call_that_reports_nothing_makes_the_sums_unknown() -> None:
    """A part of the drafts is not the request's drafts."""
    counter = ReportCounter()
    for reported in ((6, 2), None, (4, 3)):
        counter.record(reported)
    now = counter.snapshot()

    assert (now.drafted, now.accepted, now.acceptance_rate) == (None, None, None)
