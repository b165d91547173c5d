"""The parts that every chart is made of: scales, ticks, axes, and the frame around them.

Knows coordinates and nothing of what is drawn. Colours are classes: the page's style sheet decides them for light and
dark.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from specdeploy.report.markup import Markup, join, tag
from specdeploy.report.numbers import plain, short

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 340.0
HEIGHT: Final = 220.0
_MOST_STEPS: Final = 400


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """A map from values to coordinates, linear or logarithmic.

    Args:
        low: Value at ``start``.

        high: Value at ``end``.

        start: Coordinate of ``low``.

        end: Coordinate of ``high``.

        log: Whether equal factors, not equal differences, are equally far apart; all values are then positive.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        share = (self._at(value) - self._at(self.low)) / (self._at(self.high) - self._at(self.low))
        return self.start + share * (self.end - self.start)

    def _at(self, value: float) -> float:
        return math.log(value) if self.log else value

    def ticks(self) -> tuple[float, ...]:
        """Return round numbers within the range."""
        return _log_ticks(self.low, self.high) if self.log else ticks(self.low, self.high)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """The plotting area inside a chart, with its two scales."""

    x: Scale
    y: Scale


def frame(x: tuple[float, float], y: tuple[float, float], *, log_x: bool = False) -> Frame:
    """Lay out the plotting area for values of these ranges, which must not be empty."""
    return Frame(
        x=Scale(low=x[0], high=x[1], start=58.0, end=WIDTH - 12.0, log=log_x),
        y=Scale(low=y[0], high=y[1], start=HEIGHT - 38.0, end=14.0),
    )


def padded(low: float, high: float, share: float = 0.05) -> tuple[float, float]:
    """Widen a range a little, so that its ends do not touch the frame and a single value has a range at all."""
    margin = (high - low) * share or abs(high) * share or 1.0
    return low - margin, high + margin


def frame_of(low: float, high: float, *, log: bool = False) -> tuple[float, float]:
    """Widen the range of amounts, which are never negative, so that its ends do not touch the frame."""
    if log:
        margin = (high / low) ** 0.04
        return low / margin, high * margin
    below, above = padded(low, high)
    return max(below, 0.0), above


def ticks(low: float, high: float, about: int = 4) -> tuple[float, ...]:
    """Return round numbers within a range: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return tuple(round(index * step, 12) for index in range(first, last + 1))


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return 1, 2 and 5 times powers of ten within a range; over many decades, powers of ten alone."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    every = (factor * 10.0**power for power in range(first, last + 1) for factor in factors)
    return tuple(value for value in every if low <= value <= high)


def text_width(text: str) -> float:
    """Return how wide a text of the charts may be: its digits, in bold, in the widest of the page's fonts."""
    return 7.7 * len(text)


def thinned(area: Frame, marks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Leave out marks of the x axis whose texts would touch; the last one stays."""
    kept: list[tuple[float, str]] = []
    free = math.inf
    for value, text in reversed(marks):
        half = text_width(text) / 2
        if area.x(value) + half < free:
            kept.append((value, text))
            free = area.x(value) - half - 4
    return kept[::-1]


def every_nth(area: Frame, marks: Sequence[tuple[float, str]]) -> Sequence[tuple[float, str]]:
    """Leave out marks at even distances, so that every second, third, ... one stays and no texts touch."""
    strided = (marks[::stride] for stride in range(1, len(marks) + 1))
    return next(some for some in strided if len(thinned(area, some)) == len(some))


def steps(area: Frame, values: Sequence[float]) -> str:
    """Return the path of a cumulative share that rises from 0 to 1 over these values, in order and at least one.

    Many values are drawn by as many of them as the picture can show, the fastest and the slowest among them.
    """
    count, path = len(values), [f"M{area.x(values[0]):.1f} {area.y(0.0):.1f}"]
    shown = min(count, _MOST_STEPS)
    for number in range(1, shown + 1):
        position = number * count // shown
        path.append(f"H{area.x(values[position - 1]):.1f}V{area.y(position / count):.1f}")
    return "".join((*path, f"H{area.x.end:.1f}"))


def y_axis(area: Frame, label: str, marks: Sequence[tuple[float, str]] | None = None) -> Markup:
    """Draw horizontal grid lines with their values, and the axis label above them."""
    shown = marks if marks is not None else [(tick, short(tick)) for tick in area.y.ticks()]
    lines = [
        join(
            (
                tag("line", class_="grid", x1=area.x.start, x2=area.x.end, y1=area.y(value), y2=area.y(value)),
                tag("text", text, class_="tick", x=area.x.start - 6, y=area.y(value) + 3.5, text_anchor="end"),
            )
        )
        for value, text in shown
    ]
    middle = (area.y.start + area.y.end) / 2
    return join((*lines, tag("text", label, class_="axis", transform=f"translate(11 {middle:.1f}) rotate(-90)")))


def x_axis(area: Frame, label: str, marks: Sequence[tuple[float, str]] | None = None) -> Markup:
    """Draw the base line, its values and the axis label below them."""
    shown = marks if marks is not None else thinned(area, [(tick, plain(tick)) for tick in area.x.ticks()])
    base = area.y.start
    texts = [
        tag("text", text, class_="tick", x=area.x(value), y=base + 15, text_anchor="middle") for value, text in shown
    ]
    middle = (area.x.start + area.x.end) / 2
    return join(
        (
            tag("line", class_="base", x1=area.x.start, x2=area.x.end, y1=base, y2=base),
            *texts,
            tag("text", label, class_="axis", x=middle, y=base + 31, text_anchor="middle"),
        )
    )


def chart(
    name: str, title: str, description: str, *content: Markup, size: tuple[float, float] = (WIDTH, HEIGHT)
) -> Markup:
    """Wrap drawn content into an image that a screen reader can announce.

    Args:
        name: Unique on the page; becomes the ids.

        title: What it shows.

        description: What can be seen in it, with the numbers.

        content: What was drawn.

        size: Width and height of the coordinate system.
    """
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", description, id=f"{name}-desc"),
        *content,
        role="img",
        viewBox=f"0 0 {size[0]:g} {size[1]:g}",
        aria_labelledby=f"{name}-title {name}-desc",
    )
