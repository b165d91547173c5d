"""The sections about the load test: what speculation changed, throughput, timeline and the table of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.metrics import METRICS
from specdeploy.bench.records import CONTROL
from specdeploy.report import parts
from specdeploy.report.charts import Ratios, paired, throughput
from specdeploy.report.curves import Value, against_load
from specdeploy.report.markup import Markup, tag
from specdeploy.report.model import (
    RATIO_METRICS,
    amount_of,
    arm_metrics,
    axis,
    axis_name,
    by_axis,
    is_open,
    latency_ratios,
    point_of,
    slug,
    speedup,
    statistic,
)
from specdeploy.report.numbers import DASH, TIMES, number, shown_unit, times
from specdeploy.report.timeline import MOST, timeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdeploy.bench.records import Arm, LoadPoint
    from specdeploy.report.model import Bundle

    Ratio = Mapping[str, Any]

#: More bars than this have no room for their amounts; a line has none.
_MOST_BARS: Final = 6
_SHOWN_STATS: Final = ("avg", "p50", "p90", "p99")


def speedup_section(bundle: Bundle, load: Mapping[str, Any]) -> Markup:
    """Show what speculation changed, each pair of it, throughput by load, and what bounds it."""
    title = _speedup_title(bundle, load)
    ratios = [*_speedup_figures(bundle, load), *_ratio_figures(bundle, load)] if CONTROL in bundle.arms else []
    cards = (*ratios, *_throughput_figures(bundle, load), _limits_card(load))
    if not any(cards):
        return parts.section(title, tag("p", "No throughput was measured.", class_="soft"))
    return parts.section(title, parts.legend(bundle.arms, control=bundle.other_control), parts.grid(*cards))


def _speedup_title(bundle: Bundle, load: Mapping[str, Any]) -> str:
    if CONTROL not in bundle.arms:
        return "Throughput"
    if bundle.other_control:
        return "Against the control"
    return "What speculation changed" if is_open(load) else "Speed-up"


def timeline_section(bundle: Bundle) -> Markup:
    """Show when each request was in flight."""
    if not bundle.records:
        return parts.section("Timeline", tag("p", "The raw records are not here.", class_="soft"))
    more = "Pale until the first token; the whole bar is faint where the request was a warm-up or was cut off."
    if len(bundle.records) > MOST:
        more += f" The first {MOST:,} of {len(bundle.records):,} requests."
    wide = parts.scrolling("Timeline of requests", timeline(bundle.records), class_="scroll wide")
    return parts.section(
        "Timeline",
        parts.legend(bundle.arms, control=bundle.other_control),
        parts.figure("Every request, from its send to its end", more, wide),
    )


def numbers_section(bundle: Bundle, load: Mapping[str, Any]) -> Markup:
    """Show every metric that has one number, for both arms side by side."""
    if not bundle.points:
        return parts.section("Numbers", tag("p", "Nothing was measured.", class_="soft"))
    tables = [(str(point).capitalize(), _numbers_table(bundle.arms, load, point)) for point in bundle.points]
    return parts.section("Numbers", parts.folded(tables))


def _speedup_figures(bundle: Bundle, load: Mapping[str, Any]) -> Iterator[Markup]:
    ratios = {point: entry for point in bundle.points if (entry := speedup(load, point))}
    if ratios:
        title = "Speed-up of each pair"
        more = "A dot is one interleaved pair, the band its 95 % interval, the dashed line no change."
        yield _paired_figure("paired", title, more, (f"speed-up ({TIMES})", ratios))


def _ratio_figures(bundle: Bundle, load: Mapping[str, Any]) -> Iterator[Markup]:
    """Show an open loop's latencies: its throughput follows the rate, whatever speculation does."""
    for key in RATIO_METRICS:
        every = {point: latency_ratios(load, point).get(key) for point in bundle.points}
        ratios = {point: entry for point, entry in every.items() if entry}
        if ratios:
            title = f"{METRICS[key].title}, speculation / control"
            more = "Below the dashed line speculation is faster. A dot is one pair, the band its 95 % interval."
            yield _paired_figure(f"ratio-{key}", title, more, (f"ratio ({TIMES})", ratios))


def _paired_figure(name: str, title: str, more: str, ratios: tuple[str, Mapping[LoadPoint, Ratio]]) -> Markup:
    label, entries = ratios
    groups = [
        Ratios(
            load=f"{amount_of(point):g}",
            values=tuple(entry["ratios"]),
            avg=entry["avg"],
            low=entry["ci_low"],
            high=entry["ci_high"],
        )
        for point, entry in entries.items()
    ]
    return parts.figure(title, more, paired(name, title, (axis(next(iter(entries))), label), groups))


