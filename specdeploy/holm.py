"""Several tests at once: how their p-values are corrected, so that all together raise no more false alarms than one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def holm(ps: Sequence[float]) -> tuple[float, ...]:
    """Correct p-values for their number (Holm 1979, Scandinavian Journal of Statistics 6, 65-70).

    The i-th smallest of m becomes the largest of ``(m - j + 1) p_j`` over j up to i, and 1 at most. The chance that any
    is wrong of what is rejected at alpha then, is alpha at most, however the tests hang together.

    Args:
        ps: One for each test; none at all is a family, too.

    Returns:
        The corrected ones, in the same order.
    """
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, at in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min((len(ps) - rank) * ps[at], 1.0))
        adjusted[at] = largest
    return tuple(adjusted)
