"""Watched calls, which end when the test says so, and the workers that make them."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from decoder_watch import CallWatch, DeadlineError, TakenOverError
from decoder_workers import Workers

LONG_S = 60


def never(why: str) -> None:
    """What is told of a call that must not be given up."""
    raise AssertionError(why)


def test_a_call_returns_its_value_or_raises_its_error() -> None:
    """On the caller's own thread, time and again."""
    watch = CallWatch(most=2)

    assert [watch(lambda number=number: number + 1, never, LONG_S) for number in range(50)] == list(range(1, 51))
    assert watch(threading.current_thread, never, LONG_S) is threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        watch(lambda: 1 / 0, never, LONG_S)
    watch.close()


@pytest.mark.parametrize("outcome", ["returns", "raises"])
def test_a_call_that_hangs_is_told_of_once_and_then_is_somebody_elses(outcome: str) -> None:
    """Its thread learns so when it comes back, whatever the call came to."""
    watch, end, told = CallWatch(most=2), threading.Event(), []
    lost = threading.Event()

    def call() -> int:
        assert lost.wait(LONG_S)
        assert end.wait(LONG_S)
        return 1 if outcome == "returns" else 1 // 0

    def tell(why: str) -> None:
        told.append((why, threading.current_thread()))
        lost.set()
        end.set()

    with pytest.raises(TakenOverError):
        watch(call, tell, 0.01)
    assert [why for why, _ in told] == ["has not answered within 0.01 s"]
    assert told[0][1] is not threading.current_thread()
    assert watch(lambda: 2, never, LONG_S) == 2
    watch.close()


def test_a_draft_that_hangs_for_good_does_not_gather_threads() -> None:
    """Calls that have not come back count, until they do."""
    watch, end = CallWatch(most=2), threading.Event()
    lost, back = threading.Semaphore(0), threading.Semaphore(0)

    def hang() -> None:
        with pytest.raises(TakenOverError):
            watch(end.wait, lambda _: lost.release(), 0.01)
        back.release()

    for _ in range(2):
        threading.Thread(target=hang, daemon=True).start()
        assert lost.acquire(timeout=LONG_S)
    with pytest.raises(DeadlineError, match="has not answered 2 earlier calls"):
        watch(lambda: 1, never, LONG_S)

    end.set()
    assert all(back.acquire(timeout=LONG_S) for _ in range(2))
    assert watch(lambda: 1, never, LONG_S) == 1
    watch.close()


def test_the_watch_wakes_again_after_it_had_nothing_to_watch() -> None:
    """Each of several calls with pauses between them is given up when it is overdue."""
    watch = CallWatch(most=10)
    for _ in range(5):
        end = threading.Event()
        with pytest.raises(TakenOverError):
            watch(partial(end.wait, LONG_S), lambda _, end=end: end.set(), 0.01)
    watch.close()


def test_of_many_calls_each_is_either_in_time_or_lost() -> None:
    """With a limit that about half of them keep, none is both, and none is neither."""
    watch, seen, told = CallWatch(most=1000), [], []
    start = threading.Barrier(16)

    def many(number: int) -> None:
        start.wait(LONG_S)
        for turn in range(25):
            key = (number, turn)
            try:
                pause = partial(_pause, 0.004 * ((number + turn) % 2))
                seen.append((watch(pause, lambda _, key=key: told.append(key), 0.002), key))
            except TakenOverError:
                seen.append(("lost", key))

    threads = [threading.Thread(target=many, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)

    assert len(seen) == 16 * 25
    assert sorted(told) == sorted(key for outcome, key in seen if outcome == "lost")
    watch.close()


def test_a_call_that_may_take_less_than_those_before_is_given_up_first() -> None:
    """The watch, which sleeps until the next one is due, is woken for it."""
    watch, end, told = CallWatch(most=10), threading.Event(), []
    long = threading.Thread(target=lambda: watch(partial(end.wait, LONG_S), never, LONG_S))
    long.start()

    def short(limit_s: float) -> None:
        over = threading.Event()
        with pytest.raises(TakenOverError):
            watch(partial(over.wait, LONG_S), lambda why: (told.append(why), over.set()), limit_s)

    for limit_s in (0.03, 0.01, 0.02):
        short(limit_s)
    assert told == [f"has not answered within {limit_s:g} s" for limit_s in (0.03, 0.01, 0.02)]
    end.set()
    long.join(LONG_S)
    watch.close()


def test_who_cannot_deal_with_a_lost_call_does_not_end_the_watch() -> None:
    """The next one is given up all the same; and a limit that is over is one at once."""
    watch = CallWatch(most=10)

    def breaks(over: threading.Event, _: str) -> None:
        over.set()
        raise RuntimeError("cannot start new thread")

    for limit_s in (0.01, 0.0, -1.0, 0.01):
        over = threading.Event()
        with pytest.raises(TakenOverError):
            watch(partial(over.wait, LONG_S), partial(breaks, over), limit_s)
    watch.close()


def _pause(seconds: float) -> str:
    threading.Event().wait(seconds)
    return "in time"


def test_workers_run_what_they_are_given_all_at_once() -> None:
    """Jobs that wait for each other end, so each has its thread; later ones take those that are free."""
    workers, met, names = Workers(), threading.Barrier(9), []

    def job() -> None:
        names.append(threading.current_thread())
        met.wait(LONG_S)

    for _ in range(8):
        workers.submit(job)
    met.wait(LONG_S)
    assert len(set(names)) == 8
    workers.close()


def test_a_worker_is_used_again() -> None:
    """One job after the other needs one thread."""
    workers, seen, done = Workers(), set(), threading.Semaphore(0)

    def job() -> None:
        seen.add(threading.current_thread())
        done.release()

    for _ in range(50):
        workers.submit(job)
        assert done.acquire(timeout=LONG_S)
    assert len(seen) <= 2  # the first may not be back when the second is wanted
    workers.close()
