"""A clock that only moves when told, and a wire that answers from a script. No socket, no process, no sleep."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

from specdeploy.bench.wire.call import Reply
from specdeploy.bench.wire.codec import Answer
from specdeploy.triton.client import RequestFailed
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


def refused(label: str) -> RequestFailed:
    """What a wire's reply fails with."""
    return RequestFailed(label, f"{label}: refused")


def answer(*ids: int, **changes) -> list[Chunk]:
    """A streamed answer of these tokens, one a response, whose last response says so."""
    chunks = [Chunk(text=f"t{token} ", ids=(token,), num_output_tokens=n) for n, token in enumerate(ids, start=1)]
    totals = {"num_spec_steps": 1, "total_draft_tokens": 4, "total_accepted_draft_tokens": 1, "histogram": (0, 1)}
    last = {"finish_reason": "length", "final": True, "num_input_tokens": 9, "num_output_tokens": len(ids), **totals}
    chunks[-1] = Chunk(text=chunks[-1].text, ids=chunks[-1].ids, **{**last, **changes})
    return chunks


class FakeServer:
    """A wire and its codec at once, whose answers come from ``script(request, number)``: chunks, or an exception.

    An item of a script may be an exception, which ends the answer, or a function, which is called and ends it unless
    it returns a chunk; `HANG` waits until the request is cancelled. Each chunk takes ``chunk_s`` of the clock. ``sent``
    keeps every request, ``most`` the largest number in flight.
    """

    def __init__(self, clock: FakeClock, script=lambda request, number: answer(1, 2, 3), chunk_s: float = 0.1) -> None:
        self.clock = clock
        self.script = script
        self.chunk_s = chunk_s
        self.sent = []
        self.opened = None
        self.closed = 0
        self.most = 0
        self.received = 0
        self.calls = {}

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self.calls)

    def prepare(self, request):
        """Send it as it is."""
        return request

    def decode(self, reply, _request) -> Answer:
        """Return what was scripted."""
        return Answer(chunks=tuple(reply.events), fault=reply.fault)

    async def open(self, connections: int, timeout_s: float = 30.0) -> None:
        """Note how many are asked for."""
        self.opened = connections

    def start(self, payload, timeout_s: float, done) -> FakeCall:
        """Answer as the script says, in steps of the loop."""
        number = len(self.sent)
        self.sent.append(payload)
        call = FakeCall(self, Reply(sent_s=self.clock.monotonic()), done)
        self.calls[call] = True
        self.most = max(self.most, len(self.calls))
        call.run(self.script(payload, number))
        return call

    def cancel_all(self) -> None:
        """Cancel what is in flight."""
        for call in tuple(self.calls):
            call.cancel()

    async def close(self) -> None:
        """Note it."""
        self.cancel_all()
        self.closed += 1


HANG = object()


class FakeCall:
    """One request of a `FakeServer`."""

    def __init__(self, server: FakeServer, reply: Reply, done) -> None:
        self._server = server
        self._reply = reply
        self._done = done
        self._ended = False

    def run(self, script) -> None:
        """Play a script, one item a step of the loop."""
        items = iter([script] if isinstance(script, Exception) else script)
        asyncio.get_running_loop().call_soon(self._step, items)

    def cancel(self) -> None:
        """Give it up."""
        self._end(RequestFailed("cancelled", "cancelled by the client"))

    def _step(self, items) -> None:
        if self._ended:
            return
        item = next(items, None)
        if item is HANG:
            return
        if item is None or isinstance(item, Exception):
            self._end(item)
            return
        now_s = self._server.clock.advance(self._server.chunk_s)
        self._reply.events.append(item if item.received_s is not None else dataclasses.replace(item, received_s=now_s))
        asyncio.get_running_loop().call_soon(self._step, items)

    def _end(self, fault) -> None:
        if self._ended:
            return
        self._ended = True
        self._reply.fault = fault
        self._reply.ended_s = self._server.clock.monotonic()
        self._server.calls.pop(self)
        self._done(self._reply)
