"""Many requests at once: turns, waiting, cancellation, and failures that stay with their request."""

from __future__ import annotations

import threading

import pytest
from tensorrtllm_cpu.faults import RequestRefused

from tests.unit.cpu_backend.table_model import KeptJob, TableEngine, TableModel

DEADLINE_S = 20


def test_running_requests_take_turns() -> None:
    """Between two passes of one request every other one gets its pass, a short one beside long ones too."""
    engine = TableEngine(slots=3)
    jobs = [engine.submit([token], count) for token, count in ((1, 6), (2, 6), (3, 2))]
    engine.drain()

    order = [engine.model.caches.index(cache) for cache in engine.model.order]
    assert order == [0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 0, 1, 0, 1]
    assert [len(job.ids) for job in jobs] == [6, 6, 2]


def test_a_long_prompt_lets_others_in_between_its_chunks() -> None:
    """A running request is not stopped by somebody's long prompt."""
    engine = TableEngine(slots=2, chunk=4)
    quick = engine.submit([1], 4)
    engine.submit([token % 7 for token in range(40)], 1)
    passes = 0
    while not quick.ended:
        engine.scheduler.turn()
        passes += 1

    assert passes == 7
    engine.drain()


def test_requests_wait_in_order_while_all_slots_are_lent() -> None:
    """First come, first served; nobody is lost."""
    engine = TableEngine(slots=1)
    jobs = [engine.submit([token], 2) for token in range(5)]
    ended: list[int] = []
    while engine.scheduler.turn():
        ended += [index for index, job in enumerate(jobs) if job.ended and index not in ended]

    assert ended == [0, 1, 2, 3, 4]
    assert [job.ids for job in jobs] == [engine.model.greedy([token], 2) for token in range(5)]


def test_interleaved_requests_do_not_disturb_each_other() -> None:
    """More requests than slots, of all kinds, answer as each would alone."""
    engine = TableEngine(TableModel(seed=9), slots=3, chunk=4)
    prompts = [[(7 * n + i) % 7 for i in range(1 + n)] for n in range(12)]
    jobs = [engine.submit(prompt, 5, draft_input_ids=[1, 2] if n % 3 else None) for n, prompt in enumerate(prompts)]
    engine.drain()

    for prompt, job in zip(prompts, jobs, strict=True):
        assert job.ids == engine.model.greedy(prompt, 5)[: len(job.ids)]
        assert job.ended == 1


def test_a_failing_pass_fails_its_request_alone() -> None:
    """The others finish, the failed slot is replaced and the engine serves on."""
    engine = TableEngine(slots=2)
    engine.model.poison = 5
    bias = [-1e9 if token == 5 else 0.0 for token in range(7)]
    good, bad = engine.submit([1], 6, embedding_bias=bias), engine.submit([2, 5], 6)
    engine.drain()

    assert isinstance(bad.errors[0], RuntimeError)
    assert (bad.ended, good.ended) == (1, 1)
    assert len(good.ids) == 6
    engine.model.poison = None
    assert engine.run([2, 5], 3).ids == engine.model.greedy([2, 5], 3)


def test_a_refusal_during_decoding_keeps_the_slot() -> None:
    """A request that forbids every token is refused; its cache is still good."""
    engine = TableEngine(slots=1)
    every = list(range(engine.model.vocab))

    job = engine.run([1, 2], 3, bad_words_list=[every, [token + 1 for token in every]])

    assert isinstance(job.errors[0], RequestRefused)
    assert engine.run([1, 2], 1).answers[0].reused_tokens == 1


def test_an_engine_without_memory_for_a_slot_fails_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is answered with the engine's error; a later one is tried again."""
    engine = TableEngine(slots=1)

    def no_memory() -> None:
        raise MemoryError("no memory for a sequence")

    engine.scheduler._pool._new_cache = no_memory
    assert isinstance(engine.run([1], 1).errors[0], MemoryError)

    engine.scheduler._pool._new_cache = engine.model.new_cache
    assert engine.run([1], 1).ids == engine.model.greedy([1], 1)


