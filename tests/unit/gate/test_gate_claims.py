"""Claims about percentiles: how many requests have to be seen before one may be made."""

from __future__ import annotations

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.schedule import LoadSettings
from specdeploy.bench.table import table_of
from specdeploy.errors import ConfigError
from specdeploy.gate.claims import Count, chance_of_so_few, is_claimed, more_needed
from specdeploy.gate.rules import parse_rules
from specdeploy.gate.verdict import Evidence, evaluate
from tests.unit.bench.simulated import CONTEXT, Simulator


@pytest.mark.parametrize(
    ("share", "confidence", "totals"),
    [
        (0.90, 0.99, (44, 64, 81)),
        (0.95, 0.99, (90, 130, 165)),
        (0.99, 0.99, (459, 662, 838)),
        (0.99, 0.95, (299, 473, 628)),
    ],
)
def test_the_least_numbers_are_those_of_mlperf(share, confidence, totals) -> None:
    """With 0, 1 and 2 requests over the limit; one less is not enough, and says how many more are needed."""
    for over, total in enumerate(totals):
        enough, less = Count(kept=total - over, over=over), Count(kept=total - over - 1, over=over)
        assert is_claimed(enough, share, confidence)
        assert not is_claimed(less, share, confidence)
        assert more_needed(less, share, confidence) == 1
        assert more_needed(Count(kept=0, over=over), share, confidence) == total - over


def test_a_claim_is_refuted_by_as_much_evidence() -> None:
    """Ten of a hundred over the limit of a 99th percentile are not chance; one of thirty is."""
    assert chance_of_so_few(Count(kept=90, over=10), 0.99) == pytest.approx(stats.binom.cdf(90, 100, 0.99))
    assert chance_of_so_few(Count(kept=29, over=1), 0.99) > 0.05
    assert chance_of_so_few(Count(kept=0, over=0), 0.99) == 1
    assert chance_of_so_few(Count(kept=0, over=5), 0.5) == pytest.approx(0.5**5)


@given(
    kept=st.integers(0, 2000), over=st.integers(0, 50), share=st.floats(0.01, 0.99), confidence=st.floats(0.5, 0.999)
)
def test_a_claim_and_its_opposite_are_never_both_made(kept, over, share, confidence) -> None:
    """And what is said to be needed is enough, and no more than enough."""
    count = Count(kept=kept, over=over)
    more = more_needed(count, share, confidence)

    assert not (is_claimed(count, share, confidence) and chance_of_so_few(count, share) <= 1 - confidence)
    if more is not None and not is_claimed(count, share, confidence):
        assert is_claimed(Count(kept=kept + more, over=over), share, confidence)
        assert not is_claimed(Count(kept=kept + more - 1, over=over), share, confidence)


def test_no_number_of_requests_makes_an_impossible_claim() -> None:
    """Where it would be absurdly many, none is named."""
    assert more_needed(Count(kept=0, over=10**9), 0.999999, 0.99) is None


RUN, PLAN = Simulator().run(LoadSettings(concurrency=(2,), requests=60))
LOAD = build_load_report(RUN, PLAN, CONTEXT)
REQUESTS = table_of(RUN.records)


def judge(rule: str, load=LOAD, **evidence):
    """The verdict on a single rule about the 300 requests of an arm."""
    return evaluate(parse_rules([rule]), load, Evidence(**{"requests": REQUESTS, **evidence})).rules[0]


def test_a_percentile_passes_when_enough_requests_say_so() -> None:
    """300 requests within the limit claim the 99th percentile at 95 %, and not at 99 %, which needs 159 more."""
    sure, surer = judge("request_latency.p99 <= 60s"), judge("request_latency.p99 <= 60s", confidence=0.99)

    assert (sure.status, sure.numbers["kept"], sure.numbers["over"]) == ("pass", 300, 0)
    assert (surer.status, surer.numbers["more_requests"]) == ("undecided", 159)
    assert "needs 159 more, all of them within" in surer.reason
    assert "at 99 % confidence" in surer.reason


def test_a_percentile_that_requests_refute_fails() -> None:
    """Too many are over the limit for chance."""
    median = LOAD["arms"][1]["metrics"]["request_latency"]["p50"]
    verdict = judge(f"request_latency.p99 <= {median}ms")

    assert verdict.status == "fail"
    assert verdict.numbers["over"] == 150
    assert "150 of 300 are not <=" in verdict.reason


