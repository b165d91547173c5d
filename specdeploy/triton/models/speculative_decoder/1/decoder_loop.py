"""The draft-target loop over two callables, and the same target alone; a generator of verified groups of tokens.

Speculative decoding as in Leviathan et al. 2023 (arXiv:2211.17192) and Chen et al. 2023 (arXiv:2302.01318): the draft
proposes k tokens, one forward pass of the target scores them, a prefix of them is accepted and one more token comes
from the target itself. Which drafts are accepted is decided inside the target engine: by token match, or by rejection
sampling when the draft's logits go with its tokens. This module decides what is asked for, in which order, and with
which seeds.

Knows nothing of Triton, of text, of threads and of how an engine works.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Ids: TypeAlias = npt.NDArray[np.int32]
Floats: TypeAlias = npt.NDArray[np.float32]

_MASK: Final = (1 << 64) - 1
_TARGET_ROLE: Final = 0
_DRAFT_ROLE: Final = 1


class EngineFault(Exception):
    """An engine failed, or answered what it was not asked."""


class _DraftFault(Exception):
    """The draft failed, or what it proposed was refused."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Draft:
    """What the draft proposes: ``ids`` [k], and its ``logits`` [k, vocabulary] where rejection sampling needs them."""

    ids: Ids
    logits: Floats | None = None


NO_DRAFT: Final = Draft(ids=np.empty(0, np.int32))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What the target answers.

    Attributes:
        ids: The new tokens [n]; with k drafts, the accepted ones and one more (fewer after the end token).
        log_probs: The log probability of each of them [n], when the request asked for it.
        others: The new tokens of further sequences (beams), best first.
        extras: Further output tensors of the engine by name, which pass through unread.
        reported: Tokens that the engine drafted and accepted on its own in this call; None when it does not say.
        measured: What the engine measured of this call, by name, when the request asked for it.
        stopped: Why the call was stopped on the way, and the answer ends with it, however short it is; else empty.
    """

    ids: Ids
    log_probs: Floats | None = None
    others: tuple[Ids, ...] = ()
    extras: tuple[tuple[str, npt.NDArray[np.generic]], ...] = ()
    reported: tuple[int, int] | None = None
    measured: Mapping[str, int] = dataclasses.field(default_factory=dict)
    stopped: str = ""


class Pace(Protocol):
    """Decides how much each round drafts, and hears what became of it; see ``decoder_policy``."""

    @property
    def reason(self) -> str:
        """Why the round that was begun last carries no drafts; empty where there was no room, or nothing to draft."""

    def begin(self, longest: int) -> int:
        """Return how many tokens a round drafts, at most ``longest``; 0 for a round of the target alone."""

    def end(self, *, drafted: int, accepted: int, tokens: int, draft_s: float, target_s: float) -> None:
        """Hear of the round: tokens drafted, accepted and emitted, and the seconds of both engines."""

    def failed(self) -> None:
        """Hear that the draft failed, so that the round was none."""


class _Steady:
    """Drafts as much as there is room for."""

    reason = ""

    def begin(self, longest: int) -> int:
        return longest

    def end(self, **_: float) -> None:
        pass

    def failed(self) -> None:
        pass


class DraftEngine(Protocol):
    """Proposes tokens."""

    def __call__(self, ids: Ids, count: int, *, seed: int) -> Draft:
        """Propose ``count`` tokens that continue ``ids``; raises EngineFault."""


class TargetEngine(Protocol):
    """Verifies drafts, and decodes."""

    def __call__(self, ids: Ids, draft: Draft, count: int, *, seed: int, min_tokens: int) -> Answer:
        """Verify ``draft`` after ``ids``, or without a draft decode up to ``count`` tokens; raises EngineFault."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What one request asks of the loop.

    Attributes:
        max_new_tokens: The answer has at most this many tokens; at least 1.
        num_draft_tokens: Drafts per round; 0 decodes with the target alone.
        end_id: The token that ends the answer, kept as its last; -1 for none.
        seed: Seed of the request, from which every call's seed is derived.
        min_tokens: The end token is not taken before the answer has this many tokens.
        slice_tokens: Tokens per call when the target is alone, after a first call of one token; 0 asks for the whole
            answer in one call.
        longest_call: The most tokens of one call without drafts, so that a request that nobody waits for any more ends;
            0 sets no limit.
        restartable: False when the target keeps state over the tokens of one call (grammars, beams), so that a second
            call would not continue the first exactly.
        end_is_kept: Whether the engines answer the end token as the last one. NVIDIA's leave it out: an answer that
            ends at once is empty there.
        paused_tokens: Tokens per call while a request that drafts goes without.
    """

    max_new_tokens: int
    num_draft_tokens: int
    end_id: int
    seed: int
    min_tokens: int = 0
    slice_tokens: int = 0
    longest_call: int = 0
    restartable: bool = True
    end_is_kept: bool = True
    paused_tokens: int = 16


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """The tokens of one target call, which are final.

    Attributes:
        answer: The target's answer, cut after the end token.
        drafted: Draft tokens that the call carried.
        draft_ids: Which they were [drafted].
        accepted: How many of them were accepted.
        finish_reason: ``end_id``, ``length`` or why the call was stopped on the last group, else empty.
        draft_failed: The draft engine has failed and the target has gone on alone.
        pause: Why the target was alone in this round of a request that drafts; empty otherwise.
        draft_s: What the draft took (seconds), also if it failed; 0.0 where it was not asked.
        target_s: What the target took.
    """

    answer: Answer
    drafted: int = 0
    draft_ids: Ids = dataclasses.field(default_factory=lambda: NO_DRAFT.ids)
    accepted: int = 0
    finish_reason: str = ""
    draft_failed: bool = False
    pause: str = ""
    draft_s: float = 0.0
    target_s: float = 0.0


def _mix(value: int) -> int:
    """Finish a step of splitmix64 (Steele et al. 2014), a bijection of 64-bit integers that leaves no pattern."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def derive_seed(seed: int, round_index: int, role: int) -> int:
    """Return the seed of one engine call.

    Every call is a request of its own and an engine starts its random numbers anew with each: the request's own seed in
    every round would draw the same numbers again and again, and the same seed for draft and target would correlate what
    is proposed with what is accepted. Distinct for distinct (round, role) of one seed, and reproducible.

    Args:
        seed: Seed of the request, 0 <= seed < 2**64.
        round_index: Number of the round.
        role: 0 for the target, 1 for the draft.
    """
    return _mix((_mix(seed) + 0x9E3779B97F4A7C15 * (2 * round_index + role + 1)) & _MASK)


