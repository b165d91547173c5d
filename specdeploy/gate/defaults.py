"""The rules of a gate that is given none: those that what is measured can decide.

A rule on what is never measured is open for ever, so an open loop is not asked for its speed-up, a server that tells no
verify steps not for its acceptance length, and one arm alone for no comparison.
"""

from __future__ import annotations

import dataclasses
from typing import Final, Literal, TypeAlias

#: What the answers tell of drafts: counts of verify steps, of drafts alone, or nothing.
Told: TypeAlias = Literal["steps", "drafts", "nothing"]

#: Interleaved pairs without which a difference of arms is not decided (``make bench`` has what five of them catch).
LEAST_PAIRS: Final = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What a load test measures, as it is planned; what comes of it does not matter.

    Args:
        told: What the answers tell of drafts.

        compared: Whether there is a control, in pairs.

        against_another: Whether another server is the control, as the last release is.

        pairs: How many.

        concurrency: Requests in flight, one measurement for each; empty in an open loop.
    """

    told: Told = "steps"
    compared: bool = True
    against_another: bool = False
    pairs: int = LEAST_PAIRS
    concurrency: tuple[int, ...] = (1,)


def default_rules(measured: Measured) -> tuple[str, ...]:
    """Return rules as a configuration has them; at least that on errors."""
    return ("error_rate <= 0", *_acceptance(measured.told), *_comparison(measured))


def _acceptance(told: Told) -> tuple[str, ...]:
    return {
        "steps": ("spec_decode_acceptance_length >= 2",),
        # How many drafts a step has is built in, so all that can be said of any deployment is that some are of use.
        "drafts": ("overall_spec_decode_draft_acceptance_rate > 0",),
        "nothing": (),
    }[told]


def _comparison(measured: Measured) -> tuple[str, ...]:
    if not measured.compared:
        return ()
    if measured.against_another and measured.concurrency:
        # A release need not be faster than the last one.
        return ("output_token_throughput: 5% of control",)
    if measured.concurrency:
        # Where speculation gains most.
        return (f"speedup@{min(measured.concurrency)} >= 1.0",)
    return ("request_latency: 10% of control",) if measured.pairs >= LEAST_PAIRS else ()
