"""One running request: what each of its forward passes feeds, what it emits, and when it ends.

A request is a sequence of turns of one forward pass each, so that the scheduler can let others in between. Knows slots
and verification; does not know queues, threads or Triton.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tensorrtllm_cpu import sampling, verify, words
from tensorrtllm_cpu.positions import Positions

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tensorrtllm_cpu.engine import Slot
    from tensorrtllm_cpu.inputs import GenerationRequest


@dataclass(frozen=True, kw_only=True)
class Times:
    """When things happened, in nanoseconds since the epoch."""

    arrival_ns: int
    scheduled_ns: int
    first_token_ns: int
    last_token_ns: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a request has generated: all of it, or for a streaming request what came since the last answer.

    ``ids`` are those new ids; an end id that stopped the request is the last of them. ``generated`` counts all ids so
    far. ``log_probs`` has one number per id of ``ids``, ``cumulative_log_prob`` is the sum over all. ``logits`` is
    ``[len(ids), vocab]``, unadjusted; empty unless asked for. ``drafted`` and ``accepted`` count the draft tokens that
    were looked at and kept, ``reused_tokens`` the prompt tokens found in the cache.
    """

    ids: NDArray[np.int32]
    generated: int
    log_probs: tuple[float, ...]
    cumulative_log_prob: float
    logits: tuple[NDArray[np.float32], ...]
    drafted: int
    accepted: int
    reused_tokens: int
    times: Times


class Generation:
    """A request on its slot.

    Args:
        request: What was asked.
        slot: The slot lent to it, rewound to the first ``reused`` tokens of the prompt.
        reused: Tokens of the prompt that need no forward pass; fewer than it has.
        arrival_ns: When the request arrived.
        prefill_chunk: About how many prompt tokens one forward pass takes at most.
    """

    def __init__(
        self, request: GenerationRequest, slot: Slot, reused: int, *, arrival_ns: int, prefill_chunk: int
    ) -> None:
        self.request = request
        self.slot = slot
        self.finished = False
        self._chunk = prefill_chunk
        self._ids = np.concatenate([request.prompt, np.empty(request.max_new_tokens, np.int32)])
        self._length = self._taken = len(request.prompt)
        self._drafts = request.drafts
        self._todo = np.concatenate([request.prompt[reused:], np.asarray(request.drafts, np.int32)])
        self._log_probs: list[float] = []
        self._logits: list[NDArray[np.float32]] = []
        self._accepted = 0
        self._reused = reused
        self._arrival_ns = arrival_ns
        self._scheduled_ns = time.time_ns()
        self._first_token_ns = self._last_token_ns = 0

    @functools.cached_property
    def _rng(self) -> np.random.Generator:
        """The request's random numbers, one stream from first to last token; made when the first one is drawn."""
        return np.random.default_rng(self.request.seed)

    def _uniform(self) -> float:
        """Return the next random number in [0, 1)."""
        return self._rng.random()

    @property
    def generated(self) -> int:
        """How many new tokens there are."""
        return self._length - len(self.request.prompt)

    def turn(self) -> bool:
        """Run one forward pass and say whether it emitted tokens; ``finished`` is set with the last of them."""
        rows = len(self._drafts) + 1
        if len(self._todo) > self._chunk + rows:
            self.slot.forward(self._todo[: self._chunk])
            self._todo = self._todo[self._chunk :]
            return False
        self.slot.forward(self._todo)
        self._emit(self._positions(self.slot.logits(rows)))
        self._todo = self._ids[self._length - 1 : self._length]
        return True

    def take(self) -> Answer:
        """Return what was emitted since the last call."""
        first = self._taken - len(self.request.prompt)
        logits, self._logits = self._logits, []
        ids = self._ids[self._taken : self._length]
        self._taken = self._length
        return Answer(
            ids=ids,
            generated=self.generated,
            log_probs=tuple(self._log_probs[first:]),
            cumulative_log_prob=sum(self._log_probs),
            logits=tuple(logits),
            drafted=len(self.request.drafts),
            accepted=self._accepted,
            reused_tokens=self._reused,
            times=Times(
                arrival_ns=self._arrival_ns,
                scheduled_ns=self._scheduled_ns,
                first_token_ns=self._first_token_ns,
                last_token_ns=self._last_token_ns,
            ),
        )

    def _positions(self, rows: NDArray[np.float32]) -> Positions:
        """Return what the pass that was just run says."""
        return Positions(
            rows=rows,
            known=self._ids[: self._length],
            generated=self.generated,
            params=self.request.sampling,
            uniform=self._uniform,
            drafts=self._drafts,
            draft_rows=self.request.draft_logits,
        )

    def _emit(self, positions: Positions) -> None:
        """Append the tokens that this pass decided, up to the one that ends the request."""
        verdict = self._decide(positions)
        self._last_token_ns = time.time_ns()
        self._first_token_ns = self._first_token_ns or self._last_token_ns
        for position, token in enumerate(verdict.ids):
            self._ids[self._length] = token
            self._record(positions, position, token)
            self._length += 1
            self._accepted += position < verdict.accepted
            if self._ends(token):
                self.finished = True
                return
        # A request that carries drafts is one verification, as in the C++ backend; its caller sends the next round.
        self.finished = self.request.has_drafts
        self._drafts = ()

    def _decide(self, positions: Positions) -> verify.Verdict:
        """Verify the drafts; without any this chooses one token."""
        request = self.request
        if request.sampling.greedy:
            return verify.by_match(positions.drafts, positions.most_likely)
        if not len(positions.draft_rows):
            return verify.by_match(positions.drafts, positions.drawn)
        threshold = request.acceptance_threshold
        rule = verify.at_random(positions.uniform) if threshold is None else verify.above(threshold)
        return verify.by_rejection(
            positions.drafts, positions.target, positions.draft, accept=rule, uniform=positions.uniform
        )

    def _record(self, positions: Positions, position: int, token: int) -> None:
        """Keep what the request wants to know about a token."""
        if self.request.return_log_probs:
            self._log_probs.append(sampling.log_probability(positions.adjusted(position), token))
        if self.request.return_generation_logits:
            self._logits.append(positions.rows[position].copy())

    def _ends(self, token: int) -> bool:
        """Say whether the sequence is complete after ``token``, its last one."""
        if self.generated == self.request.max_new_tokens or token == self.request.sampling.end_id:
            return True
        known = self._ids[: self._length]
        return any(words.ends_with(known, word) for word in self.request.stop_words)
