"""The circuit breaker in front of the draft, by a clock that the test moves."""

from __future__ import annotations

from decoder_breaker import DraftBreaker


class Clock:
    """Seconds that pass when the test says so."""

    now_s = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def opened(clock: Clock) -> DraftBreaker:
    """Return a breaker that has just opened."""
    breaker = DraftBreaker(failures=3, pause_s=1.0, longest_pause_s=4.0, clock=clock)
    for _ in range(3):
        breaker.failed()
    return breaker


def test_single_failures_change_nothing() -> None:
    """Only failures in a row open it: a draft that fails now and then is still worth asking."""
    breaker = DraftBreaker(failures=3)
    for _ in range(5):
        breaker.failed()
        breaker.failed()
        breaker.worked()

    assert (breaker.allows(), breaker.is_open) == (True, False)


def test_a_draft_that_keeps_failing_is_left_alone_and_tried_ever_less_often() -> None:
    """One request tries it after each pause, which doubles up to the longest."""
    clock = Clock()
    breaker = opened(clock)
    tried = []
    for tick in range(200):
        clock.now_s = tick / 10
        if breaker.allows():
            tried.append(clock.now_s)
            assert not breaker.allows()
            breaker.failed()

    assert tried == [1.0, 3.0, 7.0, 11.0, 15.0, 19.0]


def test_one_success_brings_the_draft_back_for_everybody() -> None:
    """After it the pauses begin at the shortest again."""
    clock = Clock()
    breaker = opened(clock)
    clock.now_s = 1.0
    assert breaker.allows()
    breaker.worked()
    assert breaker.allows()
    assert breaker.allows()

    for _ in range(3):
        breaker.failed()
    clock.now_s = 2.0
    assert breaker.allows()


def test_a_try_that_never_ends_does_not_keep_the_draft_away() -> None:
    """A client may cancel the very request that tries; another one tries later."""
    clock = Clock()
    breaker = opened(clock)
    clock.now_s = 1.0
    assert breaker.allows()
    clock.now_s = 3.0

    assert breaker.allows()


def test_what_was_running_when_it_opened_puts_nothing_off() -> None:
    """Failures that come in late neither restart the pause nor lengthen it."""
    clock = Clock()
    breaker = opened(clock)
    clock.now_s = 0.9
    for _ in range(20):
        breaker.failed()
    clock.now_s = 1.0

    assert breaker.allows()
