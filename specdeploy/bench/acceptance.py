"""Acceptance of drafted tokens, computed from counts, and refused when the counts contradict each other.

Knows the formulae of acceptance and the invariants that hold for chain drafting. The counts S (verify steps), D
(drafted) and A (accepted) and the histogram h stay beside every ratio that is made of them: engines name their ratios
alike and mean different ones, counts can be compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdeploy.bench.records import RequestRecord

AcceptanceValues: TypeAlias = "dict[str, float | Sequence[float]]"


def acceptance_metrics(records: Sequence[RequestRecord], *, where: str) -> tuple[AcceptanceValues, tuple[Finding, ...]]:
    """Compute every acceptance metric of the successful requests of one arm.

    Args:
        records: Successful requests.

        where: Which arm and concurrency, for findings.

    Returns: Values by metric key (one number, or a sequence of one per request or position) and findings. The values
        are empty when nothing was verified, and when a request's counts contradict each other.
    """
    speculating = [record for record in records if record.num_spec_steps]
    broken = [(record, why) for record in speculating if (why := contradiction(record))]
    if broken:
        return {}, (_finding(broken, len(speculating), where),)
    return (_values(speculating) if speculating else {}), ()


def contradiction(record: RequestRecord) -> str | None:
    """Say which invariant the counts of a request break; None if they are sound.

    ``sum h = S``, ``sum j * h[j] = A``, ``A <= D`` and, because every verify step checks at least one draft, ``S <=
    D``.
    """
    steps, drafted, accepted = record.num_spec_steps, record.draft_tokens, record.accepted_tokens
    if steps is None or drafted is None or accepted is None:
        return f"steps {steps}, drafted {drafted}, accepted {accepted}: one is missing"
    weighted = sum(position * count for position, count in enumerate(record.histogram))
    checks = (
        (min((steps, drafted, accepted, *record.histogram)) >= 0, "a count is negative"),
        (sum(record.histogram) == steps, f"the histogram holds {sum(record.histogram)} steps, S is {steps}"),
        (weighted == accepted, f"the histogram accepts {weighted} drafts, A is {accepted}"),
        (accepted <= drafted, f"A {accepted} is more than D {drafted}"),
        (steps <= drafted, f"S {steps} is more than D {drafted}"),
    )
    return next((why for holds, why in checks if not holds), None)


def per_position_acceptance(histogram: Sequence[int]) -> tuple[float, ...]:
    """Return the share of all steps that kept the i-th draft, for i = 1, 2, ...

    ``p_i = (sum of h[j] for j >= i) / S``: marginal, of all steps, not of those that got as far. Empty when there was
    no step.
    """
    steps = sum(histogram)
    if not steps:
        return ()
    return tuple(sum(histogram[position:]) / steps for position in range(1, len(histogram)))


def pooled_histogram(histograms: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Add histograms of different lengths entry by entry."""
    pooled: list[int] = []
    for histogram in histograms:
        pooled.extend([0] * (len(histogram) - len(pooled)))
        for position, count in enumerate(histogram):
            pooled[position] += count
    return tuple(pooled)


def _values(records: Sequence[RequestRecord]) -> AcceptanceValues:
    steps = [record.num_spec_steps or 0 for record in records]
    drafted = [record.draft_tokens or 0 for record in records]
    accepted = [record.accepted_tokens or 0 for record in records]
    histogram = pooled_histogram(record.histogram for record in records)
    return {
        "spec_decode_draft_acceptance_rate": [a / d for a, d in zip(accepted, drafted, strict=True)],
        "overall_spec_decode_draft_acceptance_rate": sum(accepted) / sum(drafted),
        "spec_decode_acceptance_length": [1 + a / s for a, s in zip(accepted, steps, strict=True)],
        "overall_spec_decode_acceptance_length": 1 + sum(accepted) / sum(steps),
        "spec_decode_per_position_acceptance": per_position_acceptance(histogram),
        "spec_decode_acceptance_histogram": histogram,
        "spec_decode_steps": steps,
        "spec_decode_draft_tokens": drafted,
        "spec_decode_accepted_draft_tokens": accepted,
    }


def _finding(broken: Sequence[tuple[RequestRecord, str]], total: int, where: str) -> Finding:
    record, why = broken[0]
    return Finding(
        severity="error",
        code="load.acceptance-contradicts",
        message=(
            f"the server's speculation counts contradict each other in {len(broken)} of {total} requests, first in "
            f"{record.prompt_id} of pair {record.pair}: {why}; acceptance is not reported"
        ),
        hint="The decoder and the engines disagree about what a step is: report it with the records file.",
        where=where,
    )
