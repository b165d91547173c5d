"""How many requests kept a limit, from the raw records: what a claim about a percentile is decided by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from specdeploy.bench.metrics import METRICS
from specdeploy.bench.per_request import OF_REQUEST, chunk_gaps_ms, defined, milliseconds
from specdeploy.errors import ConfigError
from specdeploy.gate.claims import Count
from specdeploy.gate.rules import COMPARE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from specdeploy.bench.records import LoadPoint
    from specdeploy.bench.table import RecordTable
    from specdeploy.gate.rules import Rule

#: What promises are made about: latencies, and throughput as one user sees it.
_PROMISED: Final = ("ms", "tokens/sec/user")
#: Numbers are the same if they differ by no more than this share: how they were rounded on their way.
_SAME: Final = 1e-6


def is_claim(rule: Rule) -> bool:
    """Say whether a rule is a claim about a percentile of requests, such as ``time_to_first_token.p99 <= 200ms``."""
    promised = rule.metric in METRICS and METRICS[rule.metric].unit in _PROMISED
    return promised and rule.reference is None and rule.stat.startswith("p") and rule.stat[1:].isdigit()


def needs_requests(rules: Sequence[Rule]) -> bool:
    """Say whether any rule is decided by single requests."""
    return any(is_claim(rule) for rule in rules)


def claimed_share(rule: Rule) -> float:
    """Return the share of requests that a claim says keeps its limit."""
    percent = int(rule.stat[1:])
    return (100 - percent if rule.wants_more else percent) / 100


def count_requests(rule: Rule, point: LoadPoint, table: RecordTable, expected: float | None, value: float) -> Count:
    """Return how many requests kept the limit of a claim under a load, and how many did not.

    Args:
        rule: The claim.

        point: The load.

        table: All records.

        expected: How many values ``load.json`` has; None if it does not say.

        value: The percentile that it has, in the metric's unit.

    Raises:
        ConfigError: The records are those of another run.
    """
    values = _values(rule, point, table)
    if expected is not None and len(values) != expected:
        raise ConfigError(
            f"the raw records have {len(values)} values of {rule.metric} at {point}, and the load report {expected:g}",
            hint="Both are written by one run and belong together; measure again.",
        )
    if len(values) and not np.isclose(found := float(np.percentile(values, int(rule.stat[1:]))), value, rtol=_SAME):
        raise ConfigError(
            f"the raw records come to {rule.selector} = {found:g} {rule.unit} at {point}, and the load report has "
            f"{value:g}",
            hint="Both are written by one run and belong together; measure again.",
        )
    kept = int(np.count_nonzero(COMPARE[rule.comparison](values, rule.limit or 0.0)))
    return Count(kept=kept, over=len(values) - kept)


def _values(rule: Rule, point: LoadPoint, table: RecordTable) -> NDArray[np.float64]:
    measured = next((under for at, under in table.measured.by_point().items() if at.key == point.key), table[:0])
    rows = measured if rule.arm is None else measured.of(rule.arm)
    if rule.category is not None:
        rows = rows.labelled("category", rule.category)
    if rule.metric == "dispatch_lag":
        return milliseconds(rows["intended_s"], rows["sent_s"])
    if rule.metric == "inter_chunk_latency":
        return chunk_gaps_ms(rows.good)
    return defined(OF_REQUEST[rule.metric](rows.good))
