"""Whether the counts of speculation that a server told of a request can be true together.

Knows the invariants that hold for chain drafting, and no ratio that is made of the counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdeploy.triton.protocol import MOST_COUNTED

if TYPE_CHECKING:
    from specdeploy.bench.records import RequestRecord


def contradiction(record: RequestRecord) -> str | None:
    """Say which invariant the counts of a request break; None if they are sound.

    ``sum h = S``, ``sum j * h[j] = A``, ``A <= D`` and, because every verify step checks at least one draft, ``S <=
    D``. A record of a file may hold a count that none is taken for where servers answer: that one, too, is broken.
    """
    steps, drafted, accepted = record.num_spec_steps, record.draft_tokens, record.accepted_tokens
    if steps is None or drafted is None or accepted is None:
        return f"steps {steps}, drafted {drafted}, accepted {accepted}: one is missing"
    weighted = sum(position * count for position, count in enumerate(record.histogram))
    checks = (
        (min((steps, drafted, accepted, *record.histogram)) >= 0, "a count is negative"),
        (max((steps, drafted, accepted, *record.histogram)) <= MOST_COUNTED, "a count is more than 32 bits hold"),
        (sum(record.histogram) == steps, f"the histogram holds {sum(record.histogram)} steps, S is {steps}"),
        (weighted == accepted, f"the histogram accepts {weighted} drafts, A is {accepted}"),
        (accepted <= drafted, f"A {accepted} is more than D {drafted}"),
        (steps <= drafted, f"S {steps} is more than D {drafted}"),
    )
    return next((why for holds, why in checks if not holds), None)
