"""How long a part of a check may go on asking for more than the least that it needs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Budget:
    """Time for a part of a check.

    Args:
        seconds: How long.

        monotonic: A clock.
    """

    def __init__(self, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends_at = monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds that are left; below 0 once it is used up."""
        return self._ends_at - self._monotonic()

    @property
    def over(self) -> bool:
        """Whether it is used up."""
        return self.left_s <= 0
