"""What the server counted while blocks of a load test ran: queue and compute of each model, drafts, gauges.

Adds up windows; asks nobody. The numbers are the server's own, so they hold whatever else it did meanwhile: where it
counted more than was sent, somebody else was there.
"""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.records import WARMUP_PAIR
from specdeploy.bench.table import table_of
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from specdeploy.bench.records import Arm, LoadPoint, RequestRecord
    from specdeploy.deploy.counts import ModelCounts, ServerCounts

_NS_PER_MS: Final = 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerWindow:
    """One block, seen from the server.

    Args:
        arm: Who answered.

        point: The load.

        pair: Number of the pair.

        start_s: When its first counters were read, on the clock of the records.

        end_s: When its last counters were read.

        before: What the server had counted before it.

        after: And behind it.
    """

    arm: Arm
    point: LoadPoint
    pair: int
    start_s: float
    end_s: float
    before: ServerCounts
    after: ServerCounts

    @property
    def models(self) -> dict[str, ModelCounts]:
        """What each model counted; models without a request are left out, and those that were loaded anew."""
        then = self.before.models
        added = {name: counts.since(then[name]) for name, counts in self.after.models.items() if name in then}
        return {
            name: counts
            for name, counts in added.items()
            if not counts.decreased and (counts.requests or counts.failures)
        }

    @property
    def drafts(self) -> tuple[int, int] | None:
        """Drafted and accepted tokens; None when the server does not count them, or began anew."""
        if self.before.drafts is None or self.after.drafts is None:
            return None
        drafted = self.after.drafts.drafted - self.before.drafts.drafted
        accepted = self.after.drafts.accepted - self.before.drafts.accepted
        return None if min(drafted, accepted) < 0 else (drafted, accepted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaugeReading:
    """What went up and down at one moment: seconds on the clock of the records, and values by name."""

    at_s: float
    values: Mapping[str, float]


class GaugeLog:
    """All readings of a run, in numbers side by side: hours of them are little."""

    def __init__(self) -> None:
        self._at_s = array("d")
        self._values: dict[str, array[float]] = {}

    def add(self, at_s: float, values: Mapping[str, float]) -> None:
        """Take a reading."""
        for name in values:
            if name not in self._values:
                self._values[name] = array("d", [math.nan] * len(self._at_s))
        for name, column in self._values.items():
            column.append(values.get(name, math.nan))
        self._at_s.append(at_s)

    def __iter__(self) -> Iterator[GaugeReading]:
        """Yield the readings in order."""
        # A copy of what is there: another thread may be adding.
        for number, at_s in enumerate(tuple(self._at_s)):
            values = {name: column[number] for name, column in tuple(self._values.items())}
            yield GaugeReading(
                at_s=at_s, values={name: value for name, value in values.items() if not math.isnan(value)}
            )


def summarize_server(windows: Iterable[ServerWindow], readings: Iterable[GaugeReading] = ()) -> list[dict[str, Any]]:
    """Return what the server counted, for each arm under each load, the warm-up left out.

    Args:
        windows: Of the blocks.

        readings: Of the gauges, whenever they were read; gone through once for each arm under each load.

    Returns:
        Entries with ``arm``, ``concurrency``, ``rate``, ``blocks``, ``models`` (requests, failures, mean batch size,
        and milliseconds of queue, compute and all for a request), ``acceptance`` (source ``counters``) or None, and
        ``gauges`` (readings, mean and most of each).
    """
    groups: dict[tuple[LoadPoint, Arm], list[ServerWindow]] = defaultdict(list)
    for window in windows:
        if window.pair != WARMUP_PAIR:
            groups[window.point, window.arm].append(window)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0].order, item[0][1]))
    return [
        {
            "arm": arm,
            **point.to_dict(),
            "blocks": len(group),
            "models": _models(group),
            "acceptance": _acceptance(group),
            "gauges": _gauges(group, readings),
        }
        for (point, arm), group in ordered
    ]


def traffic_findings(
    windows: Sequence[ServerWindow], records: Iterable[RequestRecord], front_door: str
) -> tuple[Finding, ...]:
    """Say when the server counted more requests than were sent in the same blocks: they were not alone.

    Args:
        windows: Of the blocks.

        records: Of the requests.

        front_door: The model that they went to.
    """
    sent = {(place.point, place.pair, place.arm): len(place.requests) for place in table_of(records).by_block()}
    others = 0
    for window in windows:
        counts = window.models.get(front_door)
        if counts is not None:
            others += max(counts.requests + counts.failures - sent.get((window.point, window.pair, window.arm), 0), 0)
    if not others:
        return ()
    message = f"{front_door} counted {others} requests that this load test did not send: somebody else used the server"
    hint = "Measure while nobody else sends requests; theirs wait in the same queues."
    return (Finding(severity="warning", code="load.other-traffic", message=message, hint=hint),)


def _models(group: Iterable[ServerWindow]) -> dict[str, dict[str, Any]]:
    sums: dict[str, ModelCounts] = {}
    for window in group:
        for name, counts in window.models.items():
            sums[name] = sums[name].and_also(counts) if name in sums else counts
    return {name: _per_request(counts) for name, counts in sorted(sums.items())}


def _per_request(counts: ModelCounts) -> dict[str, Any]:
    def per_request(nanoseconds: int) -> float | None:
        return nanoseconds / counts.requests / _NS_PER_MS if counts.requests else None

    return {
        "requests": counts.requests,
        "failures": counts.failures,
        "batch_size": counts.inferences / counts.executions if counts.executions else None,
        "queue_ms": per_request(counts.queue_ns),
        "compute_ms": per_request(counts.compute_ns),
        "total_ms": per_request(counts.total_ns),
    }


def _acceptance(group: Iterable[ServerWindow]) -> dict[str, Any] | None:
    drafts = [window.drafts for window in group]
    told = [pair for pair in drafts if pair is not None]
    if not told or len(told) < len(drafts):
        return None
    drafted, accepted = (sum(pair[index] for pair in told) for index in (0, 1))
    rate = accepted / drafted if drafted else None
    return {"source": "counters", "draft_tokens": drafted, "accepted_tokens": accepted, "acceptance_rate": rate}


def _gauges(group: Sequence[ServerWindow], readings: Iterable[GaugeReading]) -> dict[str, dict[str, float]]:
    seen: dict[str, list[float]] = defaultdict(list)
    for reading in readings:
        if any(window.start_s <= reading.at_s <= window.end_s for window in group):
            for name, value in reading.values.items():
                seen[name].append(value)
    return {
        name: {"readings": len(values), "avg": fmean(values), "max": max(values)}
        for name, values in sorted(seen.items())
    }
