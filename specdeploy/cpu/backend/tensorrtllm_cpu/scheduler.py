"""Many requests on a few slots: one forward pass per turn, in rotation, on one thread.

Requests wait in order until a slot is free. Each running one gets a turn before any gets a second, so a long answer
never holds up a short verification for more than one pass of each other sequence. A request that fails or is cancelled
or stopped is answered and takes nobody with it. Does not know Triton: a ``Job`` is how a request reports back.
"""

from __future__ import annotations

import collections
import queue
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from tensorrtllm_cpu.faults import RequestRefused
from tensorrtllm_cpu.generation import Answer, Generation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorrtllm_cpu.engine import SlotPool
    from tensorrtllm_cpu.inputs import GenerationRequest

#: Prompt tokens per forward pass: keeps the logits of a pass (one row per token) small and others waiting briefly.
PREFILL_CHUNK: Final = 128
#: Asking Triton whether a request was cancelled takes 0.2 to 0.3 ms on idle cores, and more beside passes that use
#: them all, so a running one is not asked at every turn.
CANCEL_CHECK_S: Final = 0.1
#: The same for one that waits for a slot.
WAITING_CHECK_S: Final = 0.5


class Job(Protocol):
    """A request and the way to answer it; called from the scheduler's thread, and not allowed to raise.

    Exactly one of a final ``respond``, ``fail`` and ``abandon`` ends it.
    """

    @property
    def request(self) -> GenerationRequest:
        """What was asked."""

    def cancelled(self) -> bool:
        """Say whether nobody waits for the answer any more."""

    def respond(self, answer: Answer, *, final: bool) -> None:
        """Send an answer; all but the last of a streaming request are not ``final``."""

    def fail(self, error: Exception) -> None:
        """Answer with an error."""

    def abandon(self) -> None:
        """Answer a cancelled request."""


class _Ticket:
    """A job on its way through the scheduler."""

    def __init__(self, job: Job, name: str, now: float) -> None:
        self.job = job
        self.name = name
        self.arrival_ns = time.time_ns()
        self.check_at = now + CANCEL_CHECK_S


class Scheduler:
    """The loop that owns the slots.

    Args:
        pool: The slots.
        prefill_chunk: Prompt tokens per forward pass.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self, pool: SlotPool, *, prefill_chunk: int = PREFILL_CHUNK, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = pool
        self._chunk = prefill_chunk
        self._clock = clock
        self._inbox: queue.SimpleQueue[_Ticket | str | None] = queue.SimpleQueue()
        self._waiting: collections.deque[_Ticket] = collections.deque()
        self._running: collections.deque[tuple[_Ticket, Generation]] = collections.deque()
        self._thread: threading.Thread | None = None
        self._closing = False

    def submit(self, job: Job, name: str = "") -> None:
        """Take a job, which can be stopped by its name; returns at once. May be called from any thread."""
        self._inbox.put(_Ticket(job, name, self._clock()))

    def stop(self, name: str) -> None:
        """End the jobs of a name before their time; one that there is not has ended. May be called from any thread.

        One that runs is answered with what it has, and one that waits as a cancelled one.
        """
        self._inbox.put(name)

    def start(self) -> None:
        """Serve on a thread of its own until ``close``."""
        self._thread = threading.Thread(target=self._serve, name="cpu-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the pass that is running; jobs that are not finished are answered as cancelled."""
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join()
        self._receive(block=False)
        for ticket in (*self._waiting, *(ticket for ticket, _ in self._running)):
            ticket.job.abandon()
        self._waiting.clear()
        self._running.clear()

    def turn(self) -> bool:
        """Take in what arrived and run one forward pass; False when there was nothing to run."""
        self._receive(block=False)
        self._waiting = collections.deque(self._unless_cancelled(self._waiting))
        self._admit()
        if not self._running:
            return False
        ticket, generation = self._running.popleft()
        if self._step(ticket, generation):
            self._running.append((ticket, generation))
        return True

    def _serve(self) -> None:
        """Run turns; sleep on the inbox while there is nothing to do."""
        while not self._closing:
            if not self.turn():
                self._receive(block=True)

    def _receive(self, *, block: bool) -> None:
        """Move what arrived to the waiting line; with ``block`` wait for one arrival."""
        try:
            while True:
                ticket = self._inbox.get(block=block)
                block = False
                if ticket is None:
                    self._closing = True
                elif isinstance(ticket, str):
                    self._stop(ticket)
                else:
                    self._waiting.append(ticket)
        except queue.Empty:
            return

    def _stop(self, name: str) -> None:
        """End what has this name; nothing is running a pass now."""
        waiting, self._waiting = self._waiting, collections.deque()
        for ticket in waiting:
            if ticket.name == name:
                ticket.job.abandon()
            else:
                self._waiting.append(ticket)
        running, self._running = self._running, collections.deque()
        for ticket, generation in running:
            if ticket.name == name:
                self._pool.release(generation.slot)
                ticket.job.respond(generation.take(), final=True)
            else:
                self._running.append((ticket, generation))

    def _admit(self) -> None:
        """Start waiting jobs, oldest first, while there are slots."""
        while self._waiting and self._pool.available:
            ticket = self._waiting.popleft()
            request = ticket.job.request
            try:
                slot, reused = self._pool.acquire(request.prompt)
            except Exception as error:  # noqa: BLE001 - whatever the engine raised is this request's answer
                ticket.job.fail(error)
                continue
            generation = Generation(request, slot, reused, arrival_ns=ticket.arrival_ns, prefill_chunk=self._chunk)
            self._running.append((ticket, generation))

    def _step(self, ticket: _Ticket, generation: Generation) -> bool:
        """Give one running job its turn; True when it needs another."""
        if self._is_cancelled(ticket, CANCEL_CHECK_S):
            self._pool.release(generation.slot)
            return False
        try:
            emitted = generation.turn()
            due = generation.finished or (emitted and generation.request.streaming)
            answer = generation.take() if due else None
        except Exception as error:  # noqa: BLE001 - one request's failure must not end the others
            self._give_up(ticket, generation, error)
            return False
        if generation.finished:
            self._pool.release(generation.slot)
        if answer is not None:
            ticket.job.respond(answer, final=generation.finished)
        return not generation.finished

    def _give_up(self, ticket: _Ticket, generation: Generation, error: Exception) -> None:
        """End a job that failed; after anything but a refusal its slot cannot be trusted."""
        if isinstance(error, RequestRefused):
            self._pool.release(generation.slot)
        else:
            self._pool.discard()
        ticket.job.fail(error)

    def _unless_cancelled(self, tickets: collections.deque[_Ticket]) -> Iterator[_Ticket]:
        """Yield the waiting jobs that somebody still waits for; answer the others."""
        return (ticket for ticket in tickets if not self._is_cancelled(ticket, WAITING_CHECK_S))

    def _is_cancelled(self, ticket: _Ticket, period_s: float) -> bool:
        """Ask whether a job was cancelled, if it is time to; answer it if so."""
        now = self._clock()
        if now < ticket.check_at:
            return False
        ticket.check_at = now + period_s
        if not ticket.job.cancelled():
            return False
        ticket.job.abandon()
        return True
