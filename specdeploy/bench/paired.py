"""What speculation changed: ratios of the two arms over interleaved pairs, with a confidence interval.

Knows which pairs count and how their ratios are averaged; does not say what is good enough.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from specdeploy.bench.abba import mean_log
from specdeploy.bench.acceptance import acceptance_of_requests
from specdeploy.bench.blocks import BlockSummary, summarize_blocks
from specdeploy.bench.per_request import OF_REQUEST, defined
from specdeploy.bench.records import CONTROL, SPECULATION, Arm, LoadPoint
from specdeploy.bench.table import table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from specdeploy.bench.per_request import Values
    from specdeploy.bench.records import RequestRecord
    from specdeploy.bench.table import RecordTable

CONFIDENCE: Final = 0.95
#: No logarithm of a bound is larger: a float ends beyond.
_LARGEST: Final = 700.0
#: A block by time that was cut short took less than this share of its time.
_LASTED: Final = 0.9
_BlockKey: TypeAlias = "tuple[int, Arm]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairedRatio:
    """A ratio speculation / control over interleaved pairs.

    Args:
        avg: Geometric mean of the ratios, each order of the arms with the same weight.

        ci_low: Lower bound of the two-sided interval; None with fewer than two pairs. ``ci_high`` likewise.

        pairs: Pairs that count.

        excluded: Pairs that do not: a request failed, or a block was cut short.

        ratios: One for each pair that counts, in order.

        control_first: Of each of them, whether the control was measured first.
    """

    avg: float
    ci_low: float | None
    ci_high: float | None
    pairs: int
    excluded: int
    ratios: tuple[float, ...]
    control_first: tuple[bool, ...] = ()
    unit: str = "x"
    confidence: float = CONFIDENCE

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for ``load.json``."""
        lists = {"ratios": list(self.ratios), "control_first": list(self.control_first)}
        return {**dataclasses.asdict(self), **lists}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairedSummary:
    """What speculation changed under one load. Latency ratios below 1 mean faster.

    Args:
        point: The load.

        speedup: Ratio of output token throughput; above 1 is faster. None in an open loop, where the schedule and not
            the server decides how many tokens a second there are.

        request_latency: Ratio of mean request latency.

        time_to_first_token: Ratio of mean time to first token.

        inter_token_latency: Ratio of mean inter-token latency; None where answers have too few responses for one.

        acceptance_length: Ratio of mean acceptance length; None unless both arms draft, as two builds do.

        categories: Category of prompts -> ratio of output tokens by the time that its requests took, all together,
            where there are several; above 1 is faster.
    """

    point: LoadPoint
    speedup: PairedRatio | None
    request_latency: PairedRatio | None
    time_to_first_token: PairedRatio | None
    inter_token_latency: PairedRatio | None = None
    acceptance_length: PairedRatio | None = None
    categories: Mapping[str, PairedRatio] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the speed-up's fields, with the other ratios below them."""
        return {
            **(self.speedup.to_dict() if self.speedup else {}),
            "request_latency_ratio": self.request_latency and self.request_latency.to_dict(),
            "time_to_first_token_ratio": self.time_to_first_token and self.time_to_first_token.to_dict(),
            "inter_token_latency_ratio": self.inter_token_latency and self.inter_token_latency.to_dict(),
            "spec_decode_acceptance_length_ratio": self.acceptance_length and self.acceptance_length.to_dict(),
            "categories": {name: ratio.to_dict() for name, ratio in self.categories.items()},
        }


def paired_speedup(records: Iterable[RequestRecord], *, block_s: float | None = None) -> tuple[PairedSummary, ...]:
    """Compare the arms pair by pair; a load without a single usable pair is absent.

    A pair counts when both its blocks sent the same requests and none failed: time lost to a failure is not the speed
    of anything. Of closed loops by time the faster arm sends more requests, of the same prompts in the same order:
    there a pair counts when both its blocks lasted their time.

    Args:
        records: Requests.

        block_s: How long a block of a closed loop by time lasts; None where the number of requests is given.
    """
    under = table_of(records).measured.by_point()
    summaries = (_paired(point, table, block_s) for point, table in under.items())
    return tuple(summary for summary in summaries if summary)


