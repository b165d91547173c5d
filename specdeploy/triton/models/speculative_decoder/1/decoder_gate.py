"""Whether speculation pays under a load: both ways are measured in turns, and the faster one is taken.

No model of the server says when verifying drafts costs others more than it gains: that depends on batch, engine and
GPU. So while requests decode one way, now and then all of them try the other for a moment, and the seconds a token of
both ways decide, with a margin, so that noise does not turn it to and fro. The clearer the difference, the longer until
it is tried again.

One gate is of one range of load. Knows nothing of requests and engines; time is given to it.
"""

from __future__ import annotations

import dataclasses
from typing import Final

#: By how much the other way has to be faster to be taken.
MARGIN: Final = 0.03
#: Tokens of a trial, and as many more for each request that is decoded at once.
_TRIAL_TOKENS: Final = 48
_TRIAL_TOKENS_EACH: Final = 16
#: Seconds until the first trial, and between trials.
_FIRST_S: Final = 1.0
_LEAST_S: Final = 4.0
_MOST_S: Final = 120.0
#: How many times as slow as usual a trial is given up as lost.
_LOST: Final = 1.3
#: A trial that gets no tokens, since the load went away, is given up.
_GIVE_UP_S: Final = 10.0


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


class Gate:
    """Speculation on or off, under one load.

    Args:
        now_s: Seconds on a clock that never goes back.
    """

    def __init__(self, now_s: float) -> None:
        self._speculates = True
        self._trying = False
        self._paces = {True: _Pace(), False: _Pace()}
        self._tried = _Pace()
        self._next_s = now_s + _FIRST_S
        self._wait_s = _LEAST_S

    @property
    def speculates(self) -> bool:
        """Whether requests draft now."""
        return self._speculates != self._trying

    @property
    def alone_token_s(self) -> float | None:
        """Seconds a token of the target alone; None while it was not measured."""
        return self._paces[False].token_s

    def look(self, now_s: float) -> None:
        """Begin a trial when one is due, or give one up that hears of no tokens."""
        if now_s < self._next_s:
            return
        if self._trying:
            # Too little was heard to say anything.
            self._trying = False
            self._next_s = now_s + self._wait_s
        elif self._paces[self._speculates].tokens:
            self._trying, self._tried = True, _Pace()
            self._next_s = now_s + _GIVE_UP_S

    def add(self, *, speculated: bool, seconds: float, tokens: int, requests: int, now_s: float) -> None:
        """Take in one round or slice of a request, during which all others went the same way.

        Args:
            speculated: Whether it was of the way with drafts.
            seconds: What it took.
            tokens: What it emitted.
            requests: Decoded at once.
            now_s: The end of it.
        """
        wanted = _TRIAL_TOKENS + _TRIAL_TOKENS_EACH * requests
        self._paces[speculated].add(seconds, tokens, memory=4 * wanted)
        if self._trying and speculated == self.speculates:
            self._tried.add(seconds, tokens, memory=float("inf"))
            if self._tried.tokens >= wanted or self._is_lost(wanted):
                self._paces[speculated] = self._tried
                self._end_trial(now_s)

    def _is_lost(self, wanted: int) -> bool:
        """Say whether a trial is so much slower that the rest of it would only cost time."""
        usual, tried = self._paces[self._speculates].token_s, self._tried.token_s
        enough = self._tried.tokens >= wanted / 8
        return enough and usual is not None and tried is not None and tried > _LOST * usual

    def _end_trial(self, now_s: float) -> None:
        usual, other = (self._paces[way].token_s for way in (self._speculates, not self._speculates))
        self._trying = False
        if usual is None or other is None:
            self._next_s = now_s + self._wait_s
            return
        if other * (1 + MARGIN) < usual:
            self._speculates = not self._speculates
            self._wait_s = _LEAST_S
        else:
            # What loses by half as much again is tried rarely: the trial costs more than the news is worth.
            self._wait_s = min(self._wait_s * (4 if other > 1.5 * usual else 2), _MOST_S)
        self._next_s = now_s + self._wait_s
