"""The mean of ratios that were measured in pairs of alternating order, free of what drifts meanwhile.

A machine that slows down by a few per cent a run makes whichever half of a pair comes second look worse. In ABBA order
the halves take turns, so the drift has one sign in every other pair: it hardly moves the mean, but it scatters the
ratios, and an interval of their plain spread is too wide (95.8 % covered where 95 % were meant, with a drift of 2 % a
run and a noise of 4 %). So the order is taken as an effect of its own, as crossover trials take the period (Hills and
Armitage 1979): ``log r = mean + order * drift + noise``, with order -1 or 1, by least squares. What is left is the mean
of the two orders' means, with ``n - 2`` degrees of freedom. It costs one of them, and from four pairs on that is worth
it; fewer are averaged as they are, and so are pairs that were all measured in one order.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

#: So many pairs leave two degrees of freedom beside the mean and the order.
LEAST_FOR_ORDER: Final = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanLog:
    """The mean of the logarithms of ratios.

    Args:
        mean: The mean.

        error: Its standard error; 0 of a single ratio, which says nothing of its own spread.

        freedom: Degrees of freedom of the error; 0 of a single ratio.
    """

    mean: float
    error: float
    freedom: int


def mean_log(ratios: Sequence[float], control_first: Sequence[bool] = ()) -> MeanLog:
    """Average the logarithms of ratios. Logarithms, because a ratio of 2 and one of 1/2 have to cancel.

    Args:
        ratios: At least one, all positive.

        control_first: Of each pair, whether the control was measured first; empty where nobody knows.
    """
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    n, first = len(ratios), np.asarray(control_first, dtype=bool)
    if n < LEAST_FOR_ORDER or len(first) != n or first.all() or not first.any():
        error = float(logs.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
        return MeanLog(mean=float(logs.mean()), error=error, freedom=n - 1)
    orders = logs[first], logs[~first]
    means = [float(order.mean()) for order in orders]
    squares = sum(float(((order - mean) ** 2).sum()) for order, mean in zip(orders, means, strict=True))
    # The variance of half the sum of two means.
    spread = sum(1 / len(order) for order in orders) / 4
    return MeanLog(mean=sum(means) / 2, error=math.sqrt(squares / (n - 2) * spread), freedom=n - 2)
