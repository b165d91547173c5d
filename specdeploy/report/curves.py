"""The charts that show many loads at once: values against load, and one distribution for each load.

Knows how they are drawn. The axis of loads is logarithmic where loads span more than a decade, as doubled ones do;
its marks are loads that were measured.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.report.markup import Markup, join, tag
from specdeploy.report.numbers import plain
from specdeploy.report.svg import Frame, chart, frame, frame_of, padded, steps, thinned, x_axis, y_axis

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: A range of loads, or of latencies, that is wider than this factor is drawn on a logarithmic scale.
_WIDE: Final = 10.0
#: Side by side, so that the intervals of both arms at one load can be told apart.
_SHIFT: Final = {"control": -2.5, "speculation": 2.5}
_PALEST: Final = 0.3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Value:
    """A value under one load, with the bounds of its interval; None for one that is not known."""

    load: float
    value: float
    low: float | None = None
    high: float | None = None


def against_load(
    name: str, title: str, labels: tuple[str, str], series: Mapping[str, Sequence[Value]], *, share: bool = False
) -> Markup:
    """Draw values against load, one line from zero for each arm, with their intervals.

    Args:
        name: Unique on the page.

        title: What was measured.

        labels: Of the x and the y axis, with units.

        series: Arm -> its values in order of load; at least one.

        share: Whether the values are shares, whose axis ends at 100 %.
    """
    every = [value for values in series.values() for value in values]
    loads = sorted({value.load for value in every})
    highest = max(max(value.value, value.high or 0.0) for value in every)
    area = frame(_spread(loads), (0.0, 1.0 if share else highest * 1.08 or 1.0), log_x=_is_wide(loads))
    marks = thinned(area, [(load, f"{load:g}") for load in loads])
    shares = [(mark, f"{mark:.0%}") for mark in (0.0, 0.25, 0.5, 0.75, 1.0)] if share else None
    described = "; ".join(f"{arm}: {_listed(values, share=share)}" for arm, values in series.items())
    axes = (y_axis(area, labels[1], shares), x_axis(area, labels[0], marks))
    return chart(name, title, described, *axes, *(_line(area, arm, values) for arm, values in series.items()))


def cumulative_by_load(
    name: str, title: str, label: str, arm: str, series: Sequence[tuple[str, Sequence[float]]]
) -> Markup:
    """Draw the distribution of one arm under each load, from pale for the lowest load to strong for the highest.

    Args:
        name: Unique on the page.

        title: What was measured.

        label: Of the x axis, with the unit.

        arm: Whose.

        series: Name of each load, lowest first, and one value for each request; none is empty.
    """
    drawn = [(load, sorted(values)) for load, values in series]
    low, high = min(values[0] for _, values in drawn), max(values[-1] for _, values in drawn)
    wide = low > 0 and high / low > _WIDE
    area = frame(frame_of(low, high, log=wide), (0.0, 1.0), log_x=wide)
    shades = [_PALEST + (1 - _PALEST) * position / max(len(drawn) - 1, 1) for position in range(len(drawn))]
    lines = [
        tag("path", tag("title", load), class_=f"line {arm}", stroke_opacity=shade, d=steps(area, values))
        for (load, values), shade in zip(drawn, shades, strict=True)
    ]
    marks = [(share, f"{share:.0%}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    described = "; ".join(f"{load}: median {plain(values[len(values) // 2])}" for load, values in drawn)
    return chart(name, title, described, y_axis(area, "share of requests", marks), x_axis(area, label), *lines)


def _is_wide(values: Sequence[float]) -> bool:
    return values[-1] / values[0] > _WIDE


def _spread(loads: Sequence[float]) -> tuple[float, float]:
    """Widen the range of loads so that marks do not touch the frame."""
    if _is_wide(loads):
        margin = (loads[-1] / loads[0]) ** 0.06
        return loads[0] / margin, loads[-1] * margin
    return padded(loads[0], loads[-1], 0.06)


def _line(area: Frame, arm: str, values: Sequence[Value]) -> Markup:
    shift = _SHIFT.get(arm, 0.0)
    places = [(area.x(value.load) + shift, area.y(value.value)) for value in values]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    whiskers = [_whisker(area, arm, x, value) for (x, _), value in zip(places, values, strict=True)]
    dots = [
        tag("circle", tag("title", f"{arm}: {plain(value.value)}"), class_=f"mark {arm}", cx=x, cy=y, r=3.2)
        for (x, y), value in zip(places, values, strict=True)
    ]
    return join((tag("path", class_=f"line {arm}", d=path), *whiskers, *dots))


def _whisker(area: Frame, arm: str, x: float, value: Value) -> Markup | None:
    if value.low is None or value.high is None:
        return None
    return tag("line", class_=f"whisker {arm}", x1=x, x2=x, y1=area.y(value.high), y2=area.y(value.low))


def _listed(values: Sequence[Value], *, share: bool) -> str:
    return ", ".join(f"{value.load:g}: {f'{value.value:.0%}' if share else plain(value.value)}" for value in values)
