"""Rules of the gate: the compact strings of the configuration, read into values.

A rule names a metric, and what is asked of it::

    [advisory:] metric[[category]][.stat][@load][#arm] comparison number[unit]
    [advisory:] metric[[category]][.stat][@load][#arm]: number% [of baseline|of control] [floor number[unit]]

for example ``time_to_first_token.p99 <= 200ms``, ``error_rate <= 1%``, ``speedup@1 >= 1.5``,
``spec_decode_acceptance_length[code] >= 2.5`` or ``output_token_throughput#control >= 20 tokens/s``; and, of how much
worse something may be than before, ``request_throughput: 5%``. A load is a concurrency (``4``) or, in an open loop, a
rate (``5/s``). Of the engines (``engine_size[target] <= 8GiB``) the category is the role, and there is neither load nor
arm. Knows metrics and units; knows no measurements.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specdeploy.bench.metrics import ALIASES, DISTRIBUTION_STATS, METRICS, Metric
from specdeploy.bench.records import ARMS, SPECULATION, LoadPoint
from specdeploy.errors import ConfigError
from specdeploy.gate.resources import ENGINES, MEMORY, MEMORY_STATS, ROLES
from specdeploy.gate.spelling import ADVISORY
from specdeploy.gate.units import UNITS, convert, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from specdeploy.bench.records import Arm

Comparison: TypeAlias = Literal["<=", ">=", "<", ">"]
Reference: TypeAlias = Literal["baseline", "control"]

_SHAPE: Final = (
    "[advisory:] metric[[category]][.statistic][@load][#arm] <=, >=, < or > number[unit], or metric...: number% "
    "[of control] [floor number[unit]]"
)
_NUMBER: Final = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RULE: Final = re.compile(
    rf"""\s*(?P<metric>\w+)
        (?:\[(?P<category>[^\[\]]+)\])?
        (?:\.(?P<stat>\w+))?
        (?:@(?P<load>[\w.+/-]+))?
        (?:\#(?P<arm>\w+))?
        (?:
            \s*(?P<comparison><=|>=|<|>)\s*
            (?P<number>{_NUMBER})
            \s*(?P<unit>\S*)
        |
            \s*:\s*(?P<allowed>{_NUMBER})\s*(?P<percent>[^\s\d]*)
            (?:\s+of\s+(?P<reference>\w+))?
        )
        (?:\s+floor\s+(?P<floor>{_NUMBER})\s*(?P<floor_unit>\S*))?
        \s*""",
    re.VERBOSE,
)

#: By how much more than the reference something may be: eleven times it.
_MOST_ALLOWED: Final = 10.0
#: How much less than the reference what should be large may be.
_MOST_LOST: Final = 0.99
#: What no run comes near, by what a unit measures and in its base unit: a week, a pebibyte; else a billion.
_OUT_OF_REACH: Final = {"time": 604_800.0, "bytes": 2.0**50}
_BILLION: Final = 1e9
#: What is counted in whole errors, and what may be a little of it.
_COUNTED: Final = {"error_rate": "1%", "error_request_count": "1"}
_SPEEDUP: Final = "speedup"
#: Of a concurrency.
_MOST_DIGITS: Final = 9
_RATE: Final = re.compile(r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)/s", re.ASCII)

#: How values, also whole arrays of them, are compared with a limit.
COMPARE: Final[dict[Comparison, Callable[[Any, float], Any]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}

#: The gate's own: what became of the comparisons of answers with the target's.
LOSSLESS: Final = Metric(
    key="lossless",
    title="Losslessness",
    unit="answers",
    better="lower",
    kind="scalar",
    formula="divergences: answers that differ from the target's own, and not by a tie; ties: those that differ where "
    "two tokens are as good as each other, and those of the load test, which nobody judged",
    undefined="no answers were compared",
)
LOSSLESS_STATS: Final = ("divergences", "ties")
#: Everything that a rule can be about.
KNOWN: Final[Mapping[str, Metric]] = {**METRICS, **MEMORY, **ENGINES, LOSSLESS.key: LOSSLESS}

#: Of which statistics a baseline keeps the numbers, so that it stays small enough to be reviewed.
KEPT_STATS: Final = ("avg", "p50", "p90", "p95", "p99")
#: The same of a category of prompts, of which there may be many.
KEPT_OF_CATEGORY: Final = ("spec_decode_draft_acceptance_rate", "spec_decode_acceptance_length")
#: What the arms are compared by, pair by pair.
PAIRED: Final = (
    "output_token_throughput",
    "request_latency",
    "time_to_first_token",
    "inter_token_latency",
    "spec_decode_acceptance_length",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    Args:
        text: As written.

        metric: Key in `KNOWN`.

        stat: Statistic of it, ``avg`` if none was named.

        point: Where it has to hold; None means under every load of the run.

        arm: Whose metric; None for what belongs to both arms.

        comparison: How the value has to compare with the limit; for a relative rule, with the one it leads to.

        limit: In ``unit``; None for a relative rule.

        unit: The metric's own; ``requests`` for the statistic ``count``.

        category: Of prompts, or the role of an engine; None is all of them.

        advisory: It is reported, and decides nothing.

        reference: What a relative rule compares with; None for a rule with a limit of its own.

        allowed: By which share a relative rule lets the value be worse.

        floor: In ``unit``: a difference from the reference that is no larger is no regression.
    """

    text: str
    metric: str
    stat: str
    point: LoadPoint | None
    arm: Arm | None
    comparison: Comparison
    limit: float | None
    unit: str
    category: str | None = None
    advisory: bool = False
    reference: Reference | None = None
    allowed: float = 0.0
    floor: float = 0.0

    def holds(self, value: float) -> bool:
        """Compare a value, in the rule's unit, with the limit of a rule that has one."""
        return self.limit is not None and bool(COMPARE[self.comparison](value, self.limit))

    def limit_from(self, reference: float) -> float:
        """Return what a relative rule comes to: what is allowed, or the floor where that is more; never below 0."""
        if self.wants_more:
            return max(min(reference * (1 - self.allowed), reference - self.floor), 0.0)
        return max(reference * (1 + self.allowed), reference + self.floor)

    @property
    def is_of_engines(self) -> bool:
        """Whether it is about the engines alone, whatever was asked of them."""
        return self.metric in ENGINES

    @property
    def wants_more(self) -> bool:
        """Whether larger values pass."""
        return self.comparison.startswith(">")

    @property
    def selector(self) -> str:
        """What is looked at, without load and arm: ``metric[category].stat``, ``.avg`` left out."""
        category = "" if self.category is None else f"[{self.category}]"
        return f"{self.metric}{category}{'' if self.stat == 'avg' else f'.{self.stat}'}"


def parse_rule(text: str) -> Rule:
    """Read one rule.

    Raises: ConfigError: It is malformed, names something unknown (with the nearest name), or could not be broken or
        kept by any measurement.
    """
    stripped = text.strip()
    advisory = stripped.startswith(ADVISORY)
    match = _RULE.fullmatch(stripped.removeprefix(ADVISORY))
    if match is None:
        raise ConfigError(f"gate rule {text!r} is malformed", hint=f"Write {_SHAPE}, e.g. 'speedup@1 >= 1.5'.")
    metric = _metric(match["metric"], text)
    stat = _stat(match["stat"], metric, text)
    rule = Rule(
        text=stripped,
        metric=metric.key,
        stat=stat,
        point=_point(match["load"], metric, text),
        arm=_arm(match["arm"], metric, text),
        comparison=match["comparison"] or (">=" if metric.better == "higher" else "<="),  # type: ignore[arg-type]
        limit=None,
        unit=metric.unit_of(stat),
        category=_category(match["category"], metric, text),
        advisory=advisory,
    )
    if match["comparison"]:
        return _absolute(rule, match, metric)
    return _relative(rule, match, metric)


def _absolute(rule: Rule, match: re.Match[str], metric: Metric) -> Rule:
    if match["floor"]:
        raise ConfigError(
            f"gate rule {rule.text!r}: a floor belongs to a rule such as '{metric.key}: 5%'",
            hint="Leave it out; the limit itself is absolute.",
        )
    limit = convert(float(match["number"]), match["unit"] or rule.unit, rule.unit, where=f"gate rule {rule.text!r}")
    _check_limit(limit, metric, rule.stat, rule.text)
    _check_decides(match["comparison"], limit, metric.largest(rule.stat), rule.text)
    if not limit and rule.metric == _SPEEDUP:
        # A ratio of speeds is more than 0.
        verb = "keeps" if rule.wants_more else "breaks"
        raise ConfigError(f"gate rule {rule.text!r}: every run {verb} it", hint="Write a limit that decides something.")
    _check_reached(rule, limit)
    return dataclasses.replace(rule, limit=limit)


def _relative(rule: Rule, match: re.Match[str], metric: Metric) -> Rule:
    where, allowed = f"gate rule {rule.text!r}", float(match["allowed"]) / 100
    if metric.better == "none" or rule.stat == "count":
        raise ConfigError(f"{where}: {rule.selector} has no direction in which it is worse", hint="Give it a limit.")
    if match["percent"] != "%":
        raise ConfigError(f"{where}: how much worse it may be is not in %", hint=f"Write {metric.key}: 5%.")
    most = _MOST_LOST if metric.better == "higher" else _MOST_ALLOWED
    if not 0 <= allowed <= most:
        hint = f"Write a percentage from 0 to {100 * most:g}, such as 5%."
        raise ConfigError(f"{where}: {match['allowed']} % worse cannot be told from anything", hint=hint)
    rule = dataclasses.replace(
        rule,
        allowed=allowed,
        reference=_reference(match["reference"], rule),
        floor=_floor(match, rule.unit, where, metric.largest(rule.stat)),
    )
    _check_kept(rule)
    return rule


def _reference(word: str | None, rule: Rule) -> Reference:
    if word not in {None, "baseline", "control"}:
        hint = nearest(str(word), ("baseline", "control"))
        raise ConfigError(f"gate rule {rule.text!r}: there is no reference {word!r}", hint=hint)
    return "control" if word == "control" else "baseline"


def _floor(match: re.Match[str], unit: str, where: str, largest: float | None) -> float:
    if not match["floor"]:
        return 0.0
    floor = convert(float(match["floor"]), match["floor_unit"] or unit, unit, where=where)
    if not 0 <= floor < math.inf:
        raise ConfigError(f"{where}: the floor is {match['floor']}", hint="Write a finite number, 0 or more.")
    most = _most(unit) if largest is None else largest
    if floor >= most:
        words = f"the floor of {floor:g} {unit} is more than anything gets worse by"
        raise ConfigError(f"{where}: {words}", hint=f"Write less than {most:g} {unit}.")
    return floor


def _most(unit: str) -> float:
    """Return in a unit what no run comes near."""
    dimension, factor = UNITS[unit]
    return _OUT_OF_REACH[dimension] / factor if dimension in _OUT_OF_REACH else _BILLION


def _check_kept(rule: Rule) -> None:
    """Refuse relative rules on what the reference cannot have, which could never be decided."""
    where = f"gate rule {rule.text!r}"
    if rule.reference == "control":
        if not may_be_paired(rule):
            hint = f"Those are {', '.join(PAIRED)}, of all prompts; compare others with a baseline."
            raise ConfigError(f"{where}: the arms are not compared by that, pair by pair", hint=hint)
        if rule.floor:
            raise ConfigError(f"{where}: pairs are compared as ratios, which have no floor", hint="Leave it out.")
        return
    if rule.metric == LOSSLESS.key:
        raise ConfigError(f"{where}: losslessness is not relative", hint=f"Write {rule.selector} <= 0.")
    kept = MEMORY_STATS if rule.metric in MEMORY else KEPT_STATS
    if rule.stat not in kept:
        raise ConfigError(f"{where}: a baseline does not keep {rule.stat}", hint=f"It keeps {', '.join(kept)}.")
    if rule.is_of_engines:
        return
    if rule.category is not None and (rule.metric not in KEPT_OF_CATEGORY or rule.stat != "avg"):
        hint = f"It keeps the averages of {', '.join(KEPT_OF_CATEGORY)}."
        raise ConfigError(f"{where}: a baseline does not keep that of a category", hint=hint)


def may_be_paired(rule: Rule) -> bool:
    """Say whether what a rule is about can be compared with the control, pair by pair."""
    return rule.metric in PAIRED and rule.stat == "avg" and rule.category is None and rule.arm == SPECULATION


def parse_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Read all rules of a gate.

    Raises:
        ConfigError: A rule is wrong, or none decides: an empty gate would pass everything.
    """
    rules = tuple(parse_rule(text) for text in texts)
    if not rules:
        raise ConfigError("the gate has no rules", hint="List at least one under gate.rules, e.g. 'error_rate <= 0'.")
    for at, rule in enumerate(rules):
        _check_counted(rule)
        if dataclasses.replace(rule, text="") in (dataclasses.replace(one, text="") for one in rules[:at]):
            raise ConfigError(
                f"gate rule {rule.text!r} stands twice", hint="Each costs the others sharpness; say it once."
            )
    if all(rule.advisory for rule in rules):
        raise ConfigError("all rules of the gate are advisory", hint="Without a rule that decides, everything passes.")
    return rules


def _check_counted(rule: Rule) -> None:
    """Refuse to compare a few errors with none: no spread of a baseline says how many there are by chance."""
    if rule.reference and rule.metric in _COUNTED and not rule.floor:
        little = _COUNTED[rule.metric]
        raise ConfigError(
            f"gate rule {rule.text!r}: a single error more than in a baseline without any would fail",
            hint=f"Give it a limit, such as {rule.metric} <= {little}, or a floor: "
            f"'{rule.text.partition(' floor ')[0]} floor {little}'.",
        )


def _metric(name: str, text: str) -> Metric:
    key = ALIASES.get(name, name)
    if key not in KNOWN:
        raise ConfigError(f"gate rule {text!r}: unknown metric {key!r}", hint=nearest(key, KNOWN))
    metric = KNOWN[key]
    if metric.kind == "list":
        raise ConfigError(
            f"gate rule {text!r}: {key} is a list by position, not one number",
            hint="Use overall_spec_decode_draft_acceptance_rate or spec_decode_acceptance_length.",
        )
    return metric


def _stat(stat: str | None, metric: Metric, text: str) -> str:
    own = {LOSSLESS.key: LOSSLESS_STATS, **dict.fromkeys(MEMORY, MEMORY_STATS)}
    stats = own.get(metric.key, metric.stats)
    if stat is None:
        if metric is LOSSLESS:
            hint = "Write lossless.divergences <= 0, or lossless.ties <= 3."
            raise ConfigError(f"gate rule {text!r}: lossless alone is not one number", hint=hint)
        return "avg"
    if stat not in stats:
        if stat in DISTRIBUTION_STATS and metric.key not in own:
            raise ConfigError(
                f"gate rule {text!r}: {metric.key} is one number for the whole run and has no {stat!r}",
                hint=f"Write {metric.key} alone.",
            )
        raise ConfigError(f"gate rule {text!r}: unknown statistic {stat!r}", hint=nearest(stat, stats))
    return stat


def _category(category: str | None, metric: Metric, text: str) -> str | None:
    if category is None:
        return None
    if metric.key in ENGINES:
        if category.strip() not in ROLES:
            raise ConfigError(f"gate rule {text!r}: there is no engine {category!r}", hint=nearest(category, ROLES))
        return category.strip()
    overall = metric.key.startswith("overall_") or metric.key == "request_count"
    if metric is LOSSLESS or metric.kind == "interval" or (metric.kind == "scalar" and not overall):
        raise ConfigError(
            f"gate rule {text!r}: {metric.key} is that of all prompts together",
            hint="Categories have latencies, lengths, acceptance and request_count.",
        )
    return category.strip()


def _point(load: str | None, metric: Metric, text: str) -> LoadPoint | None:
    if load is None:
        return None
    if metric is LOSSLESS or metric.key in ENGINES:
        what = "losslessness" if metric is LOSSLESS else metric.key
        raise ConfigError(f"gate rule {text!r}: {what} is that of all loads", hint=f"Leave out @{load}.")
    if "/" in load:
        return LoadPoint(rate=_rate(load, text))
    if not load.isdecimal() or len(load) > _MOST_DIGITS or int(load) < 1:
        hint = f"Write a number from 1 to {10**_MOST_DIGITS - 1} after @; a rate ends in /s, as in @5/s."
        raise ConfigError(f"gate rule {_cut(text)!r}: concurrency {_cut(load)!r}", hint=hint)
    return LoadPoint(concurrency=int(load))


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _rate(load: str, text: str) -> float:
    match = _RATE.fullmatch(load)
    rate = float(match["number"]) if match else 0.0
    if not 0 < rate < math.inf:
        raise ConfigError(f"gate rule {text!r}: rate {load!r}", hint="Write requests per second, above 0, as in @5/s.")
    return rate


def _arm(arm: str | None, metric: Metric, text: str) -> Arm | None:
    if metric.kind == "interval" or metric is LOSSLESS or metric.key in ENGINES:
        if arm is not None:
            why = "is that of the engines" if metric.key in ENGINES else "compares both arms"
            raise ConfigError(
                f"gate rule {text!r}: the {metric.key} {why} and belongs to neither",
                hint=f"Leave out #{arm}.",
            )
        return None
    if arm is None:
        return SPECULATION
    for known in ARMS:
        if arm == known:
            return known
    raise ConfigError(f"gate rule {text!r}: unknown arm {arm!r}", hint=nearest(arm, ARMS))


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


def _check_reached(rule: Rule, limit: float) -> None:
    """Refuse limits that nothing which is measured comes near: too large, or too little to ask for."""
    most = _most(rule.unit)
    if limit > most or (rule.wants_more and 0 < limit < 1 / _BILLION):
        verb = "breaks" if limit > most and rule.wants_more else "keeps"
        hint = f"Write a limit from {1 / _BILLION:g} to {most:g} {rule.unit}."
        raise ConfigError(f"gate rule {rule.text!r}: every run {verb} it", hint=hint)


def _check_decides(comparison: str, limit: float, largest: float | None, text: str) -> None:
    """Refuse rules at the edge of what a metric can be, which every run keeps or every run breaks."""
    always = (comparison == ">=" and limit == 0) or (comparison == "<=" and limit == largest)
    never = (comparison == "<" and limit == 0) or (comparison == ">" and limit == largest)
    if always or never:
        verb = "keeps" if always else "breaks"
        raise ConfigError(f"gate rule {text!r}: every run {verb} it", hint="Write a limit that decides something.")
