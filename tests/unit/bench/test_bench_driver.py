"""The loops, closed and open, against a wire that answers from a script."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal

import pytest

from specdeploy.bench.driver import CONNECTION_LABELS, build_request, run_load
from specdeploy.bench.prompts import load_bundled
from specdeploy.bench.records import CONTROL, INTERRUPTED, SPECULATION
from specdeploy.bench.schedule import LoadSettings, plan_load
from specdeploy.deploy.counts import ServerCounts
from specdeploy.deploy.status import Acceptance
from specdeploy.system.clock import SystemClock
from specdeploy.triton.client import RequestFailed
from specdeploy.triton.client.failures import stream_failure
from specdeploy.triton.protocol import Chunk
from tests.unit.bench.fakes import HANG, FakeClock, FakeServer, answer, refused

pytestmark = pytest.mark.timeout(60)
CODE = load_bundled("code")


def plan(**settings):
    """A short plan."""
    return plan_load(LoadSettings(**{"requests": 2, "pairs": 1, "warmup_requests": 0, **settings}), CODE)


def run(script=None, on_progress=None, chunk_s=0.1, **settings):
    """Run a short plan against a script; returns the run and the server."""
    clock = FakeClock()
    server = FakeServer(clock, chunk_s=chunk_s) if script is None else FakeServer(clock, script, chunk_s=chunk_s)
    return run_load(plan(**settings), server, server, clock, on_progress), server


def test_every_request_of_the_plan_becomes_a_record() -> None:
    """In ABBA order, each arm with the drafts it stands for, each record with its place in the plan."""
    result, server = run(pairs=2, warmup_requests=2)

    assert (len(result.records), result.partial, result.stop_reason) == (10, False, "")
    assert [(r.pair, r.arm, r.index) for r in result.records] == [
        (-1, SPECULATION, 0),
        (-1, CONTROL, 0),
        *[(pair, arm, i) for pair, arm in ((0, CONTROL), (0, SPECULATION)) for i in (0, 1)],
        *[(pair, arm, i) for pair, arm in ((1, SPECULATION), (1, CONTROL)) for i in (0, 1)],
    ]
    assert [request.num_draft_tokens for request in server.sent] == [None, 0, 0, 0, None, None, None, None, 0, 0]


def test_a_record_holds_what_was_seen() -> None:
    """Times of every response, tokens and counts of the server, and the closed loop's intended send."""
    result, _ = run(requests=2)
    first, second = result.records[:2]

    assert first.chunk_s == pytest.approx((1000.1, 1000.2, 1000.3))
    assert (first.intended_s, first.sent_s) == (1000.0, 1000.0)
    assert (first.first_s, first.last_s, first.ended_s) == pytest.approx((1000.1, 1000.3, 1000.3))
    assert (first.chunk_tokens, first.output_ids, first.output_tokens, first.input_tokens) == (
        (1, 1, 1),
        (1, 2, 3),
        3,
        9,
    )
    assert (first.num_spec_steps, first.draft_tokens, first.accepted_tokens, first.histogram) == (1, 4, 1, (0, 1))
    assert (first.finish_reason, first.error) == ("length", None)
    assert second.intended_s == first.ended_s


def test_the_clients_own_arrival_time_is_used() -> None:
    """A response is timed when it arrived, not when this thread came round to it."""
    script = lambda request, number: [dataclasses.replace(answer(1)[0], received_s=1000.04)]  # noqa: E731
    result, _ = run(script)

    assert result.records[0].first_s == 1000.04


def test_a_last_response_without_tokens_is_no_moment_of_the_answer() -> None:
    """It brings the totals; the answer's last token came before it."""
    tail = Chunk(text="", finish_reason="end_id", final=True, num_output_tokens=2)
    result, _ = run(lambda request, number: [*answer(1, 2, finish_reason="", final=False), tail])
    record = result.records[0]

    assert (len(record.chunk_s), record.last_s, record.finish_reason) == (2, pytest.approx(1000.2), "end_id")