def _throughput_figures(bundle: Bundle, load: Mapping[str, Any]) -> Iterator[Markup]:
    for kind, points in by_axis(bundle.points).items():
        every = {point: _throughput_of(bundle.arms, load, point) for point in points}
        levels = {point: of_arms for point, of_arms in every.items() if of_arms}
        title = f"Throughput by {axis_name(kind)}"
        if sum(map(len, levels.values())) > _MOST_BARS:
            yield parts.figure(title, "", _throughput_curve(bundle.arms, title, kind, levels))
        elif levels:
            named = {f"{amount_of(point):g}": of_arms for point, of_arms in levels.items()}
            name = f"throughput-{slug(points[0])}"
            yield parts.figure(title, "A dot is one block.", throughput(name, title, kind, named))


def _throughput_curve(
    arms: Sequence[Arm], title: str, kind: str, levels: Mapping[LoadPoint, Mapping[str, tuple[float, list[float]]]]
) -> Markup:
    drawn: dict[str, list[Value]] = {}
    for arm in arms:
        values = [Value(load=amount_of(point), value=of[arm][0]) for point, of in levels.items() if arm in of]
        drawn |= {arm: values} if values else {}
    return against_load(f"throughput-{slug(next(iter(levels)))}", title, (kind, "output tokens/s"), drawn)


def _throughput_of(
    arms: Sequence[Arm], load: Mapping[str, Any], point: LoadPoint
) -> dict[str, tuple[float, list[float]]]:
    found: dict[str, tuple[float, list[float]]] = {}
    for arm in arms:
        avg = statistic(arm_metrics(load, arm, point), "output_token_throughput")
        blocks = [
            block["output_token_throughput"]
            for block in load.get("blocks", ())
            if (block["arm"], point_of(block)) == (arm, point) and block["output_token_throughput"] is not None
        ]
        if avg is not None:
            found[arm] = (avg, blocks)
    return found


def _limits_card(load: Mapping[str, Any]) -> Markup | None:
    # An open loop's throughput is the rate that was offered: no speed-up, and nothing that bounds it.
    limits = [limit for limit in load.get("limits", ()) if point_of(limit).rate is None]
    if not limits:
        return None
    ceiling = (
        "One verify step yields several tokens. That is the ceiling: so many times faster, if drafting were free and "
        "verifying cost no more than an ordinary step."
    )
    cost = "Step cost is ceiling / measured: the time of one verify step with its drafts, in steps of the control."
    head = ["In flight", *(parts.column(title, "n") for title in ("Ceiling", "Measured", "Step cost", "Predicted"))]
    table = parts.table("What bounds the speed-up", (head,), [_limit_row(limit) for limit in limits])
    predicted = next((sentence for limit in limits if (sentence := _prediction(limit))), None)
    return parts.figure("What bounds it", "", parts.paragraphs((ceiling, cost)), table, predicted, class_="words")


def _limit_row(limit: Mapping[str, Any]) -> Markup:
    tokens, measured, predicted = limit["tokens_per_step"], limit["measured_speedup"], limit["predicted_speedup"]
    cells = (
        times(tokens),
        times(measured) if measured else DASH,
        f"{tokens / measured:.2f}" if measured else DASH,
        times(predicted) if predicted else DASH,
    )
    return parts.row(point_of(limit).key, *map(parts.number, cells))


def _prediction(limit: Mapping[str, Any]) -> Markup | None:
    costs = limit["costs"]
    if not costs:
        return None
    words = (
        f"Predicted is ceiling / {costs['step_cost']:.2f}: so many steps of the control did a step with drafts take at "
        f"concurrency {costs['measured_at']}. Where less was measured, a batch has less room for drafts."
    )
    return tag("p", words, class_="soft")


def _numbers_table(arms: Sequence[Arm], load: Mapping[str, Any], point: LoadPoint) -> Markup:
    of_arms: dict[str, Mapping[str, Any]] = {arm: arm_metrics(load, arm, point) for arm in arms}
    keys = [
        key for key, metric in METRICS.items() if metric.stats and any(key in metrics for metrics in of_arms.values())
    ]
    rows = [_numbers_row(key, of_arms) for key in keys]
    groups = ["", "", *(parts.column(arm, "apart arm", span=len(_SHOWN_STATS)) for arm in arms)]
    stats = [parts.column(stat, _side(arm, stat)) for arm in arms for stat in _SHOWN_STATS]
    heads = (groups, ["Metric", "Unit", *stats])
    return parts.table(f"Metrics at {point}", heads, rows)


def _numbers_row(key: str, of_arms: Mapping[str, Mapping[str, Any]]) -> Markup:
    metric = METRICS[key]
    cells = [
        parts.number(
            number(statistic(metrics, key, stat), metric.unit) if stat in metric.stats else "", _side(arm, stat)
        )
        for arm, metrics in of_arms.items()
        for stat in _SHOWN_STATS
    ]
    return parts.row(metric.title, shown_unit(metric.unit), *cells)


def _side(arm: str, stat: str) -> str:
    return f"n apart {arm}" if stat == "avg" else f"n {arm}"
