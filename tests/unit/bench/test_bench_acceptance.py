"""Acceptance from counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.acceptance import acceptance_metrics, per_position_acceptance, pooled_histogram
from specdeploy.bench.contradiction import contradiction
from specdeploy.bench.stats import summarize
from tests.unit.bench.simulated import record

HISTOGRAMS = st.lists(st.integers(0, 50), min_size=2, max_size=8).filter(sum)


def counted(histogram, drafts_per_step=None, **changes):
    """A request whose counts agree with a histogram."""
    steps = sum(histogram)
    counts = {
        "num_spec_steps": steps,
        "draft_tokens": steps * (drafts_per_step or len(histogram) - 1),
        "accepted_tokens": sum(j * count for j, count in enumerate(histogram)),
        "histogram": tuple(histogram),
    }
    return record(**{**counts, **changes})


def test_the_worked_example_that_three_engines_report_differently() -> None:
    """25 steps of 4 drafts, 75 of 100 accepted, 101 tokens with the one from prefill: 1 + 75/25 = 4.00, and 75 %."""
    item = counted((1, 4, 4, 1, 15), output_tokens=101)
    (summary,) = summarize([item])

    assert (item.num_spec_steps, item.draft_tokens, item.accepted_tokens) == (25, 100, 75)
    for prefix in ("", "overall_"):
        assert summary.metrics[f"{prefix}spec_decode_acceptance_length"]["avg"] == pytest.approx(4.0)
        assert summary.metrics[f"{prefix}spec_decode_draft_acceptance_rate"]["avg"] == pytest.approx(0.75)
    assert summary.metrics["spec_decode_per_position_acceptance"]["values"] == pytest.approx([0.96, 0.8, 0.64, 0.6])
    assert summary.metrics["spec_decode_acceptance_histogram"]["values"] == [1, 4, 4, 1, 15]


def test_the_mean_over_requests_and_the_mean_over_steps_differ() -> None:
    """One short request that accepts everything, one long that accepts nothing: both means are reported."""
    values, _ = acceptance_metrics([counted((0, 0, 1)), counted((9, 0, 0))], where="")

    assert list(values["spec_decode_acceptance_length"]) == [3.0, 1.0]
    assert values["overall_spec_decode_acceptance_length"] == pytest.approx(1 + 2 / 10)
    assert values["overall_spec_decode_draft_acceptance_rate"] == pytest.approx(2 / 20)


@given(st.lists(HISTOGRAMS, min_size=1, max_size=5))
def test_positions_and_lengths_tell_the_same_story(histograms: list[list[int]]) -> None:
    """1 + sum of p_i is the acceptance length, positions never rise, and sound counts contradict nothing."""
    records = [counted(histogram) for histogram in histograms]
    values, findings = acceptance_metrics(records, where="")
    positions = values["spec_decode_per_position_acceptance"]

    assert findings == ()
    assert 1 + sum(positions) == pytest.approx(values["overall_spec_decode_acceptance_length"])
    assert list(positions) == sorted(positions, reverse=True)
    assert all(0 <= position <= 1 for position in positions)


@given(st.lists(HISTOGRAMS, max_size=5))
def test_pooling_adds_up(histograms: list[list[int]]) -> None:
    """Histograms of different lengths keep every step and every accepted draft."""
    pooled = pooled_histogram(histograms)

    assert sum(pooled) == sum(map(sum, histograms))
    assert sum(j * n for j, n in enumerate(pooled)) == sum(j * n for h in histograms for j, n in enumerate(h))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"num_spec_steps": 4}, "S is 4"),
        ({"accepted_tokens": 4}, "A is 4"),
        ({"draft_tokens": 2}, "more than D 2"),
        ({"histogram": (1, 0, 2), "accepted_tokens": 4, "draft_tokens": 3}, "A 4 is more than D 3"),
        ({"histogram": (9, 0), "num_spec_steps": 9, "accepted_tokens": 0, "draft_tokens": 8}, "S 9 is more than D 8"),
        ({"histogram": (-1, 4)}, "negative"),
        ({"draft_tokens": None}, "missing"),
        ({"draft_tokens": 2**62}, "more than 32 bits"),
    ],
)
def test_counts_that_contradict_each_other_are_not_reported(changes: dict, word: str) -> None:
    """One unsound request takes acceptance out of the summary, and a finding says which and why; latency stays."""
    broken = record(prompt_id="culprit", **changes)
    (summary,) = summarize([record(), broken])

    assert word in (contradiction(broken) or "")
    assert not any(key.startswith(("spec_decode", "overall")) for key in summary.metrics)
    assert "request_latency" in summary.metrics
    (finding,) = summary.findings
    assert (finding.severity, finding.code) == ("error", "load.acceptance-contradicts")
    assert "culprit" in finding.message


LLAMA = {"num_spec_steps": None, "histogram": ()}


def test_a_server_that_tells_no_steps_has_a_rate_all_the_same() -> None:
    """Of D and A alone, as llama.cpp tells them, come the rates and the counts; what needs S is absent."""
    drafting = [
        record(draft_tokens=10, accepted_tokens=5, **LLAMA),
        record(draft_tokens=30, accepted_tokens=0, **LLAMA),
    ]
    (summary,) = summarize([*drafting, record(draft_tokens=0, accepted_tokens=0, **LLAMA)])

    assert summary.findings == ()
    assert {key: value["avg"] for key, value in summary.metrics.items() if "spec_decode" in key} == {
        "spec_decode_draft_acceptance_rate": pytest.approx((0.5 + 0) / 2),
        "overall_spec_decode_draft_acceptance_rate": pytest.approx(5 / 40),
        "spec_decode_draft_tokens": 20,
        "spec_decode_accepted_draft_tokens": 2.5,
    }
    assert summary.metrics["spec_decode_draft_tokens"]["count"] == 2


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"draft_tokens": 4, "accepted_tokens": 5}, "A 5 is more than D 4"),
        ({"draft_tokens": 0, "accepted_tokens": 5}, "A 5 is more than D 0"),
        ({"draft_tokens": -8, "accepted_tokens": -9}, "negative"),
        ({"draft_tokens": 4, "accepted_tokens": 1, "histogram": (0, 2)}, "accepts 2 drafts, A is 1"),
    ],
)
def test_counts_without_steps_may_contradict_each_other_too(changes: dict, word: str) -> None:
    """More accepted than drafted, less than nothing, or another histogram: reported with why, and not summed up."""
    (summary,) = summarize([record(**{**LLAMA, **changes})])

    assert not any("spec_decode" in key for key in summary.metrics)
    assert word in summary.findings[0].message


def test_steps_that_some_requests_leave_out_are_not_summed_up() -> None:
    """A sum over some requests would be set against the drafts of all; the rate is of all."""
    (summary,) = summarize([record(), record(draft_tokens=12, accepted_tokens=9, **LLAMA)])

    assert summary.metrics["overall_spec_decode_draft_acceptance_rate"]["avg"] == pytest.approx(0.5)
    assert not summary.metrics.keys() & {"spec_decode_steps", "overall_spec_decode_acceptance_length"}


def test_a_request_without_steps_has_no_acceptance() -> None:
    """The control, and an answer of one token, verify nothing: absent, not zero."""
    control = record(num_spec_steps=0, draft_tokens=0, accepted_tokens=0, histogram=())

    silent = record(draft_tokens=None, accepted_tokens=None, **LLAMA)

    assert acceptance_metrics([control, silent], where="") == ({}, ())


def test_no_steps_have_no_positions() -> None:
    """An empty histogram says nothing about any position."""
    assert per_position_acceptance(()) == per_position_acceptance((0, 0)) == ()


@pytest.mark.timeout(20)
def test_a_long_histogram_is_soon_summed_up() -> None:
    """A histogram of very many positions, as a file may have, takes no work that grows with their square."""
    positions = per_position_acceptance((1, *(0,) * 200_000, 3))

    assert (len(positions), set(positions)) == (200_001, {0.75})