def test_tokens_are_counted_without_ids_too() -> None:
    """A server that does not send ids still says how many tokens there are so far."""
    chunks = [Chunk(text="a", num_output_tokens=2), Chunk(text="b", num_output_tokens=5, finish_reason="length")]
    result, _ = run(lambda request, number: chunks)

    assert (result.records[0].chunk_tokens, result.records[0].output_tokens) == ((2, 3), 5)


def test_as_many_requests_are_in_flight_as_asked_for() -> None:
    """Three at a time in a closed loop of three, from a wire that was told of it before the first."""
    result, server = run(concurrency=(3,), requests=6)

    assert [record.error for record in result.records] == [None] * 12
    assert (server.opened, server.most, server.closed) == (3, 3, 1)


def test_the_wire_is_opened_for_the_highest_concurrency() -> None:
    """Once, before the first request, so that no set-up is measured."""
    _, server = run(concurrency=(1, 4), requests=4)

    assert (server.opened, server.closed) == (4, 1)


def test_a_wire_that_cannot_be_opened_ends_the_run_before_it_begins() -> None:
    """The fault is the caller's to report; nothing was sent, and the wire is closed."""

    class Closed(FakeServer):
        async def open(self, connections: int, timeout_s: float = 30.0) -> None:
            raise refused("connection")

    server = Closed(FakeClock())
    with pytest.raises(RequestFailed):
        run_load(plan(), server, server, server.clock)
    assert (server.sent, server.closed) == ([], 1)


@pytest.mark.parametrize(
    ("script", "label"),
    [
        (refused("model_error"), "model_error"),
        ([*answer(1, 2, finish_reason="", final=False), refused("internal")], "internal"),
        ([], "empty_stream"),
        (answer(1, 2, finish_reason="", final=False), "stream_ended_early"),
        (answer(1, finish_reason="cancelled"), "cancelled"),
        (answer(1, finish_reason="timeout"), "timeout"),
    ],
)
def test_a_failure_becomes_a_record_under_its_label(script, label: str) -> None:
    """And the run goes on: the next request is sent and answered."""
    result, _ = run(lambda request, number: script if number == 0 else answer(1))

    assert [record.error for record in result.records] == [label, None, None, None]
    assert result.records[0].error_message
    assert not result.partial


def test_what_came_before_a_failure_is_kept() -> None:
    """A stream that broke after two tokens has two tokens in its record."""
    result, _ = run(lambda request, number: [*answer(1, 2, finish_reason=""), refused("internal")])

    assert (result.records[0].output_ids, len(result.records[0].chunk_s)) == ((1, 2), 2)


@pytest.mark.parametrize("label", sorted(CONNECTION_LABELS))
def test_a_dead_server_stops_the_run(label: str) -> None:
    """After the third failed connection in a row nothing more is sent, and the reason has the last message."""
    result, server = run(lambda request, number: refused(label), pairs=50, max_connection_failures=3)

    assert (len(server.sent), result.partial) == (3, True)
    assert f"{label}: refused" in result.stop_reason


@pytest.mark.parametrize(
    "said",
    [
        "Server is stopping, scheduler for model has stopped accepting new inference requests",
        "the target failed: Request for unknown model: 'tensorrt_llm' has no available versions",
    ],
)
def test_a_server_that_was_told_to_stop_ends_the_run(said: str) -> None:
    """At its first word of it, if it is the last request: else a run without it would be whole."""
    last = 5
    result, server = run(lambda request, number: stream_failure(said) if number == last else answer(1), requests=3)

    assert (len(server.sent), result.partial) == (last + 1, True)
    assert "the server was stopped" in result.stop_reason
    assert said in result.stop_reason


def test_only_failures_in_a_row_stop_the_run() -> None:
    """One answer in between, or a failure that is the model's, and the server is evidently there."""
    labels = ["connection", "connection", None, "connection", "connection", "model_error", "timeout", "connection"]
    result, _ = run(
        lambda request, number: refused(labels[number]) if labels[number] else answer(1),
        requests=4,
        max_connection_failures=3,
    )

    assert (len(result.records), result.partial) == (8, False)


def test_the_deadline_ends_the_run() -> None:
    """0.3 s a request, one second in all: the fourth is cut off by us, which is no error of the server's."""
    result, server = run(pairs=50, deadline_s=1.0)

    assert result.partial
    assert "deadline of 1 s" in result.stop_reason
    assert 3 <= len(result.records) == len(server.sent) < 100
    assert {record.error for record in result.records} <= {None, INTERRUPTED}


