"""What the gate may look at beside ``load.json``, and how sure it has to be."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.bench.table import RecordTable
    from specdeploy.gate.baseline import Baseline

CONFIDENCE: Final = 0.95
BASELINE_RUNS: Final = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything else that rules are decided by.

    Args:
        smoke: The content of ``smoke.json``; None when there is none.

        baseline: What earlier runs measured; None when there is none.

        requests: The raw records of the load test; None when they are not there.

        baseline_runs: From how many different days a baseline has to have runs before anything is compared with it.

        confidence: Of claims and of comparisons, one-sided.
    """

    smoke: Mapping[str, Any] | None = None
    baseline: Baseline | None = None
    requests: RecordTable | None = None
    baseline_runs: int = BASELINE_RUNS
    confidence: float = CONFIDENCE


NOTHING_ELSE: Final = Evidence()
