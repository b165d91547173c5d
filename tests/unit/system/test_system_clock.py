"""The real clock."""

from __future__ import annotations

import datetime as dt

from specdeploy.system.clock import SystemClock


def test_the_date_is_utc_and_can_be_read_back():
    """With its offset, to the second."""
    text = SystemClock().now_iso()
    moment = dt.datetime.fromisoformat(text)

    assert moment.utcoffset() == dt.timedelta(0)
    assert abs(dt.datetime.now(dt.UTC) - moment) < dt.timedelta(minutes=1)
    assert len(text) == len("2026-01-31T09:30:00+00:00")


def test_monotonic_time_never_goes_back():
    """Durations cannot be negative."""
    clock = SystemClock()
    looks = [clock.monotonic() for _ in range(100)]

    assert looks == sorted(looks)
