"""Runs a load plan against a server, from one event loop: sends what is due, and records what comes of every request.

Knows schedules, time-outs and how a run ends; knows no statistics and no wire protocol. A request that fails becomes a
record with a stable label. The run ends early, and says so, when somebody presses Ctrl-C, when its deadline passes,
when the server says that it was told to stop, and when several requests in a row cannot reach it: nothing waits for
hours on a server that died.

An open loop sends when the schedule says, whatever became of the requests before. A closed loop sends when an answer
has ended. An answer is decoded after the request that takes its place has been sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import signal
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from specdeploy.bench.observation import Observation
from specdeploy.bench.records import CONTROL, INTERRUPTED, SPECULATION, Arm, LoadRun, RequestRecord, utf8
from specdeploy.bench.server_window import ServerWindow
from specdeploy.bench.table import RecordsInMemory
from specdeploy.triton.client.failures import RequestFailed, is_leaving
from specdeploy.triton.protocol import GenerateRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from specdeploy.bench.schedule import Block, LoadPlan
    from specdeploy.bench.table import RecordStore
    from specdeploy.bench.wire.call import Reply, Wire
    from specdeploy.bench.wire.codec import Codec
    from specdeploy.deploy.counts import ServerCounts
    from specdeploy.system.clock import Clock

#: Labels that say that the server was not there; so many in a row (`LoadSettings.max_connection_failures`) end the run.
CONNECTION_LABELS: Final = frozenset({"connection", "unavailable", "timeout"})

_GRACE_S: Final = 2.0
#: Requests that are encoded before they are due.
_AHEAD: Final = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """Where the run is, after each request.

    Args:
        block: The block that is running, counted from 1.

        blocks: Blocks of the plan.

        done: Requests done in the whole run, the warm-up included.

        total: Requests of the plan; None when the time decides.

        errors: How many of them failed.

        in_flight: Requests that have not ended.

        record: The request that just ended.

        left_s: Seconds until the last block ends, where the plan says when: blocks by time, and open loops.
    """

    block: int
    blocks: int
    done: int
    total: int | None
    errors: int
    in_flight: int
    record: RequestRecord
    left_s: float | None = None


def run_load(  # noqa: PLR0913 - the plan, both ends of it, and what may be left out
    plan: LoadPlan,
    wire: Wire[Any],
    codec: Codec[Any],
    clock: Clock,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    control: tuple[Wire[Any], Codec[Any]] | None = None,
    look: Callable[[], ServerCounts | None] | None = None,
    begin: Callable[[int], Awaitable[float]] | None = None,
    store: RecordStore | None = None,
) -> LoadRun:
    """Carry out a plan and return what was measured, all of it or as far as it went.

    Args:
        plan: The blocks in order.

        wire: Sends the requests; it is opened before the first of them, so that no connection set-up is measured, and
            closed at the end.

        codec: What requests and replies look like.

        clock: The clock that the wire's times are on, too.

        on_progress: Called from this thread after every request.

        control: Another server that answers for the control, and what its requests look like; None is the same one.

        look: Reads the server's counters, between blocks, on another thread; it raises nothing, and returns None when
            it cannot tell. None asks nobody. Of blocks that another server answers it has nothing to say.

        begin: Asked with the number of each block, from 0, when all is ready for it: when it begins, on the clock. The
            run begins with the first. None begins each at once.

        store: Takes the records as requests end, in this order; None keeps them in memory.

    Raises:
        ConfigError: The server has no input for something that the plan asks for.

        RequestFailed: The server cannot be reached.
    """
    lines = {SPECULATION: _Line(wire, codec), CONTROL: _Line(*(control or (wire, codec)))}
    store = RecordsInMemory() if store is None else store
    before = len(store)
    run = _Run(plan, lines, clock, on_progress or _ignore, look, begin, store)
    asyncio.run(run.carry_out())
    return LoadRun(
        records=store.since(before),
        windows=tuple(run.windows),
        started_s=run.started_s,
        stop_reason=run.stop_reason,
        duration_s=clock.monotonic() - run.started_s,
        block_starts_s=tuple(run.block_starts_s),
    )


def build_request(plan: LoadPlan, block: Block, index: int) -> GenerateRequest:
    """Return what is sent at ``index`` of a block; the arms of a pair differ in ``num_draft_tokens`` alone.

    Raises:
        ConfigError: The prompt wants a longer answer than the run allows.
    """
    settings, prompt = plan.settings, block.prompt(index)
    sampled = settings.temperature > 0
    max_tokens, extra = settings.output.apply(prompt)
    return GenerateRequest(
        prompt=prompt.message if settings.chat else prompt.text,
        max_tokens=max_tokens,
        num_draft_tokens=0 if settings.own_control and block.arm == CONTROL else settings.num_draft_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p if sampled else None,
        seed=_seed(plan, block, index) if sampled else None,
        stream=True,
        extra=extra,
    )


def _seed(plan: LoadPlan, block: Block, index: int) -> int:
    return plan.settings.seed + max(block.pair, 0) * (block.size or 1_000_000) + index


def _ignore(_progress: Progress) -> None:
    pass


class _Line(NamedTuple):
    """How an arm is reached."""

    wire: Wire[Any]
    codec: Codec[Any]


class _Run:
    """One run in progress: block after block, until they are done or something stops it."""

    def __init__(
        self,
        plan: LoadPlan,
        lines: Mapping[Arm, _Line],
        clock: Clock,
        on_progress: Callable[[Progress], None],
        look: Callable[[], ServerCounts | None] | None,
        begin: Callable[[int], Awaitable[float]] | None,
        store: RecordStore,
    ) -> None:
        self.plan = plan
        self.lines = lines
        self.clock = clock
        self.windows: list[ServerWindow] = []
        self.stop_reason = ""
        self.started_s = clock.monotonic()
        self.block_starts_s: list[float] = []
        self._on_progress = on_progress
        self._look = look
        self._begin = begin
        self._waiting: asyncio.Future[None] | None = None
        self._signals = 0
        self._number = 0
        self._store = store
        self._done = 0
        self._errors = 0
        self._failures_in_a_row = 0
        self._sender: _Sender | None = None
        self._broken: BaseException | None = None
        limit_s = plan.settings.deadline_s
        self._ends_s = math.inf if limit_s is None else clock.monotonic() + limit_s

    @property
    def stopping(self) -> bool:
        """Whether nothing more is to be sent."""
        return bool(self.stop_reason) or self._broken is not None

    async def carry_out(self) -> None:
        """Run the blocks in order until they are done or the run is stopped."""
        timer = self._set_deadline()
        wires = {id(line.wire): line.wire for line in self.lines.values()}.values()
        with _told_of_signals(self._on_signal):
            try:
                for wire in wires:
                    await self._unless_stopped(wire.open(self.plan.connections))
                for block in self.plan.blocks:
                    if self.stopping:
                        break
                    self._number += 1
                    await self._watch_block(block)
            finally:
                if timer is not None:
                    timer.cancel()
                for wire in wires:
                    await wire.close()
        if self._broken is not None:
            raise self._broken

    def keep(self, record: RequestRecord) -> None:
        """Take a request that has ended, and tell; a listener that fails ends the run."""
        self._store.add(record)
        self._done += 1
        self._errors += not record.ok
        self._notice_dead_server(record)
        self._notice_deadline()
        progress = Progress(
            block=self._number,
            blocks=len(self.plan.blocks),
            done=self._done,
            total=self.plan.total_requests,
            errors=self._errors,
            in_flight=self.lines[record.arm].wire.in_flight,
            record=record,
            left_s=self._left_s(),
        )
        try:
            self._on_progress(progress)
        except KeyboardInterrupt:
            self.halt(INTERRUPTED_BY_USER)
        except BaseException as error:  # noqa: BLE001 - raised again, once what was started has been ended
            self.fail(error)

    def halt(self, reason: str) -> None:
        """Send nothing more; what is in flight has a moment to end."""
        self.stop_reason = self.stop_reason or reason
        self._wind_down()

    def fail(self, error: BaseException) -> None:
        """End the run at once because of a fault of ours or of the caller's."""
        self._broken = self._broken or error
        self._wind_down()

    def _on_signal(self, reason: str) -> None:
        """End the run; the second time somebody has no patience, and what is in flight is cut off at once."""
        self._signals += 1
        self.halt(reason)
        if self._signals > 1 and self._sender is not None:
            self._sender.cut_off()

    async def _unless_stopped(self, what: Awaitable[None]) -> None:
        """Wait for something that is given up when the run ends."""
        self._waiting = asyncio.ensure_future(what)
        if self.stopping:
            self._waiting.cancel()
        await asyncio.wait([self._waiting])
        if not self._waiting.cancelled():
            self._waiting.result()
        self._waiting = None

    async def _hold(self) -> None:
        """Wait until the next block begins, where somebody else says when."""
        if self._begin is None or self.stopping:
            return
        await self._unless_stopped(self._sleep(self._begin))
        if self._number == 1:
            self.started_s = self.clock.monotonic()

    async def _sleep(self, begin: Callable[[int], Awaitable[float]]) -> None:
        await asyncio.sleep(await begin(self._number - 1) - self.clock.monotonic())

    async def _watch_block(self, block: Block) -> None:
        """Run a block, with a look at the server's counters on both sides of it."""
        before = await self._look_at_server(block)
        await self._hold()
        if self.stopping:
            return
        start_s = self.clock.monotonic()
        await self._run_block(block)
        end_s, after = self.clock.monotonic(), await self._look_at_server(block)
        if before is None or after is None:
            return
        self.windows.append(
            ServerWindow(
                arm=block.arm,
                point=block.point,
                pair=block.pair,
                start_s=start_s,
                end_s=end_s,
                before=before,
                after=after,
            )
        )

    async def _look_at_server(self, block: Block) -> ServerCounts | None:
        if self._look is None or self.lines[block.arm].wire is not self.lines[SPECULATION].wire:
            return None
        return await asyncio.to_thread(self._look)

    async def _run_block(self, block: Block) -> None:
        self._sender = sender = _Sender(self, block)
        sender.begin()
        await sender.finished.wait()
        self._sender = None

    def _left_s(self) -> float | None:
        lengths_s = self.plan.lengths_s[self._number - 1 :]
        if None in lengths_s or not self.block_starts_s:
            return None
        ends_s = self.block_starts_s[-1] + sum(length_s or 0.0 for length_s in lengths_s)
        return max(ends_s - self.clock.monotonic(), 0.0)

    def _notice_deadline(self) -> None:
        if self.clock.monotonic() >= self._ends_s:
            self.halt(f"the deadline of {self.plan.settings.deadline_s:g} s passed")

    def _set_deadline(self) -> asyncio.Handle | None:
        """Have a look at the deadline when it has passed: perhaps no request ends that would."""
        if self.plan.settings.deadline_s is None:
            return None
        return asyncio.get_running_loop().call_later(self.plan.settings.deadline_s + _TICK_S, self._notice_deadline)

    def _notice_dead_server(self, record: RequestRecord) -> None:
        if record.error in CONNECTION_LABELS and is_leaving(record.error_message):
            # It said so itself: to ask again would only add errors.
            self.halt(f"the server was stopped: {record.error_message}")
        self._failures_in_a_row = self._failures_in_a_row + 1 if record.error in CONNECTION_LABELS else 0
        if self._failures_in_a_row >= self.plan.settings.max_connection_failures:
            failures, words = self._failures_in_a_row, record.error_message
            self.halt(f"{failures} requests in a row did not reach the server, the last with {words}")

    def _wind_down(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        if self._sender is not None:
            self._sender.wind_down()


@contextlib.contextmanager
def _told_of_signals(call: Callable[[str], None]) -> Iterator[None]:
    """Have the loop call, with the reason, when Ctrl-C or SIGTERM comes, in place of a handler that raises.

    What such a handler raises within a callback, asyncio would log and forget, and with it the request that it was
    about; and a second Ctrl-C would end the loop, and with it all results. The handlers are put back at the end.
    """
    loop, before = asyncio.get_running_loop(), {}
    if threading.current_thread() is threading.main_thread():
        before = {number: handler for number in _REASONS if callable(handler := signal.getsignal(number))}
    for number in before:
        signal.signal(number, lambda number, _frame: loop.call_soon_threadsafe(call, _REASONS[number]))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


INTERRUPTED_BY_USER: Final = "interrupted from the keyboard"
TERMINATED: Final = "terminated"
_REASONS: Final[Mapping[int, str]] = {signal.SIGINT: INTERRUPTED_BY_USER, signal.SIGTERM: TERMINATED}
#: More than the resolution of the loop's clock, so that a timer does not come early.
_TICK_S: Final = 0.01
#: The loop sleeps in whole milliseconds and rounds up: it is woken one early and goes round until a request is due.
_EARLY_S: Final = 0.001


@dataclasses.dataclass(frozen=True, slots=True)
class _Prepared:
    """A request that can be sent: its place in the block, the request, and its bytes."""

    index: int
    request: GenerateRequest
    payload: Any


class _Sender:
    """One block: starts requests when they are due, and turns replies into records."""

    def __init__(self, run: _Run, block: Block) -> None:
        self.finished = asyncio.Event()
        self._run = run
        self._block = block
        self._line = run.lines[block.arm]
        self._loop = asyncio.get_running_loop()
        self._ready: deque[_Prepared] = deque()
        self._replies: deque[tuple[_Prepared, float, Reply]] = deque()
        self._indices = run.plan.shard.indices(block)
        self._start_s = 0.0
        self._pending = 0
        self._timer: asyncio.Handle | None = None
        self._cut: asyncio.Handle | None = None

    def begin(self) -> None:
        """Start the block."""
        self._prepare(_AHEAD)
        self._start_s = self._run.clock.monotonic()
        self._run.block_starts_s.append(self._start_s)
        if self._block.is_open:
            self._pump()
            return
        for _ in range(self._run.plan.shard.in_flight(self._block)):
            self._launch_next(self._start_s)
        # Where nothing of the block is ours, it is over.
        self._look()

    def wind_down(self) -> None:
        """Send nothing more; cut off what has not ended after a moment."""
        if self._timer is not None:
            self._timer.cancel()
        if self._cut is None:
            self._cut = self._loop.call_later(_GRACE_S, self._line.wire.cancel_all)
        self._loop.call_soon(self._look)

    def cut_off(self) -> None:
        """Do not wait for that moment."""
        self._line.wire.cancel_all()

    def _pump(self) -> None:
        """Send everything that is due by the schedule, and come again when the next is."""
        while self._ready and not self._run.stopping:
            due_s = self._start_s + self._block.offsets_s[self._ready[0].index]
            if due_s > self._run.clock.monotonic():
                self._prepare(_AHEAD)
                self._timer = self._loop.call_at(due_s - _EARLY_S, self._pump)
                return
            self._launch(self._ready.popleft(), due_s)
            if not self._ready:
                self._prepare(1)
        self._look()

    def _launch_next(self, free_s: float) -> None:
        """Send the next request of a closed loop, if there is one: a slot is free since ``free_s``."""
        over = self._block.duration_s is not None and free_s - self._start_s >= self._block.duration_s
        if not self._ready:
            self._prepare(1)
        if self._ready and not over and not self._run.stopping:
            self._launch(self._ready.popleft(), free_s)

    def _launch(self, prepared: _Prepared, intended_s: float) -> None:
        def done(reply: Reply) -> None:
            self._done(prepared, intended_s, reply)

        self._pending += 1
        try:
            self._line.wire.start(prepared.payload, self._run.plan.settings.request_timeout_s, done)
        except RequestFailed as error:
            self._pending -= 1
            self._run.fail(error)

    def _done(self, prepared: _Prepared, intended_s: float, reply: Reply) -> None:
        self._replies.append((prepared, intended_s, reply))
        if reply.fault is not None:
            # Looked at first, so that nothing more is sent to a server that is gone.
            self._record()
        if not self._block.is_open:
            self._launch_next(reply.ended_s)
        self._loop.call_soon(self._record_and_look)

    def _record_and_look(self) -> None:
        self._record()
        self._look()

    def _record(self) -> None:
        """Decode answers, in the order in which they ended."""
        try:
            self._prepare(_AHEAD)
            while self._replies:
                self._pending -= 1
                self._run.keep(self._read(*self._replies.popleft()))
        except Exception as error:  # noqa: BLE001 - a callback of the loop has nobody who would see it
            self._run.fail(error)

    def _read(self, prepared: _Prepared, intended_s: float, reply: Reply) -> RequestRecord:
        answer = self._line.codec.decode(reply, prepared.request)
        seen = Observation()
        for chunk in answer.chunks:
            seen.add(chunk, reply.ended_s if chunk.received_s is None else chunk.received_s)
        error, message = seen.fault() if answer.fault is None else (answer.fault.label, str(answer.fault))
        if self._run.stopping and error == "cancelled":
            # We cut it off: that is no fault of the server.
            error = INTERRUPTED
        prompt = self._block.prompt(prepared.index)
        fields = {name: utf8(value) if isinstance(value, str) else value for name, value in seen.fields().items()}
        return RequestRecord(
            arm=self._block.arm,
            pair=self._block.pair,
            index=prepared.index,
            concurrency=self._block.point.concurrency,
            rate=self._block.point.rate,
            prompt_id=utf8(prompt.id),
            category=utf8(prompt.category),
            intended_s=intended_s,
            sent_s=reply.sent_s,
            ended_s=reply.ended_s,
            error=error,
            error_message=utf8(message),
            **fields,  # type: ignore[arg-type]  # a dict of fields cannot say that each has its type
        )

    def _prepare(self, ahead: int) -> None:
        """Encode requests until so many are ready, or the block has no more."""
        while len(self._ready) < ahead and (index := next(self._indices, None)) is not None:
            request = build_request(self._run.plan, self._block, index)
            self._ready.append(_Prepared(index, request, self._line.codec.prepare(request)))

    def _look(self) -> None:
        """Say that the block is over, when it is: nothing in flight, and nothing that will be sent."""
        waiting = self._block.is_open and bool(self._ready) and not self._run.stopping
        if not self._pending and not waiting:
            if self._cut is not None:
                self._cut.cancel()
            self.finished.set()
