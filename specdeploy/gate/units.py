"""Units of measured values: what they measure, and how one becomes another."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Unit -> what it measures, and how many of the dimension's base unit it is.
UNITS: Final[dict[str, tuple[str, float]]] = {
    "us": ("time", 1e-6),
    "ms": ("time", 1e-3),
    "s": ("time", 1.0),
    "sec": ("time", 1.0),
    "min": ("time", 60.0),
    "ratio": ("ratio", 1.0),
    "%": ("ratio", 0.01),
    "tokens": ("tokens", 1.0),
    "requests": ("requests", 1.0),
    "steps": ("steps", 1.0),
    "answers": ("answers", 1.0),
    "tokens/s": ("tokens/time", 1.0),
    "tokens/sec": ("tokens/time", 1.0),
    "tokens/s/user": ("tokens/time/user", 1.0),
    "tokens/sec/user": ("tokens/time/user", 1.0),
    "requests/s": ("requests/time", 1.0),
    "requests/sec": ("requests/time", 1.0),
    "x": ("speed-up", 1.0),
    "B": ("bytes", 1.0),
    "kB": ("bytes", 1e3),
    "MB": ("bytes", 1e6),
    "GB": ("bytes", 1e9),
    "TB": ("bytes", 1e12),
    "KiB": ("bytes", 2.0**10),
    "MiB": ("bytes", 2.0**20),
    "GiB": ("bytes", 2.0**30),
    "TiB": ("bytes", 2.0**40),
}


def convert(value: float, unit: str, to_unit: str, *, where: str) -> float:
    """Convert a value between units of one dimension.

    Raises:
        ConfigError: A unit is unknown, or the two measure different things.
    """
    if unit == to_unit:
        return value
    if unit not in UNITS:
        raise ConfigError(f"{where}: unknown unit {unit!r}", hint=nearest(unit, _units_like(to_unit)))
    (dimension, factor), (to_dimension, to_factor) = UNITS[unit], UNITS[to_unit]
    if dimension != to_dimension:
        fitting = ", ".join(_units_like(to_unit))
        raise ConfigError(f"{where}: {unit!r} is not a unit of what is measured in {to_unit}", hint=f"Use {fitting}.")
    converted = value * factor / to_factor
    if not math.isfinite(converted):
        raise ConfigError(f"{where}: {value:g} {unit} is more than anything is", hint="Write an ordinary number.")
    return converted


def _units_like(unit: str) -> tuple[str, ...]:
    return tuple(name for name, (dimension, _) in UNITS.items() if dimension == UNITS[unit][0])


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint: the nearest of the known words, or all of them."""
    names = tuple(known)
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Known are {', '.join(names)}." if names else "It takes none."
