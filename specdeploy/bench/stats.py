"""Summaries of request records, per arm and load.

Knows how the metrics of ``specdeploy.bench.metrics`` are computed. A metric that is undefined is absent, never 0.
Nothing here knows how the records came about, or what is good enough. Records that do not count
(`RequestRecord.counts`) are ignored throughout.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from specdeploy.bench.acceptance import acceptance_metrics, tokens_per_response
from specdeploy.bench.blocks import steady_throughput, summarize_blocks
from specdeploy.bench.goodput import goodput
from specdeploy.bench.intervals import percentile_interval
from specdeploy.bench.metrics import METRICS, PERCENTILES
from specdeploy.bench.per_request import OF_REQUEST, chunk_gaps_ms, defined, milliseconds
from specdeploy.bench.records import ARMS
from specdeploy.bench.table import MISSING, table_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from specdeploy.bench.goodput import Objective
    from specdeploy.bench.records import Arm, LoadPoint, RequestRecord
    from specdeploy.bench.table import RecordTable
    from specdeploy.findings import Finding

MetricValue: TypeAlias = dict[str, Any]

#: Percentiles that have an interval.
BOUNDED: Final = (50, 90, 95, 99)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmSummary:
    """What one arm did under one load.

    Args:
        arm: The arm.

        point: The load.

        metrics: By key; each ``{unit, avg, ...}`` as `MetricValue` of its kind says.

        errors: How many requests ended with each error label.

        error_messages: The words of one of them.

        acceptance_source: ``reported`` where the answers tell drafts and acceptances, ``stream`` where no more is known
            than how many tokens came with a response, else None.

        categories: Prompt category -> metrics that a category has of its own, where there are several categories.

        findings: What is wrong with the numbers themselves, such as counts that contradict each other.
    """

    arm: Arm
    point: LoadPoint
    metrics: dict[str, MetricValue]
    errors: dict[str, int]
    error_messages: dict[str, str]
    acceptance_source: str | None
    categories: dict[str, dict[str, MetricValue]]
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as an entry of ``arms`` in ``load.json``."""
        return {
            "arm": self.arm,
            **self.point.to_dict(),
            "errors": self.errors,
            "error_messages": self.error_messages,
            "acceptance_source": self.acceptance_source,
            "metrics": self.metrics,
            "categories": self.categories,
        }


def distribution(values: Iterable[float] | NDArray[np.float64], unit: str) -> MetricValue | None:
    """Describe one value per request: ``{unit, avg, min, max, p1 ... p99, std, count, sum, percentile_cis}``.

    ``percentile_cis`` has the two bounds of the 95 % interval of some percentiles; None where so few values have none.

    Percentiles interpolate linearly between order statistics; ``std`` is that of the values at hand (no ``n - 1``).
    The average is clipped into [min, max], which rounding can leave by one unit in the last place.

    Returns:
        None when there is no value.
    """
    array = np.sort(values if isinstance(values, np.ndarray) else np.fromiter(values, dtype=np.float64))
    if not array.size:
        return None
    low, high = float(array[0]), float(array[-1])
    return {
        "unit": unit,
        "avg": min(max(float(array.mean()), low), high),
        "min": low,
        "max": high,
        **{f"p{percentile}": float(np.percentile(array, percentile)) for percentile in PERCENTILES},
        "std": float(array.std()),
        "count": int(array.size),
        "sum": float(array.sum()),
        "percentile_cis": {f"p{at}": list(percentile_interval(array, at)) for at in BOUNDED},
    }


def summarize(records: Iterable[RequestRecord], objectives: Sequence[Objective] = ()) -> tuple[ArmSummary, ...]:
    """Summarise every arm at every load, in order of load, control first.

    Args:
        records: Requests.

        objectives: What goodput is made of.
    """
    under = table_of(records).measured.by_point()
    arms = ((arm, point, table.of(arm)) for point, table in under.items() for arm in ARMS)
    return tuple(_summarize_arm(arm, point, table, objectives) for arm, point, table in arms if table)


def _summarize_arm(arm: Arm, point: LoadPoint, table: RecordTable, objectives: Sequence[Objective]) -> ArmSummary:
    acceptance, findings = acceptance_metrics(table.good, where=f"{arm}, {point}")
    source = "reported" if acceptance or findings else None
    if source is None and (seen := tokens_per_response(table.good)) is not None:
        source, acceptance = "stream", {"tokens_per_response": seen}
    metrics = {**_per_request(table), **_system(table)}
    metrics |= goodput(table, objectives, metrics["benchmark_duration"]["avg"])
    metrics |= {key: _describe(key, value) for key, value in acceptance.items()}
    errors = {label: count for label, count in table.labels("error").items() if label}
    return ArmSummary(
        arm=arm,
        point=point,
        metrics={key: metrics[key] for key in METRICS if metrics.get(key)},
        errors=errors,
        error_messages={label: table.labelled("error", label)[0].error_message for label in errors},
        acceptance_source=source,
        categories=_categories(table),
        findings=findings,
    )


def _categories(table: RecordTable) -> dict[str, dict[str, MetricValue]]:
    """Describe each category by what its requests say of themselves; throughput is that of all together."""
    names = table.labels("category")
    if len(names) < 2:
        return {}
    return {name: _category(table.labelled("category", name)) for name in names}


def _category(table: RecordTable) -> dict[str, MetricValue]:
    acceptance, _ = acceptance_metrics(table.good, where="")
    values = _per_request(table) | {key: _describe(key, value) for key, value in acceptance.items()}
    values["request_count"] = _describe("request_count", len(table.good))
    return {key: values[key] for key in METRICS if values.get(key)}


def _describe(key: str, value: float | Sequence[float] | NDArray[Any]) -> MetricValue:
    metric = METRICS[key]
    if isinstance(value, (int, float)):
        return {"unit": metric.unit, "avg": float(value)}
    if metric.kind == "list":
        return {"unit": metric.unit, "values": list(value)}
    return distribution(value, metric.unit) or {}


def _per_request(table: RecordTable) -> dict[str, MetricValue]:
    good = table.good
    values = {key: _describe(key, defined(of(good))) for key, of in OF_REQUEST.items()}
    values["inter_chunk_latency"] = _describe("inter_chunk_latency", chunk_gaps_ms(good))
    lag_ms = milliseconds(table["intended_s"], table["sent_s"])
    return {**values, "dispatch_lag": _describe("dispatch_lag", lag_ms)}


def _system(table: RecordTable) -> dict[str, MetricValue]:
    blocks, good = summarize_blocks(table), len(table.good)
    wall_s = sum(block.wall_s for block in blocks)
    values: dict[str, float] = {
        "request_count": good,
        "error_request_count": len(table) - good,
        "error_rate": (len(table) - good) / len(table),
        "benchmark_duration": wall_s,
    }
    if good and wall_s > 0:
        values["request_throughput"] = good / wall_s
        if (table.good["output_tokens"] != MISSING).any():
            values["output_token_throughput"] = sum(block.output_tokens for block in blocks) / wall_s
    steady = steady_throughput(table)
    if steady is not None:
        values["steady_output_token_throughput"] = steady
    return {key: _describe(key, value) for key, value in values.items()}
