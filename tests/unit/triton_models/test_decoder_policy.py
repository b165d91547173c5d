"""How much is drafted: over simulated engines, whose costs and acceptance are known, against the best that there is."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import threading

import numpy as np
import pytest
from decoder_costs import Acceptance, Line, RoundCosts, best_choice, expected_tokens
from decoder_gate import Gate, Way
from decoder_policy import LOW_ACCEPTANCE, NOT_FASTER, SCHEDULED, DraftPolicy

LONGEST = 8
SLICE = 16


@dataclasses.dataclass
class Engines:
    """What engines take (seconds), and how often drafts are accepted.

    ``crowd`` is by how much a call takes longer for each further request decoded at once and each token that it
    verifies: a GPU that is busy computing.
    """

    acceptance: float = 0.8
    draft_token_s: float = 0.002
    step_s: float = 0.010
    verify_token_s: float = 0.0
    call_s: float = 0.001
    crowd: float = 0.0

    def round_s(self, drafts: int, requests: int) -> tuple[float, float]:
        """Return what draft and verification take."""
        draft_s = self.call_s + drafts * self.draft_token_s if drafts else 0.0
        busy = 1 + self.crowd * (requests - 1) * (drafts + 1)
        return draft_s, self.call_s + (self.step_s + drafts * self.verify_token_s) * busy

    def slice_s(self, tokens: int, requests: int) -> float:
        """Return what the target takes for tokens that it writes alone."""
        return self.call_s + tokens * self.step_s * (1 + self.crowd * (requests - 1))


def simulate(policy: DraftPolicy, clock: list[float], engines: Engines, *, requests: int, seconds: float) -> float:
    """Decode for a time with so many requests at once, and return the tokens a second of all of them."""
    rng = np.random.default_rng(3)
    started_s, emitted = clock[0], 0
    order = itertools.count()
    open_requests = [policy.request(pinned=False) for _ in range(requests)]
    events = [(started_s, next(order), pace, None) for pace in open_requests]
    heapq.heapify(events)
    while events[0][0] < started_s + seconds:
        clock[0], _, pace, done = heapq.heappop(events)
        if done is not None:
            pace.end(**done)
            emitted += done["tokens"]
        drafts = pace.begin(LONGEST)
        if drafts:
            rejected = np.flatnonzero(rng.random(drafts) >= engines.acceptance)
            accepted = int(rejected[0]) if rejected.size else drafts
            draft_s, target_s = engines.round_s(drafts, requests)
            tokens = accepted + 1
        else:
            accepted, tokens, draft_s, target_s = 0, SLICE, 0.0, engines.slice_s(SLICE, requests)
        done = {
            "drafted": drafts,
            "accepted": accepted,
            "tokens": tokens,
            "draft_s": draft_s,
            "target_s": target_s,
        }
        heapq.heappush(events, (clock[0] + draft_s + target_s, next(order), pace, done))
    for pace in open_requests:
        pace.__exit__()
    return emitted / seconds


def best_rate(engines: Engines, requests: int) -> float:
    """Return the tokens a second of the best fixed way."""
    alone = SLICE / engines.slice_s(SLICE, requests)
    drafted = [
        expected_tokens(engines.acceptance, k) / sum(engines.round_s(k, requests)) for k in range(1, LONGEST + 1)
    ]
    return requests * max(alone, *drafted)


def adaptive() -> tuple[DraftPolicy, list[float]]:
    """Return a policy and its clock, which a simulation moves."""
    clock = [100.0]
    return DraftPolicy(adaptive=True), clock


CASES = {
    "a good draft": Engines(),
    "a poor draft": Engines(acceptance=0.3),
    "a useless draft": Engines(acceptance=0.02),
    "a draft as dear as the target": Engines(draft_token_s=0.012),
    "verification that costs": Engines(verify_token_s=0.004),
    "a GPU that is busy computing": Engines(crowd=0.05),
}


@pytest.mark.parametrize("requests", [1, 6])
@pytest.mark.parametrize("name", CASES)
def test_it_comes_near_the_best_fixed_way(name, requests) -> None:
    """After 20 s, decoding is at least 0.93 times as fast as the best length, or as the target alone."""
    policy, clock = adaptive()
    simulate(policy, clock, CASES[name], requests=requests, seconds=20)

    assert simulate(policy, clock, CASES[name], requests=requests, seconds=40) >= 0.93 * best_rate(
        CASES[name], requests
    )


def test_it_follows_a_load_that_comes_and_goes() -> None:
    """Drafts stop where a crowd makes them dear, and are back when it has gone."""
    policy, clock = adaptive()
    engines = Engines(crowd=0.1)
    for requests in (1, 8, 1):
        simulate(policy, clock, engines, requests=requests, seconds=20)
        assert simulate(policy, clock, engines, requests=requests, seconds=30) >= 0.93 * best_rate(engines, requests)


@pytest.mark.parametrize("kind", ["pinned", "controls"])
def test_trials_conclude_beside_requests_that_go_one_way_always(kind: str) -> None:
    """Every fifth round is one of one that names its drafts, or none: they are there in a trial as without."""
    policy = DraftPolicy(adaptive=True)
    engines = Engines(acceptance=0.3, draft_token_s=0.01)
    reasons = []
    with policy.request(pinned=True) as other, policy.request(pinned=False) as pace:
        for turn in range(3000):
            if turn % 5 == 0:
                other.begin(4 if kind == "pinned" else 0)
            drafts = pace.begin(4)
            reasons.append(pace.reason)
            draft_s, target_s = engines.round_s(drafts, 2) if drafts else (0.0, engines.slice_s(SLICE, 2))
            tokens = 1 if drafts else SLICE
            pace.end(drafted=drafts, accepted=0, tokens=tokens, draft_s=draft_s, target_s=target_s)
            if turn % 5 == 4:
                other.end(drafted=4 * (kind == "pinned"), accepted=0, tokens=1, draft_s=0.01, target_s=0.01)

    assert policy._shared.gate._ranges[2].way is Way.ALONE
    assert NOT_FASTER in reasons


def burst(
    policy: DraftPolicy,
    engines: Engines,
    *,
    requests: int,
    tokens: int,
    seed: int,
    pinned: int | None = None,
    noise: float = 0.0,
) -> float:
    """Decode so many requests that come together, each to its end, and return the seconds that it took.

    ``noise`` is the relative standard deviation of what one call takes.
    """
    rng = np.random.default_rng(seed)
    order = itertools.count()
    left = {policy.request(pinned=pinned is not None): tokens for _ in range(requests)}
    events = [(0.0, next(order), pace, None) for pace in left]
    now_s = 0.0
    while events:
        now_s, _, pace, done = heapq.heappop(events)
        if done is not None:
            pace.end(**done)
            left[pace] -= done["tokens"]
        if left[pace] <= 0:
            del left[pace]
            pace.__exit__()
            continue
        drafts = pace.begin(min(LONGEST, left[pace]) if pinned is None else pinned)
        if drafts:
            rejected = np.flatnonzero(rng.random(drafts) >= engines.acceptance)
            accepted = int(rejected[0]) if rejected.size else drafts
            draft_s, target_s = engines.round_s(drafts, len(left))
            count = accepted + 1
        else:
            accepted, draft_s, count = 0, 0.0, min(SLICE, left[pace])
            target_s = engines.slice_s(count, len(left))
        if noise:
            draft_s, target_s = (taken * max(rng.normal(1.0, noise), 0.1) for taken in (draft_s, target_s))
        done = {"drafted": drafts, "accepted": accepted, "tokens": count, "draft_s": draft_s, "target_s": target_s}
        heapq.heappush(events, (now_s + draft_s + target_s, next(order), pace, done))
    return now_s


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "with controls between"])
@pytest.mark.parametrize("crowd", [0.0, 0.02, 0.2])
def test_bursts_that_end_before_a_load_is_steady_cost_little(crowd: float, beside: bool) -> None:
    """Sixteen short answers at once, time and again: their loads fall from 16 to 1, and trials take a small part."""
    policy, engines = DraftPolicy(adaptive=True), Engines(crowd=crowd)
    took: dict[int | None, list[float]] = {None: [], 0: [], 4: []}
    for seed in range(30):
        took[None].append(burst(policy, engines, requests=16, tokens=32, seed=seed))
        for pinned in (0, 4):
            other = policy if beside else DraftPolicy()
            took[pinned].append(burst(other, engines, requests=16, tokens=32, seed=seed, pinned=pinned))

    best_s = min(sum(took[0]), sum(took[4]))
    assert sum(took[None]) <= best_s / 0.9
    assert sum(took[None][10:]) <= min(sum(took[0][10:]), sum(took[4][10:])) / 0.94


@pytest.mark.parametrize("requests", [1, 2, 4, 8, 16])
def test_drafts_that_do_not_pay_are_off_after_a_few_short_answers(requests: int) -> None:
    """They are good, but dear, and calls are noisy: 0.88 of the target alone over eight bursts, and 0.96 later."""
    engines = Engines(acceptance=0.93, draft_token_s=0.012, crowd=0.3)
    took: dict[int | None, list[float]] = {None: [], 0: []}
    for seed in range(6 * 16):
        if seed % 16 == 0:
            policy = DraftPolicy(adaptive=True)
        for pinned, seconds in took.items():
            of = policy if pinned is None else DraftPolicy()
            seconds.append(burst(of, engines, requests=requests, tokens=32, seed=seed, pinned=pinned, noise=0.15))

    adaptive_s, alone_s = (np.reshape(took[pinned], (6, 16)) for pinned in (None, 0))
    assert adaptive_s[:, :8].sum() <= alone_s[:, :8].sum() / 0.88
    assert adaptive_s[:, 8:].sum() <= alone_s[:, 8:].sum() / 0.96


def feed(gate: Gate, tokens: int, token_s: dict[Way, float], *, requests: int = 1, noise: float = 0.0) -> list[Way]:
    """Decode tokens in rounds of 4, each way at so many seconds a token; return the way of each round."""
    rng = np.random.default_rng(5)
    ways = []
    for _ in range(tokens // 4):
        ways.append(gate.way(requests))
        seconds = 4 * token_s[ways[-1]] * rng.normal(1.0, noise)
        gate.add(way=ways[-1], seconds=seconds, tokens=4, requests=requests, alike=True)
    return ways


def at(fitted_s: float, alone_s: float, crowded_s: float) -> dict[Way, float]:
    """Return the seconds a token of each way."""
    return {Way.FITTED: fitted_s, Way.ALONE: alone_s, Way.CROWDED: crowded_s}


GOOD = at(0.01, 0.02, 0.015)
POOR = at(0.02, 0.01, 0.015)
CROWD = at(0.015, 0.02, 0.01)


@pytest.mark.parametrize("requests", [2, 6])
@pytest.mark.parametrize(("token_s", "best"), [(GOOD, Way.FITTED), (POOR, Way.ALONE), (CROWD, Way.CROWDED)])
def test_the_fastest_way_is_taken_and_trials_become_rare(token_s, best, requests) -> None:
    """Whichever of the three it is; a twentieth of later tokens go another way."""
    gate = Gate()
    feed(gate, 4, token_s, requests=1)
    feed(gate, 4000, token_s, requests=requests, noise=0.1)

    ways = feed(gate, 20_000, token_s, requests=requests, noise=0.1)
    assert ways[-1] is best
    assert ways.count(best) >= 0.95 * len(ways)


def test_the_smallest_load_that_was_seen_fits_lengths_in_one_way_only() -> None:
    """What calls take there is what they take under the load of the moment."""
    assert Way.CROWDED not in feed(Gate(), 4000, CROWD)


@pytest.mark.parametrize(("later", "turns"), [(0.012, False), (0.02, True)])
def test_what_was_slow_for_a_moment_turns_nothing(later: float, turns: bool) -> None:
    """The target alone was faster than drafts before it, and no faster than those after it: the machine was slow."""
    gate = Gate()
    assert set(feed(gate, 72, at(0.02, 0.012, 0.02))) == {Way.FITTED}
    assert set(feed(gate, 56, at(0.02, 0.012, 0.02))) == {Way.ALONE}
    assert set(feed(gate, 16, at(later, 0.012, 0.02))) == {Way.FITTED}

    assert gate.way(1) is (Way.ALONE if turns else Way.FITTED)


def test_a_trial_waits_while_the_load_is_another() -> None:
    """It is not lost, and does not change how others decode: the load is back, and it goes on."""
    gate = Gate()
    feed(gate, 72, GOOD)
    assert feed(gate, 8, GOOD) == [Way.ALONE] * 2
    assert set(feed(gate, 100, GOOD, requests=8)) == {Way.FITTED}
    assert feed(gate, 12, GOOD) == [Way.ALONE, Way.ALONE, Way.FITTED]


def test_a_trial_waits_while_there_are_many_more_or_fewer_of_its_range() -> None:
    """Seven requests get through less than four do, each: what is tried would be compared with what it is not."""
    gate = Gate()
    feed(gate, 144, GOOD, requests=4)
    assert gate.way(4) is Way.ALONE

    assert set(feed(gate, 80, GOOD, requests=7)) == {Way.FITTED}
    assert [gate.way(requests) for requests in (4, 5)] == [Way.ALONE] * 2


@pytest.mark.parametrize(("alone_s", "tokens"), [(0.02, 16), (0.0095, 56)])
def test_a_trial_ends_when_it_is_clearly_slower(alone_s: float, tokens: int) -> None:
    """What is twice as slow is seen at once; where both ways are alike, it takes the whole trial."""
    gate = Gate()
    feed(gate, 72, at(0.01, alone_s, 0.01), noise=0.1)

    ways = feed(gate, 80, at(0.01, alone_s, 0.01), noise=0.1)
    assert 4 * ways.count(Way.ALONE) == tokens


def test_a_load_that_only_passes_has_no_trials() -> None:
    """On the way from 16 to 1, each number of requests is there for a moment: it goes on as at 16."""
    gate = Gate()
    feed(gate, 4000, GOOD, requests=16)
    passed = []
    for _ in range(20):
        feed(gate, 100, GOOD, requests=16)
        passed += feed(gate, 60, GOOD, requests=10)

    assert set(passed) == {Way.FITTED}


def test_a_load_that_goes_to_and_fro_follows_a_change_after_a_long_time() -> None:
    """Between 1 and 2, a few tokens each: drafts that stop to pay are off within a few hundred answers."""
    gate = Gate()

    def swing(tokens: int, token_s: dict[Way, float]) -> list[Way]:
        swings = (feed(gate, 8, token_s, requests=1 + turn % 2, noise=0.1) for turn in range(tokens // 8))
        return [way for ways in swings for way in ways]

    swing(400_000, GOOD)
    swing(30_000, POOR)
    ways = swing(8_000, POOR)
    assert ways.count(Way.ALONE) > 0.9 * len(ways)


def test_it_follows_an_acceptance_that_changes() -> None:
    """Speculation that did not pay is taken up again when it does."""
    policy, clock = adaptive()
    for acceptance in (0.02, 0.9, 0.02):
        engines = Engines(acceptance=acceptance)
        simulate(policy, clock, engines, requests=2, seconds=130)
        assert simulate(policy, clock, engines, requests=2, seconds=60) >= 0.9 * best_rate(engines, 2)


def test_a_request_with_poor_drafts_goes_without_beside_others_with_good_ones() -> None:
    """Each request's own acceptance decides, and the reason is named."""
    policy, clock = adaptive()
    engines = Engines()
    simulate(policy, clock, engines, requests=2, seconds=20)
    reasons = set()
    with policy.request(pinned=False) as pace:
        for _ in range(60):
            drafts = pace.begin(LONGEST)
            draft_s, target_s = engines.round_s(drafts, 1)
            clock[0] += draft_s + target_s
            pace.end(drafted=drafts, accepted=0, tokens=1 if drafts else SLICE, draft_s=draft_s, target_s=target_s)
            reasons.add(pace.reason)

    assert LOW_ACCEPTANCE in reasons


