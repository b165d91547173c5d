"""Long calls whose request ends: who is asked, what is stopped, and what is not."""

from __future__ import annotations

import threading

import pytest
from decoder_stop import CallStopper, StoppedError

LONG_S = 60


def nobody() -> None:
    """What is called of a call that must not be stopped."""
    raise AssertionError("stopped")


def waited_for() -> str:
    """Say that somebody waits for the answer."""
    return ""


def test_a_call_returns_its_value_or_raises_its_error() -> None:
    """On the caller's own thread, time and again, and nothing stops it."""
    stopper = CallStopper(period_s=0.01)

    assert [stopper(lambda n=n: n, waited_for, nobody) for n in range(50)] == [(n, "") for n in range(50)]
    assert stopper(threading.current_thread, waited_for, nobody)[0] is threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        stopper(lambda: 1 / 0, waited_for, nobody)
    stopper.close()


@pytest.mark.parametrize("outcome", ["returns", "raises"])
def test_a_call_whose_request_ends_is_stopped_once(outcome: str) -> None:
    """From another thread, with the reason; what the call comes to then is its value, or that it has none."""
    stopper, end, stops = CallStopper(period_s=0.01), threading.Event(), []

    def call() -> int:
        assert end.wait(LONG_S)
        return 7 if outcome == "returns" else 1 // 0

    def stop() -> None:
        stops.append(threading.current_thread())
        end.set()

    asked = iter(["", ""])
    if outcome == "returns":
        assert stopper(call, lambda: next(asked, "timeout"), stop) == (7, "timeout")
    else:
        with pytest.raises(StoppedError, match="timeout"):
            stopper(call, lambda: next(asked, "timeout"), stop)
    assert len(stops) == 1
    assert stops[0] is not threading.current_thread()
    stopper.close()


def test_a_request_that_cannot_be_asked_does_not_keep_others_from_being_stopped() -> None:
    """Nor does an engine that cannot be told."""
    stopper, ends = CallStopper(period_s=0.01), [threading.Event() for _ in range(3)]

    def fails() -> str:
        raise RuntimeError("the server does not say")

    def cannot() -> None:
        raise RuntimeError("the engine is gone")

    def stop() -> None:
        for end in ends:
            end.set()

    def wait(number: int, ended, stop) -> None:
        results[number] = stopper(lambda: ends[number].wait(LONG_S), ended, stop)

    results: dict[int, tuple[bool, str]] = {}
    kinds = [(fails, nobody), (lambda: "cancelled", cannot), (lambda: "cancelled", stop)]
    threads = [threading.Thread(target=wait, args=(n, *kind)) for n, kind in enumerate(kinds)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)

    assert results == {0: (True, ""), 1: (True, "cancelled"), 2: (True, "cancelled")}
    stopper.close()


def test_it_sleeps_while_nothing_is_called_and_wakes_for_the_next_call() -> None:
    """However long ago the last one was."""
    stopper = CallStopper(period_s=0.001)
    stopper(lambda: None, waited_for, nobody)
    for _ in range(1000):
        if not stopper._wanted.is_set():
            break
        threading.Event().wait(0.01)
    assert not stopper._wanted.is_set()

    end = threading.Event()
    assert stopper(lambda: end.wait(LONG_S), lambda: "cancelled", end.set) == (True, "cancelled")
    stopper.close()
