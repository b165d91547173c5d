"""How much a request drafts, round by round: what is being accepted, what rounds take, and the load decide.

A request that names a number of drafts gets it in every round, so that everything can be pinned for a measurement; so
does one whose seed has to give the same answer again, which depends on the rounds. For others, with ``adaptive``:

* each takes the length by which a token is expected to take least, from its own acceptance (``decoder_costs``);
* one whose drafts are hardly accepted goes on without for a while, and then tries again;
* where speculation does not pay under the load of the moment, all of them go without (``decoder_gate``).

``draft_len_schedule`` limits the length by how many requests are decoded at once, as TensorRT-LLM spells it.

Safe for threads; knows nothing of engines and tokens.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from decoder_costs import Acceptance, RoundCosts, best_choice
from decoder_gate import Gate

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
_WORTH: Final = 1.1
"""How much slower than without drafts a request may be before it goes without."""
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
        self.acceptance = Acceptance(_PRIOR, strength=_PRIOR_STRENGTH)
        self.requests = 0
        # Rounds under way without drafts, and with.
        self.under_way = [0, 0]
        self.gate = Gate()
        self._costs: dict[int, RoundCosts] = {}

    def costs(self, requests: int) -> RoundCosts:
        """Return what rounds take while about so many requests are decoded."""
        return self._costs.setdefault(requests.bit_length(), RoundCosts())


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
        # Of the round under way, if it has begun: how many requests there were, whether it has drafts, whether all
        # others went that way.
        self._requests = 0
        self._begun = False
        self._speculates = False
        self._free = False
        self._alike = False
        self.reason = ""

    def begin(self, longest: int) -> int:
        """Return how many tokens the next round drafts, at most ``longest``, and note why when that is 0.

        Args:
            longest: What there is room for; 0 for a request that does not draft.
        """
        shared = self._shared
        with shared.held:
            self._requests = shared.requests
            drafts, self.reason = self._length(longest) if longest else (0, "")
            self._begun, self._speculates = True, drafts > 0
            # Those that cannot go the other way are there in a trial as they are without one.
            self._free = longest > 0 and not self._pinned
            shared.under_way[self._speculates] += self._free
            self._alike = self._free and not shared.under_way[not self._speculates]
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
                self._acceptance.add(drafted=drafted, accepted=accepted)
                shared.acceptance.add(drafted=drafted, accepted=accepted)
            self._paused_for = max(self._paused_for - tokens, 0)
            if self._free:
                shared.gate.add(
                    speculated=self._speculates,
                    seconds=draft_s + target_s,
                    tokens=tokens,
                    requests=self._requests,
                    alike=self._alike and not reads,
                )

    def failed(self) -> None:
        """Note that the draft failed in the round that was begun."""
        shared = self._shared
        with shared.held:
            self._done()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the request."""
        shared = self._shared
        with shared.held:
            if self._begun:
                self._done()
            shared.requests -= 1

    def _done(self) -> None:
        self._begun = False
        under_way = self._shared.under_way
        under_way[self._speculates] -= self._free
        self._alike = self._alike and not under_way[not self._speculates]

    def _length(self, longest: int) -> tuple[int, str]:
        shared = self._shared
        limit = self._scheduled(longest)
        if not limit:
            return 0, SCHEDULED
        if shared.adaptive and not self._pinned:
            if not shared.gate.speculates(self._requests):
                return 0, NOT_FASTER
            if self._paused_for:
                return 0, LOW_ACCEPTANCE
            limit = self._best(limit)
            if not limit:
                return 0, LOW_ACCEPTANCE
        return limit, ""

    def _scheduled(self, longest: int) -> int:
        if self._pinned:
            return longest
        limits = [drafts for requests, drafts in self._shared.schedule if requests <= self._shared.requests]
        return min(longest, limits[-1]) if limits else longest

    def _best(self, longest: int) -> int:
        shared = self._shared
        self._rounds += 1
        costs = shared.costs(self._requests)
        if not costs.known:
            return longest
        choice = best_choice(costs, self._acceptance.rate, longest)
        alone_s = shared.gate.alone_token_s(self._requests) or costs.round_s(0)
        self._tried += 1
        if choice.token_s > _WORTH * alone_s and self._tried > _TRIED_ROUNDS:
            self._tried = 0
            self._paused_for, self._pause_tokens = (
                self._pause_tokens,
                min(2 * self._pause_tokens, _LONGEST_PAUSE_TOKENS),
            )
            return 0
        if self._rounds % _EXPLORE_ROUNDS == 0 and longest > 1:
            return choice.drafts - 1 if choice.drafts > 1 else 2
        return choice.drafts
