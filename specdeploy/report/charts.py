"""The charts of the report: distributions, paired ratios, throughput, acceptance. Values in, one SVG each out.

See ``specdeploy.report.curves`` for what is drawn against load.

Knows how each is drawn; where the values come from is the caller's business. Control and speculation differ by line
style and place as well as by colour.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.report.markup import Markup, join, tag
from specdeploy.report.numbers import plain, times
from specdeploy.report.svg import (
    WIDTH,
    Frame,
    chart,
    every_nth,
    frame,
    frame_of,
    padded,
    steps,
    text_width,
    thinned,
    x_axis,
    y_axis,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_ROW: Final = 34.0
_LONGEST_NAME: Final = 26


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ratios:
    """Paired ratios under one load, with their mean and interval (None with a single pair)."""

    load: str
    values: tuple[float, ...]
    avg: float
    low: float | None
    high: float | None


def cumulative(name: str, title: str, label: str, series: Mapping[str, Sequence[float]]) -> Markup:
    """Draw the share of requests that were at least as fast as a latency, one line for each arm.

    Args:
        name: Unique on the page.

        title: What was measured.

        label: Of the x axis, with the unit.

        series: Arm -> one value for each request; an arm without values is left out.
    """
    drawn = {arm: sorted(values) for arm, values in series.items() if values}
    every = [value for values in drawn.values() for value in values]
    area = frame(frame_of(min(every), max(every)), (0.0, 1.0))
    lines = [
        tag("path", tag("title", arm), class_=f"line {arm}", d=steps(area, values)) for arm, values in drawn.items()
    ]
    marks = [(share, f"{share:.0%}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    described = "; ".join(
        f"{arm}: median {plain(values[len(values) // 2])}, slowest {plain(values[-1])}" for arm, values in drawn.items()
    )
    return chart(name, title, described, y_axis(area, "share of requests", marks), x_axis(area, label), *lines)


def paired(name: str, title: str, labels: tuple[str, str], groups: Sequence[Ratios]) -> Markup:
    """Draw every paired ratio as a dot, its interval as a band with the mean, and a line where nothing changed.

    Args:
        name: Unique on the page.

        title: What it shows.

        labels: Of the x and the y axis.

        groups: One for each load.
    """
    every = [1.0, *(v for group in groups for v in (*group.values, group.low, group.high) if v is not None)]
    area = frame((0.0, float(len(groups))), padded(min(every), max(every), 0.16))
    even = tag("line", class_="even", x1=area.x.start, x2=area.x.end, y1=area.y(1.0), y2=area.y(1.0))
    marks = thinned(area, [(position + 0.5, group.load) for position, group in enumerate(groups)])
    described = "; ".join(f"{labels[0]} {g.load}: {g.avg:.2f} from {len(g.values)} pairs" for g in groups)
    dots = [_ratio_group(area, position, group) for position, group in enumerate(groups)]
    return chart(name, title, described, y_axis(area, labels[1]), x_axis(area, labels[0], marks), even, *dots)


def throughput(
    name: str, title: str, label: str, levels: Mapping[str, Mapping[str, tuple[float, Sequence[float]]]]
) -> Markup:
    """Draw throughput as bars from zero, control beside speculation, with a dot for each block.

    Args:
        name: Unique on the page.

        title: What it shows.

        label: Of the x axis.

        levels: Load -> arm -> overall throughput and that of each block, in tokens per second.
    """
    highest = max(max((avg, *blocks)) for arms in levels.values() for avg, blocks in arms.values())
    area = frame((0.0, float(len(levels))), (0.0, highest * 1.12))
    bars = [
        _bar(area, _places(position, arm, len(arms)), arm, *value)
        for position, arms in enumerate(levels.values())
        for arm, value in arms.items()
    ]
    marks = thinned(area, [(position + 0.5, level) for position, level in enumerate(levels)])
    described = "; ".join(
        f"{label} {level}: " + ", ".join(f"{arm} {plain(avg)}" for arm, (avg, _) in arms.items())
        for level, arms in levels.items()
    )
    return chart(name, title, described, y_axis(area, "output tokens/s"), x_axis(area, label, marks), *bars)


def columns(name: str, title: str, labels: tuple[str, str], values: Sequence[tuple[str, float, str]]) -> Markup:
    """Draw one column for each value, with its amount above it.

    Args:
        name: Unique on the page.

        title: What it shows.

        labels: Of the x and the y axis.

        values: Name below, height, and amount above each column.
    """
    highest = max(height for _, height, _ in values) or 1.0
    area = frame((0.0, float(len(values))), (0.0, highest * 1.15))
    drawn = [_column(area, position, height, text) for position, (_, height, text) in enumerate(values)]
    marks = every_nth(area, [(position + 0.5, mark) for position, (mark, _, _) in enumerate(values)])
    described = ", ".join(f"{mark}: {text}" for mark, _, text in values)
    return chart(name, title, described, y_axis(area, labels[1]), x_axis(area, labels[0], marks), *drawn)


def rows(name: str, title: str, values: Sequence[tuple[str, float, str]]) -> Markup:
    """Draw one bar for each share below its name, which may be long, with its amount at the end of the line.

    Args:
        name: Unique on the page.

        title: What it shows.

        values: Name, share and amount of each.
    """
    drawn = [_named_bar(_ROW * position, *value) for position, value in enumerate(values)]
    described = ", ".join(f"{mark} {text}" for mark, _, text in values)
    return chart(name, title, described, *drawn, size=(WIDTH, _ROW * len(values) + 6))


def counts(name: str, title: str, labels: tuple[str, str], values: Sequence[tuple[str, float, float]]) -> Markup:
    """Draw two bars from zero for each value, control beside speculation.

    Args:
        name: Unique on the page.

        title: What it shows.

        labels: Of the x and the y axis.

        values: Name below each pair, and the heights of control and speculation.
    """
    highest = max(max(pair) for _, *pair in values) or 1.0
    area = frame((0.0, float(len(values))), (0.0, highest * 1.1))
    bars = [
        _plain_bar(area, position + place, arm, height)
        for position, (_, *pair) in enumerate(values)
        for place, arm, height in zip((0.3, 0.7), ("control", "speculation"), pair, strict=True)
    ]
    marks = [(position + 0.5, mark) for position, (mark, _, _) in enumerate(values)]
    described = "; ".join(
        f"{mark}: control {plain(ours)}, speculation {plain(theirs)}" for mark, ours, theirs in values
    )
    return chart(name, title, described, y_axis(area, labels[1]), x_axis(area, labels[0], marks), *bars)


def _named_bar(top: float, name: str, share: float, text: str) -> Markup:
    shown = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
    size = {"x": 4, "y": top + 20, "height": 9, "rx": 2}
    return join(
        (
            tag("text", tag("title", name), shown, class_="tick", x=4, y=top + 14),
            tag("text", text, class_="value", x=WIDTH - 4, y=top + 14, text_anchor="end"),
            tag("rect", class_="track", width=WIDTH - 8, **size),
            tag("rect", class_="bar speculation", width=(WIDTH - 8) * share, **size),
        )
    )


def _plain_bar(area: Frame, place: float, arm: str, height: float) -> Markup:
    width = (area.x(1.0) - area.x(0.0)) * 0.34
    return tag(
        "rect",
        tag("title", f"{arm}: {plain(height)}"),
        class_=f"bar {arm}",
        x=area.x(place) - width / 2,
        width=width,
        y=area.y(height),
        height=area.y(0.0) - area.y(height),
        rx=2,
    )


def _ratio_group(area: Frame, position: int, group: Ratios) -> Markup:
    middle = area.x(position + 0.5)
    count = len(group.values)
    spread = min(9.0, (area.x(1.0) - area.x(0.0)) * 0.5 / count)
    dots = [
        tag(
            "circle",
            tag("title", f"pair {number}: {times(value)}"),
            class_="dot speculation",
            cx=middle + (number - (count - 1) / 2) * spread,
            cy=area.y(value),
            r=3.2,
        )
        for number, value in enumerate(group.values)
    ]
    return join((_interval(area, middle, group), *dots, _mean(area, middle, group)))


def _pitch(area: Frame) -> float:
    return area.x(1.0) - area.x(0.0)


def _half_band(area: Frame) -> float:
    return min(26.0, _pitch(area) * 0.42)


def _interval(area: Frame, middle: float, group: Ratios) -> Markup | None:
    if group.low is None or group.high is None:
        return None
    top, bottom = area.y(group.high), area.y(group.low)
    half = _half_band(area)
    return tag("rect", class_="interval", x=middle - half, width=2 * half, y=top, height=max(bottom - top, 1.0), rx=3)


def _mean(area: Frame, middle: float, group: Ratios) -> Markup:
    y, above = area.y(group.avg), min(area.y(value) for value in (*group.values, group.high or group.avg))
    half = _half_band(area)
    line = tag("line", class_="mean", x1=middle - half, x2=middle + half, y1=y, y2=y)
    return join((line, _amount(area, times(group.avg), middle, above - 7)))


def _places(position: int, arm: str, arms: int) -> tuple[float, float]:
    """Return where a bar stands, and how far from the next one of its load, in widths of a load."""
    if arms == 1:
        return position + 0.5, 1.0
    return position + (0.3 if arm == "control" else 0.7), 0.4


def _amount(area: Frame, text: str, middle: float, y: float, pitch: float | None = None) -> Markup | None:
    """Write an amount above what it belongs to; nothing where it would touch its neighbour's."""
    if text_width(text) + 2 > (_pitch(area) if pitch is None else pitch):
        return None
    return tag("text", text, class_="value", x=middle, y=y, text_anchor="middle")


