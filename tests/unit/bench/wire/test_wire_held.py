"""A wire that holds back what arrives: by how much, and what becomes of it when it is given up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from specdeploy.bench.wire.call import Reply
from specdeploy.bench.wire.held import HeldWire, stretched
from specdeploy.triton.client import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

TOOK_S = 0.5
MOMENTS_S = (0.1, 0.3, TOOK_S)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on whose clock waiting takes time, none of ours, and going round takes 0.01 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        select = self._selector.select

        def skip(timeout: float | None):
            self.now_s += timeout or 1e-5
            return select(0)

        self._selector.select = skip

    def time(self) -> float:
        """Return the time that was waited for."""
        return self.now_s


class Plain:
    """A wire whose every answer has three events in half a second, or fails with what it is told to."""

    def __init__(self, fault: RequestFailed | None = None) -> None:
        self.fault = fault
        self.in_flight = 0
        self.received = 0
        self.said: list[str] = []

    async def open(self, connections: int, timeout_s: float = 30.0) -> None:
        """Note it."""
        self.said.append(f"open {connections} within {timeout_s:g}")

    def start(self, payload, timeout_s: float, done: Callable[[Reply], None]):
        """Answer after half a second."""
        loop, wire = asyncio.get_running_loop(), self
        reply = Reply(sent_s=loop.time())
        self.in_flight += 1

        def end(fault: RequestFailed | None = self.fault) -> None:
            timer.cancel()
            wire.in_flight -= 1
            reply.ended_s, reply.fault = loop.time(), fault
            reply.arrived_s, reply.events = [reply.sent_s + at for at in MOMENTS_S], list("abc")
            done(reply)

        timer = loop.call_later(TOOK_S, end)

        class Call:
            def cancel(self) -> None:
                end(RequestFailed("cancelled", "by the wire"))

        return Call()

    def cancel_all(self) -> None:
        """Note it."""
        self.said.append("cancel all")

    async def close(self) -> None:
        """Note it."""
        self.said.append("close")


def played(work: Callable[[], Coroutine[None, None, object]]):
    """Run something on a loop of its own, on which time is only counted."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work())


def ask(slowdown: float, *, plain: Plain | None = None, timeout_s: float = 60.0, cancel_s: float | None = None):
    """Send one request; return the reply, when it was handed on after its send, and the wire."""

    async def work():
        loop = asyncio.get_running_loop()
        wire = HeldWire(plain or Plain(), slowdown, monotonic=loop.time)
        done = loop.create_future()
        call = wire.start(b"", timeout_s, done.set_result)
        if cancel_s is not None:
            loop.call_later(cancel_s, call.cancel)
        reply = await done
        assert wire.in_flight == 0
        return reply, loop.time() - reply.sent_s, wire

    return played(work)


def test_moments_are_stretched_from_the_send() -> None:
    """Each by the share that was asked for; none is moved by none."""
    assert stretched([10.0, 11.0, 14.0], 10.0, 0.5) == [10.0, 11.5, 16.0]
    assert stretched([10.0, 11.0, 14.0], 10.0, 0.0) == [10.0, 11.0, 14.0]
    assert stretched([], 10.0, 0.5) == []


@pytest.mark.parametrize("slowdown", [0.0, 0.15, 3.0])
def test_an_answer_takes_longer_by_its_share(slowdown: float) -> None:
    """Its events as the whole, and who waits for it gets it no earlier and at most a millisecond later."""
    reply, after_s, wire = ask(slowdown)

    assert after_s == pytest.approx(TOOK_S * (1 + slowdown), abs=0.0011)
    assert reply.ended_s - reply.sent_s >= TOOK_S * (1 + slowdown)
    expected = [at * (1 + slowdown) for at in MOMENTS_S]
    assert [at - reply.sent_s for at in reply.arrived_s] == pytest.approx(expected)
    assert (reply.events, reply.fault) == (list("abc"), None)
    assert (wire.answers, wire.mean_s) == (1, reply.ended_s - reply.sent_s)


def test_what_is_held_back_is_in_flight() -> None:
    """Until it is handed on, so that a closed loop sends nothing in its place."""

    async def work() -> list[int]:
        loop, seen = asyncio.get_running_loop(), []
        wire = HeldWire(Plain(), 0.5, monotonic=loop.time)
        for _ in range(2):
            wire.start(b"", 60.0, lambda _reply: seen.append(wire.in_flight))
        for _ in range(2):
            await asyncio.sleep(0.35)
            seen.append(wire.in_flight)
        await asyncio.sleep(0.2)
        return seen

    assert played(work) == [2, 2, 1, 0]


def test_a_failure_is_handed_on_at_once() -> None:
    """It is nothing of the speed of answers, and counts for none."""
    reply, after_s, wire = ask(1.0, plain=Plain(RequestFailed("internal", "broken")))

    assert (after_s, reply.fault.label) == (pytest.approx(TOOK_S, abs=0.0011), "internal")
    assert (wire.answers, wire.mean_s) == (0, None)


@pytest.mark.parametrize(("cancel_s", "came"), [(0.2, None), (0.7, 2)])
def test_a_request_can_be_given_up(cancel_s: float, came: int | None) -> None:
    """While the server is at it, and while its answer waits: then with what would have come by then."""
    reply, after_s, wire = ask(1.0, cancel_s=cancel_s)

    assert (reply.fault.label, after_s) == ("cancelled", pytest.approx(cancel_s, abs=0.0011))
    assert came is None or len(reply.events) == len(reply.arrived_s) == came
    assert wire.answers == 0


def test_an_answer_that_would_come_too_late_is_a_timeout() -> None:
    """As that of a server which is so slow."""
    reply, after_s, _ = ask(1.0, timeout_s=0.8)

    assert (reply.fault.label, len(reply.events)) == ("timeout", 2)
    assert after_s == pytest.approx(0.8, abs=0.0011)


def test_all_that_is_held_back_can_be_cut_off() -> None:
    """By the end of a run, and by closing the wire; the wire within hears of both."""

    async def work() -> tuple[list[str], list[str]]:
        loop, labels = asyncio.get_running_loop(), []
        plain = Plain()
        wire = HeldWire(plain, 1.0, monotonic=loop.time)
        await wire.open(3)
        for _ in range(2):
            wire.start(b"", 60.0, lambda reply: labels.append(reply.fault.label))
            await asyncio.sleep(TOOK_S + 0.1)
            await wire.close() if labels else wire.cancel_all()
        return labels, plain.said

    assert played(work) == (["cancelled"] * 2, ["open 3 within 30", "cancel all", "cancel all", "close"])