def paired_ratio(
    ratios: Sequence[float],
    control_first: Sequence[bool] = (),
    *,
    excluded: int = 0,
    confidence: float = CONFIDENCE,
) -> PairedRatio:
    """Average ratios, and bound the average by Student's t on their logarithms, free of drift (`bench.abba`).

    ``avg = exp(m)``, bounds ``exp(m -+ t * e)`` with ``m`` the mean of the logarithms, ``e`` its standard error and
    ``t`` the two-sided quantile of its degrees of freedom.

    Args:
        ratios: At least one, all positive.

        control_first: Of each pair, whether the control was measured first; empty where nobody knows.

        excluded: Pairs that were left out; only passed on.

        confidence: Of the two-sided interval.
    """
    found = mean_log(ratios, control_first)
    half = _quantile(confidence, found.freedom) * found.error if found.freedom else None
    return PairedRatio(
        avg=math.exp(found.mean),
        ci_low=None if half is None else math.exp(max(found.mean - half, -_LARGEST)),
        ci_high=None if half is None else math.exp(min(found.mean + half, _LARGEST)),
        pairs=len(ratios),
        excluded=excluded,
        ratios=tuple(float(ratio) for ratio in ratios),
        control_first=tuple(bool(first) for first in control_first),
        confidence=confidence,
    )


def _quantile(confidence: float, freedom: int) -> float:
    from scipy.special import stdtrit  # noqa: PLC0415 - slow to import, and most verbs never need it

    return float(stdtrit(freedom, (1 + confidence) / 2))


def _paired(point: LoadPoint, table: RecordTable, block_s: float | None) -> PairedSummary | None:
    blocks = {(block.pair, block.arm): block for block in summarize_blocks(table)}
    numbers = sorted({pair for pair, _ in blocks})
    halves = {pair: (blocks.get((pair, CONTROL)), blocks.get((pair, SPECULATION))) for pair in numbers}
    usable = {
        pair: control.start_s <= speculation.start_s
        for pair, (control, speculation) in halves.items()
        if control is not None and speculation is not None and _is_usable(control, speculation, block_s)
    }
    pairs = _Pairs(usable, len(numbers))
    speedup = pairs.ratio({key: block.throughput for key, block in blocks.items()})
    if speedup is None:
        return None
    return PairedSummary(
        point=point,
        speedup=speedup if point.rate is None else None,
        **{name: pairs.ratio(_block_means(table, of)) for name, of in _MEANS.items()},
        categories=_by_category(table, pairs),
    )


class _Pairs(NamedTuple):
    """Which pairs of a load can be used, each with whether the control was first, and how many there are in all."""

    control_first: Mapping[int, bool]
    total: int

    def ratio(self, values: Mapping[_BlockKey, float | None]) -> PairedRatio | None:
        """Divide the arms' values pair by pair; None without a pair, or where nothing can be divided by a value."""
        ratios, order = [], []
        for pair, first in self.control_first.items():
            above, below = values.get((pair, SPECULATION)), values.get((pair, CONTROL))
            if above and below:
                ratios.append(above / below)
                order.append(first)
        return paired_ratio(ratios, order, excluded=self.total - len(ratios)) if ratios else None


def _by_category(table: RecordTable, pairs: _Pairs) -> dict[str, PairedRatio]:
    """Compare the arms for each kind of prompt, where there are several."""
    names = table.labels("category")
    found = {name: pairs.ratio(_block_rates(table.labelled("category", name))) for name in names if len(names) > 1}
    return {name: ratio for name, ratio in found.items() if ratio is not None}


def _block_rates(table: RecordTable) -> dict[_BlockKey, float | None]:
    """Return the tokens a second of the requests of each block, by the time that each took and not by that of all."""
    rates: dict[_BlockKey, float | None] = {}
    for place in table.by_block():
        tokens, latency_ms = (
            OF_REQUEST[key](place.requests.good) for key in ("output_sequence_length", "request_latency")
        )
        known = ~(np.isnan(tokens) | np.isnan(latency_ms))
        took_ms = float(latency_ms[known].sum())
        rates[place.pair, place.arm] = 1000.0 * float(tokens[known].sum()) / took_ms if took_ms > 0 else None
    return rates


def _acceptance_length(table: RecordTable) -> Values:
    return acceptance_of_requests(table)["spec_decode_acceptance_length"]


#: What else the arms are compared by: the mean of a block, of what each request has a value of.
_MEANS: Final[Mapping[str, Callable[[RecordTable], Values]]] = {
    **{key: OF_REQUEST[key] for key in ("request_latency", "time_to_first_token", "inter_token_latency")},
    "acceptance_length": _acceptance_length,
}


def _block_means(table: RecordTable, of: Callable[[RecordTable], Values]) -> dict[_BlockKey, float | None]:
    values = {(place.pair, place.arm): defined(of(place.requests.good)) for place in table.by_block()}
    return {block: float(numbers.mean()) if len(numbers) else None for block, numbers in values.items()}


def _is_usable(control: BlockSummary, speculation: BlockSummary, block_s: float | None) -> bool:
    if control.errors or speculation.errors:
        return False
    if block_s is None:
        whole = control.answered == speculation.answered
    else:
        whole = min(control.wall_s, speculation.wall_s) >= _LASTED * block_s
    return whole and control.throughput is not None and speculation.throughput is not None
