"""Up to which load speculation pays: where the speed-up over the concurrencies that were measured crosses 1.

The more requests share a forward pass, the less there is left for drafts to save (every draft is one more row of a
batch that is no longer limited by memory). Knows speed-ups and their intervals; does not say why.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdeploy.bench.paired import PairedSummary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crossover:
    """Where speculation stops paying.

    Args:
        pays_up_to: Highest concurrency at which, and at all lower ones, the interval of the speed-up lies above 1;
            None where there is none.

        costs_from: Lowest concurrency at which, and at all higher ones, it lies below 1; None where there is none.

        at: Concurrency at which the speed-up falls through 1, interpolated between two that were measured (linearly
            in the logarithms of both); None where it does not, or does so more than once.
    """

    pays_up_to: int | None
    costs_from: int | None
    at: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self)


def crossover(pairs: Sequence[PairedSummary]) -> Crossover | None:
    """Say up to which concurrency speculation pays; None unless at least two closed loops were compared.

    Args:
        pairs: Speed-ups in any order; open loops have none and are passed over.
    """
    measured = sorted(
        (pair.point.concurrency, pair.speedup) for pair in pairs if pair.speedup and pair.point.concurrency
    )
    if len(measured) < 2:
        return None
    pays = [(load, bool(ratio.ci_low and ratio.ci_low > 1)) for load, ratio in measured]
    costs = [(load, bool(ratio.ci_high and ratio.ci_high < 1)) for load, ratio in measured]
    return Crossover(
        pays_up_to=_last_in_a_row(pays),
        costs_from=_last_in_a_row(costs[::-1]),
        at=_falls_through([(load, ratio.avg) for load, ratio in measured]),
    )


def _last_in_a_row(entries: Sequence[tuple[int, bool]]) -> int | None:
    """Return the last load of those that hold from the first on."""
    last = None
    for load, holds in entries:
        if not holds:
            break
        last = load
    return last


def _falls_through(points: Sequence[tuple[int, float]]) -> float | None:
    falls = [(low, high) for low, high in itertools.pairwise(points) if (low[1] > 1) != (high[1] > 1)]
    if len(falls) != 1 or falls[0][0][1] <= 1:
        return None
    (load, ratio), (next_load, next_ratio) = falls[0]
    share = math.log(ratio) / (math.log(ratio) - math.log(next_ratio))
    return math.exp(math.log(load) + share * (math.log(next_load) - math.log(load)))