def test_where_speculation_does_not_pay_the_reason_is_named() -> None:
    """A draft as dear as the target is switched off for everybody."""
    policy, clock = adaptive()
    simulate(policy, clock, Engines(draft_token_s=0.05), requests=1, seconds=20)
    reasons = []
    with policy.request(pinned=False) as pace:
        for _ in range(40):
            drafts = pace.begin(LONGEST)
            clock[0] += 0.2
            pace.end(drafted=drafts, accepted=0, tokens=1 if drafts else SLICE, draft_s=0.05 * drafts, target_s=0.01)
            reasons.append(pace.reason)

    assert reasons.count(NOT_FASTER) > 20


@pytest.mark.parametrize("is_adaptive", [False, True])
def test_what_is_pinned_is_drafted(is_adaptive) -> None:
    """A request that names its drafts gets them under every schedule, and whatever pays."""
    policy = DraftPolicy(adaptive=is_adaptive, schedule=[(1, 0)])
    with policy.request(pinned=True) as pace:
        for _ in range(100):
            assert (pace.begin(5), pace.reason) == (5, "")
            pace.end(drafted=5, accepted=0, tokens=1, draft_s=1.0, target_s=0.001)


def test_the_schedule_limits_drafts_by_how_many_are_decoded_at_once() -> None:
    """Thresholds are those of TensorRT-LLM: from so many requests on."""
    policy = DraftPolicy(schedule=[(8, 0), (1, 4), (3, 2)])
    paces, seen = [], []
    for _ in range(9):
        paces.append(policy.request(pinned=False))
        seen.append(paces[-1].begin(6))
        paces[-1].end(drafted=seen[-1], accepted=0, tokens=1, draft_s=0.0, target_s=0.0)

    assert seen == [4, 4, 2, 2, 2, 2, 2, 0, 0]
    assert paces[-1].reason == SCHEDULED
    for pace in paces[2:]:
        pace.__exit__()
    assert paces[0].begin(6) == 4
    assert paces[1].begin(1) == 1


