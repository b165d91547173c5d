"""Reads the numbers that the gate judges out of ``load.json``, and refuses a document that cannot be trusted.

Knows the shape of the document; knows no rules. Every number is checked as it is read: a gate that takes NaN, or the
average of another schema, for a measurement passes what it should stop.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

from specdeploy.bench.metrics import METRICS
from specdeploy.bench.records import LoadPoint
from specdeploy.errors import ConfigError
from specdeploy.gate.rules import convert

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.bench.records import Arm

T = TypeVar("T")

_MAJOR: Final = "1"
_HINT: Final = "Measure again with `specdeploy load` of this version."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """A speed-up as the document has it; the bounds are None with fewer than two pairs."""

    avg: float
    ci_low: float | None
    ci_high: float | None
    pairs: int


class LoadDocument:
    """A load test's document, checked when it is opened.

    Raises:
        ConfigError: It is not the document of a load test, or one of another schema.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        version = data.get("schema_version")
        if data.get("kind") != "load":
            raise ConfigError(f"not a load report: kind is {data.get('kind')!r}", hint="Give the gate a load.json.")
        if not isinstance(version, str) or version.partition(".")[0] != _MAJOR:
            raise ConfigError(f"load report of schema {version!r}; this gate reads {_MAJOR}.x", hint=_HINT)
        self._arms = _typed(data, "arms", list)
        self._speedup = _typed(data, "speedup", dict)
        self._planned = _planned(_typed(data, "plan", dict))
        self.partial = _typed(data, "partial", bool)
        self.degraded = _typed(data, "degraded", bool)
        self.stop_reason = str(data.get("stop_reason", ""))

    @property
    def points(self) -> tuple[LoadPoint, ...]:
        """Every load that was planned or measured, closed loops first, lowest first."""
        measured = [_measured(_mapping(arm, "arms")) for arm in self._arms]
        # By key, as loads are named: a rate may have been rounded on its way here.
        points = {point.key: point for point in (*self._planned, *measured)}
        return tuple(sorted(points.values(), key=lambda point: point.order))

    def metric(self, key: str, stat: str, *, arm: Arm, point: LoadPoint) -> float | None:
        """Return a number in the metric's own unit; None when it was not measured.

        Raises:
            ConfigError: What stands there is not a number that the metric can have.
        """
        for entry in self._arms:
            data = _mapping(entry, "arms")
            if (data.get("arm"), _measured(data).key) == (arm, point.key):
                return _stat(_typed(data, "metrics", dict), key, stat, where=f"{key} of {arm} at {point.key}")
        return None

    def speedup(self, point: LoadPoint) -> Interval | None:
        """Return the speed-up under a load; None when it was not measured, as it never is in an open loop.

        Raises:
            ConfigError: What stands there is not an interval.
        """
        value = self._speedup.get(point.key)
        if value is None:
            return None
        data, where = _mapping(value, "speedup"), f"speedup at {point.key}"
        low, high = (None if data.get(key) is None else _number(data[key], where) for key in ("ci_low", "ci_high"))
        interval = Interval(
            avg=_number(data.get("avg"), where), ci_low=low, ci_high=high, pairs=_typed(data, "pairs", int)
        )
        _check_order(interval, where)
        return interval


def _planned(plan: Mapping[str, Any]) -> tuple[LoadPoint, ...]:
    """Return the loads of a plan; what a trace or stages come to is known once they were measured."""
    closed = [LoadPoint(concurrency=_whole(number)) for number in _typed(plan, "concurrency", list)]
    if plan.get("shape", "closed") in ("closed", "trace") or plan.get("stages"):
        return tuple(closed)
    return (*closed, *(LoadPoint(rate=_rate(number, "plan.rates")) for number in _typed(plan, "rates", list)))


def _whole(number: object) -> int:
    if type(number) is not int:
        raise ConfigError(f"load report: plan.concurrency holds {number!r}", hint=_HINT)
    return number


def _rate(value: object, where: str) -> float:
    rate = _number(value, where)
    if not rate:
        raise ConfigError(f"load report: {where} is 0 requests per second", hint=_HINT)
    return rate


def _measured(arm: Mapping[str, Any]) -> LoadPoint:
    """Return the load of an arm's entry, which is a concurrency or a rate; older documents know no rates."""
    if arm.get("rate") is None:
        return LoadPoint(concurrency=_typed(arm, "concurrency", int))
    if arm.get("concurrency") is not None:
        both = f"{arm['concurrency']!r} in flight and {arm['rate']!r} a second"
        raise ConfigError(f"load report: an entry of 'arms' has two loads, {both}", hint=_HINT)
    return LoadPoint(rate=_rate(arm["rate"], "rate"))


def _check_order(interval: Interval, where: str) -> None:
    low, high = interval.ci_low, interval.ci_high
    if (low is None) != (high is None) or (low is not None and high is not None and not low <= high):
        raise ConfigError(f"load report: {where} lies between {low} and {high}", hint=_HINT)


def _stat(metrics: Mapping[str, Any], key: str, stat: str, *, where: str) -> float | None:
    if metrics.get(key) is None:
        return None
    data = _mapping(metrics[key], where)
    if data.get(stat) is None:
        return None
    value = _number(data[stat], where)
    if stat == "count":
        return value
    metric = METRICS[key]
    converted = convert(value, _typed(data, "unit", str), metric.unit, where=f"load report: {where}")
    largest = metric.largest(stat)
    if largest is not None and converted > largest:
        raise ConfigError(f"load report: {where} is {value}, more than {largest:g}", hint=_HINT)
    return converted


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
        raise ConfigError(f"load report: {where} is {value!r}, not a number that was measured", hint=_HINT)
    return float(value)


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"load report: {where} holds {value!r}, not an object", hint=_HINT)
    return value


def _typed(data: Mapping[str, Any], key: str, wanted: type[T]) -> T:
    value = data.get(key)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise ConfigError(f"load report: {key!r} is {value!r}, not {wanted.__name__}", hint=_HINT)
    return value
