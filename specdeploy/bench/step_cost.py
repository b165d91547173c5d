"""What a step of speculation costs, by a step of the target alone: measured where requests are the fewest.

A step drafts, verifies and talks about it; how long it takes shows between the first response of an answer and its
last. With tokens per step it says what the speed-up is to be. Under more load both kinds of step share the machine with
other requests, and a batch has less room for drafts: where less was measured than predicted, that is what it lost.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from specdeploy.bench.records import CONTROL, SPECULATION
from specdeploy.bench.table import MISSING

if TYPE_CHECKING:
    from specdeploy.bench.table import RecordTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepCost:
    """The cost of a step.

    Args:
        step_cost: Time of a step with drafts, by that of a step of the target alone.

        measured_at: Key of the load at which it was measured.
    """

    step_cost: float
    measured_at: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self)


def step_cost(table: RecordTable) -> StepCost | None:
    """Measure it under the lowest load of a closed loop at which both arms answered; None where there is none.

    Args:
        table: All requests of a run.
    """
    for point, under in table.measured.good.by_point().items():
        if point.rate is not None:
            continue
        alone, drafted = _token_time_s(under.of(CONTROL)), _step_time_s(under.of(SPECULATION))
        if alone and drafted:
            return StepCost(step_cost=drafted / alone, measured_at=point.key)
    return None


def _token_time_s(table: RecordTable) -> float | None:
    """Return the time of a step of the target alone: each gives one token, the first ones came with the prompt's."""
    tokens, first = table["output_tokens"], table["first_tokens"]
    known = (tokens != MISSING) & (first != MISSING) & (table["num_spec_steps"] <= 0)
    return _mean_s(table.where(known), (tokens - np.maximum(first, 1))[known])


def _step_time_s(table: RecordTable) -> float | None:
    """Return the time of a step with drafts; the first response comes before any."""
    steps = table["num_spec_steps"]
    known = table["sound"] & (steps > 0)
    return _mean_s(table.where(known), steps[known])


def _mean_s(table: RecordTable, steps: Any) -> float | None:  # noqa: ANN401 - a column of counts
    took_s, count = float(np.nansum(table["last_s"] - table["first_s"])), float(steps.sum())
    return took_s / count if took_s > 0 and count > 0 else None
