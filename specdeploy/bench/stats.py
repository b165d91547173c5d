"""Summaries of request records, per arm and concurrency.

Knows how the metrics of ``specdeploy.bench.metrics`` are computed. A metric that is undefined is absent, never 0.
Nothing here knows how the records came about, or what is good enough. Records that do not count
(`RequestRecord.counts`) are ignored throughout.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from specdeploy.bench.acceptance import acceptance_metrics
from specdeploy.bench.blocks import measured, summarize_blocks
from specdeploy.bench.metrics import METRICS, PERCENTILES
from specdeploy.bench.per_request import OF_REQUEST, chunk_gaps_ms, milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdeploy.bench.records import Arm, RequestRecord
    from specdeploy.findings import Finding

MetricValue: TypeAlias = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmSummary:
    """What one arm did at one concurrency.

    Args:
        arm: The arm.

        concurrency: Requests in flight.

        metrics: By key; each ``{unit, avg, ...}`` as `MetricValue` of its kind says.

        errors: How many requests ended with each error label.

        findings: What is wrong with the numbers themselves, such as counts that contradict each other.
    """

    arm: Arm
    concurrency: int
    metrics: dict[str, MetricValue]
    errors: dict[str, int]
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as an entry of ``arms`` in ``load.json``."""
        return {"arm": self.arm, "concurrency": self.concurrency, "errors": self.errors, "metrics": self.metrics}


def distribution(values: Iterable[float], unit: str) -> MetricValue | None:
    """Describe one value per request: ``{unit, avg, min, max, p1 ... p99, std, count, sum}``.

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
    }


def summarize(records: Sequence[RequestRecord]) -> tuple[ArmSummary, ...]:
    """Summarise every arm at every concurrency, in order of concurrency, control first."""
    groups: dict[tuple[int, Arm], list[RequestRecord]] = defaultdict(list)
    for record in measured(records):
        groups[record.concurrency, record.arm].append(record)
    return tuple(_summarize_arm(arm, concurrency, group) for (concurrency, arm), group in sorted(groups.items()))


def _summarize_arm(arm: Arm, concurrency: int, records: list[RequestRecord]) -> ArmSummary:
    good = [record for record in records if record.ok]
    acceptance, findings = acceptance_metrics(good, where=f"{arm}, concurrency {concurrency}")
    errors: dict[str, int] = defaultdict(int)
    for record in records:
        if record.error is not None:
            errors[record.error] += 1
    metrics = {**_per_request(records, good), **_system(records, good)}
    metrics |= {key: _describe(key, value) for key, value in acceptance.items()}
    return ArmSummary(
        arm=arm,
        concurrency=concurrency,
        metrics={key: metrics[key] for key in METRICS if metrics.get(key)},
        errors=dict(sorted(errors.items())),
        findings=findings,
    )


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
        values["output_token_throughput"] = sum(record.output_tokens or 0 for record in good) / wall_s
    return {key: _describe(key, value) for key, value in values.items()}
