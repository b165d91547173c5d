"""How much a request drafts, round by round: what is being accepted, what rounds take, and the load decide.

A request that names a number of drafts gets it in every round, so that everything can be pinned for a measurement; so
does one whose seed has to give the same answer again, which depends on the rounds. For others, with ``adaptive``:

* each takes the length by which a token is expected to take least, from its own acceptance and from what calls take
  under the smallest load that was seen (``decoder_costs``); where it is faster to go by what they take under the load
  of the moment, or to go without, all of them do that (``decoder_gate``);
* one whose drafts are accepted so much less than those of others that they do not pay goes on without for a while, and
  then tries again.

``draft_len_schedule`` limits the length by how many requests are decoded at once, as TensorRT-LLM spells it.

Safe for threads; knows nothing of engines and tokens.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from decoder_costs import Acceptance, RoundCosts, best_choice
from decoder_gate import Gate, Way

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

#: Why a round carries no drafts.
SCHEDULED: Final = "draft_len_schedule"
NOT_FASTER: Final = "not_faster"
LOW_ACCEPTANCE: Final = "low_acceptance"

_PRIOR: Final = 0.7
"""Acceptance that is expected before anything was seen."""
_PRIOR_STRENGTH: Final = 8.0
"""Tokens that it counts for, and that what others had counts for in a new request: a refusal or two say little."""
_USUAL_MEMORY: Final = 1000.0
"""Tokens of all requests that make up the acceptance that one of them is compared with."""
_WORTH: Final = 1.1
"""How much slower than without drafts a request may be before it goes without."""
_FEW_ROUNDS: Final = 8
"""What fewer took may be what engines take to warm up."""
_PAUSE_TOKENS: Final = 32
_LONGEST_PAUSE_TOKENS: Final = 512
_TRIED_ROUNDS: Final = 3
_EXPLORE_ROUNDS: Final = 24
"""Every so many rounds a draft is one token shorter or longer, or nothing would be known of other lengths."""


class _Shared:
    """What all requests of a decoder know together; to be held while it is read or written."""

    def __init__(self, *, adaptive: bool, schedule: Sequence[tuple[int, int]]) -> None:
        self.adaptive = adaptive
        self.schedule = sorted(schedule)
        self.held = threading.Lock()
        # What new requests begin with, and what one is compared with, which a few do not change.
        self.acceptance = Acceptance(_PRIOR, strength=_PRIOR_STRENGTH)
        self.usual_acceptance = Acceptance(_PRIOR, strength=_PRIOR_STRENGTH, memory=_USUAL_MEMORY)
        self.requests = 0
        # Rounds under way, by way.
        self.under_way = dict.fromkeys(Way, 0)
        self.gate = Gate()
        self._costs: dict[int, RoundCosts] = {}

    def costs(self, requests: int) -> RoundCosts:
        """Return what rounds take while about so many requests are decoded."""
        return self._costs.setdefault(requests.bit_length(), RoundCosts())

    def smallest_costs(self) -> RoundCosts | None:
        """Return what they take under the smallest load that was seen; None while nothing was."""
        known = [requests for requests, costs in self._costs.items() if costs.known]
        enough = [requests for requests in known if self._costs[requests].rounds >= _FEW_ROUNDS]
        return self._costs[min(enough or known)] if known else None


class DraftPolicy:
    """The policy of one decoder.

    Args:
        adaptive: Whether lengths follow what is measured.
        schedule: ``(requests, drafts)``: from so many requests decoded at once, at most so many drafts.
    """

    def __init__(self, *, adaptive: bool = False, schedule: Sequence[tuple[int, int]] = ()) -> None:
        self._shared = _Shared(adaptive=adaptive, schedule=schedule)

    def request(self, *, pinned: bool) -> RequestPolicy:
        """Begin a request, which ends with the block of its context.

        Args:
            pinned: Every round drafts what the request asks for.
        """
        shared = self._shared
        with shared.held:
            shared.requests += 1
            acceptance = Acceptance(shared.acceptance.rate, strength=_PRIOR_STRENGTH)
            return RequestPolicy(shared, acceptance, pinned=pinned)


class RequestPolicy:
    """The lengths of one request; made by :meth:`DraftPolicy.request`, and of one thread."""

    def __init__(self, shared: _Shared, acceptance: Acceptance, *, pinned: bool) -> None:
        self._shared = shared
        self._acceptance = acceptance
        self._pinned = pinned
        self._rounds = 0
        self._tried = 0
        self._pause_tokens = _PAUSE_TOKENS
        self._paused_for = 0
        self._draft_has_read = False
        # Of the round under way, if it has begun: how many requests there were, whether it may go any way and which one
        # it goes, whether it has drafts, whether all others went that way.
        self._requests = 0
        self._begun = False
        self._free = False
        self._way = Way.FITTED
        self._speculates = False
        self._alike = False
        self.reason = ""

    def begin(self, longest: int) -> int:
        """Return how many tokens the next round drafts, at most ``longest``, and note why when that is 0.

        Args:
            longest: What there is room for; 0 for a request that does not draft.
        """
        shared = self._shared
        with shared.held:
            self._begun, self._requests = True, shared.requests
            limit = self._scheduled(longest)
            adapts = shared.adaptive and limit > 0 and not self._pinned
            self._way = shared.gate.way(self._requests) if adapts else Way.FITTED
            drafts = self._length(limit) if adapts else limit
            self.reason = "" if drafts or not longest else self._why_none(limit)
            self._speculates = drafts > 0
            # Those that cannot go another way are there in a trial as they are without one.
            self._free = adapts and self.reason != LOW_ACCEPTANCE
            shared.under_way[self._way] += self._free
            self._alike = self._free and self._are_alike()
        return drafts

    def end(self, *, drafted: int, accepted: int, tokens: int, draft_s: float, target_s: float) -> None:
        """Take in what became of the round that was begun.

        Args:
            drafted: Tokens that were drafted.
            accepted: How many of them were accepted.
            tokens: What the round emitted.
            draft_s: What the draft took (seconds).
            target_s: What the target took.
        """
        shared = self._shared
        with shared.held:
            self._done()
            if not shared.adaptive:
                # Nobody asks what would be learnt.
                return
            # The first draft after a round without reads what it has not seen, the whole prompt at first: that is no
            # part of a round, as it is none of the target's.
            reads, self._draft_has_read = self._speculates and not self._draft_has_read, self._speculates
            if self._speculates and not reads:
                shared.costs(self._requests).add(drafted=drafted, draft_s=draft_s, verify_s=target_s)
            if drafted:
                for acceptance in (self._acceptance, shared.acceptance, shared.usual_acceptance):
                    acceptance.add(drafted=drafted, accepted=accepted)
            self._paused_for = max(self._paused_for - tokens, 0)
            if self._free:
                shared.gate.add(
                    way=self._way,
                    seconds=draft_s + target_s,
                    tokens=tokens,
                    requests=self._requests,
                    alike=self._alike and not reads,
                )

    def failed(self) -> None:
        """Note that the draft failed in the round that was begun, if one was."""
        with self._shared.held:
            self._done()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the request."""
        with self._shared.held:
            self._done()
            self._shared.requests -= 1

    def _done(self) -> None:
        if not self._begun:
            return
        self._begun = False
        self._shared.under_way[self._way] -= self._free
        self._alike = self._alike and self._are_alike()

    def _are_alike(self) -> bool:
        """Say whether all others that are free go this one's way."""
        return not any(rounds for way, rounds in self._shared.under_way.items() if way is not self._way)

    def _why_none(self, limit: int) -> str:
        if not limit:
            return SCHEDULED
        return NOT_FASTER if self._way is Way.ALONE and not self._paused_for else LOW_ACCEPTANCE

    def _scheduled(self, longest: int) -> int:
        if self._pinned:
            return longest
        limits = [drafts for requests, drafts in self._shared.schedule if requests <= self._shared.requests]
        return min(longest, limits[-1]) if limits else longest

    def _length(self, longest: int) -> int:
        """Return how many tokens a round drafts where that is free, at most ``longest``, which is not 0."""
        shared = self._shared
        if self._way is Way.ALONE or self._paused_for:
            return 0
        self._rounds += 1
        costs = shared.costs(self._requests) if self._way is Way.CROWDED else shared.smallest_costs()
        if not costs or not costs.known:
            return longest
        choice, others = (
            best_choice(costs, acceptance.rate, longest) for acceptance in (self._acceptance, shared.usual_acceptance)
        )
        # Compared with others, since under a load calls that were measured at other moments tell little of the target
        # alone. Where drafts do not pay for anybody, that is the gate's to say.
        slowest_s = _WORTH * others.token_s * max(shared.gate.gain(self._requests), 1.0)
        self._tried += 1
        if choice.token_s > slowest_s and self._tried > _TRIED_ROUNDS:
            self._tried = 0
            self._paused_for = self._pause_tokens
            self._pause_tokens = min(2 * self._pause_tokens, _LONGEST_PAUSE_TOKENS)
            return 0
        if self._rounds % _EXPLORE_ROUNDS == 0 and longest > 1:
            return choice.drafts - 1 if choice.drafts > 1 else 2
        return choice.drafts
