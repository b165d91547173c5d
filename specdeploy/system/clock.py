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
