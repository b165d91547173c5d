"""The trace of one request, on request: what each round drafted, what of that was accepted, and how long both took.

Knows the groups of the loop and the JSON that clients read; knows nothing of Triton.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from decoder_loop import Group


class Tracer:
    """Writes down the rounds of one request.

    Args:
        engine_speculates: The engine drafts on its own, so that its drafts are not known here.
    """

    def __init__(self, *, engine_speculates: bool = False) -> None:
        self._engine_speculates = engine_speculates
        self._rounds = 0

    def entry(self, group: Group, bypass_reason: str) -> dict[str, Any]:
        """Return what became of a round, in numbers and lists that JSON has.

        Args:
            group: The round.
            bypass_reason: Why the target is alone for the rest of the request; empty when it is not.
        """
        number, self._rounds = self._rounds, self._rounds + 1
        reported = group.answer.reported
        return {
            "round": number,
            "draft_ids": None if self._engine_speculates else group.draft_ids.tolist(),
            "accepted": (reported and reported[1]) if self._engine_speculates else group.accepted,
            "output_ids": group.answer.ids.tolist(),
            "no_draft": "" if group.drafted or self._engine_speculates else _no_draft(group, bypass_reason, number),
            "draft_s": round(group.draft_s, 6),
            "target_s": round(group.target_s, 6),
        }


def trace_text(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return rounds as JSON text."""
    return json.dumps(rounds, separators=(",", ":"))


def _no_draft(group: Group, bypass_reason: str, number: int) -> str:
    """Say why a round carried no drafts."""
    reason = group.pause or bypass_reason
    if reason:
        return reason
    if group.draft_s:
        return "nothing_drafted"
    return "no_room" if number else "first_token"
