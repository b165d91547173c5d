"""Whether speculation pays under a load: both ways are measured in turns, and the faster one is taken.

No model of the server says when verifying drafts costs others more than it gains: that depends on batch, engine and
GPU. So while requests decode one way, now and then all of them try the other for a moment, and the seconds a token of
both ways decide, with a margin, so that noise does not turn it to and fro. A trial whose outcome is clear is over.

Trials are counted in tokens and not in time, so that they take the same small part of any load: a burst that is over
before a trial would pay for itself has none. Each range of load (1 request, 2 to 3, 4 to 7, ...) decides by itself, in
a trial of its own that waits while the load is another; until it has, it goes as the nearest one that has. Knows
nothing of requests, engines and time.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

#: By how much the other way has to be faster to be taken.
MARGIN: Final = 0.03
#: Tokens of a trial, and as many more for each request that is decoded at once.
_TRIAL_TOKENS: Final = 48
_TRIAL_TOKENS_EACH: Final = 8
#: How many trials' tokens are decoded before the first trial of all, and before the first of a range where another one
#: has decided, or the next after one that turned it; and after one that did not, so many times as many as before it, up
#: to a most.
_FIRST: Final = 1
_NEXT: Final = 4
_LONGER: Final = 4
_MOST: Final = 128
#: Tokens of each request after which a load does not just pass through a range, where a trial costs much and tells
#: little; and how many trials' tokens later one comes all the same, or short bursts would never have any.
_STAYS_EACH: Final = 16
_PASSING: Final = 64
#: The share of a trial before which nothing is clear.
_EARLIEST: Final = 0.25
#: How many standard errors the ratio of both ways is away from the margin when the outcome is clear, and by how much at
#: least, since calls of one moment err together.
_SURE: Final = 2.5
_APART: Final = 0.02
#: A trial in which so many times its tokens tell too little, since some do not go its way, is given up. Calls of the
#: other way are under way when it begins, and a slice of each request is past until all go one way.
_GIVE_UP: Final = 4


@dataclasses.dataclass
class _Pace:
    """Seconds and tokens of one way, fading, with their second moments."""

    seconds: float = 0.0
    tokens: float = 0.0
    _ss: float = 0.0
    _st: float = 0.0
    _tt: float = 0.0

    def add(self, seconds: float, tokens: int, memory: float) -> None:
        """Take in a call; ``memory`` is the number of tokens after which a measurement counts for nothing much."""
        kept = max(0.0, 1 - tokens / memory)
        self.seconds = self.seconds * kept + seconds
        self.tokens = self.tokens * kept + tokens
        # Of a weighted sum, the variance has the squares of the weights.
        self._ss = self._ss * kept**2 + seconds * seconds
        self._st = self._st * kept**2 + seconds * tokens
        self._tt = self._tt * kept**2 + tokens * tokens

    @property
    def token_s(self) -> float | None:
        """Seconds a token of one request."""
        return self.seconds / self.tokens if self.tokens else None

    @property
    def relative_variance(self) -> float:
        """The squared standard error of :attr:`token_s` as a share of it: that of a ratio, by linearization.

        Raises:
            ZeroDivisionError: Nothing was measured, or it took no time.
        """
        ratio = self.seconds / self.tokens
        return max(self._ss - 2 * ratio * self._st + ratio**2 * self._tt, 0.0) / self.seconds**2


@dataclasses.dataclass
class _Trial:
    """All requests of a range go one way for a moment."""

    speculates: bool
    wanted: int
    pace: _Pace = dataclasses.field(default_factory=_Pace)
    passed: int = 0


class _Range:
    """What is known of one range of load."""

    def __init__(self) -> None:
        # None until a trial decided.
        self.speculates: bool | None = None
        self.paces = {True: _Pace(), False: _Pace()}
        self.trial: _Trial | None = None
        # Tokens since the last trial, and how many trials' worth there are before the next; None before the first.
        self.since = 0
        self.wait: int | None = None
        # Tokens since the load came into this range.
        self.stayed = 0

    def decide(self, trial: _Trial) -> None:
        """Take the faster way, and wait for the next trial: longer if this one brought no news."""
        usual, tried = self.paces[not trial.speculates].token_s, trial.pace.token_s
        self.paces[trial.speculates] = trial.pace
        if usual is not None and tried is not None and tried * (1 + MARGIN) < usual:
            # What it was turned by may have been a moment: the other way has its chance soon.
            self.speculates, self.since, self.wait = trial.speculates, 0, _NEXT
        else:
            self.speculates = not trial.speculates
            self.again_later()

    def again_later(self) -> None:
        """Wait longer for the next trial."""
        self.since, self.wait = 0, min(_LONGER * (self.wait or _NEXT), _MOST)

    def is_clear(self, trial: _Trial) -> bool:
        """Say whether the rest of a trial would hardly change its outcome."""
        usual, tried = self.paces[not trial.speculates], trial.pace
        if tried.tokens < _EARLIEST * trial.wanted or not usual.seconds or not tried.seconds:
            return False
        gap = math.log(tried.seconds / tried.tokens * usual.tokens / usual.seconds) + math.log1p(MARGIN)
        error = math.sqrt(usual.relative_variance + tried.relative_variance)
        return abs(gap) > _SURE * error + _APART


class Gate:
    """Speculation on or off, by load."""

    def __init__(self) -> None:
        self._ranges: dict[int, _Range] = {}
        self._last: _Range | None = None

    def speculates(self, requests: int) -> bool:
        """Say whether a round that begins now has drafts, and begin a trial when one is due.

        Args:
            requests: Decoded at once, at least 1.
        """
        here = self._range(requests)
        if here.trial is None:
            usual, wanted = self._usual(requests), _wanted(requests)
            due = self._wait(here) * wanted
            passes = here.stayed < _STAYS_EACH * requests and here.since < _PASSING * wanted
            if here.since < due or passes or not here.paces[usual].tokens:
                return usual
            here.trial = _Trial(speculates=not usual, wanted=wanted)
        return here.trial.speculates

    def alone_token_s(self, requests: int) -> float | None:
        """Return the seconds a token of the target alone; None while it was not measured under such a load."""
        return self._range(requests).paces[False].token_s

    def add(self, *, speculated: bool, seconds: float, tokens: int, requests: int, alike: bool) -> None:
        """Take in one round or slice of a request.

        Args:
            speculated: Whether it was of the way with drafts.
            seconds: What it took.
            tokens: What it emitted.
            requests: Decoded at once when it began.
            alike: All others went the same way meanwhile; else it tells nothing of either.
        """
        here = self._range(requests)
        if here is not self._last:
            self._last, here.stayed = here, 0
        here.stayed += tokens
        here.since += tokens
        trial = here.trial
        of_trial = trial is not None and speculated == trial.speculates
        if alike and not of_trial:
            here.paces[speculated].add(seconds, tokens, memory=4 * _wanted(requests))
        if trial is None:
            return
        trial.passed += tokens
        if alike and of_trial:
            trial.pace.add(seconds, tokens, memory=math.inf)
        if trial.pace.tokens >= trial.wanted or here.is_clear(trial):
            here.trial = None
            here.decide(trial)
        elif trial.passed >= _GIVE_UP * trial.wanted:
            here.trial = None
            here.again_later()

    def _range(self, requests: int) -> _Range:
        return self._ranges.setdefault(requests.bit_length(), _Range())

    def _usual(self, requests: int) -> bool:
        """Return the way of a load: as decided, or as the nearest load has."""
        size = requests.bit_length()
        decided = [(abs(at - size), one.speculates) for at, one in self._ranges.items() if one.speculates is not None]
        return min(decided)[1] if decided else True

    def _wait(self, here: _Range) -> int:
        """Return how many trials' tokens a load decodes before its next trial."""
        if here.wait is not None:
            return here.wait
        return _NEXT if any(one.speculates is not None for one in self._ranges.values()) else _FIRST


def _wanted(requests: int) -> int:
    """Return the tokens of a trial."""
    return _TRIAL_TOKENS + _TRIAL_TOKENS_EACH * requests
