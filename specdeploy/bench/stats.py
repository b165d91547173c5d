"""Summaries of request records, per arm and load.

Knows how the metrics of ``specdeploy.bench.metrics`` are computed. A metric that is undefined is absent, never 0.
Nothing here knows how the records came about, or what is good enough. Records that do not count
(`RequestRecord.counts`) are ignored throughout.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from specdeploy.bench.acceptance import acceptance_metrics
from specdeploy.bench.blocks import measured, steady_throughput, summarize_blocks
from specdeploy.bench.goodput import goodput
from specdeploy.bench.intervals import percentile_interval
from specdeploy.bench.metrics import METRICS, PERCENTILES
from specdeploy.bench.per_request import OF_REQUEST, chunk_gaps_ms, milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdeploy.bench.goodput import Objective
    from specdeploy.bench.records import Arm, LoadPoint, RequestRecord
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

        categories: Prompt category -> metrics that a category has of its own, where there are several categories.

        findings: What is wrong with the numbers themselves, such as counts that contradict each other.
    """

    arm: Arm
    point: LoadPoint
    metrics: dict[str, MetricValue]
    errors: dict[str, int]
    categories: dict[str, dict[str, MetricValue]]
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as an entry of ``arms`` in ``load.json``."""
        return {
            "arm": self.arm,
            **self.point.to_dict(),
            "errors": self.errors,
            "metrics": self.metrics,
            "categories": self.categories,
        }


def distribution(values: Iterable[float], unit: str) -> MetricValue | None:
    """Describe one value per request: ``{unit, avg, min, max, p1 ... p99, std, count, sum, percentile_cis}``.

    ``percentile_cis`` has the two bounds of the 95 % interval of some percentiles; None where so few values have none.

    Percentiles interpolate linearly between order statistics; ``std`` is that of the values at hand (no ``n - 1``).
    The average is clipped into [min, max], which rounding can leave by one unit in the last place.

    Returns:
        None when there is no value.
    """
    array = np.sort(np.fromiter(values, dtype=np.float64))
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


def summarize(records: Sequence[RequestRecord], objectives: Sequence[Objective] = ()) -> tuple[ArmSummary, ...]:
    """Summarise every arm at every load, in order of load, control first.

    Args:
        records: Requests.

        objectives: What goodput is made of.
    """
    groups: dict[tuple[LoadPoint, Arm], list[RequestRecord]] = defaultdict(list)
    for record in measured(records):
        groups[record.point, record.arm].append(record)
    order = sorted(groups, key=lambda key: (key[0].order, key[1]))
    return tuple(_summarize_arm(arm, point, groups[point, arm], objectives) for point, arm in order)


def _summarize_arm(
    arm: Arm, point: LoadPoint, records: list[RequestRecord], objectives: Sequence[Objective]
) -> ArmSummary:
    good = [record for record in records if record.ok]
    acceptance, findings = acceptance_metrics(good, where=f"{arm}, {point}")
    errors: dict[str, int] = defaultdict(int)
    for record in records:
        if record.error is not None:
            errors[record.error] += 1
    metrics = {**_per_request(records, good), **_system(records, good)}
    metrics |= goodput(records, objectives, metrics["benchmark_duration"]["avg"])
    metrics |= {key: _describe(key, value) for key, value in acceptance.items()}
    return ArmSummary(
        arm=arm,
        point=point,
        metrics={key: metrics[key] for key in METRICS if metrics.get(key)},
        errors=dict(sorted(errors.items())),
        categories=_categories(records),
        findings=findings,
    )


def _categories(records: list[RequestRecord]) -> dict[str, dict[str, MetricValue]]:
    """Describe each category by what its requests say of themselves; throughput is that of all together."""
    names = sorted({record.category for record in records})
    if len(names) < 2:
        return {}
    return {name: _category([record for record in records if record.category == name]) for name in names}


def _category(records: list[RequestRecord]) -> dict[str, MetricValue]:
    good = [record for record in records if record.ok]
    acceptance, _ = acceptance_metrics(good, where="")
    values = _per_request(records, good) | {key: _describe(key, value) for key, value in acceptance.items()}
    values["request_count"] = _describe("request_count", len(good))
    return {key: values[key] for key in METRICS if values.get(key)}


def _describe(key: str, value: float | Sequence[float]) -> MetricValue:
    metric = METRICS[key]
    if isinstance(value, (int, float)):
        return {"unit": metric.unit, "avg": float(value)}
    if metric.kind == "list":
        return {"unit": metric.unit, "values": list(value)}
    return distribution(value, metric.unit) or {}


def _per_request(records: list[RequestRecord], good: list[RequestRecord]) -> dict[str, MetricValue]:
    values = {key: [number for record in good if (number := of(record)) is not None] for key, of in OF_REQUEST.items()}
    values["inter_chunk_latency"] = [gap for record in good for gap in chunk_gaps_ms(record)]
    values["dispatch_lag"] = [milliseconds(record.intended_s, record.sent_s) for record in records]
    return {key: _describe(key, numbers) for key, numbers in values.items()}


def _system(records: list[RequestRecord], good: list[RequestRecord]) -> dict[str, MetricValue]:
    wall_s = sum(block.wall_s for block in summarize_blocks(records))
    values: dict[str, float] = {
        "request_count": len(good),
        "error_request_count": len(records) - len(good),
        "error_rate": (len(records) - len(good)) / len(records),
        "benchmark_duration": wall_s,
    }
    if good and wall_s > 0:
        values["request_throughput"] = len(good) / wall_s
        counted = [record.output_tokens for record in good if record.output_tokens is not None]
        if counted:
            values["output_token_throughput"] = sum(counted) / wall_s
    steady = steady_throughput(records)
    if steady is not None:
        values["steady_output_token_throughput"] = steady
    return {key: _describe(key, value) for key, value in values.items()}
