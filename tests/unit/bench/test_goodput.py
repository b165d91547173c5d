"""Goodput counts requests that kept every promise, and says how sure it is."""

from __future__ import annotations

import pytest

from specdeploy.bench.goodput import Objective, count_good, goodput, parse_objectives
from specdeploy.bench.table import table_of
from specdeploy.errors import ConfigError
from tests.unit.bench.simulated import failed, record

TTFT = Objective(key="time_to_first_token", limit_ms=100.0)


@pytest.mark.parametrize(
    "text", ["time_to_first_token <= 100ms", "ttft:100", "ttft <= 0.1s", " time_to_first_token:1e2 ms "]
)
def test_ways_to_write_an_objective(text: str) -> None:
    """The field's short names and ours, in milliseconds unless a unit says otherwise."""
    assert parse_objectives([text]) == (TTFT,)
    assert parse_objectives([str(TTFT)]) == (TTFT,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft < 100", "cannot read the objective 'ttft < 100'"),
        ("tfft <= 100ms", "'tfft' is not a latency"),
        ("output_sequence_length <= 5", "'output_sequence_length' is not a latency"),
        ("ttft <= 100us", "the unit 'us'"),
        ("ttft <= 0", "the limit 0"),
        ("ttft <= -5ms", "the limit -5"),
        ("ttft <= 1e999", "the limit 1e999"),
        ("ttft <= nan", "cannot read"),
        ("ttft <= 1-2", "the limit 1-2"),
    ],
)
def test_an_objective_that_says_nothing_is_refused(text: str, said: str) -> None:
    """With the words that are wrong."""
    with pytest.raises(ConfigError, match=said):
        parse_objectives([text])


def test_two_objectives_for_one_latency_are_refused() -> None:
    """Under whichever names: one of them would not be looked at."""
    with pytest.raises(ConfigError, match="two objectives for inter_token_latency"):
        parse_objectives(["itl:20", "tpot <= 30ms"])


def test_a_good_request_kept_every_objective() -> None:
    """The limit itself is kept; a failure kept nothing; what a request cannot have, it cannot break."""
    latency = Objective(key="request_latency", limit_ms=400.0)
    one_token = record(output_tokens=1, chunk_s=(0.1,), chunk_tokens=(1,), last_s=0.1)

    assert count_good(table_of([record(first_s=0.1, last_s=0.4)]), (TTFT, latency)) == 1
    assert count_good(table_of([record(first_s=0.1, last_s=0.401)]), (TTFT, latency)) == 0
    assert count_good(table_of([record(first_s=0.101), failed()]), (TTFT,)) == 0
    assert count_good(table_of([one_token]), parse_objectives(["itl:1"])) == 1


def test_goodput_counts_over_all_requests_and_all_time() -> None:
    """Two of four, one of them failed, in eight seconds."""
    records = [record(), record(), record(first_s=0.3), failed()]
    values = goodput(records, (TTFT,), 8.0)

    assert values["good_request_count"]["avg"] == 2
    assert values["goodput"] == {"unit": "requests/sec", "avg": 0.25}
    fraction = values["good_request_fraction"]
    assert (fraction["avg"], fraction["ci_low"], fraction["ci_high"]) == (
        0.5,
        pytest.approx(0.150, abs=0.001),
        pytest.approx(0.850, abs=0.001),
    )


def test_without_objectives_there_is_no_goodput() -> None:
    """Absent is not zero."""
    assert goodput([record()], (), 1.0) == {}
    assert goodput([], (TTFT,), 1.0) == {}
