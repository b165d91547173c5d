"""Summaries: known answers, and what holds for any numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.metrics import PERCENTILES
from specdeploy.bench.records import INTERRUPTED, WARMUP_PAIR
from specdeploy.bench.stats import distribution, summarize
from tests.unit.bench.simulated import failed, record

VALUES = st.lists(st.floats(0, 1e9), min_size=1, max_size=40)


def only(*records):
    """Return the metrics of records that belong to one arm and concurrency."""
    (summary,) = summarize(records)
    return summary.metrics


@given(VALUES)
def test_percentiles_rise_and_stay_within_the_extremes(values: list[float]) -> None:
    """Min <= p1 <= ... <= p99 <= max, and the average lies between the extremes."""
    summary = distribution(values, "ms")
    assert summary is not None
    chain = [summary["min"], *(summary[f"p{percentile}"] for percentile in PERCENTILES), summary["max"]]

    assert chain == sorted(chain)
    assert summary["min"] <= summary["avg"] <= summary["max"]
    assert (summary["count"], summary["min"], summary["max"]) == (len(values), min(values), max(values))


@given(VALUES, st.randoms(use_true_random=False))
def test_the_order_of_requests_does_not_matter(values: list[float], rng) -> None:
    """A summary is a function of the numbers and not of who was first."""
    shuffled = values.copy()
    rng.shuffle(shuffled)

    assert distribution(values, "ms") == distribution(shuffled, "ms")


def test_percentiles_interpolate_between_order_statistics() -> None:
    """Known answer: 1, 2, 3, 4."""
    assert distribution([4, 1, 3, 2], "ms") == {
        "unit": "ms",
        "avg": 2.5,
        "min": 1.0,
        "max": 4.0,
        "p1": pytest.approx(1.03),
        "p5": pytest.approx(1.15),
        "p10": pytest.approx(1.3),
        "p25": 1.75,
        "p50": 2.5,
        "p75": 3.25,
        "p90": pytest.approx(3.7),
        "p95": pytest.approx(3.85),
        "p99": pytest.approx(3.97),
        "std": pytest.approx(1.25**0.5),
        "count": 4,
        "sum": 10.0,
        "percentile_cis": {
            "p50": [None, None],
            "p90": [pytest.approx(2.87534), None],
            "p95": [3.0, None],
            "p99": [3.0, None],
        },
    }


def test_no_values_make_no_summary() -> None:
    """Absent is not zero."""
    assert distribution([], "ms") is None


def test_latencies_of_one_request() -> None:
    """Known answer: sent 50 ms late, first token after 50 ms, six more tokens in 300 ms."""
    metrics = only(record(sent_s=0.05))

    assert metrics["time_to_first_token"]["avg"] == pytest.approx(50)
    assert metrics["time_to_first_token_from_intended"]["avg"] == pytest.approx(100)
    assert metrics["request_latency"]["avg"] == pytest.approx(350)
    assert metrics["request_latency_from_intended"]["avg"] == pytest.approx(400)
    assert metrics["dispatch_lag"]["avg"] == pytest.approx(50)
    assert metrics["inter_token_latency"]["avg"] == pytest.approx(300 / 6)
    assert metrics["output_token_throughput_per_user"]["avg"] == pytest.approx(20)
    assert metrics["inter_chunk_latency"]["count"] == 3
    assert metrics["inter_chunk_latency"]["avg"] == pytest.approx(100)


def test_inter_token_latency_does_not_count_the_tokens_of_the_first_response() -> None:
    """Three tokens at once, then four more in 300 ms: 75 ms each, where (n - 1) would say 50."""
    metrics = only(record(chunk_tokens=(3, 2, 1, 1)))

    assert metrics["inter_token_latency"]["avg"] == pytest.approx(75)


def test_an_answer_in_one_response_has_no_inter_token_latency() -> None:
    """Undefined is absent."""
    metrics = only(record(chunk_s=(0.1,), chunk_tokens=(7,), last_s=0.1, ended_s=0.1))

    assert {"inter_token_latency", "inter_chunk_latency", "output_token_throughput_per_user"} & metrics.keys() == set()
    assert "time_to_first_token" in metrics


def test_throughput_is_over_the_wall_time_of_the_blocks() -> None:
    """Two overlapping requests of one block, and one of the next: 21 tokens in 0.5 + 0.4 s; the gap does not count."""
    first = record()
    second = record(index=1, sent_s=0.1, intended_s=0.1, last_s=0.5, ended_s=0.5)
    later = record(pair=1, intended_s=9.0, sent_s=9.0, first_s=9.1, last_s=9.4, ended_s=9.4)
    metrics = only(first, second, later)

    assert metrics["benchmark_duration"]["avg"] == pytest.approx(0.9)
    assert metrics["output_token_throughput"]["avg"] == pytest.approx(21 / 0.9)
    assert metrics["request_throughput"]["avg"] == pytest.approx(3 / 0.9)


def test_steady_throughput_leaves_out_ramp_up_and_drain() -> None:
    """From the first response to the last send of a block: here 0.1 to 0.4 s, in which 6 + 2 tokens came."""
    records = [
        record(),
        record(index=1, sent_s=0.4, first_s=0.5, last_s=0.9, chunk_s=(0.5, 0.9), chunk_tokens=(3, 4)),
        record(index=2, sent_s=0.1, first_s=0.3, last_s=0.6, chunk_s=(0.3, 0.6), chunk_tokens=(2, 1)),
        record(index=3, error="timeout", chunk_s=(0.2,), chunk_tokens=(50,)),
    ]
    (summary,) = summarize(records)

    assert summary.metrics["steady_output_token_throughput"]["avg"] == pytest.approx((6 + 2) / 0.3)


def test_tokens_add_up_however_many_a_file_tells() -> None:
    """Counts of a file that are more together than 64 bits hold make a large throughput, and never 0 or less."""
    (summary,) = summarize([record(index=index, output_tokens=2**62) for index in range(4)])
    metrics = summary.metrics

    assert metrics["output_token_throughput"]["avg"] == pytest.approx(4 * 2**62 / metrics["benchmark_duration"]["avg"])


def test_a_block_that_was_sent_at_once_was_never_steady() -> None:
    """Every slot emptied once: all of it is ramp-up and drain."""
    (summary,) = summarize([record(), record(index=1)])

    assert "steady_output_token_throughput" not in summary.metrics


def test_failures_are_counted_under_their_labels_and_their_time_is_not_forgotten() -> None:
    """A request that failed after 2 s holds the block up for 2 s, and yields no tokens."""
    (summary,) = summarize([record(), failed("timeout", index=1, ended_s=2.0), failed("connection", index=2)])

    assert summary.errors == {"connection": 1, "timeout": 1}
    assert summary.metrics["error_rate"]["avg"] == pytest.approx(2 / 3)
    assert summary.metrics["output_token_throughput"]["avg"] == pytest.approx(7 / 2)


def test_an_arm_that_only_failed_has_no_latency_and_no_throughput() -> None:
    """Nothing succeeded: what is not measured is absent, and the failures are there."""
    metrics = only(failed(), failed(index=1))

    assert metrics["error_rate"]["avg"] == 1.0
    assert metrics["request_count"]["avg"] == 0.0
    assert {"time_to_first_token", "output_token_throughput", "spec_decode_steps"} & metrics.keys() == set()


def test_what_does_not_count_changes_nothing() -> None:
    """Warm-up requests and those that we interrupted leave every number as it is."""
    noise = (record(pair=WARMUP_PAIR, last_s=99.0), failed(INTERRUPTED, index=5, ended_s=99.0))

    assert only(record(), *noise) == only(record())
    assert summarize(noise) == ()


def test_arms_and_concurrencies_are_kept_apart() -> None:
    """One summary for each, in order of concurrency, control first."""
    levels = [(2, "speculation"), (1, "speculation"), (1, "control")]
    summaries = summarize([record(concurrency=level, arm=arm) for level, arm in levels])

    assert [(summary.point.concurrency, summary.arm) for summary in summaries] == [
        (1, "control"),
        (1, "speculation"),
        (2, "speculation"),
    ]


def test_tokens_that_nobody_counted_have_no_throughput() -> None:
    """A server that does not say how long its answers are: the requests have a rate, and the tokens are not 0."""
    (arm,) = summarize([record(output_tokens=None, chunk_tokens=(0,) * 4, output_ids=())])

    assert arm.metrics["request_throughput"]["avg"] > 0
    assert "output_token_throughput" not in arm.metrics
    assert "output_sequence_length" not in arm.metrics


def test_where_acceptance_is_from() -> None:
    """The answers' own counts come first; then what the stream shows, which is no rate; else nothing is said."""
    silent = {"num_spec_steps": None, "draft_tokens": None, "accepted_tokens": None, "histogram": ()}
    one_each = {"chunk_tokens": (1, 1, 1, 1), "output_tokens": 4}
    sources = [summarize([record(**changes)])[0] for changes in ({}, silent, {**silent, **one_each})]

    assert [summary.acceptance_source for summary in sources] == ["reported", "stream", None]
    assert sources[1].metrics["tokens_per_response"]["avg"] == pytest.approx(2.0)
    assert "tokens_per_response" not in sources[0].metrics


def test_an_error_has_the_words_of_one_of_its_requests() -> None:
    """Beside how many there were."""
    (summary,) = summarize([failed("internal", error_message="no memory"), failed("internal"), record()])

    assert (summary.errors, summary.error_messages) == ({"internal": 2}, {"internal": "no memory"})


def test_the_wait_for_the_first_token_is_part_of_the_time_per_token() -> None:
    """Known answer: 7 tokens in 400 ms. Of 7 positions that were verified in 3 steps and 4 drafts, 5 were kept."""
    metrics = only(record(draft_tokens=4, accepted_tokens=2, histogram=(1, 2)))

    assert metrics["time_per_output_token"]["avg"] == pytest.approx(400 / 7)
    assert metrics["spec_decode_accepted_per_verified"]["avg"] == pytest.approx(5 / 7)
    assert metrics["spec_decode_conditional_acceptance"]["values"] == pytest.approx([2 / 3])
