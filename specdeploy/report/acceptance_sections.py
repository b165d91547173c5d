"""The section about acceptance: how many drafts the target kept, by position, by load and by kind of prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.acceptance import per_position_acceptance, pooled_histogram
from specdeploy.bench.metrics import METRICS
from specdeploy.bench.records import SPECULATION
from specdeploy.report import parts
from specdeploy.report.charts import columns, rows
from specdeploy.report.curves import Value, against_load
from specdeploy.report.markup import Markup, join, tag
from specdeploy.report.model import (
    CROWD,
    amount_of,
    arm_entry,
    arm_metrics,
    axis_name,
    by_axis,
    category_ratios,
    listed,
    slug,
    statistic,
)
from specdeploy.report.numbers import DASH, amount, interval, number, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdeploy.bench.records import LoadPoint
    from specdeploy.report.model import Bundle

_RATE: Final = "overall_spec_decode_draft_acceptance_rate"
_LENGTH: Final = "overall_spec_decode_acceptance_length"
_COUNTS: Final = ("spec_decode_steps", "spec_decode_draft_tokens", "spec_decode_accepted_draft_tokens")
_BY_REQUEST: Final = ("spec_decode_draft_acceptance_rate", "spec_decode_acceptance_length")
_HISTOGRAM: Final = "spec_decode_acceptance_histogram"
_POSITIONS: Final = "spec_decode_per_position_acceptance"
#: Kinds of prompts that a chart shows; the table has all of them.
_MOST_BARS: Final = 12


def acceptance_section(bundle: Bundle, load: Mapping[str, Any]) -> Markup:
    """Show how many drafts the target kept, under each load or, where they are many, under all together."""
    of_load = {point: arm_metrics(load, SPECULATION, point) for point in bundle.points}
    together = len(of_load) > CROWD
    rows_of = (
        [_row("All loads together", "all", pooled(list(of_load.values())))]
        if together
        else [_row(str(point).capitalize(), slug(point), metrics) for point, metrics in of_load.items()]
    )
    if not any(rows_of):
        return parts.section("Acceptance", tag("p", "Acceptance was not measured.", class_="soft"))
    return parts.section("Acceptance", *rows_of, *_curves(of_load), _by_category(bundle, load))


def pooled(every: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the acceptance of several groups of requests as that of one, from their counts; empty without steps."""
    totals = {key: sum(statistic(metrics, key, "sum") or 0.0 for metrics in every) for key in _COUNTS}
    steps, drafted, accepted = totals.values()
    if not steps or not drafted:
        return {}
    histogram = pooled_histogram([int(count) for count in listed(metrics, _HISTOGRAM)] for metrics in every)
    return {
        **{key: {"sum": total} for key, total in totals.items()},
        **{key: {"avg": mean} for key in _BY_REQUEST if (mean := _mean(every, key)) is not None},
        _RATE: {"avg": accepted / drafted},
        _LENGTH: {"avg": 1 + accepted / steps},
        _HISTOGRAM: {"values": histogram},
        _POSITIONS: {"values": per_position_acceptance(histogram)},
    }


