"""Whether speculation pays under a load: both ways are measured in turns, and the faster one is taken.

No model of the server says when verifying drafts costs others more than it gains: that depends on batch, engine and
GPU. So while requests decode one way, now and then all of them try the other for a moment, and the seconds a token of
both ways decide, with a margin, so that noise does not turn it to and fro.

Trials are counted in tokens and not in time, so that they take the same small part of any load: a burst that is over
before a trial would pay for itself has none. Each range of load (1 request, 2 to 3, 4 to 7, ...) decides by itself, and
until it has, goes as the nearest one that has. Knows nothing of requests, engines and time.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

#: By how much the other way has to be faster to be taken.
MARGIN: Final = 0.03
#: Tokens of a trial, and as many more for each request that is decoded at once.
_TRIAL_TOKENS: Final = 48
_TRIAL_TOKENS_EACH: Final = 16
#: How many trials' tokens are decoded before the first one, and after one that turned it; and after one that did not,
#: so many times as many as before it, up to a most.
_FIRST: Final = 4
_LONGER: Final = 4
_MOST: Final = 128
#: How many times as slow as usual a trial is given up as lost.
_LOST: Final = 1.3
#: A trial in which so many times its tokens tell nothing, since the load moves on or others are pinned, is given up.
_GIVE_UP: Final = 2


@dataclasses.dataclass
class _Pace:
    """Seconds and tokens of one way, fading."""

    seconds: float = 0.0
    tokens: float = 0.0

    def add(self, seconds: float, tokens: int, memory: float) -> None:
        """Take in a call; ``memory`` is the number of tokens after which a measurement counts for nothing much."""
        kept = max(0.0, 1 - tokens / memory)
        self.seconds = self.seconds * kept + seconds
        self.tokens = self.tokens * kept + tokens

    @property
    def token_s(self) -> float | None:
        """Seconds a token of one request."""
        return self.seconds / self.tokens if self.tokens else None


class _Range:
    """What is known of one range of load."""

    def __init__(self) -> None:
        # None until a trial decided.
        self.speculates: bool | None = None
        self.paces = {True: _Pace(), False: _Pace()}
        # Tokens since the last trial, and how many trials' worth there are before the next.
        self.since = 0
        self.wait = _FIRST

    def again_later(self) -> None:
        """Wait longer for the next trial, since this one brought no news."""
        self.since, self.wait = 0, min(_LONGER * self.wait, _MOST)


@dataclasses.dataclass
class _Trial:
    """All requests go one way for a moment."""

    of: _Range
    speculates: bool
    wanted: int
    pace: _Pace = dataclasses.field(default_factory=_Pace)
    passed: int = 0


class Gate:
    """Speculation on or off, by load."""

    def __init__(self) -> None:
        self._ranges: dict[int, _Range] = {}
        self._trial: _Trial | None = None

    def speculates(self, requests: int) -> bool:
        """Say whether a round that begins now has drafts, and begin a trial when one is due.

        Args:
            requests: Decoded at once, at least 1.
        """
        if self._trial is not None:
            return self._trial.speculates
        here, usual = self._range(requests), self._usual(requests)
        wanted = _wanted(requests)
        if here.since < here.wait * wanted or not here.paces[usual].tokens:
            return usual
        self._trial = _Trial(of=here, speculates=not usual, wanted=wanted)
        return not usual

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
        here, trial = self._range(requests), self._trial
        here.since += tokens
        if alike:
            here.paces[speculated].add(seconds, tokens, memory=4 * _wanted(requests))
        if trial is None:
            return
        trial.passed += tokens
        if alike and here is trial.of and speculated == trial.speculates:
            trial.pace.add(seconds, tokens, memory=math.inf)
        if trial.pace.tokens >= trial.wanted or _is_lost(trial):
            self._trial = None
            _decide(trial)
        elif trial.passed >= _GIVE_UP * trial.wanted:
            self._trial = None
            trial.of.again_later()

    def _range(self, requests: int) -> _Range:
        return self._ranges.setdefault(requests.bit_length(), _Range())

    def _usual(self, requests: int) -> bool:
        """Return the way of a load: as decided, or as the nearest load has."""
        size = requests.bit_length()
        decided = [(abs(at - size), one.speculates) for at, one in self._ranges.items() if one.speculates is not None]
        return min(decided)[1] if decided else True


def _wanted(requests: int) -> int:
    return _TRIAL_TOKENS + _TRIAL_TOKENS_EACH * requests


def _is_lost(trial: _Trial) -> bool:
    """Say whether a trial is so much slower that the rest of it would only cost time."""
    usual, tried = trial.of.paces[not trial.speculates].token_s, trial.pace.token_s
    enough = trial.pace.tokens >= trial.wanted / 4
    return enough and usual is not None and tried is not None and tried > _LOST * usual


def _decide(trial: _Trial) -> None:
    here = trial.of
    usual, tried = here.paces[not trial.speculates].token_s, trial.pace.token_s
    here.paces[trial.speculates] = trial.pace
    if usual is not None and tried is not None and tried * (1 + MARGIN) < usual:
        # What it was turned by may have been a moment: the other way has its chance soon.
        here.speculates, here.since, here.wait = trial.speculates, 0, _FIRST
    else:
        here.speculates = not trial.speculates
        here.again_later()
