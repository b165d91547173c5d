"""Measurements of several calls as those of one request."""

from __future__ import annotations

from decoder_perf import PERF_METRICS, PerfCounter

FIRST = {
    "kv_cache_alloc_new_blocks": 2, "kv_cache_reused_blocks": 5, "kv_cache_alloc_total_blocks": 7,
    "arrival_time_ns": 10, "first_scheduled_time_ns": 11, "first_token_time_ns": 12, "last_token_time_ns": 13,
}  # fmt: skip
SECOND = {
    "kv_cache_alloc_new_blocks": 1, "kv_cache_reused_blocks": 7, "kv_cache_alloc_total_blocks": 8,
    "arrival_time_ns": 20, "first_scheduled_time_ns": 21, "first_token_time_ns": 22, "last_token_time_ns": 23,
}  # fmt: skip


def test_what_adds_up_is_added_and_the_rest_is_the_firsts_or_the_lasts() -> None:
    """A round finds in the cache what the round before has left: that is no reuse of an earlier request's."""
    counter = PerfCounter()
    counter.record(FIRST)
    begun = counter.snapshot()
    counter.record(SECOND)

    assert begun == FIRST
    assert counter.snapshot() == {
        "kv_cache_alloc_new_blocks": 3, "kv_cache_reused_blocks": 5, "kv_cache_alloc_total_blocks": 8,
        "arrival_time_ns": 10, "first_scheduled_time_ns": 11, "first_token_time_ns": 12, "last_token_time_ns": 23,
    }  # fmt: skip
    assert set(PERF_METRICS) == FIRST.keys()


def test_what_an_engine_does_not_measure_is_not_there() -> None:
    """Absent is not zero, and a call that is silent changes nothing."""
    counter = PerfCounter()
    counter.record({})
    assert counter.snapshot() == {}
    counter.record({"last_token_time_ns": 3})
    counter.record({})
    assert counter.snapshot() == {"last_token_time_ns": 3}
