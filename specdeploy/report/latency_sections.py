"""The sections about latency: how it is distributed, how it grows with load, and how sure its percentiles are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.metrics import METRICS
from specdeploy.bench.per_request import OF_REQUEST, defined
from specdeploy.report import parts
from specdeploy.report.charts import cumulative
from specdeploy.report.curves import Value, against_load, cumulative_by_load
from specdeploy.report.markup import Markup, join, tag
from specdeploy.report.model import CROWD, amount_of, arm_metrics, axis, axis_name, by_axis, slug, statistic
from specdeploy.report.numbers import DASH, amount, number, plain, shown_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.bench.records import Arm, LoadPoint
    from specdeploy.report.model import Bundle

_LATENCIES: Final = ("time_to_first_token", "inter_token_latency", "request_latency")
#: Of an open loop, where what counts began when a request was due.
_FROM_INTENDED: Final = ("time_to_first_token_from_intended", "request_latency_from_intended")
_AGAINST: Final = ("p50", "p99")
_BOUNDED: Final = ("p50", "p90", "p95", "p99")


def latency_section(bundle: Bundle, load: Mapping[str, Any]) -> Markup:
    """Show how latency is distributed, under each load or, where they are many, under all in one chart."""
    crowded = len(bundle.points) > CROWD
    rows = [_crowded(bundle)] if crowded else [_distributions(bundle, load, point) for point in bundle.points]
    content = [*rows, *_curves(bundle, load)]
    missing = None if any(rows) else "No distributions: the raw records are not here, or no request succeeded."
    return parts.section(
        "Latency",
        tag("p", missing, class_="soft") if missing else None,
        parts.legend(bundle.arms, control=bundle.other_control) if any(content) else None,
        *content,
    )


def percentiles_section(bundle: Bundle, load: Mapping[str, Any]) -> Markup:
    """Show percentiles of latency with their intervals."""
    if not bundle.points:
        return parts.section("Percentiles", tag("p", "Nothing was measured.", class_="soft"))
    words = (
        "Below each percentile is its 95 % interval, from order statistics: it assumes nothing of the distribution, "
        "and lacks a bound where there were too few requests for one. It speaks of this run; runs differ by more."
    )
    tables = [(_title(point), _percentiles(bundle, load, point)) for point in bundle.points]
    return parts.section("Percentiles", tag("p", words, class_="soft"), parts.folded(tables))


def _title(point: LoadPoint) -> str:
    return str(point).capitalize()


def _distributions(bundle: Bundle, load: Mapping[str, Any], point: LoadPoint) -> Markup | None:
    figures = [figure for key in _LATENCIES if (figure := _distribution(bundle, load, point, key))]
    return join((tag("h3", _title(point)), parts.grid(*figures))) if figures else None


def _distribution(bundle: Bundle, load: Mapping[str, Any], point: LoadPoint, key: str) -> Markup | None:
    metric = METRICS[key]
    series: dict[str, list[float]] = {arm: _values(bundle, arm, point, key) for arm in bundle.arms}
    if not any(series.values()):
        return None
    medians = [f"{arm} {_amount(load, arm, point, key)}" for arm in bundle.arms]
    label = f"{metric.title.lower()} ({metric.unit})"
    drawn = cumulative(f"{key}-{slug(point)}", metric.title, label, series)
    return parts.figure(metric.title, f"Median: {', '.join(medians)}", drawn)


def _amount(load: Mapping[str, Any], arm: Arm, point: LoadPoint, key: str) -> str:
    return amount(statistic(arm_metrics(load, arm, point), key, "p50"), METRICS[key].unit)


def _values(bundle: Bundle, arm: Arm, point: LoadPoint, key: str) -> list[float]:
    values: list[float] = defined(OF_REQUEST[key](bundle.of_request(arm, point))).tolist()
    return values


def _crowded(bundle: Bundle) -> Markup | None:
    """Draw each metric of each arm once, all loads in it."""
    figures = [figure for arm in bundle.arms for key in _LATENCIES if (figure := _by_load(bundle, arm, key))]
    lowest, highest = bundle.points[0], bundle.points[-1]
    words = f"One line for each load: pale for {lowest}, strong for {highest}."
    return join((tag("p", words, class_="soft"), parts.grid(*figures))) if figures else None


def _by_load(bundle: Bundle, arm: Arm, key: str) -> Markup | None:
    metric = METRICS[key]
    every = [(str(point), _values(bundle, arm, point, key)) for point in bundle.points]
    series = [(point, values) for point, values in every if values]
    if not series:
        return None
    title, label = f"{metric.title}, {arm}", f"{metric.title.lower()} ({metric.unit})"
    return parts.figure(title, "", cumulative_by_load(f"{key}-{arm}", title, label, arm, series))


def _curves(bundle: Bundle, load: Mapping[str, Any]) -> Iterator[Markup]:
    """Draw percentiles against load, for loads of a kind that are several."""
    for kind, points in by_axis(bundle.points).items():
        figures = [
            figure for stat in _AGAINST for key in _LATENCIES if (figure := _curve(bundle, load, points, (key, stat)))
        ]
        if len(points) > 1 and figures:
            yield join((tag("h3", f"Latency by {axis_name(kind)}"), parts.grid(*figures)))


def _curve(bundle: Bundle, load: Mapping[str, Any], points: list[LoadPoint], what: tuple[str, str]) -> Markup | None:
    (key, stat), kind = what, axis(points[0])
    metric = METRICS[key]
    series: dict[str, list[Value]] = {arm: found for arm in bundle.arms if (found := _against(load, arm, points, what))}
    if not series:
        return None
    title = f"{metric.title}, {stat}"
    name = f"{key}-{stat}-against-{slug(points[0])}"
    drawn = against_load(name, title, (kind, f"{stat} ({metric.unit})"), series)
    return parts.figure(title, "A bar is the 95 % interval, where there is one.", drawn)


def _against(load: Mapping[str, Any], arm: Arm, points: list[LoadPoint], what: tuple[str, str]) -> list[Value]:
    key, stat = what
    values = []
    for point in points:
        metrics = arm_metrics(load, arm, point)
        value, (low, high) = statistic(metrics, key, stat), _bounds(metrics, key, stat)
        if value is not None:
            values.append(Value(load=amount_of(point), value=value, low=low, high=high))
    return values


def _bounds(metrics: Mapping[str, Any], key: str, stat: str) -> tuple[float | None, float | None]:
    """Return the interval of a percentile; documents of earlier versions have none."""
    low, high = metrics.get(key, {}).get("percentile_cis", {}).get(stat, (None, None))
    return low, high


def _percentiles(bundle: Bundle, load: Mapping[str, Any], point: LoadPoint) -> Markup:
    keys = (*_LATENCIES, *(_FROM_INTENDED if point.rate is not None else ()))
    rows = [_percentile_row(load, arm, point, key) for key in keys for arm in bundle.arms]
    head = ["Latency", "Arm", *(parts.column(title, "n") for title in ("Requests", *_BOUNDED))]
    return parts.table(f"Percentiles at {point}", (head,), rows)


def _percentile_row(load: Mapping[str, Any], arm: Arm, point: LoadPoint, key: str) -> Markup:
    metric, metrics = METRICS[key], arm_metrics(load, arm, point)
    count = statistic(metrics, key, "count")
    cells = [_percentile_cell(metrics, key, stat) for stat in _BOUNDED]
    title = f"{metric.title} ({shown_unit(metric.unit)})"
    return parts.row(title, arm, parts.number(DASH if count is None else plain(count)), *cells)


def _percentile_cell(metrics: Mapping[str, Any], key: str, stat: str) -> Markup:
    value, unit = statistic(metrics, key, stat), METRICS[key].unit
    if value is None:
        return parts.number(DASH)
    known = "percentile_cis" in metrics[key]
    return parts.number(number(value, unit), more=_between(*_bounds(metrics, key, stat)) if known else "")


def _between(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"{plain(low)} to {plain(high)}"
    if low is None and high is None:
        return "too few for an interval"
    return f"from {plain(low)}" if low is not None else f"to {plain(high or 0.0)}"
