"""Confidence intervals that need no assumption about the distribution: of a percentile, and of a share.

A percentile's interval lies between two order statistics (David and Nagaraja 2003, section 7.1). It covers what it
says for any distribution, also at the 99th percentile of a few hundred values, where a bootstrap covers two thirds of
what it claims. A share has Wilson's interval (Wilson 1927), which neither leaves [0, 1] nor has no width at 0 and 1.

Both take the values as independent. Requests of one run wait behind each other, so intervals within a run describe
that run; what differs between runs shows only in several of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE: Final = 0.95


def percentile_interval(
    ordered: NDArray[np.float64], percentile: float, confidence: float = CONFIDENCE
) -> tuple[float | None, float | None]:
    """Bound a percentile of the distribution that these values are from.

    The l-th smallest of n values is below the quantile p with the probability that a binomial variable of n and p is
    l or more; l and u are chosen so that each bound is wrong with (1 - confidence) / 2 at most.

    Args:
        ordered: Values in ascending order, shape [n].

        percentile: Between 0 and 100.

        confidence: Of both bounds together.

    Returns: Lower and upper bound; None for one that so few values cannot give.
    """
    n = len(ordered)
    if not n:
        return None, None
    tail, share = (1 - confidence) / 2, percentile / 100
    # Lowest count of values that may lie below the quantile with more than the tail's probability, and the highest.
    below, above = _binomial_quantile(tail, n, share), _binomial_quantile(1 - tail, n, share)
    low = float(ordered[below - 1]) if below >= 1 else None
    high = float(ordered[above]) if above < n else None
    return low, high


def share_interval(hits: int, total: int, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Bound the share that ``hits`` of ``total`` is a sample of; None without a sample."""
    if not total:
        return None
    from scipy.special import ndtri  # noqa: PLC0415 - slow to import, and most verbs never need it

    z = float(ndtri((1 + confidence) / 2))
    share, scale = hits / total, 1 + z * z / total
    middle = (share + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _binomial_quantile(probability: float, n: int, share: float) -> int:
    """Return the smallest k with ``P(B <= k) >= probability``, for B binomial of n trials."""
    from scipy.special import bdtr  # noqa: PLC0415 - as above

    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if float(bdtr(middle, n, share)) >= probability:
            high = middle
        else:
            low = middle + 1
    return low


def as_fields(bounds: tuple[float | None, float | None]) -> dict[str, Any]:
    """Return bounds as they stand beside a value in a document."""
    return {"ci_low": bounds[0], "ci_high": bounds[1]}
