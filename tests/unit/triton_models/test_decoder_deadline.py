"""Calls with a deadline, over calls that end when the test says so."""

from __future__ import annotations

import threading

import pytest
from decoder_deadline import DeadlineCaller, DeadlineError

LONG_S = 60


def test_a_call_returns_its_value_or_raises_its_error() -> None:
    """As if it had been made on the caller's own thread, time and again."""
    caller = DeadlineCaller(LONG_S, most=2)

    assert [caller(lambda number=number: number + 1) for number in range(50)] == list(range(1, 51))
    with pytest.raises(ZeroDivisionError):
        caller(lambda: 1 / 0)
    caller.close()


def test_a_call_that_hangs_is_given_up_and_its_thread_comes_back_with_it() -> None:
    """Calls that have not come back count, so a draft that hangs for good does not gather threads."""
    caller, end = DeadlineCaller(0.01, most=2), threading.Event()
    for _ in range(2):
        with pytest.raises(DeadlineError, match=r"has not answered within 0\.01 s"):
            caller(end.wait)
    with pytest.raises(DeadlineError, match="has not answered 2 earlier calls"):
        caller(lambda: 1)

    end.set()
    assert answered(caller) == 1
    caller.close()


def answered(caller: DeadlineCaller) -> int:
    """Call until there is a thread again."""
    for _ in range(1000):
        try:
            return caller(lambda: 1)
        except DeadlineError:
            threading.Event().wait(0.01)
    raise AssertionError("no thread came back")


def test_many_callers_at_once_get_their_own_values() -> None:
    """Threads are shared, values are not."""
    caller = DeadlineCaller(LONG_S, most=64)
    seen: list[list[int]] = []

    def many(start: int) -> None:
        seen.append([caller(lambda number=number: number) for number in range(start, start + 100)])

    threads = [threading.Thread(target=many, args=(start,)) for start in range(0, 3200, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)

    assert sorted(number for numbers in seen for number in numbers) == list(range(3200))
    assert all(numbers == sorted(numbers) for numbers in seen)
    caller.close()
