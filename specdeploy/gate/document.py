"""Reads the numbers that the gate judges out of ``load.json``, and refuses a document that cannot be trusted.

Knows the shape of the document; knows no rules. Every number is checked as it is read: a gate that takes NaN, or the
average of another schema, for a measurement passes what it should stop.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

from specdeploy.bench.metrics import METRICS
from specdeploy.bench.paired import CONFIDENCE, paired_ratio
from specdeploy.bench.records import ARMS, LoadPoint
from specdeploy.errors import ConfigError
from specdeploy.gate.defaults import LEAST_PAIRS, Measured
from specdeploy.gate.resources import ENGINE_FIELDS, GAUGES, MEMORY
from specdeploy.gate.units import convert

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.bench.records import Arm
    from specdeploy.gate.defaults import Told

T = TypeVar("T")

_MAJOR: Final = "1"
#: More than anything is ever counted to.
_MOST: Final = 10**15
#: By which share an interval may be off from that of its own ratios; versions reckon alike, but for rounding.
_ROUNDED: Final = 0.01
_HINT: Final = "Measure again with `specdeploy load` of this version."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs:
    """How many greedy answers of both arms were compared, and how many of them were identical."""

    compared: int
    identical: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """A speed-up as the document has it; the bounds are None with fewer than two pairs."""

    avg: float
    ci_low: float | None
    ci_high: float | None
    pairs: int
    confidence: float = CONFIDENCE


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
        _check_distinct(self._arms, "arms")
        if self._speedup and not self._arms:
            raise ConfigError("load report: it has a speed-up, and no arm that was measured", hint=_HINT)
        self._planned = _planned(_typed(data, "plan", dict))
        self.partial = _typed(data, "partial", bool)
        self.degraded = _typed(data, "degraded", bool)
        self.stop_reason = str(data.get("stop_reason", ""))
        self.created = str(data.get("created", ""))
        #: The document itself, for those who look at what was measured rather than at numbers.
        self.data = data

    @property
    def looks(self) -> int:
        """How often the run was looked at: once, and once after each part that was added to it.

        Raises:
            ConfigError: What stands there are no parts.
        """
        return 1 + len(_typed({"repeats": [], **self.data}, "repeats", list))

    @property
    def profile(self) -> str:
        """Of the deployment; ``openai`` is another server."""
        return str(self._deployment.get("profile", ""))

    @property
    def _deployment(self) -> Mapping[str, Any]:
        return _mapping(self.data.get("deployment") or {}, "deployment")

    def measured(self, told: Told) -> Measured:
        """Return what the run was to measure.

        Args:
            told: What the answers tell of drafts.

        Raises:
            ConfigError: The plan cannot be read.
        """
        plan = _typed(self.data, "plan", dict)
        # A search tries loads for each arm apart. Plans of older versions compared always.
        compared = "compare" not in plan or _typed(plan, "compare", bool)
        return Measured(
            told=told,
            compared=compared and not self.data.get("search"),
            # The control of an OpenAI-compatible server is the same target without speculation.
            against_another=self.profile != "openai" and bool(self._deployment.get("control")),
            pairs=_typed(plan, "pairs", int) if "pairs" in plan else LEAST_PAIRS,
            concurrency=tuple(point.concurrency for point in self._planned if point.concurrency is not None),
        )

    @property
    def points(self) -> tuple[LoadPoint, ...]:
        """Every load that was planned or measured, closed loops first, lowest first."""
        measured = [_measured(_mapping(arm, "arms")) for arm in self._arms]
        # By key, as loads are named: a rate may have been rounded on its way here.
        points = {point.key: point for point in (*self._planned, *measured)}
        return tuple(sorted(points.values(), key=lambda point: point.order))

    @property
    def entries(self) -> tuple[tuple[Arm, LoadPoint], ...]:
        """Who was measured under which load."""
        return tuple((arm, point) for arm in ARMS for point in self.points if self._entry(arm, point) is not None)

    def categories(self, *, arm: Arm, point: LoadPoint) -> tuple[str, ...]:
        """Return the categories of prompts that an arm tells apart under a load."""
        entry = self._entry(arm, point)
        return () if entry is None else tuple(_mapping(entry.get("categories") or {}, "categories"))

    def metric(self, key: str, stat: str, *, arm: Arm, point: LoadPoint, category: str | None = None) -> float | None:
        """Return a number in the metric's own unit; None when it was not measured.

        Raises:
            ConfigError: What stands there is not a number that the metric can have.
        """
        if key in MEMORY:
            return self._memory(key, stat, arm, point)
        metrics = self._metrics(arm, point, category)
        return _stat(metrics, key, stat, where=f"{key} of {arm} at {point}")

    def errors(self, *, arm: Arm, point: LoadPoint) -> dict[str, int]:
        """Return how many requests of an arm failed under a load, by label; empty where none did.

        Raises:
            ConfigError: What stands there are no counts.
        """
        found = _mapping((self._entry(arm, point) or {}).get("errors") or {}, "errors")
        for label, count in found.items():
            if type(count) is not int or not 0 <= count <= _MOST:
                raise ConfigError(f"load report: {arm} at {point} has {count!r} errors of {label}", hint=_HINT)
        return found

    def percentile_bounds(
        self, key: str, stat: str, *, arm: Arm, point: LoadPoint, category: str | None = None
    ) -> tuple[float | None, float | None]:
        """Return the bounds of a percentile's interval in the metric's own unit; None for one that there is not.

        Raises:
            ConfigError: What stands there is no interval.
        """
        where = f"percentile_cis of {key} of {arm} at {point}"
        data = _mapping(self._metrics(arm, point, category).get(key) or {}, where)
        bounds = _mapping(data.get("percentile_cis") or {}, where).get(stat)
        if bounds is None:
            return None, None
        if not isinstance(bounds, list) or len(bounds) != 2:
            raise ConfigError(f"load report: {where} is {bounds!r}, not two bounds", hint=_HINT)
        unit = _typed(data, "unit", str)
        low, high = (
            None if bound is None else convert(_number(bound, where), unit, METRICS[key].unit, where=where)
            for bound in bounds
        )
        if low is not None and high is not None and low > high:
            raise ConfigError(f"load report: {where} lies between {low} and {high}", hint=_HINT)
        return low, high

    def paired_ratios(self, metric: str, point: LoadPoint) -> tuple[float, ...]:
        """Return speculation over control of each pair that counts; empty where they were not compared by this metric.

        Args:
            metric: One of `rules.PAIRED`, by block.

            point: The load.

        Raises:
            ConfigError: What stands there are no ratios.
        """
        where = f"the ratios of {metric} at {point}"
        nested = self._ratio(metric, point)
        if nested.get("ratios") is None:
            return ()
        ratios = tuple(_number(ratio, where) for ratio in _typed(nested, "ratios", list))
        if not all(ratios):
            raise ConfigError(f"load report: {where} hold 0", hint=_HINT)
        stored = _interval(nested, where)
        if ratios and not _agree(stored, ratios, self.control_first(metric, point)):
            words = f"{where} are not those that its mean of {stored.avg:g} and its interval are of"
            raise ConfigError(f"load report: {words}", hint=_HINT)
        return ratios

    def control_first(self, metric: str, point: LoadPoint) -> tuple[bool, ...]:
        """Return of each of `paired_ratios` whether the control was measured first; empty where nobody told.

        Raises:
            ConfigError: What stands there does not say so of each ratio.
        """
        nested = self._ratio(metric, point)
        if nested.get("control_first") is None:
            return ()
        first = _typed(nested, "control_first", list)
        if not all(isinstance(one, bool) for one in first) or len(first) not in {0, len(nested.get("ratios") or ())}:
            raise ConfigError(f"load report: control_first of {metric} at {point} is {first!r}", hint=_HINT)
        return tuple(first)

    def engine(self, key: str, role: str | None = None) -> float | None:
        """Return a number of the engines that were served, in the metric's own unit; None where it is not known.

        Args:
            key: Of `resources.ENGINES`.

            role: ``target`` or ``draft``; None for the sum of all, of which one that has both roles is one.

        Raises:
            ConfigError: What stands there is not such a number.
        """
        served = _mapping(_mapping(self.data.get("deployment") or {}, "deployment").get("engines") or {}, "engines")
        wanted = {name: engine for name, engine in served.items() if role in (None, name)}
        # Older documents have the key of an engine and no more.
        distinct = {_engine_key(name, engine): engine for name, engine in wanted.items()}
        values = [_of_engine(engine, key, f"{key} of the {name}") for name, engine in distinct.items()]
        known = [value for value in values if value is not None]
        return math.fsum(known) if known and len(known) == len(values) else None

    @property
    def outputs(self) -> Outputs | None:
        """What the comparison of greedy answers came to; None when there was none.

        Raises:
            ConfigError: What stands there are no counts.
        """
        if self.data.get("outputs") is None:
            return None
        found = _mapping(self.data["outputs"], "outputs")
        outputs = Outputs(compared=_typed(found, "compared", int), identical=_typed(found, "identical", int))
        if not 0 <= outputs.identical <= outputs.compared:
            counts = f"{outputs.identical} of {outputs.compared}"
            raise ConfigError(f"load report: {counts} answers are identical", hint=_HINT)
        return outputs

    def _metrics(self, arm: Arm, point: LoadPoint, category: str | None) -> Mapping[str, Any]:
        """Return the metrics of an arm under a load, or of a category of its prompts; empty where it has none."""
        entry = self._entry(arm, point)
        if entry is None:
            return {}
        if category is None:
            return _typed(entry, "metrics", dict)
        categories = _mapping(entry.get("categories") or {}, "categories")
        return _mapping(categories.get(category) or {}, f"category {category}")

    def _entry(self, arm: Arm, point: LoadPoint, among: str = "arms") -> dict[str, Any] | None:
        entries = self._arms if among == "arms" else self.data.get(among) or []
        if not isinstance(entries, list):
            raise ConfigError(f"load report: {among!r} is {entries!r}, not list", hint=_HINT)
        if among != "arms":
            _check_distinct(entries, among)
        for entry in entries:
            data = _mapping(entry, among)
            if (data.get("arm"), _measured(data).key) == (arm, point.key):
                return data
        return None

    def _ratio(self, metric: str, point: LoadPoint) -> dict[str, Any]:
        """Return the ratio of the arms by a metric under a load; empty where there is none."""
        compared = self._compared(point) or {}
        nested = compared if metric == "output_token_throughput" else compared.get(f"{metric}_ratio")
        return _mapping(nested or {}, f"the ratios of {metric} at {point}")

    def _memory(self, key: str, stat: str, arm: Arm, point: LoadPoint) -> float | None:
        """Return what the device used that used most, by the first gauge that was read; None where none was."""
        entry = self._entry(arm, point, "server")
        gauges = _mapping((entry or {}).get("gauges") or {}, "gauges")
        for source in GAUGES[key]:
            where = f"{source} of {arm} at {point}"
            # Behind its name a gauge has labels, which name the device.
            found = [_mapping(gauge, where) for name, gauge in gauges.items() if name.split("{")[0] == source]
            if found:
                return max(_bytes(gauge, stat, where) for gauge in found)
        return None

    def _compared(self, point: LoadPoint) -> dict[str, Any] | None:
        """Return what the comparison of the arms under a load came to."""
        if point.rate is None:
            found = self._speedup.get(point.key)
            return None if found is None else _mapping(found, "speedup")
        rates = _typed({"open_loop": self.data.get("open_loop") or []}, "open_loop", list)
        _check_distinct(rates, "open_loop")
        for entry in rates:
            data = _mapping(entry, "open_loop")
            if _measured(data).key == point.key:
                return data
        return None

    def speedup(self, point: LoadPoint) -> Interval | None:
        """Return the speed-up under a load; None when it was not measured, as it never is in an open loop.

        Raises:
            ConfigError: What stands there is not an interval.
        """
        value = self._speedup.get(point.key)
        if value is None:
            return None
        # Refuses ratios of something else than the interval.
        self.paired_ratios("output_token_throughput", point)
        return _interval(_mapping(value, "speedup"), f"speedup at {point.key}")


def _engine_key(role: str, engine: object) -> str:
    key = engine.get("key") if isinstance(engine, dict) else engine
    return str(key or role)


def _of_engine(engine: object, key: str, where: str) -> float | None:
    """Return a number of an engine; None where it is not known, and of what is served as it is stored."""
    if not isinstance(engine, dict) or engine.get("profile") == "llmapi" or engine.get(ENGINE_FIELDS[key]) is None:
        return None
    return _number(engine[ENGINE_FIELDS[key]], where) or None


def _planned(plan: Mapping[str, Any]) -> tuple[LoadPoint, ...]:
    """Return the loads of a plan; what a trace or stages come to is known once they were measured."""
    closed = [LoadPoint(concurrency=_whole(number)) for number in _typed(plan, "concurrency", list)]
    if plan.get("shape", "closed") in ("closed", "trace") or plan.get("stages"):
        return tuple(closed)
    return (*closed, *(LoadPoint(rate=_rate(number, "plan.rates")) for number in _typed(plan, "rates", list)))


def _whole(number: object) -> int:
    if type(number) is not int or abs(number) > _MOST:
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


def _check_distinct(entries: list[object], among: str) -> None:
    """Refuse two entries of one arm and load: either could be the one that is judged."""
    seen: set[tuple[object, str]] = set()
    for entry in entries:
        data = _mapping(entry, among)
        place = str(data.get("arm")), _measured(data).key
        if place in seen:
            raise ConfigError(f"load report: {among!r} has {' at '.join(place)} twice", hint=_HINT)
        seen.add(place)


def _interval(data: Mapping[str, Any], where: str) -> Interval:
    """Return a ratio of the arms with its interval, in times, of 95 % confidence."""
    unit = _typed({"unit": "x", **data}, "unit", str)
    avg, low, high = (
        None if data.get(key) is None else convert(_number(data[key], where), unit, "x", where=f"load report: {where}")
        for key in ("avg", "ci_low", "ci_high")
    )
    if data.get("confidence", CONFIDENCE) != CONFIDENCE:
        said = f"{data['confidence']!r} confidence, where {CONFIDENCE} is judged by"
        raise ConfigError(f"load report: the interval of {where} is of {said}", hint=_HINT)
    interval = Interval(avg=_number(avg, where), ci_low=low, ci_high=high, pairs=_typed(data, "pairs", int))
    _check_order(interval, where)
    return interval


def _check_order(interval: Interval, where: str) -> None:
    low, avg, high = interval.ci_low, interval.avg, interval.ci_high
    if low is None and high is None:
        return
    # The mean of ratios that are all alike is rounded apart from its bounds.
    if low is None or high is None or not low <= high or not low * (1 - 1e-9) <= avg <= high * (1 + 1e-9):
        raise ConfigError(f"load report: {where} is {avg} and lies between {low} and {high}", hint=_HINT)


def _agree(stored: Interval, ratios: tuple[float, ...], control_first: tuple[bool, ...]) -> bool:
    """Say whether an interval is that of its ratios."""
    try:
        own = paired_ratio(ratios, control_first)
    except OverflowError:
        return False
    pairs = ((stored.avg, own.avg), (stored.ci_low, own.ci_low), (stored.ci_high, own.ci_high))
    return stored.pairs == len(ratios) and all(
        one == other or (one is not None and other is not None and math.isclose(one, other, rel_tol=_ROUNDED))
        for one, other in pairs
    )


def _bytes(gauge: Mapping[str, Any], stat: str, where: str) -> float:
    """Return a reading of a gauge, which is in bytes unless it says otherwise."""
    unit = _typed({"unit": "B", **gauge}, "unit", str)
    return convert(_number(gauge.get(stat), where), unit, "B", where=f"load report: {where}")


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
    # To Python true is 1; and what has more digits than a count no number of ours can be made of.
    odd = isinstance(value, int) and (isinstance(value, bool) != (wanted is bool) or abs(value) > _MOST)
    if not isinstance(value, wanted) or odd:
        raise ConfigError(f"load report: {key!r} is {value!r}, not {wanted.__name__}", hint=_HINT)
    return value