def test_many_threads_share_a_policy() -> None:
    """Rounds of many requests at once leave nothing behind."""
    policy = DraftPolicy(adaptive=True)

    def decode() -> None:
        for _ in range(20):
            with policy.request(pinned=False) as pace:
                for _ in range(20):
                    drafts = pace.begin(4)
                    pace.end(
                        drafted=drafts, accepted=drafts // 2, tokens=drafts // 2 + 1, draft_s=0.001, target_s=0.002
                    )
                pace.begin(4)

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert policy._shared.requests == 0
    assert not any(policy._shared.under_way.values())


def test_a_line_is_found_through_noise_and_forgets() -> None:
    """Both parts of a cost are estimated, and follow a change."""
    rng = np.random.default_rng(0)
    line = Line(proportional=False)
    for x in rng.integers(1, 8, 400):
        line.add(int(x), 5 + 2 * x + rng.normal(0, 0.1))
    assert line.at(4) == pytest.approx(13, abs=0.2)
    for x in rng.integers(1, 8, 800):
        line.add(int(x), 1 + x)
    assert line.at(4) == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize(("proportional", "expected"), [(True, 1.5), (False, 3.0)])
def test_of_one_length_alone_the_rest_is_assumed(proportional, expected) -> None:
    """Drafts cost by the token, verification by the call, until other lengths were seen."""
    line = Line(proportional=proportional)
    for _ in range(10):
        line.add(4, 3.0)

    assert line.at(2) == pytest.approx(expected)


@pytest.mark.parametrize(("acceptance", "drafts"), [(0.95, 8), (0.05, 1)])
def test_the_better_the_drafts_the_longer(acceptance, drafts) -> None:
    """With drafts at a fifth of a step, sure ones are drafted long and poor ones short."""
    costs = RoundCosts()
    for k in (2, 5, 8):
        costs.add(drafted=k, draft_s=0.2 * k, verify_s=1.0)

    assert best_choice(costs, acceptance, 8).drafts == drafts


def test_acceptance_is_that_of_a_token() -> None:
    """What comes after the first rejected draft says nothing."""
    rng = np.random.default_rng(1)
    seen = Acceptance(0.5, strength=8)
    for _ in range(500):
        rejected = np.flatnonzero(rng.random(6) >= 0.75)
        seen.add(drafted=6, accepted=int(rejected[0]) if rejected.size else 6)

    assert seen.rate == pytest.approx(0.75, abs=0.12)
