"""The sections about what was promised and whether the measurement kept pace: goodput, and the load generator's lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.metrics import METRICS
from specdeploy.report import parts
from specdeploy.report.curves import Value, against_load
from specdeploy.report.markup import Markup, tag
from specdeploy.report.model import amount_of, arm_metrics, axis_name, by_axis, slug, statistic
from specdeploy.report.numbers import DASH, amount, number, plain
from specdeploy.report.text import search_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdeploy.bench.records import Arm, LoadPoint
    from specdeploy.report.model import Bundle

_SHARE: Final = "good_request_fraction"
_LAG: Final = "dispatch_lag"
_LAG_STATS: Final = ("avg", "p50", "p99", "max")


def goodput_section(bundle: Bundle, load: Mapping[str, Any]) -> Markup:
    """Show how many requests kept every objective."""
    objectives = load.get("objectives")
    if not objectives:
        words = "No objective was set (load.slo), so no request is called good or bad."
        return parts.section("Goodput", tag("p", words, class_="soft"))
    kept = tag("p", "A good request succeeds and keeps ", *_spoken(objectives), ".")
    figures = [figure for points in by_axis(bundle.points).values() if (figure := _figure(bundle, load, points))]
    rows = [_row(load, arm, point) for point in bundle.points for arm in bundle.arms]
    titles = ("Good requests", "Share", "95 % interval", "Goodput")
    head = ["Load", "Arm", *(parts.column(title, "n") for title in titles)]
    return parts.section(
        "Goodput",
        kept,
        *(tag("p", line.removeprefix("search: ").capitalize(), ".") for line in search_lines(load)),
        parts.legend(bundle.arms, control=bundle.other_control) if figures else None,
        parts.grid(*figures) if figures else None,
        parts.table("Goodput under each load", (head,), rows) if rows else None,
    )


def generator_section(bundle: Bundle, load: Mapping[str, Any]) -> Markup:
    """Show how late requests were sent, and say plainly when that spoilt the run."""
    late = next((finding for finding in load.get("findings", ()) if finding["code"] == "load.degraded"), None)
    why = f": {late['message']}" if late else ""
    why += ". What is slow may be the machine that sent the load."
    words = (
        tag("p", tag("b", "Degraded"), why, class_="open")
        if load.get("degraded")
        else tag("p", "The load generator kept up: requests were sent when they were due.")
    )
    rows = [_lag_row(load, arm, point) for point in bundle.points for arm in bundle.arms]
    head = ["Load", "Arm", *(parts.column(title, "n") for title in ("Average", "p50", "p99", "Most"))]
    title = f"{METRICS[_LAG].title} ({METRICS[_LAG].unit})"
    table = parts.table(title, (head,), rows) if rows else None
    return parts.section("Load generator", words, tag("h3", title) if rows else None, table)


def _spoken(objectives: Sequence[str]) -> Iterator[Markup | str]:
    for number_, objective in enumerate(objectives):
        yield ", " if number_ else ""
        yield tag("code", objective)


def _figure(bundle: Bundle, load: Mapping[str, Any], points: Sequence[LoadPoint]) -> Markup | None:
    series: dict[str, list[Value]] = {arm: found for arm in bundle.arms if (found := _shares(load, arm, points))}
    if len(points) < 2 or not series:
        return None
    kind, title = next(iter(by_axis(points))), METRICS[_SHARE].title
    drawn = against_load(f"goodput-{slug(points[0])}", title, (kind, "good requests"), series, share=True)
    return parts.figure(f"{title} by {axis_name(kind)}", "A bar is the 95 % interval.", drawn)


def _shares(load: Mapping[str, Any], arm: Arm, points: Sequence[LoadPoint]) -> list[Value]:
    entries = [(point, arm_metrics(load, arm, point).get(_SHARE)) for point in points]
    return [
        Value(load=amount_of(point), value=entry["avg"], low=entry.get("ci_low"), high=entry.get("ci_high"))
        for point, entry in entries
        if entry
    ]


def _row(load: Mapping[str, Any], arm: Arm, point: LoadPoint) -> Markup:
    metrics = arm_metrics(load, arm, point)
    counts = [statistic(metrics, key) for key in ("good_request_count", "request_count", "error_request_count")]
    good, every = counts[0], sum(count or 0.0 for count in counts[1:])
    low, high = (statistic(metrics, _SHARE, bound) for bound in ("ci_low", "ci_high"))
    cells = (
        DASH if good is None else f"{plain(good)} of {plain(every)}",
        amount(statistic(metrics, _SHARE), "ratio"),
        DASH if low is None or high is None else f"{plain(low * 100)} to {plain(high * 100)} %",
        amount(statistic(metrics, "goodput"), METRICS["goodput"].unit),
    )
    return parts.row(str(point).capitalize(), arm, *map(parts.number, cells))


def _lag_row(load: Mapping[str, Any], arm: Arm, point: LoadPoint) -> Markup:
    metrics = arm_metrics(load, arm, point)
    cells = (number(statistic(metrics, _LAG, stat), METRICS[_LAG].unit) for stat in _LAG_STATS)
    return parts.row(str(point).capitalize(), arm, *map(parts.number, cells))
