"""When to leave a draft engine alone that keeps failing, and when to try it again: a circuit breaker.

Without one every request pays for a draft that is gone: Triton takes a second to say that a model's process has died.
Knows nothing of engines and requests; counts whole requests, so that a draft whose tokens the target refuses counts as
failed too.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_FAILURES: Final = 3
_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


class DraftBreaker:
    """Opens after some failed requests in a row, and lets one request through now and then until one succeeds.

    May be used from any thread.

    Args:
        failures: Requests in a row whose draft fails before it is left alone.
        pause_s: Seconds until it is tried again; twice as long after each further try.
        longest_pause_s: The longest time between two tries, in seconds.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self,
        *,
        failures: int = _FAILURES,
        pause_s: float = _PAUSE_S,
        longest_pause_s: float = _LONGEST_PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures = failures
        self._shortest_pause_s = pause_s
        self._longest_pause_s = longest_pause_s
        self._clock = clock
        self._one_at_a_time = threading.Lock()
        self._failed_in_a_row = 0
        self._pause_s = pause_s
        self._try_again_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether requests go without the draft."""
        return self._failed_in_a_row >= self._failures

    def allows(self) -> bool:
        """Say whether the next request may use the draft.

        While the breaker is open only the one that tries the draft again may. Nothing waits for its outcome: a try that
        is cancelled would else be the last one.
        """
        with self._one_at_a_time:
            if not self.is_open:
                return True
            now_s = self._clock()
            if now_s < self._try_again_s:
                return False
            self._pause_s = min(2 * self._pause_s, self._longest_pause_s)
            self._try_again_s = now_s + self._pause_s
            return True

    def failed(self) -> None:
        """Count a request whose draft failed."""
        with self._one_at_a_time:
            self._failed_in_a_row += 1
            # Those that were running when it opened tell nothing new.
            if self._failed_in_a_row == self._failures:
                self._try_again_s = self._clock() + self._pause_s

    def worked(self) -> None:
        """Count a request that was drafted for to its end."""
        with self._one_at_a_time:
            self._failed_in_a_row = 0
            self._pause_s = self._shortest_pause_s
