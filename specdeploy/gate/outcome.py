"""What became of the rules: a status, the numbers and one sentence for each, and the exit code that follows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specdeploy.bench.records import LoadPoint
from specdeploy.errors import EXIT_CANNOT_DECIDE, EXIT_FAILED, EXIT_OK
from specdeploy.report.numbers import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdeploy.gate.document import LoadDocument
    from specdeploy.gate.rules import Rule

Status: TypeAlias = Literal["pass", "fail", "undecided", "not_measured", "not_comparable"]

SCHEMA_VERSION: Final = "1.2"
#: Of several statuses the first of these is the verdict.
WORST_FIRST: Final[tuple[Status, ...]] = ("fail", "not_comparable", "not_measured", "undecided", "pass")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuleVerdict:
    """What became of one rule.

    Args:
        rule: The rule.

        status: ``pass``, ``fail``, ``undecided``, ``not_measured`` or ``not_comparable``.

        value: What was measured, in the rule's unit; None when nothing was.

        limit: What was asked for; of a relative rule, what it came to. None when nothing was there to compare with.

        point: Under which load the value was measured; the worst one, if the rule has to hold under several.

        reason: One sentence.

        numbers: What the decision was made by, as plain data.

        more_decides: Whether it is open for lack of data only, which more of the same load brings.
    """

    rule: Rule
    status: Status
    value: float | None
    limit: float | None
    point: LoadPoint | None
    reason: str
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    more_decides: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return an entry of ``rules`` in ``gate.json``."""
        return {
            "rule": self.rule.text,
            "metric": self.rule.metric,
            "stat": self.rule.stat,
            "category": self.rule.category,
            "arm": self.rule.arm,
            **(self.point or LoadPoint()).to_dict(),
            "advisory": self.rule.advisory,
            "reference": self.rule.reference,
            "allowed": self.rule.allowed if self.rule.reference else None,
            "floor": self.rule.floor if self.rule.reference else None,
            "comparison": self.rule.comparison,
            "status": self.status,
            "value": self.value,
            "limit": self.limit,
            "unit": self.rule.unit,
            "reason": self.reason,
            "more_decides": self.more_decides,
            "numbers": dict(self.numbers),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of all rules.

    Args:
        rules: One for each, in order.

        confidence: By which it was decided.

        look: How often the run was looked at, while it grew.

        share: Which share of the rate of errors this look may spend; 1 where it is the only one.

        fingerprint: What the run was measured with.

        measured_at: When it was; None where it does not say.
    """

    rules: tuple[RuleVerdict, ...]
    confidence: float
    look: int = 1
    share: float = 1.0
    fingerprint: Mapping[str, str] = dataclasses.field(default_factory=dict)
    measured_at: str | None = None

    @property
    def status(self) -> Status:
        """The worst of those that decide."""
        return worst([rule.status for rule in self.rules if not rule.rule.advisory])

    @property
    def exit_code(self) -> int:
        """1 if a rule failed, else 3 if one could not be decided, else 0; advisory rules do not count."""
        return {"pass": EXIT_OK, "fail": EXIT_FAILED}.get(self.status, EXIT_CANNOT_DECIDE)

    def to_dict(self, *, created: str) -> dict[str, Any]:
        """Return ``gate.json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "gate",
            "created": created,
            "status": self.status,
            "exit_code": self.exit_code,
            "confidence": self.confidence,
            "look": self.look,
            "share_of_errors": self.share,
            "repeats": None,
            "fingerprint": dict(self.fingerprint),
            "rules": [rule.to_dict() for rule in self.rules],
            "measured_at": self.measured_at,
        }


def worst(statuses: Sequence[Status]) -> Status:
    """Return the worst of statuses."""
    return min(statuses, key=WORST_FIRST.index)


def worst_of(verdicts: Sequence[RuleVerdict]) -> RuleVerdict:
    """Return the worst verdict of one rule: by its status, then by the value nearest to (or beyond) the limit."""

    def badness(verdict: RuleVerdict) -> tuple[int, float]:
        value = 0.0 if verdict.value is None else verdict.value
        return WORST_FIRST.index(verdict.status), value if verdict.rule.wants_more else -value

    return min(verdicts, key=badness)


def distrusted(verdict: RuleVerdict, document: LoadDocument) -> RuleVerdict:
    """Turn a pass of a run that is partial or degraded into undecided; a failure stays a failure."""
    if not (document.partial or document.degraded):
        return verdict
    if verdict.status != "pass":
        # What is added to such a run does not mend it.
        return dataclasses.replace(verdict, more_decides=False)
    why = f"partial ({document.stop_reason})" if document.partial else "degraded by its own load generator"
    return dataclasses.replace(verdict, status="undecided", reason=f"{verdict.reason[:-1]}, but the run is {why}.")


def place_of(rule: Rule, point: LoadPoint | None) -> str:
    """Say what a rule looks at under a load."""
    if rule.is_of_engines:
        return rule.selector
    if rule.arm is None:
        return f"The speed-up at {point}"
    return f"{rule.selector} of the {rule.arm} arm at {point}"


def amount(value: float, unit: str) -> str:
    """Write a value with its unit."""
    if unit == "ratio":
        return f"{value * 100:.4g} %"
    if unit == "x":
        return f"{value:.3f}x"
    if unit == "B":
        return size(value)
    # From here on four digits would be written with an exponent, which nobody reads as milliseconds.
    return f"{value:.4g} {unit}" if value < 9999.5 else f"{value:,.0f} {unit}"
