"""Rules of the gate: the compact strings of the configuration, read into values.

``metric[.stat][@load][#arm] comparison number[unit]``, for example ``time_to_first_token.p99 <= 200ms``,
``error_rate <= 1%``, ``speedup@1 >= 1.5``, ``request_latency.p99@5/s <= 2s`` or ``output_token_throughput#control >= 20
tokens/s``. A load is a concurrency (``4``) or, in an open loop, a rate (``5/s``). Knows metrics and units; knows no
measurements.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from specdeploy.bench.metrics import DISTRIBUTION_STATS, METRICS, Metric
from specdeploy.bench.records import ARMS, SPECULATION, LoadPoint
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdeploy.bench.records import Arm

Comparison: TypeAlias = Literal["<=", ">=", "<", ">"]

_SHAPE: Final = "metric[.statistic][@load][#arm] comparison number[unit]"
_RULE: Final = re.compile(
    r"""\s*(?P<metric>\w+)
        (?:\.(?P<stat>\w+))?
        (?:@(?P<load>[\w.+/-]+))?
        (?:\#(?P<arm>\w+))?
        \s*(?P<comparison><=|>=|<|>)\s*
        (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
        \s*(?P<unit>\S*)\s*""",
    re.VERBOSE,
)

_RATE: Final = re.compile(r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)/s", re.ASCII)

#: Unit -> what it measures, and how many of the dimension's base unit it is.
_UNITS: Final[dict[str, tuple[str, float]]] = {
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
    "tokens/s": ("tokens/time", 1.0),
    "tokens/sec": ("tokens/time", 1.0),
    "tokens/s/user": ("tokens/time/user", 1.0),
    "tokens/sec/user": ("tokens/time/user", 1.0),
    "requests/s": ("requests/time", 1.0),
    "requests/sec": ("requests/time", 1.0),
    "x": ("speed-up", 1.0),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    Args:
        text: As written.

        metric: Key in ``specdeploy.bench.metrics.METRICS``.

        stat: Statistic of it, ``avg`` if none was named.

        point: Where it has to hold; None means under every load of the run.

        arm: Whose metric; None for the speed-up, which belongs to both arms.

        comparison: How the value has to compare with the limit.

        limit: In ``unit``.

        unit: The metric's own; ``requests`` for the statistic ``count``.
    """

    text: str
    metric: str
    stat: str
    point: LoadPoint | None
    arm: Arm | None
    comparison: Comparison
    limit: float
    unit: str

    def holds(self, value: float) -> bool:
        """Compare a value, in the rule's unit, with the limit."""
        return {
            "<=": value <= self.limit,
            ">=": value >= self.limit,
            "<": value < self.limit,
            ">": value > self.limit,
        }[self.comparison]

    @property
    def wants_more(self) -> bool:
        """Whether larger values pass."""
        return self.comparison.startswith(">")


def parse_rule(text: str) -> Rule:
    """Read one rule.

    Raises: ConfigError: It is malformed, names something unknown (with the nearest name), or could not be broken or
        kept by any measurement.
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise ConfigError(f"gate rule {text!r} is malformed", hint=f"Write {_SHAPE}, e.g. 'speedup@1 >= 1.5'.")
    metric = _metric(match["metric"], text)
    stat = _stat(match["stat"], metric, text)
    unit = metric.unit_of(stat)
    limit = convert(float(match["number"]), match["unit"] or unit, unit, where=f"gate rule {text!r}")
    _check_limit(limit, metric, stat, text)
    _check_decides(match["comparison"], limit, metric.largest(stat), text)
    return Rule(
        text=text.strip(),
        metric=metric.key,
        stat=stat,
        point=_point(match["load"], text),
        arm=_arm(match["arm"], metric, text),
        comparison=match["comparison"],  # type: ignore[arg-type]  # the pattern lets nothing else through
        limit=limit,
        unit=unit,
    )


def parse_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Read all rules of a gate.

    Raises:
        ConfigError: A rule is wrong, or there is none: an empty gate would pass everything.
    """
    rules = tuple(parse_rule(text) for text in texts)
    if not rules:
        raise ConfigError("the gate has no rules", hint="List at least one under gate.rules, e.g. 'error_rate <= 0'.")
    return rules


def convert(value: float, unit: str, to_unit: str, *, where: str) -> float:
    """Convert a value between units of one dimension.

    Raises:
        ConfigError: A unit is unknown, or the two measure different things.
    """
    if unit == to_unit:
        return value
    if unit not in _UNITS:
        raise ConfigError(f"{where}: unknown unit {unit!r}", hint=_nearest(unit, _units_like(to_unit)))
    (dimension, factor), (to_dimension, to_factor) = _UNITS[unit], _UNITS[to_unit]
    if dimension != to_dimension:
        fitting = ", ".join(_units_like(to_unit))
        raise ConfigError(f"{where}: {unit!r} is not a unit of what is measured in {to_unit}", hint=f"Use {fitting}.")
    return value * factor / to_factor


def _units_like(unit: str) -> tuple[str, ...]:
    return tuple(name for name, (dimension, _) in _UNITS.items() if dimension == _UNITS[unit][0])


def _metric(key: str, text: str) -> Metric:
    if key not in METRICS:
        raise ConfigError(f"gate rule {text!r}: unknown metric {key!r}", hint=_nearest(key, METRICS))
    metric = METRICS[key]
    if metric.kind == "list":
        raise ConfigError(
            f"gate rule {text!r}: {key} is a list by position, not one number",
            hint="Use overall_spec_decode_draft_acceptance_rate or spec_decode_acceptance_length.",
        )
    return metric


def _stat(stat: str | None, metric: Metric, text: str) -> str:
    if stat is None:
        return "avg"
    if stat not in metric.stats:
        if stat in DISTRIBUTION_STATS:
            raise ConfigError(
                f"gate rule {text!r}: {metric.key} is one number for the whole run and has no {stat!r}",
                hint=f"Write {metric.key} alone.",
            )
        raise ConfigError(f"gate rule {text!r}: unknown statistic {stat!r}", hint=_nearest(stat, metric.stats))
    return stat


def _point(load: str | None, text: str) -> LoadPoint | None:
    if load is None:
        return None
    if "/" in load:
        return LoadPoint(rate=_rate(load, text))
    if not load.isdecimal() or int(load) < 1:
        hint = "Write a number, at least 1, after @; a rate ends in /s, as in @5/s."
        raise ConfigError(f"gate rule {text!r}: concurrency {load!r}", hint=hint)
    return LoadPoint(concurrency=int(load))


def _rate(load: str, text: str) -> float:
    match = _RATE.fullmatch(load)
    rate = float(match["number"]) if match else 0.0
    if not 0 < rate < math.inf:
        raise ConfigError(f"gate rule {text!r}: rate {load!r}", hint="Write requests per second, above 0, as in @5/s.")
    return rate


def _arm(arm: str | None, metric: Metric, text: str) -> Arm | None:
    if metric.kind == "interval":
        if arm is not None:
            raise ConfigError(
                f"gate rule {text!r}: the {metric.key} compares both arms and belongs to neither",
                hint=f"Leave out #{arm}.",
            )
        return None
    if arm is None:
        return SPECULATION
    for known in ARMS:
        if arm == known:
            return known
    raise ConfigError(f"gate rule {text!r}: unknown arm {arm!r}", hint=_nearest(arm, ARMS))


def _check_limit(limit: float, metric: Metric, stat: str, text: str) -> None:
    """Refuse limits that no measurement could reach, so that the rule would say the same of every run."""
    if not math.isfinite(limit):
        raise ConfigError(f"gate rule {text!r}: the limit is not a finite number", hint="Write an ordinary number.")
    if limit < 0:
        raise ConfigError(f"gate rule {text!r}: {metric.key} is never negative", hint="Write a limit of 0 or more.")
    largest = metric.largest(stat)
    if largest is not None and limit > largest:
        raise ConfigError(
            f"gate rule {text!r}: {metric.key} is never more than {largest:g}",
            hint=f"Write a share from 0 to {largest:g}, or a percentage such as {limit:g}%.",
        )


def _check_decides(comparison: str, limit: float, largest: float | None, text: str) -> None:
    """Refuse rules at the edge of what a metric can be, which every run keeps or every run breaks."""
    always = (comparison == ">=" and limit == 0) or (comparison == "<=" and limit == largest)
    never = (comparison == "<" and limit == 0) or (comparison == ">" and limit == largest)
    if always or never:
        verb = "keeps" if always else "breaks"
        raise ConfigError(f"gate rule {text!r}: every run {verb} it", hint="Write a limit that decides something.")


def _nearest(word: str, known: Iterable[str]) -> str:
    names = tuple(known)
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Known are {', '.join(names)}." if names else "It takes none."