def test_a_measured_percentile_over_the_limit_is_no_pass() -> None:
    """Four of 300 are over: the measured p99 is, too, and whether that is chance is not decided."""
    values = sorted(
        (record.last_s - record.sent_s) * 1000
        for record in RUN.records
        if record.arm == "speculation" and record.counts
    )
    verdict = judge(f"request_latency.p99 <= {values[-5]!r}ms")

    assert (verdict.status, verdict.numbers["over"]) == ("undecided", 4)
    assert verdict.value > verdict.limit


def test_throughput_as_a_user_sees_it_is_claimed_from_below() -> None:
    """``.p1 >= x`` claims that 99 % of requests have x or more."""
    assert judge("output_token_throughput_per_user.p1 >= 1 tokens/s/user").status == "pass"
    assert judge("output_token_throughput_per_user.p1 >= 1e6 tokens/s/user").status == "fail"


@pytest.mark.parametrize("metric", ["dispatch_lag", "inter_chunk_latency", "time_to_first_token_from_intended"])
def test_every_latency_can_be_claimed(metric: str) -> None:
    """Also those that failed requests have, and those that a request has many of."""
    assert judge(f"{metric}.p90 <= 600s").status == "pass"
    assert judge(f"{metric}[python].p50 <= 600s").status == "pass"


def test_without_records_the_interval_in_the_document_decides() -> None:
    """By order statistics, of the percentiles that have one; where there is none, nothing is decided."""
    p90 = LOAD["arms"][1]["metrics"]["request_latency"]["percentile_cis"]["p90"]

    assert judge(f"request_latency.p90 <= {p90[1]!r}ms", requests=None).status == "pass"
    assert judge(f"request_latency.p90 <= {p90[1] * 0.999!r}ms", requests=None).status == "undecided"
    assert judge(f"request_latency.p90 <= {p90[0] * 0.99!r}ms", requests=None).status == "fail"
    assert judge("request_latency.p75 <= 600s", requests=None).status == "undecided"
    assert judge("request_latency.p90 <= 600s", requests=None, confidence=0.99).status == "undecided"


def test_records_of_another_run_are_an_error() -> None:
    """Their number is not the document's."""
    with pytest.raises(ConfigError, match="raw records have 299"):
        judge("request_latency.p99 <= 60s", requests=REQUESTS[:-1])


@pytest.mark.parametrize("bounds", [7, [1.0], [2.0, 1.0], [math.nan, 1.0], [-1.0, 1.0], ["1", None]])
def test_an_interval_that_cannot_be_trusted_is_an_error(bounds) -> None:
    """Of the percentile, in a document without records."""
    load = copy.deepcopy(LOAD)
    load["arms"][1]["metrics"]["request_latency"]["percentile_cis"]["p90"] = bounds

    with pytest.raises(ConfigError):
        judge("request_latency.p90 <= 60s", load, requests=None)


def test_claims_that_fail_alone_may_not_fail_among_many() -> None:
    """Seven of 300 over a 99th percentile are too many alone; among five claims chance may do that to one."""
    values = sorted(
        (record.last_s - record.sent_s) * 1000
        for record in RUN.records
        if record.arm == "speculation" and record.counts
    )
    rule = f"request_latency.p99 <= {values[-8]!r}ms"
    alone = judge(rule)
    others = [f"request_latency.p{percent} <= 60s" for percent in (50, 75, 90, 95)]
    among = evaluate(parse_rules([rule, *others]), LOAD, Evidence(requests=REQUESTS)).rules

    assert (alone.status, alone.numbers["over"]) == ("fail", 7)
    assert [one.status for one in among] == ["undecided", *["pass"] * 4]
    assert among[0].numbers["p_adjusted"] == pytest.approx(5 * alone.numbers["p"])
    assert (
        "too many for 99 % of all requests, but among all that is decided here chance may explain it" in among[0].reason
    )
    assert among[0].more_decides


def test_an_interval_alone_may_not_fail_among_many() -> None:
    """Without the records, beyond its interval is 2.5 % of chance, however far: among three that is too much."""
    median = LOAD["arms"][1]["metrics"]["request_latency"]["p50"]
    rule = f"request_latency.p90 <= {median}ms"
    others = [f"request_latency.p{percent} <= 60s" for percent in (50, 75)]

    for more, status in (([], "fail"), (others[:1], "fail"), (others, "undecided")):
        assert evaluate(parse_rules([rule, *more]), LOAD, Evidence()).rules[0].status == status
