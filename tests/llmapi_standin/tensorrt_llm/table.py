"""The engine: the next token is a hash of the last two, and how many drafts a step accepts is a hash, too.

``table.json`` of the model folder says ``vocab_size``, ``seed``, ``metrics`` (which release's way of counting is
played: ``zeros``, ``totals`` or ``positions``), ``reports_end_id`` (whether the end token is among the reported ones),
``never`` (tokens that the table does not answer) and ``steers``: a prompt whose first token is named there is served in
a special way.

* ``echo``: the answer is the rest of the prompt, then the end token.
* ``slow``: every step takes 20 ms.
* ``fail``: the engine breaks after the second step.
* ``active``: the answer is one token, the number of requests that are being decoded, this one not counted.
* ``aborted``: the same with the number of requests that were aborted while they were decoded.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STEP_S = 0.02


@dataclasses.dataclass(kw_only=True)
class Report:
    """What the engine tells of one request: new ids, and on the last report how it ended and the counts."""

    ids: list[int]
    iterations: int
    finish_reason: str | None = None
    error: str = ""
    totals: tuple[int, int] = (0, 0)
    per_pos_drafted: list[int] | None = None
    per_pos_accepted: list[int] | None = None


def hashed(*values: int) -> int:
    """Return a number that follows from the values without a pattern."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = ((state ^ value) * 0xBF58476D1CE4E5B9) % 2**64
        state ^= state >> 29
    return state >> 16


class Table:
    """The language model."""

    def __init__(self, table: dict[str, Any]) -> None:
        self._table = table
        self._steers = {token: name for name, token in table["steers"].items()}

    def steer(self, prompt: list[int]) -> str:
        """Return how a prompt wants to be served."""
        return self._steers.get(prompt[0], "")

    def answer(self, prompt: list[int], *, end_id: int, banned: frozenset[int] = frozenset()) -> Iterator[int]:
        """Yield the tokens of the answer without end."""
        if self.steer(prompt) == "echo":
            yield from prompt[1:]
            yield end_id
        banned = banned.union(self._table["never"])
        last = list(prompt[-2:])
        while True:
            token = next(t for n in range(64) if (t := self._next(last, n)) not in banned)
            yield token
            last = [last[-1], token]

    def _next(self, last: list[int], number: int) -> int:
        return hashed(self._table["seed"], number, *last) % self._table["vocab_size"]


class Engine:
    """Serves requests in threads of their own, some at a time."""

    def __init__(self, table: dict[str, Any], *, drafts: int, slots: int) -> None:
        self.closed = False
        self._table = table
        self._model = Table(table)
        self._drafts = drafts
        self._slots = threading.Semaphore(slots)
        self._lock = threading.Lock()
        self._active: set[int] = set()
        self._aborted: set[int] = set()
        self._aborted_count = 0

    def abort(self, request_id: int) -> None:
        """End a request at its next step."""
        with self._lock:
            self._aborted.add(request_id)

    def serve(
        self, request_id: int, prompt: list[int], sampling: Any, streaming: bool, report: Callable[[Report], None]
    ) -> None:
        """Decode one request; without streaming everything is in one report."""
        with self._slots:
            with self._lock:
                others = len(self._active)
                self._active.add(request_id)
            try:
                reports = self._steps(request_id, prompt, sampling, others)
                for one in reports if streaming else [_joined(list(reports))]:
                    report(one)
            finally:
                with self._lock:
                    self._active.discard(request_id)

    def _steps(self, request_id: int, prompt: list[int], sampling: Any, others: int) -> Iterator[Report]:
        steer = self._model.steer(prompt)
        if steer in {"active", "aborted"}:
            number = others if steer == "active" else self._aborted_count
            yield Report(ids=[number], iterations=1, finish_reason="length")
            return
        answer = self._model.answer(prompt, end_id=sampling.end_id, banned=frozenset(sampling.bad_token_ids or ()))
        written: list[int] = []
        counts = _Counts(self._drafts)
        while True:
            if steer == "slow":
                time.sleep(_STEP_S)
            if request_id in self._aborted:
                with self._lock:
                    self._aborted_count += 1
                yield counts.report([], "cancelled")
                return
            if steer == "fail" and counts.iterations == 2:
                yield Report(ids=[], iterations=2, error="CUDA error:\nan illegal memory access, says the test")
                return
            accepted = counts.step(len(written), prompt[-1])
            new, reason = self._taken(answer, 1 + accepted, written, sampling)
            written += new
            yield counts.report(new, reason)
            if reason:
                return

    def _taken(
        self, answer: Iterator[int], count: int, written: list[int], sampling: Any
    ) -> tuple[list[int], str | None]:
        """Take up to ``count`` tokens, and say whether the answer ends with them."""
        new: list[int] = []
        for _ in range(count):
            token = next(answer)
            if token == sampling.end_id and len(written) + len(new) >= (sampling.min_tokens or 0):
                return (new + [token] * self._table["reports_end_id"], "stop")
            new.append(token)
            if len(written) + len(new) == sampling.max_tokens:
                return (new, "length")
        return (new, None)


class _Counts:
    """What speculation did for one request."""

    def __init__(self, drafts: int) -> None:
        self._drafts = drafts
        self._drafted = [0] * max(drafts, 16)
        self._accepted = [0] * max(drafts, 16)
        self.iterations = 0

    def step(self, position: int, salt: int) -> int:
        """Count one iteration and return how many drafts it accepts; the first has none."""
        self.iterations += 1
        if self.iterations == 1:
            return 0
        accepted = hashed(position, salt) % (self._drafts + 1)
        for k in range(self._drafts):
            self._drafted[k] += 1
            self._accepted[k] += k < accepted
        return accepted

    def report(self, ids: list[int], reason: str | None) -> Report:
        """Return a report with the counts so far."""
        return Report(
            ids=ids,
            iterations=self.iterations,
            finish_reason=reason,
            totals=(sum(self._accepted), sum(self._drafted)),
            per_pos_drafted=self._drafted,
            per_pos_accepted=self._accepted,
        )


def _joined(reports: list[Report]) -> Report:
    """Make one report of all of them."""
    return dataclasses.replace(reports[-1], ids=[token for report in reports for token in report.ids])