def _bar(area: Frame, places: tuple[float, float], arm: str, avg: float, blocks: Sequence[float]) -> Markup:
    middle, width = area.x(places[0]), min(44.0, _pitch(area) * 0.34)
    pitch = places[1] * _pitch(area)
    dots = [tag("circle", class_="block", cx=middle, cy=area.y(value), r=2.2) for value in blocks]
    top = min(area.y(value) for value in (avg, *blocks))
    return join(
        (
            tag(
                "rect",
                tag("title", f"{arm}: {plain(avg)} tokens/s"),
                class_=f"bar {arm}",
                x=middle - width / 2,
                width=width,
                y=area.y(avg),
                height=area.y(0.0) - area.y(avg),
                rx=2,
            ),
            *dots,
            _amount(area, plain(avg), middle, top - 6, pitch),
        )
    )


def _column(area: Frame, position: int, height: float, text: str) -> Markup:
    middle, width = area.x(position + 0.5), (area.x(1.0) - area.x(0.0)) * 0.62
    return join(
        (
            tag(
                "rect",
                class_="bar speculation",
                x=middle - width / 2,
                width=width,
                y=area.y(height),
                height=area.y(0.0) - area.y(height),
                rx=2,
            ),
            _amount(area, text, middle, area.y(height) - 5),
        )
    )
