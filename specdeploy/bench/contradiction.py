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
    D``. Of a server that tells D and A alone, ``A <= D`` is left. A record of a file may hold a count that is taken
    from no server: that one, too, is broken.
    """
    steps, drafted, accepted = record.num_spec_steps, record.draft_tokens, record.accepted_tokens
    if drafted is None or accepted is None:
        return f"steps {steps}, drafted {drafted}, accepted {accepted}: one is missing"
    weighted = sum(position * count for position, count in enumerate(record.histogram))
    in_histogram = sum(record.histogram)
    # Where S is not told, a histogram need not be, either; one that is there says what S is.
    without = steps is None and not record.histogram
    known = in_histogram if steps is None else steps
    checks = (
        (min((known, drafted, accepted, *record.histogram)) >= 0, "a count is negative"),
        (max((known, drafted, accepted, *record.histogram)) <= MOST_COUNTED, "a count is more than 32 bits hold"),
        (in_histogram == known, f"the histogram holds {in_histogram} steps, S is {known}"),
        (without or weighted == accepted, f"the histogram accepts {weighted} drafts, A is {accepted}"),
        (accepted <= drafted, f"A {accepted} is more than D {drafted}"),
        (known <= drafted, f"S {known} is more than D {drafted}"),
    )
    return next((why for holds, why in checks if not holds), None)