def test_a_cancelled_request_stops_and_frees_its_slot() -> None:
    """It is answered once, and whoever waited gets the slot."""
    engine = TableEngine(slots=1)
    gone, waiting = engine.submit([1], 40), engine.submit([2], 3)
    engine.scheduler.turn()
    gone.gone = True
    engine.now += 1.0
    engine.drain()

    assert (gone.abandoned, gone.ended) == (1, 1)
    assert len(engine.model.caches[0].passes) == 1 + 3
    assert len(waiting.ids) == 3


def test_a_waiting_request_can_be_cancelled() -> None:
    """It never runs, and is answered before a slot becomes free."""
    engine = TableEngine(slots=1)
    running, gone = engine.submit([1], 40), engine.submit([2], 3)
    engine.scheduler.turn()
    gone.gone = True
    engine.now += 1.0
    engine.scheduler.turn()

    assert (gone.abandoned, running.ended) == (1, 0)
    engine.drain()
    assert gone.ended == 1


def test_cancellation_is_asked_about_now_and_then_only() -> None:
    """Asking costs a fraction of a millisecond, so a single verification is never asked about."""
    engine = TableEngine()

    assert engine.run([1], 5).asked == 0


@pytest.fixture
def served() -> TableEngine:
    """An engine on its own thread."""
    engine = TableEngine(slots=2)
    engine.scheduler.start()
    yield engine
    engine.scheduler.close()


class AwaitedJob(KeptJob):
    """A job that another thread can wait for."""

    def __init__(self, job: KeptJob) -> None:
        super().__init__(job.request)
        self.done = threading.Event()

    def respond(self, answer, *, final: bool) -> None:
        """Keep the answer and wake the waiter."""
        super().respond(answer, final=final)
        if final:
            self.done.set()

    def abandon(self) -> None:
        """Count and wake the waiter."""
        super().abandon()
        self.done.set()


def test_submissions_from_many_threads_are_all_answered(served: TableEngine) -> None:
    """Requests that arrive while others run, or while the engine sleeps, are served."""
    jobs = [AwaitedJob(served.job([n % 7], 4)) for n in range(40)]
    threads = [threading.Thread(target=served.scheduler.submit, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(job.done.wait(DEADLINE_S) for job in jobs)
    assert [job.ids for job in jobs] == [served.model.greedy([n % 7], 4) for n in range(40)]
    late = AwaitedJob(served.job([3], 2))
    served.scheduler.submit(late)
    assert late.done.wait(DEADLINE_S)


def test_closing_answers_whatever_is_left() -> None:
    """Nobody waits for ever when the model is unloaded, whether running or still in line."""
    engine = TableEngine(slots=1)
    jobs = [engine.submit([1], 40), engine.submit([2], 40)]
    engine.scheduler.turn()
    late = engine.submit([3], 40)
    engine.scheduler.close()

    assert [job.abandoned for job in (*jobs, late)] == [1, 1, 1]


def test_a_job_is_stopped_by_its_name() -> None:
    """What runs is answered with what it has, what waits as a cancelled one; the others go on, also in their slots."""
    engine = TableEngine(slots=2)
    running, other, waiting = engine.job([1], 9), engine.job([2], 9), engine.job([3], 9)
    engine.scheduler.submit(running, "a")
    engine.scheduler.submit(other, "b")
    engine.scheduler.submit(waiting, "a")
    for _ in range(4):
        engine.scheduler.turn()
    engine.scheduler.stop("a")
    engine.scheduler.stop("nobody")
    engine.drain()

    assert (running.ended, running.ids) == (1, engine.model.greedy([1], 2))
    assert (waiting.ended, waiting.abandoned) == (1, 1)
    assert other.ids == engine.model.greedy([2], 9)
    assert engine.run([4], 3).ids == engine.model.greedy([4], 3)


def test_a_stopped_job_may_have_nothing() -> None:
    """Its prompt was being read."""
    engine = TableEngine(slots=1, chunk=2)
    job = engine.job([1, 2, 3, 4, 5, 6, 1, 2], 4)
    engine.scheduler.submit(job, "a")
    engine.scheduler.turn()
    engine.scheduler.stop("a")
    engine.drain()

    assert (job.ended, job.ids) == (1, [])
