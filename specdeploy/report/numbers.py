"""How numbers are written for people: significant digits, units, and words for what was not measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

TIMES: Final = "\N{MULTIPLICATION SIGN}"
DASH: Final = "\N{EN DASH}"
NOT_MEASURED: Final = "not measured"
#: What a double has, and none more.
_MOST_DIGITS: Final = 17
#: Stored unit -> how it is written; what is not here is written as it is stored.
_SHOWN: Final = {
    "tokens/sec": "tokens/s",
    "tokens/sec/user": "tokens/s",
    "requests/sec": "requests/s",
    "sec": "s",
    "ratio": "%",
    "x": TIMES,
}


def shown_unit(unit: str) -> str:
    """Return a unit as it is written for people."""
    return _SHOWN.get(unit, unit)


def plain(value: float) -> str:
    """Write a number with about three significant digits, without an exponent for everyday sizes."""
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-4:
        return f"{value:.2e}"
    if float(value).is_integer() and size < 1e7:
        return f"{value:,.0f}"
    for limit, decimals in ((100, 0), (10, 1), (1, 2)):
        if size >= limit:
            return f"{value:,.{decimals}f}"
    return f"{value:.3g}"


def short(value: float) -> str:
    """Write a number for the narrow margin of a chart: thousands and millions by a letter."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if 10 * size <= abs(value) < 1e7 * size:
            return f"{plain(value / size)}{letter}"
    return plain(value)


def amount(value: float | None, unit: str) -> str:
    """Write a value with its unit; ratios as percentages, None as not measured."""
    if value is None:
        return NOT_MEASURED
    if unit == "x":
        return times(value)
    if unit == "B":
        return size(value)
    return f"{number(value, unit)} {shown_unit(unit)}"


def told_apart(value: float, other: float, unit: str, write: Callable[[float, str], str] = amount) -> tuple[str, str]:
    """Write two values with their unit, and with as many digits as tell them apart where they are not equal.

    Args:
        value: One of them.

        other: The other one.

        unit: Of both.

        write: How they are written where that is enough.
    """
    both = write(value, unit), write(other, unit)
    digits = 5
    while both[0] == both[1] and value != other and digits <= _MOST_DIGITS:
        both = _with_digits(value, unit, digits), _with_digits(other, unit, digits)
        digits += 1
    return both


def _with_digits(value: float, unit: str, digits: int) -> str:
    if unit == "B":
        return size(value, digits)
    scaled = value * 100 if unit == "ratio" else value
    return f"{scaled:.{digits}g}{'' if unit == 'x' else ' '}{shown_unit(unit)}"


def size(value: float, digits: int = 4) -> str:
    """Write bytes in the largest binary unit of which there is one at least: ``186.2 MiB``."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 2.0**power:
            return f"{value / 2.0**power:.{digits}g} {unit}"
    return f"{value:.{digits}g} B"


def times(ratio: float) -> str:
    """Write a speed-up."""
    return f"{ratio:.2f}{TIMES}"


def number(value: float | None, unit: str) -> str:
    """Write a value without its unit, on the scale that `shown_unit` names; None as a dash."""
    if value is None:
        return DASH
    return plain(value * 100) if unit == "ratio" else plain(value)


def interval(low: float | None, high: float | None, pairs: int) -> str:
    """Write the confidence interval of a ratio of the arms, or why there is none."""
    counted = f"{pairs} pair" if pairs == 1 else f"{pairs} pairs"
    if low is None or high is None:
        return f"no interval from {counted}"
    return f"95 % interval {times(low)} to {times(high)}, {counted}"
