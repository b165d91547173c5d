"""What a round of drafting and verifying takes, as measured, and how long a draft is worth it.

With per-token acceptance a, a round of k drafts emits E(k) = (1 - a^(k+1)) / (1 - a) tokens (Leviathan et al. 2023,
arXiv:2211.17192, equation 1). Both engines' calls are taken to cost a fixed part and a part for each token, fitted to
what was measured; old measurements fade, so that the fit follows a load that changes.

Knows nothing of requests, of engines and of time itself.
"""

from __future__ import annotations

import dataclasses
from typing import Final

#: Weight that the sums keep with every new measurement: about the last hundred count.
_FADE: Final = 0.99
#: Below this variance of k nothing is said about the part for each token.
_LEAST_SPREAD: Final = 0.02


class Line:
    """A straight line through fading measurements, with neither part below 0.

    Args:
        proportional: What is assumed while all measurements are of the same x: that y grows with x, or that it does not
            depend on it.
    """

    def __init__(self, *, proportional: bool) -> None:
        self._proportional = proportional
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def weight(self) -> float:
        """How many measurements count."""
        return self._weight

    def add(self, x: float, y: float) -> None:
        """Take in one measurement."""
        self._weight = self._weight * _FADE + 1
        self._x = self._x * _FADE + x
        self._y = self._y * _FADE + y
        self._xx = self._xx * _FADE + x * x
        self._xy = self._xy * _FADE + x * y

    def at(self, x: float) -> float:
        """Return y at x.

        Raises:
            ZeroDivisionError: Nothing was measured.
        """
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x**2
        if spread < _LEAST_SPREAD:
            return mean_y * x / mean_x if self._proportional and mean_x else mean_y
        slope = max((self._xy / self._weight - mean_x * mean_y) / spread, 0.0)
        # A line that starts below 0 is one through the origin.
        slope = min(slope, mean_y / mean_x) if mean_x else slope
        return mean_y + slope * (x - mean_x)


class RoundCosts:
    """What rounds take under one load (seconds)."""

    def __init__(self) -> None:
        self._draft = Line(proportional=True)
        self._verify = Line(proportional=False)

    def add(self, *, drafted: int, draft_s: float, verify_s: float) -> None:
        """Take in one round, ``drafted`` 0 for a token that the target wrote alone."""
        if drafted:
            self._draft.add(drafted, draft_s)
        self._verify.add(drafted, verify_s)

    @property
    def rounds(self) -> float:
        """How many rounds with drafts count."""
        return self._draft.weight

    @property
    def known(self) -> bool:
        """Whether rounds with drafts were measured."""
        return self.rounds > 0

    def round_s(self, drafts: int) -> float:
        """Return what a round takes; one without drafts has no draft call."""
        return self._verify.at(drafts) + (self._draft.at(drafts) if drafts else 0.0)


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Return E(k), the mean tokens of a round, for 0 <= acceptance <= 1."""
    return sum(acceptance**position for position in range(drafts + 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """A draft length, and the seconds a token that are expected of it."""

    drafts: int
    token_s: float


def best_choice(costs: RoundCosts, acceptance: float, longest: int) -> Choice:
    """Return the draft length from 1 to ``longest`` by which a token takes least.

    Args:
        costs: Measured; at least one round with drafts.
        acceptance: Share of drafts that are accepted where all before them were.
        longest: At least 1.
    """
    choices = (
        Choice(drafts=k, token_s=costs.round_s(k) / expected_tokens(acceptance, k)) for k in range(1, longest + 1)
    )
    return min(choices, key=lambda choice: choice.token_s)


class Acceptance:
    """A fading estimate of the acceptance of one draft token, drawn towards what others had.

    Args:
        prior: What is expected before anything was seen.
        strength: Tokens that the prior counts for.
        memory: About how many tokens count.
    """

    def __init__(self, prior: float, *, strength: float, memory: float = 50.0) -> None:
        self._accepted = prior * strength
        self._seen = strength
        self._fade = 1 - 1 / memory

    def add(self, *, drafted: int, accepted: int) -> None:
        """Take in one step; what comes after the first rejected draft says nothing."""
        trials = accepted + (accepted < drafted)
        fade = self._fade**trials
        self._accepted = self._accepted * fade + accepted
        self._seen = self._seen * fade + trials

    @property
    def rate(self) -> float:
        """The estimate, inside (0, 1)."""
        return min(max(self._accepted / self._seen, 0.01), 0.99)
