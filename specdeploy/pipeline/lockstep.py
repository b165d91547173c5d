"""One of several generators that a process on the same machine has started, and that begin each block together.

It writes lines of JSON to its output: ``{"ready": 3}`` when it could begin block 3, and now and then how far it is. It
reads lines from its input: when that block begins, in seconds of the monotonic clock, which all processes of a machine
share. The end of its input ends the run, whose partial results are kept: no generator outlives who started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.pace import RecentRequests

if TYPE_CHECKING:
    from specdeploy.bench.driver import Progress

_EVERY_S: Final = 0.2


class Follower:
    """Asks when blocks begin, and tells how far the run is; it is made in the main thread, before the run.

    ``over`` says whether its input has ended.
    """

    def __init__(self) -> None:
        # Whoever started us may ignore Ctrl-C, as a shell's background jobs do; we end by it all the same.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._unread = b""
        self._told: asyncio.Future[float] | None = None
        self.over = False
        self._said_s = 0.0
        self._recent = RecentRequests()

    async def begin(self, number: int) -> float:
        """Return when a block begins (`run_load`'s ``begin``)."""
        loop = asyncio.get_running_loop()
        if self._told is None:
            loop.add_reader(sys.stdin.fileno(), self._read)
        self._told = loop.create_future()
        _say({"ready": number})
        if self.over:
            self._end()
        return await self._told

    def progress(self, progress: Progress) -> None:
        """Tell how far the run is, not too often."""
        self._recent.add(progress.record)
        now_s = time.monotonic()
        if now_s - self._said_s >= _EVERY_S or progress.done == progress.total:
            self._said_s = now_s
            _say(
                {
                    "block": progress.block,
                    "blocks": progress.blocks,
                    "done": progress.done,
                    "total": progress.total,
                    "errors": progress.errors,
                    "in_flight": progress.in_flight,
                    "left_s": progress.left_s,
                    "pace": self._recent.pace.to_dict(),
                }
            )

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        self._unread += data
        if not data:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.over = True
            self._end()
        while b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            if self._told is not None and not self._told.done():
                self._told.set_result(float(line))

    def _end(self) -> None:
        signal.raise_signal(signal.SIGINT)


def _say(line: dict[str, Any]) -> None:
    # One write, shorter than a pipe takes at once. Where nobody reads any more, the end of the input tells it.
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), f"{json.dumps(line)}\n".encode())