def interrupt_after(number: int):
    """A progress callback that is hit by Ctrl-C."""

    def on_progress(progress) -> None:
        if progress.done == number:
            raise KeyboardInterrupt

    return on_progress


def test_ctrl_c_keeps_what_was_measured() -> None:
    """No traceback: a partial run with its records; what was cut off does not count; the sessions are closed."""
    result, server = run(pairs=50, on_progress=interrupt_after(3))

    assert (result.partial, result.stop_reason) == (True, "interrupted from the keyboard")
    assert len([record for record in result.records if record.ok]) >= 3
    assert {record.error for record in result.records} <= {None, INTERRUPTED}
    assert len(server.sent) < 200
    assert (server.closed, server.in_flight) == (1, 0)


def test_ctrl_c_gets_through_to_a_stream_that_hangs() -> None:
    """A request that waits for the server is cut off after a moment, and leaves its record."""
    script = lambda request, number: answer(1) if number < 2 else [answer(1, 2)[0], HANG]  # noqa: E731
    result, server = run(script, requests=3, on_progress=interrupt_after(2))

    assert [record.error for record in result.records] == [None, None, INTERRUPTED]
    assert result.records[2].output_ids == (1,)
    assert (server.closed, server.in_flight) == (1, 0)


def test_a_real_signal_ends_the_run_as_well() -> None:
    """SIGINT while the loop waits for the server: a partial run, no traceback."""

    def script(_request, number: int):
        if number == 1:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        return answer(1) if number < 1 else [HANG]

    result, server = run(script, requests=3)

    assert (result.partial, result.stop_reason) == (True, "interrupted from the keyboard")
    assert [record.error for record in result.records] == [None, INTERRUPTED]
    assert server.closed == 1


def test_a_second_signal_does_not_wait_for_what_hangs() -> None:
    """It is cut off at once, not after the moment that the first signal leaves it, and all records are kept."""

    def script(_request, number: int):
        if number == 1:
            for _ in range(2):
                asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
            # Nothing but the signals ends the run before this does, long before the moment has passed.
            asyncio.get_running_loop().call_later(1.0, late.append, True)
        return answer(1) if number < 1 else [HANG]

    late: list[bool] = []
    result, server = run(script, requests=3)

    assert (result.partial, result.stop_reason) == (True, "interrupted from the keyboard")
    assert [record.error for record in result.records] == [None, INTERRUPTED]
    assert (server.closed, server.in_flight, late) == (1, 0, [])


def test_a_callback_that_fails_does_not_leave_the_run_going() -> None:
    """Its error comes through, and the sessions are closed."""
    clock = FakeClock()
    server = FakeServer(clock)

    def broken(_progress):
        raise RuntimeError("the terminal is gone")

    with pytest.raises(RuntimeError, match="terminal"):
        run_load(plan(pairs=50), server, server, clock, broken)
    assert (server.closed, server.in_flight) == (1, 0)


def test_progress_counts_up_to_the_plan() -> None:
    """Every request is reported once, with the errors so far."""
    seen = []

    def on_progress(progress) -> None:
        seen.append((progress.done, progress.total, progress.block, progress.blocks, progress.errors))

    run(lambda request, number: refused("internal") if number == 1 else answer(1), on_progress)

    assert seen == [(1, 4, 1, 2, 0), (2, 4, 1, 2, 1), (3, 4, 2, 2, 1), (4, 4, 2, 2, 1)]


def test_the_arms_of_a_pair_ask_for_the_same_thing() -> None:
    """Prompt, length, sampling and seed agree; only the drafts differ; a greedy request carries no sampling at all."""
    for temperature, seeded in ((0.0, False), (0.8, True)):
        sampled = plan(temperature=temperature, top_p=0.9, seed=5, num_draft_tokens=6)
        control, speculation = (build_request(sampled, block, 1) for block in sampled.blocks)
        assert dataclasses.replace(control, num_draft_tokens=6) == speculation
        assert control.num_draft_tokens == 0
        assert (control.seed is not None, control.top_p is not None) == (seeded, seeded)


