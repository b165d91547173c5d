"""The charts of the report: distributions, paired ratios, throughput, acceptance. Values in, one SVG each out.

Knows how each is drawn; where the values come from is the caller's business. Control and speculation differ by line
style and place as well as by colour.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from specdeploy.report.markup import Markup, join, tag
from specdeploy.report.numbers import TIMES, plain, times
from specdeploy.report.svg import Frame, chart, frame, padded, x_axis, y_axis

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ratios:
    """Paired ratios at one concurrency, with their mean and interval (None with a single pair)."""

    concurrency: int
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
    area = frame(padded(min(every), max(every)), (0.0, 1.0))
    lines = [_steps(area, arm, values) for arm, values in drawn.items()]
    marks = [(share, f"{share:.0%}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    described = "; ".join(
        f"{arm}: median {plain(values[len(values) // 2])}, slowest {plain(values[-1])}" for arm, values in drawn.items()
    )
    return chart(name, title, described, y_axis(area, "share of requests", marks), x_axis(area, label), *lines)


def paired(name: str, groups: Sequence[Ratios]) -> Markup:
    """Draw every paired ratio as a dot, its interval as a band with the mean, and a line where nothing changed."""
    every = [1.0, *(v for group in groups for v in (*group.values, group.low, group.high) if v is not None)]
    area = frame((0.0, float(len(groups))), padded(min(every), max(every), 0.16))
    even = tag("line", class_="even", x1=area.x.start, x2=area.x.end, y1=area.y(1.0), y2=area.y(1.0))
    marks = [(position + 0.5, str(group.concurrency)) for position, group in enumerate(groups)]
    described = "; ".join(f"concurrency {g.concurrency}: {g.avg:.2f} from {len(g.values)} pairs" for g in groups)
    dots = [_ratio_group(area, position, group) for position, group in enumerate(groups)]
    axes = (y_axis(area, f"speed-up ({TIMES})"), x_axis(area, "concurrency", marks))
    return chart(name, "Speed-up of each pair", described, *axes, even, *dots)


def throughput(name: str, levels: Mapping[int, Mapping[str, tuple[float, Sequence[float]]]]) -> Markup:
    """Draw throughput as bars from zero, control beside speculation, with a dot for each block.

    Args:
        name: Unique on the page.

        levels: Concurrency -> arm -> overall throughput and that of each block, in tokens per second.
    """
    highest = max(max((avg, *blocks)) for arms in levels.values() for avg, blocks in arms.values())
    area = frame((0.0, float(len(levels))), (0.0, highest * 1.12))
    bars = [
        _bar(area, position + (0.3 if arm == "control" else 0.7), arm, *value)
        for position, arms in enumerate(levels.values())
        for arm, value in arms.items()
    ]
    marks = [(position + 0.5, str(level)) for position, level in enumerate(levels)]
    described = "; ".join(
        f"concurrency {level}: " + ", ".join(f"{arm} {plain(avg)}" for arm, (avg, _) in arms.items())
        for level, arms in levels.items()
    )
    axes = (y_axis(area, "output tokens/s"), x_axis(area, "concurrency", marks))
    return chart(name, "Throughput by concurrency", described, *axes, *bars)


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
    marks = [(position + 0.5, mark) for position, (mark, _, _) in enumerate(values)]
    described = ", ".join(f"{mark}: {text}" for mark, _, text in values)
    return chart(name, title, described, y_axis(area, labels[1]), x_axis(area, labels[0], marks), *drawn)


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


def _steps(area: Frame, arm: str, values: Sequence[float]) -> Markup:
    share, path = 0.0, [f"M{area.x(values[0]):.1f} {area.y(0.0):.1f}"]
    for position, value in enumerate(values, start=1):
        path.append(f"H{area.x(value):.1f}V{area.y(position / len(values)):.1f}")
        share = position / len(values)
    path.append(f"H{area.x.end:.1f}" if share else "")
    return tag("path", tag("title", arm), class_=f"line {arm}", d="".join(path))


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


def _interval(area: Frame, middle: float, group: Ratios) -> Markup | None:
    if group.low is None or group.high is None:
        return None
    top, bottom = area.y(group.high), area.y(group.low)
    return tag("rect", class_="interval", x=middle - 26, width=52.0, y=top, height=max(bottom - top, 1.0), rx=3)


def _mean(area: Frame, middle: float, group: Ratios) -> Markup:
    y, above = area.y(group.avg), min(area.y(value) for value in (*group.values, group.high or group.avg))
    return join(
        (
            tag("line", class_="mean", x1=middle - 26, x2=middle + 26, y1=y, y2=y),
            tag("text", times(group.avg), class_="value", x=middle, y=above - 7, text_anchor="middle"),
        )
    )


def _bar(area: Frame, place: float, arm: str, avg: float, blocks: Sequence[float]) -> Markup:
    middle, width = area.x(place), min(44.0, (area.x(1.0) - area.x(0.0)) * 0.34)
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
            tag("text", plain(avg), class_="value", x=middle, y=top - 6, text_anchor="middle"),
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
            tag("text", text, class_="value", x=middle, y=area.y(height) - 5, text_anchor="middle"),
        )
    )
