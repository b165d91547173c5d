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
#: What a float can tell from being certain.
_SUREST: Final = 1 - 1e-13


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything else that rules are decided by.

    Args:
        smoke: The content of ``smoke.json``; None when there is none.

        baseline: What earlier runs measured; None when there is none.

        baseline_at: Where the baseline is looked for.

        requests: The raw records of the load test; None when they are not there.

        baseline_runs: From how many different days a baseline has to have runs before anything is compared with it.

        confidence: Of claims and of comparisons, one-sided, when the run is looked at once.

        look: How often the run was looked at, while it grew (`gate.repeats`).

        share: Which share of the rate of errors this look may spend.

        can_repeat: Whether ``--repeat-until`` would measure on, and is not doing so already.
    """

    smoke: Mapping[str, Any] | None = None
    baseline: Baseline | None = None
    baseline_at: str = "gate.baseline"
    requests: RecordTable | None = None
    baseline_runs: int = BASELINE_RUNS
    confidence: float = CONFIDENCE
    look: int = 1
    share: float = 1.0
    can_repeat: bool = False

    def at_this_look(self, confidence: float) -> float:
        """Return how sure this look has to be, where a single one would have to be as sure as that."""
        return min(1 - (1 - confidence) * self.share, _SUREST)


NOTHING_ELSE: Final = Evidence()
