"""Time as an argument: the protocol that everything else takes, and the real clock behind it."""

from __future__ import annotations

import datetime as dt
import time
from typing import Protocol


class Clock(Protocol):
    """What the rest of the house knows about time."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never goes back. The only source of durations."""
        ...

    def now_iso(self) -> str:
        """Return the date and time in UTC as ISO 8601 with seconds, such as ``2026-01-31T09:30:00+00:00``."""
        ...


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start."""
        return time.monotonic()

    def now_iso(self) -> str:
        """Return the date and time in UTC as ISO 8601 with seconds."""
        return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")

    def epoch_offset_s(self) -> float:
        """Return what is added to :meth:`monotonic` to have seconds since 1970, by the machine's date as of now.

        Of a few readings it is the one that took the shortest time, in which nothing came in between.
        """
        return min(self._reading() for _ in range(5))[1]

    def _reading(self) -> tuple[float, float]:
        before_s, epoch_s, after_s = time.monotonic(), time.time(), time.monotonic()
        return after_s - before_s, epoch_s - (before_s + after_s) / 2
