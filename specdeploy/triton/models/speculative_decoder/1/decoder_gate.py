"""Which way to decode pays under a load: the ways are measured in turns, and the fastest one is taken.

No model of the server says when verifying drafts costs others more than it gains, or what drafts of another length
would: that depends on batch, queues, engine and GPU. So while all requests decode one way, now and then they try
another for a moment, and the seconds a token of both decide, with a margin, so that noise does not turn it to and fro.
What is tried has to be faster than what came before *and* what came after it: a machine that was slower for some
seconds says nothing of the ways. A trial that is clearly slower is over.

Trials are counted in tokens and not in time, so that they take the same small part of any load: a burst that is over
before a trial would pay for itself has none. Each range of load (1 request, 2 to 3, 4 to 7, ...) decides by itself, in
a trial of its own that waits while the load is another; until it has, it goes as the nearest one that has. Knows
nothing of requests, engines and time.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

#: How many times as fast as the target alone drafts are taken to be until a trial has told.
ASSUMED_GAIN: Final = 1.5
#: By how much another way has to be faster to be taken.
MARGIN: Final = 0.03
#: Tokens of a trial, and as many more for each request that is decoded at once.
_TRIAL_TOKENS: Final = 48
_TRIAL_TOKENS_EACH: Final = 8
#: A trial goes the usual way, the other one, and the usual one again, for so many times its tokens.
_LEGS: Final = (1.0, 1.0, 0.25)
_AWAY: Final = 2
#: How many trials' tokens are decoded before the first trial of a range where another one has decided (there are none
#: before the very first), and before the one that may turn back what another has turned; and before the next one of a
#: way that was not faster, so many times as many as before that, up to a most.
_NEXT: Final = 4
_LONGER: Final = 4
_MOST: Final = 128
#: Tokens of each request after which a load does not just pass through a range, where a trial costs much and tells
#: little; and how many trials' tokens later one comes all the same, or short bursts would never have any.
_STAYS_EACH: Final = 16
_PASSING: Final = 64
#: By which factor the number of requests may differ from that when a trial began.
_LIKE: Final = 1.25
#: The share of a trial before which nothing is clear.
_EARLIEST: Final = 0.25
#: How many standard errors the ratio of both ways is away from the margin when a trial is clearly slower, and by how
#: much at least, since calls of one moment err together.
_SURE: Final = 2.5
_APART: Final = 0.02
#: A trial in which so many times its tokens tell too little, since some do not go its way, is given up. Calls of the
#: other way are under way when it begins, and a slice of each request is past until all go one way.
_GIVE_UP: Final = 8


class Way(enum.Enum):
    """How requests decode."""

    #: As many drafts as are best by what the engines' calls take under the smallest load that was seen.
    FITTED = "fitted"
    #: The target alone.
    ALONE = "alone"
    #: As many as are best by what calls take under the load of the moment: right where a busy engine makes them longer,
    #: wrong where they wait for others, since those wait for these as well.
    CROWDED = "crowded"


@dataclasses.dataclass
class _Pace:
    """Seconds and tokens of one way, with their second moments."""

    seconds: float = 0.0
    tokens: int = 0
    _ss: float = 0.0
    _st: float = 0.0
    _tt: float = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        """Take in a call."""
        self.seconds += seconds
        self.tokens += tokens
        self._ss += seconds * seconds
        self._st += seconds * tokens
        self._tt += tokens * tokens

    @property
    def token_s(self) -> float:
        """Seconds a token of one request.

        Raises:
            ZeroDivisionError: Nothing was measured.
        """
        return self.seconds / self.tokens

    @property
    def relative_variance(self) -> float:
        """The squared standard error of :attr:`token_s` as a share of it: that of a ratio, by linearization.

        Raises:
            ZeroDivisionError: Nothing was measured, or it took no time.
        """
        ratio = self.seconds / self.tokens
        return max(self._ss - 2 * ratio * self._st + ratio**2 * self._tt, 0.0) / self.seconds**2


class _Trial:
    """All requests of a range go another way for a moment, between two of the usual one.

    Args:
        usual: The way that the range goes.
        way: The other one.
        requests: Decoded at once when it begins; many more or fewer tell nothing of it.
    """

    def __init__(self, usual: Way, way: Way, requests: int) -> None:
        self.usual = usual
        self.way = way
        self._requests = requests
        self._wanted = _wanted(requests)
        self._passed = 0
        # Of the usual way, of the other one, and of the usual one again, as far as it has come.
        self._paces = [_Pace()]

    def is_like(self, requests: int) -> bool:
        """Say whether a load is that of the trial."""
        fewest, most = sorted((requests, self._requests))
        return most <= _LIKE * fewest

    @property
    def going(self) -> Way:
        """The way of the moment."""
        return self.way if self._is_away else self.usual

    def add(self, way: Way, seconds: float, tokens: int, *, alike: bool) -> bool | None:
        """Take in a call, and say whether the other way is faster by the margin; None while that is open."""
        self._passed += tokens
        if alike and way is self.going:
            self._paces[-1].add(seconds, tokens)
            if self._paces[-1].tokens >= self._wanted * _LEGS[len(self._paces) - 1]:
                if len(self._paces) == len(_LEGS):
                    return self._is_faster()
                self._paces.append(_Pace())
        return False if self._passed >= _GIVE_UP * self._wanted or self._is_clearly_slower() else None

    @property
    def times_usual(self) -> float | None:
        """Seconds a token of the other way by those of the usual one; None where it has not come to both."""
        if len(self._paces) < _AWAY or not self._paces[1].tokens:
            return None
        usual = [pace for pace in self._paces[::2] if pace.tokens]
        usual_s = sum(pace.seconds for pace in usual) / sum(pace.tokens for pace in usual)
        return self._paces[1].token_s / usual_s if usual_s else None

    @property
    def _is_away(self) -> bool:
        """Whether the other way is the one of the moment."""
        return len(self._paces) == _AWAY

    def _is_faster(self) -> bool:
        before, tried, after = (pace.token_s for pace in self._paces)
        if tried >= min(before, after):
            return False
        # Of two ways with drafts, chance decides how many are accepted.
        doubt = self._error if self.way is Way.CROWDED else 0.0
        return not tried or math.log((before + after) / 2 / tried) > math.log1p(MARGIN) + doubt

    def _is_clearly_slower(self) -> bool:
        """Say whether the rest of the other way would hardly change the outcome."""
        if not self._is_away or self._paces[-1].tokens < _EARLIEST * self._wanted:
            return False
        usual, tried = self._paces
        if not usual.seconds or not tried.seconds:
            return False
        return math.log(tried.token_s / usual.token_s) + math.log1p(MARGIN) > _SURE * self._error + _APART

    @property
    def _error(self) -> float:
        """The relative standard error of both ways' ratio."""
        return math.sqrt(sum(pace.relative_variance for pace in self._paces[:_AWAY]))


