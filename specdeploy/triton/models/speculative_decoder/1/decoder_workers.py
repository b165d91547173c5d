"""Threads that are kept for the next job. Knows nothing of what the jobs are."""

from __future__ import annotations

import collections
import queue
import threading
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

_Inbox: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"


class Workers:
    """Runs jobs at once, each on a thread of its own for as long as it takes; how many is up to their giver.

    A thread that never comes back from its job does not keep the process from ending, as those of an executor do.
    """

    def __init__(self) -> None:
        self._idle: collections.deque[_Inbox] = collections.deque()

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job, which deals with its errors itself."""
        try:
            # The one that worked last: its memory is warm.
            inbox = self._idle.pop()
        except IndexError:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(inbox,), name="decode", daemon=True).start()
        inbox.put(job)

    def close(self) -> None:
        """Let the idle threads end."""
        while self._idle:
            self._idle.pop().put(None)

    def _work(self, inbox: _Inbox) -> None:
        while (job := inbox.get()) is not None:
            job()
            del job  # it holds a request
            self._idle.append(inbox)