def _mean(every: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the mean over the requests of all groups."""
    sums, numbers = (sum(statistic(metrics, key, stat) or 0.0 for metrics in every) for stat in ("sum", "count"))
    return sums / numbers if numbers else None


def _row(title: str, name: str, metrics: Mapping[str, Any]) -> Markup | None:
    histogram, positions = listed(metrics, _HISTOGRAM), listed(metrics, _POSITIONS)
    if not sum(histogram) or not positions:
        return None
    drafts = "drafts accepted in one verify step"
    steps = [
        (str(j), count / sum(histogram) * 100, f"{count / sum(histogram):.0%}") for j, count in enumerate(histogram)
    ]
    kept = [(str(i), share * 100, f"{share:.0%}") for i, share in enumerate(positions, start=1)]
    return join(
        (
            tag("h3", title),
            parts.grid(
                parts.figure(
                    "Accepted drafts per verify step",
                    f"{plain(sum(histogram))} steps",
                    columns(f"histogram-{name}", "Accepted drafts per verify step", (drafts, "% of steps"), steps),
                ),
                parts.figure(
                    "Acceptance by draft position",
                    "Share of all steps that kept the draft at this position",
                    columns(f"positions-{name}", "Acceptance by draft position", ("position", "% of steps"), kept),
                ),
                _counts_card(metrics),
            ),
        )
    )


def _counts_card(metrics: Mapping[str, Any]) -> Markup:
    steps, drafted, accepted = (statistic(metrics, key, "sum") for key in _COUNTS)
    shown = [
        ("Verify steps (S)", number(steps, "steps")),
        ("Drafted tokens (D)", number(drafted, "tokens")),
        ("Accepted of them (A)", number(accepted, "tokens")),
    ]
    for key in _BY_REQUEST:
        for prefix in ("overall_", ""):
            metric = METRICS[f"{prefix}{key}"]
            title = metric.title if prefix else f"{metric.title}, by request"
            shown.append((title, amount(statistic(metrics, metric.key), metric.unit)))
    table = parts.facts("Counts of speculation", shown, class_="facts counts")
    return parts.figure("Counts behind it", "Ratios differ between engines, counts do not", table)


def _curves(of_load: Mapping[LoadPoint, Mapping[str, Any]]) -> Iterator[Markup]:
    for kind, points in by_axis(of_load).items():
        rate, length = ([(amount_of(p), statistic(of_load[p], key)) for p in points] for key in (_RATE, _LENGTH))
        figures = (
            _curve("Draft acceptance rate", (kind, "of drafted tokens"), rate, share=True),
            _curve("Tokens per verify step", (kind, "tokens"), length),
        )
        if len(points) > 1 and any(figures):
            yield join((tag("h3", f"Acceptance by {axis_name(kind)}"), parts.grid(*figures)))


def _curve(
    title: str, labels: tuple[str, str], values: Sequence[tuple[float, float | None]], *, share: bool = False
) -> Markup | None:
    drawn = [Value(load=load, value=value) for load, value in values if value is not None]
    if not drawn:
        return None
    name = "-".join((*title.lower().split(), *labels[0].replace("/", " ").split()))
    return parts.figure(title, "", against_load(name, title, labels, {SPECULATION: drawn}, share=share))


def _by_category(bundle: Bundle, load: Mapping[str, Any]) -> Markup | None:
    """Show the kinds of prompts, all loads together; nothing where there is one kind, or none was told apart."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for point in bundle.points:
        for name, metrics in arm_entry(load, SPECULATION, point).get("categories", {}).items():
            groups.setdefault(name, []).append(metrics)
    every = {name: {**pooled(group), "requests": _requests(group)} for name, group in groups.items()}
    kinds = {name: metrics for name, metrics in every.items() if _RATE in metrics}
    if not kinds:
        return None
    content = (parts.grid(_category_bars(kinds)), _table(kinds), _speedups(bundle, load))
    return join((tag("h3", "By kind of prompt, all loads together"), *filter(None, content)))


def _speedups(bundle: Bundle, load: Mapping[str, Any]) -> Markup | None:
    """Show how much faster each kind of prompt was answered under each load; nothing where that was not compared."""
    body = [
        parts.row(
            name,
            str(point).capitalize(),
            parts.number(amount(ratio["avg"], "x")),
            parts.number(interval(ratio["ci_low"], ratio["ci_high"], ratio["pairs"])),
        )
        for point in bundle.points
        for name, ratio in sorted(category_ratios(load, point).items())
    ]
    head = ["Kind of prompt", "Load", parts.column("Speed-up", "n"), parts.column("Interval", "n")]
    return parts.table("Speed-up by kind of prompt: tokens a second of request time", (head,), body) if body else None


def _requests(group: Sequence[Mapping[str, Any]]) -> float:
    return sum(statistic(metrics, "request_count") or 0.0 for metrics in group)


def _category_bars(kinds: Mapping[str, Mapping[str, Any]]) -> Markup:
    largest = sorted(kinds, key=lambda name: (-kinds[name]["requests"], name))[:_MOST_BARS]
    shares = sorted(((name, statistic(kinds[name], _RATE) or 0.0) for name in largest), key=lambda pair: -pair[1])
    title = METRICS["spec_decode_draft_acceptance_rate"].title
    more = "Of all drafted tokens" if len(kinds) <= _MOST_BARS else f"The {_MOST_BARS} kinds with most requests"
    drawn = rows("by-category", f"{title} by kind of prompt", [(name, share, f"{share:.0%}") for name, share in shares])
    return parts.figure(f"{title} by kind of prompt", more, drawn)


def _table(kinds: Mapping[str, Mapping[str, Any]]) -> Markup:
    longest = max(len(listed(metrics, _POSITIONS)) for metrics in kinds.values())
    titles = ("Requests", "Drafted", "Accepted", "Tokens a step", *(f"Draft {i}" for i in range(1, longest + 1)))
    head = ["Kind of prompt", *(parts.column(title, "n") for title in titles)]
    body = [_table_row(name, metrics, longest) for name, metrics in sorted(kinds.items())]
    return parts.table("Acceptance by kind of prompt and draft position", (head,), body)


def _table_row(name: str, metrics: Mapping[str, Any], longest: int) -> Markup:
    positions = [f"{share:.0%}" for share in listed(metrics, _POSITIONS)]
    cells = (
        plain(metrics["requests"]),
        number(statistic(metrics, "spec_decode_draft_tokens", "sum"), "tokens"),
        amount(statistic(metrics, _RATE), "ratio"),
        f"{statistic(metrics, _LENGTH):.2f}",
        *positions,
        *[DASH] * (longest - len(positions)),
    )
    return parts.row(name, *map(parts.number, cells))
