"""The speed-up and its interval."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.paired import paired_ratio, paired_speedup
from specdeploy.bench.records import ARMS
from tests.unit.bench.simulated import failed, record

RATIOS = st.lists(st.floats(0.01, 100), min_size=2, max_size=12)


def block(arm: str, pair: int, seconds: float, **changes):
    """One request that fills its block: 7 tokens in that many seconds."""
    return record(arm=arm, pair=pair, last_s=seconds, ended_s=seconds, **changes)


def pairs(*seconds):
    """Pairs of (control, speculation) seconds."""
    arms = ("control", "speculation")
    return [block(arm, pair, s) for pair, both in enumerate(seconds) for arm, s in zip(arms, both, strict=True)]


def test_known_answer() -> None:
    """Ratios 2, 2 and 4: geometric mean 16 ** (1/3); log-sd ln 2 / sqrt 3; t(0.975, 2) = 4.3027."""
    (summary,) = paired_speedup(pairs((2.0, 1.0), (2.0, 1.0), (4.0, 1.0)))
    half = 4.302653 * (math.log(2) / math.sqrt(3)) / math.sqrt(3)

    assert summary.speedup.ratios == pytest.approx((2, 2, 4))
    assert summary.speedup.avg == pytest.approx(16 ** (1 / 3))
    assert summary.speedup.ci_low == pytest.approx(16 ** (1 / 3) * math.exp(-half))
    assert summary.speedup.ci_high == pytest.approx(16 ** (1 / 3) * math.exp(half))


@given(RATIOS)
def test_the_interval_holds_the_mean(ratios: list[float]) -> None:
    """ci_low <= avg <= ci_high, and the mean lies among the ratios."""
    result = paired_ratio(ratios)

    assert result.ci_low <= result.avg * (1 + 1e-12)
    assert result.avg <= result.ci_high * (1 + 1e-12)
    assert min(ratios) * (1 - 1e-9) <= result.avg <= max(ratios) * (1 + 1e-9)


@given(RATIOS)
def test_exchanging_the_arms_inverts_the_answer(ratios: list[float]) -> None:
    """Twice as fast one way is half as fast the other way, bounds included."""
    there, back = paired_ratio(ratios), paired_ratio([1 / ratio for ratio in ratios])

    assert there.avg * back.avg == pytest.approx(1)
    assert there.ci_low * back.ci_high == pytest.approx(1)


def test_one_pair_has_no_interval() -> None:
    """A single ratio says nothing about its own spread."""
    (summary,) = paired_speedup(pairs((2.0, 1.0)))

    assert (summary.speedup.avg, summary.speedup.ci_low, summary.speedup.ci_high) == (2.0, None, None)


def test_an_a_a_run_is_covered_at_the_nominal_rate() -> None:
    """Without a difference the 95 % interval holds 1 in about 95 of 100 runs of five pairs (seeded, 2000 runs)."""
    rng = random.Random(7)
    results = [paired_ratio([rng.lognormvariate(0, 0.06) for _ in range(5)]) for _ in range(2000)]
    covered = sum(result.ci_low <= 1 <= result.ci_high for result in results) / len(results)

    assert covered == pytest.approx(0.95, abs=0.015)


def test_a_drift_moves_neither_the_speed_up_nor_its_interval() -> None:
    """The arms take turns: what makes every second block slower by a tenth is told from what speculation does."""
    items = []
    for pair in range(5):
        arms = ARMS[::-1] if pair % 2 else ARMS
        for half, arm in enumerate(arms):
            took_s = (2.0 if arm == "control" else 1.0) * (1.1 if half else 1.0)
            start_s = 10.0 * pair + 5.0 * half
            times = {"sent_s": start_s, "first_s": start_s, "last_s": start_s + took_s, "ended_s": start_s + took_s}
            items.append(record(arm=arm, pair=pair, **times))
    (summary,) = paired_speedup(items)

    assert summary.speedup.control_first == tuple(arms[0] == "control" for arms in (ARMS, ARMS[::-1]) * 3)[:5]
    assert (summary.speedup.avg, summary.speedup.ci_low) == (pytest.approx(2), pytest.approx(2))


def test_latency_ratios_go_the_other_way() -> None:
    """Half the latency is a ratio of one half, beside a speed-up of two."""
    (summary,) = paired_speedup(pairs((2.0, 1.0), (4.0, 2.0)))

    assert summary.speedup.avg == pytest.approx(2)
    assert summary.request_latency.avg == pytest.approx(0.5)
    assert summary.time_to_first_token.avg == pytest.approx(1)


@pytest.mark.parametrize(
    "spoiler",
    [
        [block("control", 1, 2.0), failed(arm="speculation", pair=1)],
        [block("control", 1, 2.0)],
        [block("control", 1, 2.0), block("control", 1, 3.0, index=1), block("speculation", 1, 2.0)],
        [block("control", 1, 2.0), block("speculation", 1, 2.0, output_tokens=0)],
    ],
    ids=["a failure", "an arm missing", "a block cut short", "no tokens"],
)
def test_a_spoilt_pair_is_left_out_and_counted(spoiler: list) -> None:
    """Only pairs that compare like with like make the ratio."""
    (summary,) = paired_speedup([*pairs((2.0, 1.0)), *spoiler])

    assert (summary.speedup.ratios, summary.speedup.pairs, summary.speedup.excluded) == ((2.0,), 1, 1)


def test_without_a_usable_pair_there_is_no_speedup() -> None:
    """A concurrency whose pairs all failed is absent."""
    assert paired_speedup([block("control", 0, 1.0), failed(arm="speculation")]) == ()


def test_blocks_by_time_are_compared_however_many_requests_they_came_to() -> None:
    """The faster arm gets further with the same prompts; a block that did not last its time was cut short."""
    slow = [block("control", pair, 10.0) for pair in range(3)]
    fast = [
        record(arm="speculation", pair=pair, index=index, sent_s=5.0 * index, first_s=last, last_s=last, ended_s=last)
        for pair, lasts in enumerate([(5.0, 10.0), (5.0, 10.0), (5.0, 6.0)])
        for index, last in enumerate(lasts)
    ]
    (summary,) = paired_speedup([*slow, *fast], block_s=10.0)

    assert (summary.speedup.ratios, summary.speedup.excluded) == (pytest.approx((2, 2)), 1)
    assert paired_speedup([*slow, *fast]) == ()


def test_concurrencies_are_kept_apart() -> None:
    """Each has its own ratio."""
    both = [block(arm, 0, s, concurrency=c) for c, s in ((4, 1.0), (1, 2.0)) for arm in ("control", "speculation")]

    assert [summary.point.concurrency for summary in paired_speedup(both)] == [1, 4]


def test_each_kind_of_prompt_has_a_speed_up_of_its_own() -> None:
    """By the time of its own requests: twice as fast here, no faster there, whatever the block as a whole took."""
    records = [
        record(arm=arm, pair=pair, index=index, category=category, last_s=took_s, ended_s=took_s)
        for pair in range(3)
        for index, category, spent in ((0, "code", (0.8, 0.4)), (1, "prose", (0.6, 0.6)))
        for arm, took_s in zip(ARMS, spent, strict=True)
    ]
    (summary,) = paired_speedup(records)

    found = {name: (ratio.avg, ratio.pairs) for name, ratio in summary.categories.items()}
    assert found == {"code": (pytest.approx(2.0), 3), "prose": (pytest.approx(1.0), 3)}
    assert summary.to_dict()["categories"]["code"]["ci_low"] == pytest.approx(2.0)
    assert paired_speedup([item for item in records if item.category == "code"])[0].categories == {}
