"""A clock that only moves when told, and sessions that answer from a script. No socket, no process, no sleep."""

from __future__ import annotations

import threading
from typing import Self

from specdeploy.triton.protocol import Chunk


class FakeClock:
    """Time that stands still until somebody advances it; any thread may."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        """Return the time."""
        with self._lock:
            return self._now_s

    def now_iso(self) -> str:
        """Return one date."""
        return "2026-01-31T09:30:00+00:00"

    def advance(self, seconds: float) -> float:
        """Move on and return the time."""
        with self._lock:
            self._now_s += seconds
            return self._now_s


class Refused(Exception):
    """What a client raises: a failure with a label."""

    def __init__(self, label: str) -> None:
        super().__init__(f"{label}: refused")
        self.label = label


def answer(*ids: int, **changes) -> list[Chunk]:
    """A streamed answer of these tokens, one a response, whose last response says so."""
    chunks = [Chunk(text=f"t{token} ", ids=(token,), num_output_tokens=n) for n, token in enumerate(ids, start=1)]
    totals = {"num_spec_steps": 1, "total_draft_tokens": 4, "total_accepted_draft_tokens": 1, "histogram": (0, 1)}
    last = {"finish_reason": "length", "final": True, "num_input_tokens": 9, "num_output_tokens": len(ids), **totals}
    chunks[-1] = Chunk(text=chunks[-1].text, ids=chunks[-1].ids, **{**last, **changes})
    return chunks


class FakeServer:
    """Opens sessions whose streams come from ``script(request, number)``: chunks, or an exception to raise.

    Each chunk takes ``chunk_s`` of the clock. ``sent`` keeps every request, ``open`` the number of open sessions.
    """

    def __init__(self, clock: FakeClock, script=lambda request, number: answer(1, 2, 3), chunk_s: float = 0.1) -> None:
        self.clock = clock
        self.script = script
        self.chunk_s = chunk_s
        self.sent = []
        self.opened = 0
        self.open = 0
        self.lock = threading.Lock()

    def session(self) -> FakeSession:
        """Open a session."""
        self.opened += 1
        return FakeSession(self)


class FakeSession:
    """One session of a `FakeServer`."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self.closed = threading.Event()

    def __enter__(self) -> Self:
        self._server.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._server.open -= 1
        self.closed.set()

    def stream(self, request):
        """Answer as the script says."""
        with self._server.lock:
            self._server.sent.append(request)
            number = len(self._server.sent) - 1
        script = self._server.script(request, number)
        if isinstance(script, Exception):
            raise script
        for chunk in script:
            if isinstance(chunk, Exception):
                raise chunk
            if callable(chunk):
                yield chunk(self)
                continue
            self._server.clock.advance(self._server.chunk_s)
            yield chunk