@dataclasses.dataclass
class _Turn:
    """When a range tries a way: its tokens at the last trial, and trials' worth of tokens until the next."""

    at: int
    wait: int


class _Range:
    """What is known of one range of load.

    Args:
        first: How many trials' tokens there are before the first one.
    """

    def __init__(self, first: int) -> None:
        # None until a trial decided.
        self.way: Way | None = None
        # How many times as fast as the target alone drafts were in the last trial of both.
        self.gain: float | None = None
        self.trial: _Trial | None = None
        self.tokens = 0
        # Its tokens when the load came into this range, and when the last trial was over.
        self.came_at = self._tried_at = 0
        self._turns = {way: _Turn(0, first) for way in Way}

    def next_trial(self, usual: Way, requests: int, *, is_smallest: bool) -> _Trial | None:
        """Return the trial that is due, if one is; the smallest load that was seen fits lengths in one way only."""
        wanted = _wanted(requests)
        passes = self.tokens - self.came_at < _STAYS_EACH * requests
        if passes and self.tokens - self._tried_at < _PASSING * wanted:
            return None
        ways = {Way.FITTED, Way.ALONE} if is_smallest else set(Way)
        due = [way for way in ways - {usual} if self.tokens >= self._turns[way].at + self._turns[way].wait * wanted]
        # The one that has waited longest, or it would never be there where trials come seldom.
        return _Trial(usual, min(due, key=lambda way: (self._turns[way].at, way.value)), requests) if due else None

    def decide(self, trial: _Trial, *, faster: bool) -> None:
        """Take the faster way, and wait for the next trial: longer if this one brought no news."""
        self._tried_at = self.tokens
        self._note_gain(trial)
        self.way = trial.way if faster else trial.usual
        for way, turn in self._turns.items():
            if faster:
                # What it was turned by may have been a moment; or much has changed.
                self._turns[way] = _Turn(self.tokens, _NEXT if way is trial.usual else _LONGER * _NEXT)
            elif way is trial.way:
                self._turns[way] = _Turn(self.tokens, min(_LONGER * max(turn.wait, _NEXT), _MOST))

    def _note_gain(self, trial: _Trial) -> None:
        times = trial.times_usual
        if not times or Way.ALONE not in (trial.usual, trial.way):
            return
        self.gain = times if trial.way is Way.ALONE else 1 / times


