"""The verdict: what each rule says of a load test, in one sentence, and the exit code that follows.

Knows how rules are decided. The speed-up is decided by its confidence interval, everything else by its value. What
was not measured never passes, and neither does anything that a partial or degraded run measured; a failure stays a
failure.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specdeploy.bench.records import LoadPoint
from specdeploy.errors import EXIT_CANNOT_DECIDE, EXIT_FAILED, EXIT_OK, ConfigError
from specdeploy.gate.document import LoadDocument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdeploy.gate.document import Interval
    from specdeploy.gate.rules import Rule

Status: TypeAlias = Literal["pass", "fail", "undecided", "not_measured"]

SCHEMA_VERSION: Final = "1.0"
_WORST_FIRST: Final[tuple[Status, ...]] = ("fail", "not_measured", "undecided", "pass")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuleVerdict:
    """What became of one rule.

    Args:
        rule: The rule.

        status: ``pass``, ``fail``, ``undecided`` or ``not_measured``.

        value: What was measured, in the rule's unit; None when nothing was.

        limit: What was asked for.

        point: Under which load the value was measured; the worst one, if the rule has to hold under several.

        reason: One sentence.
    """

    rule: Rule
    status: Status
    value: float | None
    limit: float
    point: LoadPoint | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return an entry of ``rules`` in ``gate.json``."""
        return {
            "rule": self.rule.text,
            "metric": self.rule.metric,
            "stat": self.rule.stat,
            "arm": self.rule.arm,
            **(self.point or LoadPoint()).to_dict(),
            "comparison": self.rule.comparison,
            "status": self.status,
            "value": self.value,
            "limit": self.limit,
            "unit": self.rule.unit,
            "reason": self.reason,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of all rules."""

    rules: tuple[RuleVerdict, ...]

    @property
    def status(self) -> Status:
        """The worst of them."""
        return _worst([rule.status for rule in self.rules])

    @property
    def exit_code(self) -> int:
        """1 if a rule failed, else 3 if one could not be decided, else 0."""
        return {"pass": EXIT_OK, "fail": EXIT_FAILED}.get(self.status, EXIT_CANNOT_DECIDE)

    def to_dict(self, *, created: str) -> dict[str, Any]:
        """Return ``gate.json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "gate",
            "created": created,
            "status": self.status,
            "exit_code": self.exit_code,
            "rules": [rule.to_dict() for rule in self.rules],
        }


def evaluate(rules: Sequence[Rule], load_report: Mapping[str, Any]) -> Verdict:
    """Judge a load test.

    Args:
        rules: At least one.

        load_report: The content of ``load.json``.

    Raises:
        ConfigError: There are no rules, or the document is malformed or of another schema.
    """
    if not rules:
        raise ConfigError("the gate has no rules", hint="List at least one under gate.rules.")
    document = LoadDocument(load_report)
    return Verdict(rules=tuple(_judge(rule, document) for rule in rules))


def _judge(rule: Rule, document: LoadDocument) -> RuleVerdict:
    points = document.points if rule.point is None else (rule.point,)
    verdicts = [_judge_at(rule, document, point) for point in points]
    if not verdicts:
        return _verdict(rule, None, "not_measured", None, "the run has no load at all")
    return _distrust(min(verdicts, key=_badness), document)


def _badness(verdict: RuleVerdict) -> tuple[int, float]:
    """Order verdicts of one rule: the worst status first, then the value nearest to (or furthest beyond) the limit."""
    value = 0.0 if verdict.value is None else verdict.value
    return _WORST_FIRST.index(verdict.status), value if verdict.rule.wants_more else -value


def _judge_at(rule: Rule, document: LoadDocument, point: LoadPoint) -> RuleVerdict:
    if rule.arm is None:
        return _judge_speedup(rule, document.speedup(point), point)
    value = document.metric(rule.metric, rule.stat, arm=rule.arm, point=point)
    where = f"{_name(rule)} of the {rule.arm} arm at {point}"
    if value is None:
        return _verdict(rule, point, "not_measured", None, f"{where} was not measured.")
    holds = rule.holds(value)
    wanted = f"{rule.comparison} {_amount(rule.limit, rule.unit)}"
    reason = f"{where} is {_amount(value, rule.unit)}, which is {'' if holds else 'not '}{wanted}."
    return _verdict(rule, point, "pass" if holds else "fail", value, reason)


def _judge_speedup(rule: Rule, interval: Interval | None, point: LoadPoint) -> RuleVerdict:
    where = f"The speed-up at {point}"
    if interval is None:
        why = "" if point.rate is None else ": in an open loop throughput follows the rate that is offered"
        return _verdict(rule, point, "not_measured", None, f"{where} was not measured{why}.")
    low, high = interval.ci_low, interval.ci_high
    if low is None or high is None or interval.pairs < 2:
        reason = f"{where} is {interval.avg:.3f}x from {interval.pairs} usable pair(s): an interval needs two."
        return _verdict(rule, point, "undecided", interval.avg, reason)
    status = _decide(rule, low, high)
    says = {
        "pass": "lies entirely on the right side of",
        "fail": "lies entirely on the wrong side of",
        "undecided": "holds both sides of",
    }[status]
    reason = f"{where} is {interval.avg:.3f}x; its interval {low:.3f}x to {high:.3f}x {says} {rule.limit:g}x."
    return _verdict(rule, point, status, interval.avg, reason)


def _decide(rule: Rule, low: float, high: float) -> Literal["pass", "fail", "undecided"]:
    worst, best = (low, high) if rule.wants_more else (high, low)
    if rule.holds(worst):
        return "pass"
    return "undecided" if rule.holds(best) else "fail"


def _distrust(verdict: RuleVerdict, document: LoadDocument) -> RuleVerdict:
    """Turn a pass of a run that is partial or degraded into undecided."""
    if verdict.status != "pass" or not (document.partial or document.degraded):
        return verdict
    why = f"partial ({document.stop_reason})" if document.partial else "degraded by its own load generator"
    return dataclasses.replace(verdict, status="undecided", reason=f"{verdict.reason[:-1]}, but the run is {why}.")


def _verdict(rule: Rule, point: LoadPoint | None, status: Status, value: float | None, reason: str) -> RuleVerdict:
    return RuleVerdict(rule=rule, status=status, value=value, limit=rule.limit, point=point, reason=reason)


def _worst(statuses: Sequence[Status]) -> Status:
    return min(statuses, key=_WORST_FIRST.index)


def _name(rule: Rule) -> str:
    return rule.metric if rule.stat == "avg" else f"{rule.metric}.{rule.stat}"


def _amount(value: float, unit: str) -> str:
    if unit == "ratio":
        return f"{value * 100:.4g} %"
    # From here on four digits would be written with an exponent, which nobody reads as milliseconds.
    return f"{value:.4g} {unit}" if value < 9999.5 else f"{value:,.0f} {unit}"
