"""The parts that every chart is made of: scales, ticks, axes, and the frame around them.

Knows coordinates and nothing of what is drawn. Colours are classes: the page's style sheet decides them for light and
dark.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from specdeploy.report.markup import Markup, join, tag
from specdeploy.report.numbers import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 340.0
HEIGHT: Final = 220.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """A linear map from values to coordinates.

    Args:
        low: Value at ``start``.

        high: Value at ``end``.

        start: Coordinate of ``low``.

        end: Coordinate of ``high``.
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """The plotting area inside a chart, with its two scales."""

    x: Scale
    y: Scale


def frame(x: tuple[float, float], y: tuple[float, float]) -> Frame:
    """Lay out the plotting area for values of these ranges, which must not be empty."""
    return Frame(
        x=Scale(low=x[0], high=x[1], start=50.0, end=WIDTH - 12.0),
        y=Scale(low=y[0], high=y[1], start=HEIGHT - 38.0, end=14.0),
    )


def padded(low: float, high: float, share: float = 0.05) -> tuple[float, float]:
    """Widen a range a little, so that its ends do not touch the frame and a single value has a range at all."""
    margin = (high - low) * share or abs(high) * share or 1.0
    return low - margin, high + margin


def ticks(low: float, high: float, about: int = 4) -> tuple[float, ...]:
    """Return round numbers within a range: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return tuple(round(index * step, 12) for index in range(first, last + 1))


def y_axis(area: Frame, label: str, marks: Sequence[tuple[float, str]] | None = None) -> Markup:
    """Draw horizontal grid lines with their values, and the axis label above them."""
    shown = marks if marks is not None else [(tick, plain(tick)) for tick in ticks(area.y.low, area.y.high)]
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
    return join((*lines, tag("text", label, class_="axis", transform=f"translate(9 {middle:.1f}) rotate(-90)")))


def x_axis(area: Frame, label: str, marks: Sequence[tuple[float, str]] | None = None) -> Markup:
    """Draw the base line, its values and the axis label below them."""
    shown = marks if marks is not None else [(tick, plain(tick)) for tick in ticks(area.x.low, area.x.high)]
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
