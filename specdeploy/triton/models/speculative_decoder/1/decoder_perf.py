"""What the target's engine measures of a request, under the names of NVIDIA's templates, for all of its calls.

One request makes many calls, each of which the engine measures as a request of its own. Knows what of that adds up, and
what is the first call's or the last's; knows nothing of Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIRST: Final = ("kv_cache_reused_blocks", "arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns")
"""What was known of the prompt before, and when it began: later calls find what the first ones left."""

_LAST: Final = ("kv_cache_alloc_total_blocks", "last_token_time_ns")
"""What the whole text takes, and when it ended."""

_SUM: Final = ("kv_cache_alloc_new_blocks",)

PERF_METRICS: Final = (*_FIRST, *_LAST, *_SUM)
"""Counts of blocks of the KV cache, and times in nanoseconds on the engine's clock."""


class PerfCounter:
    """Keeps the measurements of one request."""

    def __init__(self) -> None:
        self._values: dict[str, int] = {}

    def record(self, measured: Mapping[str, int]) -> None:
        """Take those of the next call; what it does not say stays as it is."""
        for name, value in measured.items():
            if name in _SUM:
                self._values[name] = self._values.get(name, 0) + value
            elif name in _LAST or name not in self._values:
                self._values[name] = value

    def snapshot(self) -> Mapping[str, int]:
        """Return what is known so far, which later calls do not change."""
        return dict(self._values)
