"""The sections about the load test: speed-up, latency, acceptance, timeline and the table of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.metrics import METRICS
from specdeploy.bench.per_request import OF_REQUEST
from specdeploy.bench.records import ARMS, SPECULATION
from specdeploy.report import parts
from specdeploy.report.charts import Ratios, columns, cumulative, paired, throughput
from specdeploy.report.markup import Markup, join, tag
from specdeploy.report.model import arm_metrics, listed, statistic
from specdeploy.report.numbers import DASH, amount, number, plain, shown_unit, times
from specdeploy.report.timeline import MOST, timeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.report.model import Bundle

_LATENCIES: Final = ("time_to_first_token", "inter_token_latency", "request_latency")
_SHOWN_STATS: Final = ("avg", "p50", "p90", "p99")


def speedup_section(bundle: Bundle, load: Mapping[str, Any]) -> Markup:
    """Show what speculation changed: each pair, throughput by concurrency, and what bounds it."""
    cards = (_paired_figure(load), _throughput_figure(bundle, load), _limits_card(load))
    if not any(cards):
        return parts.section("Speed-up", tag("p", "No throughput was measured.", class_="soft"))
    return parts.section("Speed-up", parts.legend(), parts.grid(*cards))


def latency_section(bundle: Bundle) -> Markup:
    """Show how latency is distributed in both arms, at each concurrency."""
    rows = [_latency_row(bundle, level) for level in bundle.concurrencies]
    if not any(rows):
        words = "No distributions: the raw records are not here, or no request succeeded."
        return parts.section("Latency", tag("p", words, class_="soft"))
    return parts.section("Latency", parts.legend(), *rows)


def acceptance_section(bundle: Bundle, load: Mapping[str, Any]) -> Markup:
    """Show how many drafts the target kept, at each concurrency."""
    rows = [_acceptance_row(load, level) for level in bundle.concurrencies]
    if not any(rows):
        return parts.section("Acceptance", tag("p", "Acceptance was not measured.", class_="soft"))
    return parts.section("Acceptance", *rows)


def timeline_section(bundle: Bundle) -> Markup:
    """Show when each request was in flight."""
    if not bundle.records:
        return parts.section("Timeline", tag("p", "The raw records are not here.", class_="soft"))
    more = "Pale until the first token; the whole bar is faint where the request was a warm-up or was cut off."
    if len(bundle.records) > MOST:
        more += f" The first {MOST:,} of {len(bundle.records):,} requests."
    wide = parts.scrolling("Timeline of requests", timeline(bundle.records), class_="scroll wide")
    return parts.section(
        "Timeline", parts.legend(), parts.figure("Every request, from its send to its end", more, wide)
    )


def numbers_section(bundle: Bundle, load: Mapping[str, Any]) -> Markup:
    """Show every metric that has one number, for both arms side by side."""
    levels = bundle.concurrencies
    if not levels:
        return parts.section("Numbers", tag("p", "Nothing was measured.", class_="soft"))
    first = join((tag("h3", f"Concurrency {levels[0]}"), _numbers_table(load, levels[0])))
    others = [tag("details", tag("summary", f"Concurrency {n}"), _numbers_table(load, n)) for n in levels[1:]]
    return parts.section("Numbers", first, *others)


def _paired_figure(load: Mapping[str, Any]) -> Markup | None:
    groups = [
        Ratios(
            concurrency=int(level),
            values=tuple(entry["ratios"]),
            avg=entry["avg"],
            low=entry["ci_low"],
            high=entry["ci_high"],
        )
        for level, entry in load["speedup"].items()
    ]
    if not groups:
        return None
    more = "A dot is one interleaved pair, the band its 95 % interval, the dashed line no change."
    return parts.figure("Speed-up of each pair", more, paired("paired", groups))


def _throughput_figure(bundle: Bundle, load: Mapping[str, Any]) -> Markup | None:
    levels = {level: _throughput_level(load, level) for level in bundle.concurrencies}
    levels = {level: arms for level, arms in levels.items() if arms}
    if not levels:
        return None
    return parts.figure("Throughput by concurrency", "A dot is one block.", throughput("throughput", levels))


def _throughput_level(load: Mapping[str, Any], level: int) -> dict[str, tuple[float, list[float]]]:
    arms: dict[str, tuple[float, list[float]]] = {}
    for arm in ARMS:
        avg = statistic(arm_metrics(load, arm, level), "output_token_throughput")
        blocks = [
            block["output_token_throughput"]
            for block in load.get("blocks", ())
            if (block["arm"], block["concurrency"]) == (arm, level) and block["output_token_throughput"] is not None
        ]
        if avg is not None:
            arms[arm] = (avg, blocks)
    return arms


def _limits_card(load: Mapping[str, Any]) -> Markup | None:
    limits = load.get("limits", ())
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
    return parts.row(str(limit["concurrency"]), *map(parts.number, cells))


def _prediction(limit: Mapping[str, Any]) -> Markup | None:
    costs = limit["costs"]
    if not costs:
        return None
    words = (
        f"Predicted from measured costs: a draft pass takes {costs['draft_cost']:.2f} of a target pass, verification "
        f"{costs['verify_cost']:.2f}, the loop itself {costs['overhead']:.2f}."
    )
    return tag("p", words, class_="soft")


def _latency_row(bundle: Bundle, level: int) -> Markup | None:
    figures = [figure for key in _LATENCIES if (figure := _latency_figure(bundle, level, key))]
    return join((tag("h3", f"Concurrency {level}"), parts.grid(*figures))) if figures else None


def _latency_figure(bundle: Bundle, level: int, key: str) -> Markup | None:
    metric = METRICS[key]
    series: dict[str, list[float]] = {
        arm: [value for record in bundle.of_request(arm, level) if (value := OF_REQUEST[key](record)) is not None]
        for arm in ARMS
    }
    if not any(series.values()):
        return None
    load = bundle.load or {"arms": []}
    medians = [amount(statistic(arm_metrics(load, arm, level), key, "p50"), metric.unit) for arm in ARMS]
    more = f"Median: control {medians[0]}, speculation {medians[1]}"
    drawn = cumulative(f"{key}-{level}", metric.title, f"{metric.title.lower()} ({metric.unit})", series)
    return parts.figure(metric.title, more, drawn)


def _acceptance_row(load: Mapping[str, Any], level: int) -> Markup | None:
    metrics = arm_metrics(load, SPECULATION, level)
    histogram = listed(metrics, "spec_decode_acceptance_histogram")
    positions = listed(metrics, "spec_decode_per_position_acceptance")
    if not sum(histogram) or not positions:
        return None
    drafts = "drafts accepted in one verify step"
    steps = [
        (str(j), count / sum(histogram) * 100, f"{count / sum(histogram):.0%}") for j, count in enumerate(histogram)
    ]
    kept = [(str(i), share * 100, f"{share:.0%}") for i, share in enumerate(positions, start=1)]
    return join(
        (
            tag("h3", f"Concurrency {level}"),
            parts.grid(
                parts.figure(
                    "Accepted drafts per verify step",
                    f"{plain(sum(histogram))} steps",
                    columns(f"histogram-{level}", "Accepted drafts per verify step", (drafts, "% of steps"), steps),
                ),
                parts.figure(
                    "Acceptance by draft position",
                    "Share of all steps that kept the draft at this position",
                    columns(f"positions-{level}", "Acceptance by draft position", ("position", "% of steps"), kept),
                ),
                _counts_card(metrics),
            ),
        )
    )


def _counts_card(metrics: Mapping[str, Any]) -> Markup:
    steps, drafted, accepted = (
        statistic(metrics, f"spec_decode_{name}", "sum") for name in ("steps", "draft_tokens", "accepted_draft_tokens")
    )
    rows = [
        ("Verify steps (S)", number(steps, "steps")),
        ("Drafted tokens (D)", number(drafted, "tokens")),
        ("Accepted of them (A)", number(accepted, "tokens")),
    ]
    for key in ("spec_decode_draft_acceptance_rate", "spec_decode_acceptance_length"):
        for prefix in ("overall_", ""):
            metric = METRICS[f"{prefix}{key}"]
            title = metric.title if prefix else f"{metric.title}, by request"
            rows.append((title, amount(statistic(metrics, metric.key), metric.unit)))
    table = parts.facts("Counts of speculation", rows, class_="facts counts")
    return parts.figure("Counts behind it", "Ratios differ between engines, counts do not", table)


def _numbers_table(load: Mapping[str, Any], level: int) -> Markup:
    both: dict[str, Mapping[str, Any]] = {arm: arm_metrics(load, arm, level) for arm in ARMS}
    keys = [key for key, metric in METRICS.items() if metric.stats and any(key in metrics for metrics in both.values())]
    rows = [_numbers_row(key, both) for key in keys]
    groups = ["", "", *(parts.column(arm, "apart arm", span=len(_SHOWN_STATS)) for arm in ARMS)]
    stats = [parts.column(stat, _side(arm, stat)) for arm in ARMS for stat in _SHOWN_STATS]
    heads = (groups, ["Metric", "Unit", *stats])
    return parts.table(f"Metrics at concurrency {level}", heads, rows)


def _numbers_row(key: str, both: Mapping[str, Mapping[str, Any]]) -> Markup:
    metric = METRICS[key]
    cells = [
        parts.number(
            number(statistic(both[arm], key, stat), metric.unit) if stat in metric.stats else "", _side(arm, stat)
        )
        for arm in ARMS
        for stat in _SHOWN_STATS
    ]
    return parts.row(metric.title, shown_unit(metric.unit), *cells)


def _side(arm: str, stat: str) -> str:
    return f"n apart {arm}" if stat == "avg" else f"n {arm}"