def test_sampled_requests_have_seeds_of_their_own() -> None:
    """No two requests of an arm draw the same numbers."""
    sampled = plan(temperature=1.0, pairs=3, requests=4)
    seeds = [
        build_request(sampled, block, i).seed for block in sampled.blocks if block.arm == CONTROL for i in range(4)
    ]

    assert len(set(seeds)) == len(seeds) == 12


class TestOpenLoop:
    """Requests are sent by the schedule, whatever becomes of them."""

    def test_a_server_that_stalls_is_sent_what_it_would_have_been_sent_anyway(self) -> None:
        """Ten requests are due within 0.1 s; all are sent although none is answered, and none is forgotten."""
        clock = SystemClock()
        server = FakeServer(clock, lambda request, number: [HANG])
        wanted = plan(shape="constant", rates=(100.0,), requests=10, compare=False, pairs=1, deadline_s=0.3)
        result = run_load(wanted, server, server, clock)

        assert (len(server.sent), server.most) == (10, 10)
        assert [record.error for record in result.records] == [INTERRUPTED] * 10
        begun = result.records[0].intended_s
        assert [record.intended_s - begun for record in result.records] == pytest.approx([i / 100 for i in range(10)])
        assert all(record.sent_s >= record.intended_s for record in result.records)
        assert {(record.concurrency, record.rate) for record in result.records} == {(None, 100.0)}

    def test_both_arms_of_a_pair_are_sent_at_the_same_times(self) -> None:
        """Whatever the process: the gaps of one arm are those of the other."""
        wanted = plan(shape="poisson", rates=(500.0,), requests=8, pairs=2, seed=4)
        times = {(block.pair, block.arm): block.offsets_s for block in wanted.blocks}

        assert times[0, CONTROL] == times[0, SPECULATION]
        assert times[1, CONTROL] == times[1, SPECULATION]
        assert times[0, CONTROL] != times[1, CONTROL]
        assert {len(offsets) for offsets in times.values()} == {8}


def test_a_closed_loop_by_time_ends_by_time() -> None:
    """It sends the prompts over and over until its time is over, and lets what is in flight end."""
    result, server = run(duration_s=2.05, pairs=1, compare=False)

    assert len(server.sent) == 7
    assert not result.partial
    assert result.records[-1].ended_s == pytest.approx(1002.1)


def test_the_server_is_looked_at_on_both_sides_of_every_block() -> None:
    """The last look at one block is not the first at the next: what comes in between belongs to none."""
    clock, looks = FakeClock(), iter(range(100))
    server = FakeServer(clock)

    def look() -> ServerCounts:
        return ServerCounts(models={}, drafts=Acceptance(drafted=next(looks), accepted=0))

    result = run_load(plan(pairs=2, warmup_requests=2), server, server, clock, look=look)

    seen = [(window.pair, window.arm, window.before.drafts, window.after.drafts) for window in result.windows]
    assert [(pair, arm) for pair, arm, _, _ in seen] == [
        (-1, SPECULATION),
        (-1, CONTROL),
        (0, CONTROL),
        (0, SPECULATION),
        (1, SPECULATION),
        (1, CONTROL),
    ]
    assert [(before.drafted, after.drafted) for _, _, before, after in seen if before and after] == [
        (2 * number, 2 * number + 1) for number in range(6)
    ]
    assert all(window.start_s < window.end_s for window in result.windows)


def test_the_control_of_another_server_is_not_looked_at() -> None:
    """The counters are those of one server; what the other one counted meanwhile they do not say."""
    clock = FakeClock()
    server, other = FakeServer(clock), FakeServer(clock)
    counts = ServerCounts(models={}, drafts=None)
    result = run_load(plan(pairs=2), server, server, clock, control=(other, other), look=lambda: counts)

    assert [window.arm for window in result.windows] == ["speculation"] * 2
    assert len(result.records) == 8


def test_a_server_that_does_not_tell_has_no_windows() -> None:
    """The load goes on without."""
    clock = FakeClock()
    server = FakeServer(clock)

    result = run_load(plan(), server, server, clock, look=lambda: None)

    assert (result.windows, len(result.records), result.stop_reason) == ((), 4, "")
