"""A load test as github-action-benchmark reads it: a chart over commits, and an alert when a number gets worse.

The action has one direction for a whole file, ``customBiggerIsBetter`` or ``customSmallerIsBetter``, so there is one
list for each (benchmark-action/github-action-benchmark, ``src/extract.ts``, ``BenchmarkResult``).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Literal

from specdeploy.report.exports.readings import BOTH_ARMS, finite, readings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.report.exports.readings import Reading

#: Statistics of a distribution that get a chart; a chart for each percentile would hide the ones that matter.
_CHARTED: Final = ("avg", "p50", "p99")


def github_benchmark(document: Mapping[str, Any], *, better: Literal["higher", "lower"]) -> str:
    """Return the JSON list of one direction; metrics that only describe the workload are in neither.

    A name is ``request_latency p50, speculation, concurrency 4``, the same in every run, since the action joins the
    runs by it. ``range`` is the confidence interval, where there is one; ``extra`` says how the number came about.

    Args:
        document: Content of ``load.json``.

        better: ``higher`` for ``customBiggerIsBetter``, ``lower`` for ``customSmallerIsBetter``.
    """
    caveats = _caveats(document)
    entries = [
        {**entry, "extra": "\n".join((*entry["extra"], *caveats))}
        for reading in readings(document)
        if reading.better == better and not reading.category
        for entry in _entries(reading)
    ]
    return json.dumps(entries, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _entries(reading: Reading) -> Iterator[dict[str, Any]]:
    for position, value in reading.positions().items():
        yield _entry(reading, f" position {position}", value)
    statistics = reading.statistics()
    charted = [stat for stat in _CHARTED if stat in statistics]
    for stat in charted:
        # A metric of a single number needs no word for it.
        suffix = f" {stat}" if len(charted) > 1 else ""
        entry = _entry(reading, suffix, statistics[stat])
        bounds = _range(statistics, stat)
        yield {**entry, "range": bounds} if bounds else entry


def _entry(reading: Reading, suffix: str, value: float) -> dict[str, Any]:
    where = reading.load if reading.arm == BOTH_ARMS else f"{reading.arm}, {reading.load}"
    counted = [f"{name} {number}" for name in ("count", "pairs") if (number := finite(reading.value.get(name)))]
    return {
        "name": f"{reading.key}{suffix}, {where}",
        "unit": reading.unit,
        "value": value,
        "extra": [words for words in (reading.formula, *counted) if words],
    }


def _range(statistics: Mapping[str, float], stat: str) -> str | None:
    """Return the confidence interval of a statistic; the one that has no other name is the average's."""
    prefix = "" if stat == "avg" else f"{stat}_"
    low, high = (statistics.get(f"{prefix}ci_{side}") for side in ("low", "high"))
    return None if low is None or high is None else f"{low} to {high}"


def _caveats(document: Mapping[str, Any]) -> list[str]:
    """Say what makes the run less than it seems."""
    said = [f"partial: {document.get('stop_reason') or 'the plan was not carried out'}"]
    late = ["degraded: the load generator itself was late"]
    return [*(said if document.get("partial") else ()), *(late if document.get("degraded") else ())]