class Gate:
    """The way of all requests, by load."""

    def __init__(self) -> None:
        self._ranges: dict[int, _Range] = {}
        self._last: _Range | None = None

    def way(self, requests: int) -> Way:
        """Return how a round that begins now decodes, and begin a trial when one is due.

        Args:
            requests: Decoded at once, at least 1.
        """
        here, usual = self._range(requests), self._usual(requests)
        if here.trial is None:
            here.trial = here.next_trial(usual, requests, is_smallest=here is self._ranges[min(self._ranges)])
        return here.trial.going if here.trial and here.trial.is_like(requests) else usual

    def gain(self, requests: int) -> float:
        """Return how many times as fast as the target alone drafts were, under this load or the nearest one known."""
        known = self._nearest(requests, lambda one: one.gain)
        return known or ASSUMED_GAIN

    def add(self, *, way: Way, seconds: float, tokens: int, requests: int, alike: bool) -> None:
        """Take in one round or slice of a request.

        Args:
            way: Which way it went.
            seconds: What it took.
            tokens: What it emitted.
            requests: Decoded at once when it began.
            alike: All others went the same way meanwhile; else it tells nothing of any.
        """
        here = self._range(requests)
        if here is not self._last:
            self._last, here.came_at = here, here.tokens
        here.tokens += tokens
        trial = here.trial
        if trial is None:
            return
        faster = trial.add(way, seconds, tokens, alike=alike and trial.is_like(requests))
        if faster is not None:
            here.trial = None
            here.decide(trial, faster=faster)

    def _range(self, requests: int) -> _Range:
        size = requests.bit_length()
        if size not in self._ranges:
            known = any(one.way for one in self._ranges.values())
            self._ranges[size] = _Range(_NEXT if known else 0)
        return self._ranges[size]

    def _usual(self, requests: int) -> Way:
        """Return the way of a load: as decided, or as the nearest load has."""
        return self._nearest(requests, lambda one: one.way) or Way.FITTED

    def _nearest(self, requests: int, get: Callable[[_Range], _T | None]) -> _T | None:
        """Return what the nearest range knows; of two, the one of fewer requests."""
        size = requests.bit_length()
        known = {at: value for at, one in self._ranges.items() if (value := get(one)) is not None}
        return known[min(known, key=lambda at: (abs(at - size), at))] if known else None


def _wanted(requests: int) -> int:
    """Return the tokens of a trial."""
    return _TRIAL_TOKENS + _TRIAL_TOKENS_EACH * requests