def matched_prefix(draft: Ids, verified: Ids) -> int:
    """Count the leading tokens on which a draft and the verified tokens agree.

    This is the number of accepted drafts whatever cut the answer: a rejected draft is never followed by itself (the
    correction of rejection sampling has probability 0 there), and an answer that ends with an accepted end token has no
    further token of the target.
    """
    length = min(draft.size, verified.size)
    differs = np.flatnonzero(draft[:length] != verified[:length])
    return int(differs[0]) if differs.size else length


class TokenBuffer:
    """The prompt and the growing answer in one array that is allocated once.

    Args:
        prompt: Token ids of the prompt.
        room: The most tokens that will be appended.
    """

    def __init__(self, prompt: Ids, room: int) -> None:
        self._array = np.empty(prompt.size + room, np.int32)
        self._array[: prompt.size] = prompt
        self._used = prompt.size

    @property
    def ids(self) -> Ids:
        """A view of everything so far; not to be kept across :meth:`append`."""
        return self._array[: self._used]

    def append(self, ids: Ids) -> None:
        """Add verified tokens."""
        self._array[self._used : self._used + ids.size] = ids
        self._used += ids.size


class DraftTargetLoop:
    """Iterates over the verified groups of one request; the consumer stops it early by not asking for more.

    The first target call carries no draft: its single token is the answer's first and can leave at once. Then, each
    round, the draft proposes and the target verifies. When the draft fails, or the target refuses what it proposed, the
    target finishes alone. An iterator that was left while the draft was asked may be replaced by another one, which
    goes on where that was, once :meth:`lose_draft` was told why.

    Args:
        prompt: Token ids of the prompt, at least one.
        plan: What the request asks for.
        draft: The draft engine.
        target: The target engine.
        pace: Decides how much is drafted; None drafts what the plan says.
        clock: Seconds, for what the engines take.
    """

    def __init__(
        self,
        prompt: Ids,
        plan: Plan,
        draft: DraftEngine,
        target: TargetEngine,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._plan = plan
        self._draft = draft
        self._target = target
        self._pace: Pace = pace or _Steady()
        self._clock = clock
        self._buffer = TokenBuffer(prompt, plan.max_new_tokens)
        self._generated = 0
        self._round = 0
        self._finished = False
        self._draft_failure = ""
        # When the draft was asked last, and what it took in a round that came to nothing.
        self._asked_s = 0.0
        self._wasted_s = 0.0
        self._draft_s = 0.0
        self._target_s = 0.0

    def __iter__(self) -> Iterator[Group]:
        """Yield groups until one carries a finish reason.

        Raises:
            EngineFault: The target failed without drafts, or answered nothing, or more than it was asked for.
        """
        while not self._finished:
            group = self._next_group() if self._round else self._extend(NO_DRAFT, self._first_count())
            self._round += 1
            self._finished = bool(group.finish_reason)
            self._draft_s += group.draft_s
            self._target_s += group.target_s
            yield group

    def lose_draft(self, why: str) -> None:
        """Go on without the draft, which was asked and did not answer as it should."""
        self._draft_failure = why
        self._wasted_s = self._clock() - self._asked_s
        # The failed draft is no part of its round, which is one of the target alone; what it took is told with it.
        self._pace.failed()

    @property
    def draft_s(self) -> float:
        """What the draft has taken so far (seconds), also for nothing."""
        return self._draft_s + self._wasted_s

    @property
    def target_s(self) -> float:
        """What the target has taken so far (seconds)."""
        return self._target_s

    @property
    def draft_failure(self) -> str:
        """What the draft engine failed with; empty while it has not."""
        return self._draft_failure

    @property
    def _remaining(self) -> int:
        return self._plan.max_new_tokens - self._generated

    @property
    def _missing(self) -> int:
        """How many tokens must come before the end token may; not above 0 when it may come now."""
        return self._plan.min_tokens - self._generated

    @property
    def _speculating(self) -> bool:
        return self._plan.num_draft_tokens > 0 and not self._draft_failure

    def _first_count(self) -> int:
        return 1 if self._speculating or self._plan.slice_tokens else self._remaining

    def _next_group(self) -> Group:
        longest = self._draft_length()
        if self._speculating and not longest:
            # No room for a draft, which the next round may have again.
            return self._extend(NO_DRAFT, 1)
        wanted = self._pace.begin(longest if self._speculating else 0)
        if not wanted:
            group = self._ended(self._alone())
            wasted_s, self._wasted_s = self._wasted_s, 0.0
            return dataclasses.replace(group, draft_s=wasted_s) if wasted_s else group
        self._asked_s = self._clock()
        try:
            draft = self._propose(wanted)
            draft_s = self._clock() - self._asked_s
            group = self._verified(draft)
        except _DraftFault as fault:
            self.lose_draft(str(fault))
            return self._next_group()
        return self._ended(dataclasses.replace(group, draft_s=draft_s))

    def _ended(self, group: Group) -> Group:
        """Tell of a round, and return what it came to."""
        self._pace.end(
            drafted=group.drafted,
            accepted=group.accepted,
            tokens=group.answer.ids.size,
            draft_s=group.draft_s,
            target_s=group.target_s,
        )
        return group

    def _alone(self) -> Group:
        """Have the target decode without drafts: all that is left, or a slice of it."""
        pause = self._pace.reason if self._speculating else ""
        slice_tokens = self._plan.slice_tokens or (self._plan.paused_tokens if pause else self._remaining)
        return dataclasses.replace(self._extend(NO_DRAFT, min(slice_tokens, self._remaining)), pause=pause)

    def _verified(self, draft: Draft) -> Group:
        """Verify what was proposed; raises a fault of the draft when the target refuses it."""
        try:
            return self._extend(draft, draft.ids.size + 1)
        except EngineFault as error:
            if not draft.ids.size:
                raise
            # Ids or logits of another vocabulary, say. Whose fault it was shows when the target is asked alone.
            raise _DraftFault(f"its drafts were not verified: {error}") from error

    def _draft_length(self) -> int:
        """Leave room for the target's own token, and let no group cross the point where ``min_tokens`` is reached.

        Inside such a group the end token is refused at some positions only, which not every engine does for the
        positions of one verify step; groups that lie wholly before or after it are exact on all of them.
        """
        length = min(self._plan.num_draft_tokens, self._remaining - 1)
        return max(min(length, self._missing - 1) if self._missing > 0 else length, 0)

    def _propose(self, count: int) -> Draft:
        """Ask the draft for tokens; raises a fault of the draft.

        While the end token may not come, the logits stay behind: the draft drew with the end token among its choices
        and the target verifies without it, so that rejection sampling would compare with other probabilities than were
        drawn from. Without logits the target matches tokens, which is exact for any draft.
        """
        try:
            draft = self._draft(self._buffer.ids, count, seed=derive_seed(self._plan.seed, self._round, _DRAFT_ROLE))
        except EngineFault as error:
            raise _DraftFault(str(error)) from error
        logits = None if draft.logits is None or self._missing > 0 else draft.logits[:count]
        return Draft(ids=draft.ids[:count], logits=logits)

    def _extend(self, draft: Draft, count: int) -> Group:
        if self._plan.longest_call and not draft.ids.size:
            count = min(count, self._plan.longest_call)
        started_s = self._clock()
        answer = self._target(
            self._buffer.ids,
            draft,
            count,
            seed=derive_seed(self._plan.seed, self._round, _TARGET_ROLE),
            min_tokens=min(max(self._missing, 0), count),
        )
        target_s = self._clock() - started_s
        answer = self._checked(answer, count)
        self._buffer.append(answer.ids)
        self._generated += answer.ids.size
        accepted = matched_prefix(draft.ids, answer.ids)
        # After drafts, a call that goes on brings a token of the target's own.
        is_whole = accepted < answer.ids.size if draft.ids.size else answer.ids.size == count
        return Group(
            answer=answer,
            drafted=draft.ids.size,
            draft_ids=draft.ids,
            accepted=accepted,
            finish_reason=self._finish_reason(answer, count, is_whole=is_whole),
            draft_failed=bool(self._draft_failure),
            target_s=target_s,
        )

    def _checked(self, answer: Answer, count: int) -> Answer:
        least = 1 if not answer.stopped and (self._plan.end_is_kept or self._plan.end_id < 0) else 0
        if not least <= answer.ids.size <= count:
            raise EngineFault(f"the target answered {answer.ids.size} tokens where {least} to {count} were asked for")
        ends = np.flatnonzero(answer.ids == self._plan.end_id)
        if not ends.size:
            return answer
        kept = int(ends[0]) + 1
        log_probs = None if answer.log_probs is None else answer.log_probs[:kept]
        return dataclasses.replace(answer, ids=answer.ids[:kept], log_probs=log_probs)

    def _finish_reason(self, answer: Answer, count: int, *, is_whole: bool) -> str:
        ids = answer.ids
        if ids.size and ids[-1] == self._plan.end_id:
            return "end_id"
        if not self._remaining:
            return "length"
        if answer.stopped:
            return answer.stopped
        if not is_whole and not self._plan.end_is_kept and self._plan.end_id >= 0:
            # The end token was left out. To ask again would draw once more what was drawn already.
            return "end_id"
        if not self._plan.restartable:
            raise EngineFault(
                f"the target answered {ids.size} of {count} tokens without an end token, and a second call would not "
                "continue this request exactly"
            )
        return ""
