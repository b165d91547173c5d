"""The search for the highest load within objectives, against servers whose capacity is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.goodput import parse_objectives
from specdeploy.bench.records import ARMS, CONTROL, INTERRUPTED, SPECULATION, Arm, LoadRun
from specdeploy.bench.search import MOST_TRIALS, TOLERANCE, Aim, Search, Trial, search_loads, trial_of
from specdeploy.errors import ConfigError
from tests.unit.bench.simulated import record


def found(capacity: float, first: float, *, whole: bool) -> Search:
    """Search a server that keeps its objectives up to a load, and not above."""
    search = Search(first, whole=whole)
    while (load := search.next_load) is not None:
        search.tell(Trial(load=load, requests=100, good=100 if load <= capacity else 80, least=0.95))
    return search


@given(st.floats(0.05, 500), st.floats(0.05, 500))
def test_a_rate_is_found_within_the_tolerance(capacity: float, first: float) -> None:
    """From above or from below; the answer lies between two loads that were tried, or the search says so."""
    search = found(capacity, first, whole=False)
    low, high = search.highest_kept, search.lowest_broken

    if low is not None and high is not None:
        assert low <= capacity < high
    if len(search.trials) < MOST_TRIALS:
        assert low is not None
        assert high is not None
        assert high <= low * (1 + TOLERANCE)


@given(st.integers(1, 200), st.integers(1, 64))
def test_requests_in_flight_are_whole_numbers(capacity: int, first: int) -> None:
    """Each is tried once."""
    search = found(capacity, first, whole=True)
    loads = [trial.load for trial in search.trials]

    assert all(load.is_integer() and load >= 1 for load in loads)
    assert len(set(loads)) == len(loads)
    assert search.highest_kept is not None
    assert search.lowest_broken is not None
    assert search.highest_kept <= capacity < search.lowest_broken
    gap = search.lowest_broken - search.highest_kept
    assert gap == 1 or gap <= search.highest_kept * TOLERANCE


def test_a_server_that_keeps_nothing_has_no_answer() -> None:
    """One request in flight is as little as there is."""
    search = found(0, 4, whole=True)

    assert [trial.load for trial in search.trials] == [4, 2, 1]
    assert (search.highest_kept, search.lowest_broken) == (None, 1)


def test_a_server_that_keeps_everything_ends_the_search() -> None:
    """It has no limit as far as was looked."""
    search = found(math.inf, 1, whole=True)

    assert len(search.trials) == MOST_TRIALS
    assert (search.highest_kept, search.lowest_broken) == (2 ** (MOST_TRIALS - 1), None)


def test_no_more_is_tried_than_makes_sense() -> None:
    """Requests in flight beyond their number, say."""
    search = Search(4, whole=True, most=10)
    while (load := search.next_load) is not None:
        search.tell(Trial(load=load, requests=100, good=100, least=0.95))

    assert [trial.load for trial in search.trials] == [4, 8, 10]


def test_each_arm_is_searched_and_all_requests_are_one_run() -> None:
    """Control keeps its objectives up to 2 in flight, and speculation up to 3."""
    sent: list[tuple[str, float, int]] = []
    told: list[tuple[str, float, bool]] = []

    def send(arm: Arm, load: float, number: int) -> LoadRun:
        sent.append((arm, load, number))
        slow = load > {CONTROL: 2, SPECULATION: 3}[arm]
        records = tuple(record(arm=arm, concurrency=int(load), first_s=0.3 if slow else 0.1) for _ in range(10))
        return LoadRun(records=records, started_s=10.0 * number, duration_s=5.0)

    aim = Aim(
        objectives=parse_objectives(["ttft:200ms"]),
        least=0.9,
        whole=True,
        most=100,
        tell=lambda arm, trial: told.append((arm, trial.load, trial.kept)),
    )
    run, found = search_loads(send, ARMS, 1, aim)

    assert sent == [
        (CONTROL, 1, 0),
        (CONTROL, 2, 1),
        (CONTROL, 4, 2),
        (CONTROL, 3, 3),
        (SPECULATION, 1, 4),
        (SPECULATION, 2, 5),
        (SPECULATION, 4, 6),
        (SPECULATION, 3, 7),
    ]
    assert {arm: (one["highest_kept"], one["lowest_broken"]) for arm, one in found["arms"].items()} == {
        CONTROL: (2, 3),
        SPECULATION: (3, 4),
    }
    assert [(arm, load) for arm, load, _ in told] == [(arm, load) for arm, load, _ in sent]
    assert (len(run.records), run.started_s, run.duration_s, run.partial) == (80, 0.0, 75.0, False)


def test_a_run_that_is_stopped_ends_the_search() -> None:
    """What it measured is kept, and is no trial."""
    aim = Aim(objectives=(), least=0.9, whole=True, most=100, tell=lambda _arm, _trial: None)

    run, found = search_loads(lambda *_: LoadRun(records=(record(),), stop_reason="stopped"), ARMS, 1, aim)

    assert (run.stop_reason, len(run.records)) == ("stopped", 1)
    assert [one["trials"] for one in found["arms"].values()] == [[], []]


def test_a_load_that_is_kept_above_one_that_is_not_is_luck() -> None:
    """The answer is the highest below every load that was too much."""
    search = Search(8, whole=True)
    for load, good in ((8, 80), (4, 100), (6, 80), (5, 100)):
        search.tell(Trial(load=load, requests=100, good=good, least=0.95))
    search.tell(Trial(load=7, requests=100, good=100, least=0.95))

    assert (search.highest_kept, search.lowest_broken, search.next_load) == (5, 6, None)


def test_what_counts_is_the_arms_own_and_measured() -> None:
    """A failed request is no good one; what we cut off ourselves says nothing."""
    objectives = parse_objectives(["ttft:150ms"])
    records = [
        record(),
        record(first_s=0.2),
        record(error="timeout", first_s=None),
        record(error=INTERRUPTED),
        record(pair=-1),
        record(arm=CONTROL),
    ]

    trial = trial_of(records, 2.0, SPECULATION, objectives, 0.3)

    assert (trial.requests, trial.good, trial.kept) == (3, 1, True)
    assert trial.to_dict()["near"] is True


@pytest.mark.parametrize("first", [0.0, -1.0, math.nan, math.inf])
def test_a_search_begins_somewhere(first: float) -> None:
    """At a load that can be sent."""
    with pytest.raises(ConfigError, match="begin"):
        Search(first, whole=False)
