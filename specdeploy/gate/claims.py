"""Claims about percentiles: may it be said that 99 % of requests are answered in time, from so many that were seen?

MLPerf Inference's rule of early stopping (loadgen/early_stopping.cc): of n requests, h kept the limit and t did not.
That a share p of all requests keeps it may be claimed at confidence c when ``I_p(h, t + 1) <= 1 - c``: were the share
only p, so many would hardly have kept it (I is the regularised incomplete beta function, here the upper tail of the
binomial distribution). Without a request over the limit, 99 % needs 299 requests at c = 0.95, and 459 at c = 0.99.

It takes requests as independent. Those of one run wait behind each other, so a claim holds for runs like this one.
"""

from __future__ import annotations

import dataclasses
from typing import Final

_MOST: Final = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count:
    """How many requests kept a limit.

    Args:
        kept: Those that did.

        over: Those that did not.
    """

    kept: int
    over: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.kept + self.over


def is_claimed(count: Count, share: float, confidence: float) -> bool:
    """Say whether it may be claimed that at least a share of all requests keeps the limit.

    Args:
        count: What was seen.

        share: Between 0 and 1, both excluded.

        confidence: Between 0 and 1.
    """
    return count.kept > 0 and _beta(count.kept, count.over + 1, share) <= 1 - confidence


def chance_of_so_few(count: Count, share: float) -> float:
    """Return how likely so few requests or fewer keep the limit, if the share of all that keep it is just as claimed.

    The opposite of the claim, that less than the share keeps it, holds at confidence c where this is 1 - c at most.
    """
    # P(B <= kept) = 1 - I_p(kept + 1, over), for B binomial of all requests and the share.
    return 1 - _beta(count.kept + 1, count.over, share) if count.over else 1.0


def more_needed(count: Count, share: float, confidence: float) -> int | None:
    """Return how many more requests would do, were none of them over the limit; None if that is absurdly many."""
    low, high = 0, 1
    while not is_claimed(_plus(count, high), share, confidence):
        low, high = high, 2 * high
        if high > _MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_claimed(_plus(count, middle), share, confidence) else (middle, high)
    return high


def _plus(count: Count, more: int) -> Count:
    return Count(kept=count.kept + more, over=count.over)


def _beta(a: int, b: int, x: float) -> float:
    from scipy.special import betainc  # noqa: PLC0415 - slow to import, and most verbs never need it

    return float(betainc(a, b, x))
