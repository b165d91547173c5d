"""Runs a load plan against a server: a closed loop of workers, each with its own session; each request is recorded.

Knows threads, time-outs and how a run ends; knows no statistics and no wire protocol. A request that fails becomes a
record with a stable label. The run ends early, and says so, when somebody presses Ctrl-C, when its deadline passes,
and when several requests in a row cannot reach the server: nothing waits for hours on a server that died.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import queue
import threading
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from specdeploy.bench.observation import Observation
from specdeploy.bench.records import CONTROL, INTERRUPTED, Arm, LoadRun, RequestRecord
from specdeploy.triton.protocol import GenerateRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from specdeploy.bench.prompts import Prompt
    from specdeploy.bench.schedule import Block, LoadPlan
    from specdeploy.system.clock import Clock
    from specdeploy.triton.protocol import Chunk

#: Labels that say that the server was not there; so many in a row (`LoadSettings.max_connection_failures`) end the run.
CONNECTION_LABELS: Final = frozenset({"connection", "unavailable", "timeout"})

_POLL_S: Final = 0.1
_GRACE_S: Final = 2.0


class Session(Protocol):
    """One worker's connection to the server; its time-out is the factory's business."""

    def stream(self, request: GenerateRequest) -> Iterator[Chunk]:
        """Send a request and yield its responses as they come.

        Raises an exception with a ``label`` (see `error_label`) when the request fails or takes too long.
        """
        ...


SessionFactory: TypeAlias = "Callable[[], AbstractContextManager[Session]]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """Where the run is, after each request.

    Args:
        block: The block that is running, counted from 1.

        blocks: Blocks of the plan.

        done: Requests done in the whole run, the warm-up included.

        total: Requests of the plan.

        errors: How many of them failed.

        record: The request that just ended.
    """

    block: int
    blocks: int
    done: int
    total: int
    errors: int
    record: RequestRecord


def run_load(
    plan: LoadPlan,
    session_factory: SessionFactory,
    clock: Clock,
    on_progress: Callable[[Progress], None] | None = None,
) -> LoadRun:
    """Carry out a plan and return what was measured, all of it or as far as it went.

    Args:
        plan: The blocks in order.

        session_factory: Opens one session; called once for each worker, before the first request, so that no
            connection set-up is measured.

        clock: The clock that the sessions' ``received_s`` are on, too.

        on_progress: Called from this thread after every request.

    Raises:
        ServerFault: A session could not be opened.
    """
    started_s = clock.monotonic()
    with contextlib.ExitStack() as stack:
        workers = max(plan.settings.concurrency)
        sessions = [stack.enter_context(session_factory()) for _ in range(workers)]
        run = _Run(plan, sessions, clock, on_progress or _ignore, close_sessions=stack.close)
        run.carry_out()
    return LoadRun(
        records=tuple(run.records),
        stop_reason=run.stop_reason,
        duration_s=clock.monotonic() - started_s,
    )


def error_label(error: BaseException) -> str:
    """Return the label under which an error is counted: its own ``label``, or that it was not foreseen."""
    label = getattr(error, "label", None)
    return label if isinstance(label, str) and label else f"unexpected.{type(error).__name__}"


def build_request(plan: LoadPlan, block: Block, index: int) -> GenerateRequest:
    """Return what is sent at ``index`` of a block; the arms of a pair differ in ``num_draft_tokens`` alone."""
    settings = plan.settings
    sampled = settings.temperature > 0
    return GenerateRequest(
        prompt=block.prompts[index].text,
        max_tokens=settings.max_tokens,
        num_draft_tokens=_drafts(block.arm, settings.num_draft_tokens),
        temperature=settings.temperature,
        top_p=settings.top_p if sampled else None,
        seed=settings.seed + max(block.pair, 0) * settings.requests + index if sampled else None,
        stream=True,
    )


def _drafts(arm: Arm, asked: int | None) -> int | None:
    return 0 if arm == CONTROL else asked


def _ignore(_progress: Progress) -> None:
    pass


class _Stopped(Exception):
    """The run is being stopped while this request was in flight."""

    label = INTERRUPTED


class _Run:
    """One run in progress: workers send, the caller's thread collects their records, and any of them may stop it."""

    def __init__(
        self,
        plan: LoadPlan,
        sessions: Sequence[Session],
        clock: Clock,
        on_progress: Callable[[Progress], None],
        *,
        close_sessions: Callable[[], None],
    ) -> None:
        self.records: list[RequestRecord] = []
        self.stop_reason = ""
        self._plan = plan
        self._sessions = sessions
        self._clock = clock
        self._on_progress = on_progress
        self._close_sessions = close_sessions
        limit_s = plan.settings.deadline_s
        self._deadline_s = math.inf if limit_s is None else clock.monotonic() + limit_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._results: queue.SimpleQueue[RequestRecord | None] = queue.SimpleQueue()
        self._working = 0
        self._failures_in_a_row = 0
        self._errors = 0

    def carry_out(self) -> None:
        """Run the blocks in order until they are done or the run is stopped."""
        try:
            for number, block in enumerate(self._plan.blocks, start=1):
                self._run_block(number, block)
                if self._stop.is_set():
                    return
        finally:
            self._stop.set()

    def _run_block(self, number: int, block: Block) -> None:
        try:
            self._start_workers(block)
            self._collect(number)
        except KeyboardInterrupt:
            self._halt("interrupted from the keyboard")
        if self._stop.is_set():
            self._drain()

    def _start_workers(self, block: Block) -> None:
        jobs: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(block.prompts)):
            jobs.put(index)
        start_s = self._clock.monotonic()
        for session in self._sessions[: min(block.concurrency, len(block.prompts))]:
            # Daemons: a session that hangs in spite of its time-out must not keep the process alive.
            thread = threading.Thread(target=self._work, args=(session, block, jobs, start_s), daemon=True)
            self._working += 1
            thread.start()

    def _work(self, session: Session, block: Block, jobs: queue.SimpleQueue[int], free_s: float) -> None:
        try:
            while not self._stop.is_set():
                record = self._send(session, block, jobs.get_nowait(), free_s)
                free_s = record.ended_s
                self._notice_dead_server(record)
                self._results.put(record)
        except queue.Empty:
            pass
        finally:
            self._results.put(None)

    def _send(self, session: Session, block: Block, index: int, intended_s: float) -> RequestRecord:
        prompt: Prompt = block.prompts[index]
        seen = Observation()
        sent_s = self._clock.monotonic()
        error, message = self._observe(session, build_request(self._plan, block, index), seen)
        return RequestRecord(
            arm=block.arm,
            pair=block.pair,
            index=index,
            concurrency=block.concurrency,
            prompt_id=prompt.id,
            category=prompt.category,
            intended_s=intended_s,
            sent_s=sent_s,
            ended_s=self._clock.monotonic(),
            error=error,
            error_message=message,
            **seen.fields(),  # type: ignore[arg-type]  # a dict of fields cannot say that each has its type
        )

    def _observe(self, session: Session, request: GenerateRequest, seen: Observation) -> tuple[str | None, str]:
        try:
            for chunk in session.stream(request):
                if self._stop.is_set():
                    raise _Stopped
                received_s = chunk.received_s
                seen.add(chunk, self._clock.monotonic() if received_s is None else received_s)
        except Exception as error:  # noqa: BLE001 - whatever a request dies of becomes its record, so that none is lost
            # Once the run is being stopped its sessions are closed under the requests: that is no fault of the server.
            label = INTERRUPTED if self._stop.is_set() else error_label(error)
            return label, str(error)
        return seen.fault()

    def _collect(self, number: int) -> None:
        while self._working and not self._stop.is_set():
            if self._clock.monotonic() >= self._deadline_s:
                self._halt(f"the deadline of {self._plan.settings.deadline_s:g} s passed")
                return
            with contextlib.suppress(queue.Empty):
                self._take(self._results.get(timeout=_POLL_S), number)

    def _take(self, record: RequestRecord | None, number: int) -> None:
        self._keep(record)
        if record is None:
            return
        progress = Progress(
            block=number,
            blocks=len(self._plan.blocks),
            done=len(self.records),
            total=self._plan.total_requests,
            errors=self._errors,
            record=record,
        )
        self._on_progress(progress)

    def _keep(self, record: RequestRecord | None) -> None:
        if record is None:
            self._working -= 1
            return
        self.records.append(record)
        self._errors += not record.ok

    def _notice_dead_server(self, record: RequestRecord) -> None:
        """Stop after too many failed connections in a row; the workers see to it, so that none runs ahead."""
        with self._lock:
            self._failures_in_a_row = self._failures_in_a_row + 1 if record.error in CONNECTION_LABELS else 0
            failures = self._failures_in_a_row
        if failures >= self._plan.settings.max_connection_failures:
            self._halt(f"{failures} requests in a row did not reach the server, the last with {record.error_message}")

    def _halt(self, reason: str) -> None:
        with self._lock:
            self.stop_reason = self.stop_reason or reason
            self._stop.set()

    def _drain(self) -> None:
        """Collect what is still in flight: wait a moment, then close the sessions under it, and wait once more."""
        with contextlib.suppress(KeyboardInterrupt, queue.Empty):
            self._await_workers()
        if self._working:
            self._close_sessions()
            with contextlib.suppress(KeyboardInterrupt, queue.Empty):
                self._await_workers()

    def _await_workers(self) -> None:
        while self._working:
            self._keep(self._results.get(timeout=_GRACE_S))
