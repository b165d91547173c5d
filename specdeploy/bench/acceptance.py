"""Acceptance of drafted tokens, computed from counts, and refused when the counts contradict each other.

Knows the formulae of acceptance and the invariants that hold for chain drafting. The counts S (verify steps), D
(drafted) and A (accepted) and the histogram h stay beside every ratio that is made of them: engines name their ratios
alike and mean different ones, counts can be compared.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from specdeploy.bench.contradiction import contradiction
from specdeploy.bench.table import MISSING, table_of, total
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from specdeploy.bench.per_request import Values
    from specdeploy.bench.records import RequestRecord
    from specdeploy.bench.table import RecordTable

#: What each request has a value of, also where nobody told its verify steps.
_WITHOUT_STEPS: Final = (
    "spec_decode_draft_acceptance_rate",
    "spec_decode_draft_tokens",
    "spec_decode_accepted_draft_tokens",
)

AcceptanceValues: TypeAlias = "dict[str, float | Sequence[float] | NDArray[Any]]"


def acceptance_metrics(records: Iterable[RequestRecord], *, where: str) -> tuple[AcceptanceValues, tuple[Finding, ...]]:
    """Compute every acceptance metric of the successful requests of one arm.

    Args:
        records: Successful requests.

        where: Which arm and concurrency, for findings.

    Returns: Values by metric key (one number, or a sequence of one per request or position) and findings. The values
        are empty when nothing was drafted, and when a request's counts contradict each other. What is made of S is
        absent where a server tells D and A alone, as llama.cpp's does.
    """
    table = table_of(records)
    speculating = table.where(_speculated(table))
    broken = speculating.where(~speculating["sound"])
    if broken:
        return {}, (_finding(broken, len(speculating), where),)
    return (_values(speculating) if speculating else {}), ()


def per_position_acceptance(histogram: Sequence[int]) -> tuple[float, ...]:
    """Return the share of all steps that kept the i-th draft, for i = 1, 2, ...

    ``p_i = (sum of h[j] for j >= i) / S``: marginal, of all steps, not of those that got as far. Empty when there was
    no step.
    """
    steps = sum(histogram)
    if not steps:
        return ()
    # From the back, so that a histogram of many positions is added up once and not once for each of them.
    kept = itertools.accumulate(reversed(histogram[1:]))
    return tuple(count / steps for count in kept)[::-1]


def pooled_histogram(histograms: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Add histograms of different lengths entry by entry."""
    pooled: list[int] = []
    for histogram in histograms:
        pooled.extend([0] * (len(histogram) - len(pooled)))
        for position, count in enumerate(histogram):
            pooled[position] += count
    return tuple(pooled)


def acceptance_of_requests(table: RecordTable) -> dict[str, Values]:
    """Return the acceptance metrics that each request has a value of; NaN where nothing was verified, or unsoundly."""
    told = table["sound"] & _speculated(table)
    drafted, accepted = (np.where(told, table[name], np.nan) for name in ("draft_tokens", "accepted_tokens"))
    steps = np.where(told & (table["num_spec_steps"] > 0), table["num_spec_steps"], np.nan)
    return {
        "spec_decode_draft_acceptance_rate": accepted / drafted,
        "spec_decode_acceptance_length": 1 + accepted / steps,
        "spec_decode_accepted_per_verified": (accepted + steps) / (drafted + steps),
        "spec_decode_steps": steps,
        "spec_decode_draft_tokens": drafted,
        "spec_decode_accepted_draft_tokens": accepted,
    }


def _speculated(table: RecordTable) -> NDArray[np.bool_]:
    """Say which requests drafted: by S, and where that is not told by D and A."""
    steps, drafted, accepted = (table[name] for name in ("num_spec_steps", "draft_tokens", "accepted_tokens"))
    told = (drafted != MISSING) & (accepted != MISSING) & ((drafted != 0) | (accepted != 0))
    speculated: NDArray[np.bool_] = np.where(steps == MISSING, told, steps != 0)
    return speculated


def _values(table: RecordTable) -> AcceptanceValues:
    drafted, accepted = (total(table[name]) for name in ("draft_tokens", "accepted_tokens"))
    by_request = acceptance_of_requests(table)
    rate = {"overall_spec_decode_draft_acceptance_rate": accepted / drafted}
    if (table["num_spec_steps"] == MISSING).any():
        # A sum over those requests that tell it would be set against the drafts of all of them.
        return {**{key: by_request[key] for key in _WITHOUT_STEPS}, **rate}
    steps, histogram = total(table["num_spec_steps"]), _histogram(table)
    return {
        **by_request,
        **rate,
        "overall_spec_decode_acceptance_length": 1 + accepted / steps,
        "spec_decode_per_position_acceptance": per_position_acceptance(histogram),
        "spec_decode_conditional_acceptance": conditional_acceptance(histogram),
        "spec_decode_acceptance_histogram": histogram,
    }


def _histogram(table: RecordTable) -> tuple[int, ...]:
    """Add the histograms of all requests."""
    pooled = np.zeros(0, np.int64)
    for accepted, steps in table.steps_by_accepted():
        pooled = np.pad(pooled, (0, max(int(accepted.max(initial=-1)) + 1 - len(pooled), 0)))
        np.add.at(pooled, accepted, steps)
    return tuple(pooled.tolist())


def _finding(broken: RecordTable, total: int, where: str) -> Finding:
    record = broken[0]
    return Finding(
        severity="error",
        code="load.acceptance-contradicts",
        message=(
            f"the server's speculation counts contradict each other in {len(broken)} of {total} requests, first in "
            f"{record.prompt_id} of pair {record.pair}: {contradiction(record)}; acceptance is not reported"
        ),
        hint="The decoder and the engines disagree about what a step is: report it with the records file.",
        where=where,
    )


def conditional_acceptance(histogram: Sequence[int]) -> tuple[float, ...]:
    """Return, for i = 1, 2, ..., the share of the steps that kept draft i - 1 which kept draft i, too.

    ``p_i / p_(i-1)``, with ``p_0 = 1``: as far as there are steps that came so far.
    """
    marginal = (1.0, *per_position_acceptance(histogram))
    return tuple(here / before for before, here in itertools.pairwise(marginal) if before)


def tokens_per_response(table: RecordTable) -> float | None:
    """Return how many tokens the responses after the first hold on average; None unless one holds several.

    Where a response is sent for each verify step, that is the acceptance length; where steps share a response it is
    more, and where a step is cut into several it is less.
    """
    tokens = responses = most = 0
    for rows, _, counts in table.responses():
        later = counts[1:][rows[1:] == rows[:-1]]
        tokens += int(later.sum())
        responses += len(later)
        most = max(most, int(later.max(initial=0)))
    return tokens / responses if most > 1 else None
