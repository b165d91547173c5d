"""Does the gate fire when it should, and only then? What two runs with a known difference say about it.

One run compares a deployment with itself, the other one with itself made slower by a known share. Judges verdicts;
measures nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specdeploy.errors import EXIT_CANNOT_DECIDE, EXIT_FAILED, EXIT_OK, ConfigError
from specdeploy.gate.defaults import LEAST_PAIRS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.gate.outcome import RuleVerdict
    from specdeploy.gate.rules import Rule

Status: TypeAlias = Literal["pass", "fail", "undecided"]

SCHEMA_VERSION: Final = "1.0"
DEFAULT_RULE: Final = "output_token_throughput: 5% of control"
DEFAULT_SLOWDOWN: Final = 0.15
_EXIT_CODES: Final[Mapping[Status, int]] = {"pass": EXIT_OK, "fail": EXIT_FAILED, "undecided": EXIT_CANNOT_DECIDE}
_TIMES: Final = ("request_latency", "time_to_first_token", "inter_token_latency")
_MORE: Final = "Measure more pairs or longer ones, such as --set load.pairs={pairs}; or allow more in the rule."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One run, judged.

    Args:
        slowdown: By which share the candidate's answers were to take longer; 0 in the run without a difference.

        verdict: What the rule says.

        grew: By which share they took longer than the control's, as they were handed on; None where none came.

        stopped: Why the run ended early; empty when it did not.
    """

    slowdown: float
    verdict: RuleVerdict
    grew: float | None
    stopped: str = ""

    @property
    def name(self) -> str:
        """What to call it."""
        return f"slower by {percent(self.slowdown)}" if self.slowdown else "the same"

    def to_dict(self) -> dict[str, Any]:
        """Return an entry of ``runs`` in the selftest's document."""
        return {
            "name": self.name,
            "slowdown": self.slowdown,
            "grew": self.grew,
            "stopped": self.stopped,
            "verdict": self.verdict.to_dict(),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the runs say of the gate.

    Args:
        status: ``pass``: it fired at the slowdown and at nothing else. ``fail``: it did not, or it fired without a
            difference. ``undecided``: the runs do not tell.

        reason: One sentence.

        hint: What to do next; empty when there is nothing to do.
    """

    status: Status
    reason: str
    hint: str = ""

    @property
    def exit_code(self) -> int:
        """0, 1 or 3."""
        return _EXIT_CODES[self.status]


def worse_by(metric: str, slowdown: float) -> float | None:
    """Return by which share a metric gets worse when every answer takes longer by a share; None if it does not.

    Times grow as the answers do. As many tokens in a time that is longer by s are ``1 - 1 / (1 + s)`` less of them.
    """
    if metric in _TIMES:
        return slowdown
    return slowdown / (1 + slowdown) if metric == "output_token_throughput" else None


def require_sense(rule: Rule, slowdown: float, *, pairs: int, open_loop: bool) -> None:
    """Refuse what could not show whether the gate fires.

    Args:
        rule: By which it is to be shown.

        slowdown: What is to be noticed.

        pairs: That are measured.

        open_loop: Whether a schedule decides how many tokens a second there are.

    Raises:
        ConfigError: The message says what could not.
    """
    where = f"gate rule {rule.text!r}"
    if rule.reference != "control":
        raise ConfigError(f"{where}: the selftest compares two arms of one run", hint=f"Write '{DEFAULT_RULE}'.")
    share = worse_by(rule.metric, slowdown)
    if share is None:
        raise ConfigError(
            f"{where}: slower answers do not change {rule.metric}",
            hint=f"Take one of output_token_throughput, {', '.join(_TIMES)}.",
        )
    if open_loop and rule.metric == "output_token_throughput":
        raise ConfigError(
            f"{where}: in an open loop throughput follows the rate that is offered",
            hint=f"Write 'request_latency: {percent(rule.allowed)} of control', or set load.shape=closed.",
        )
    if share <= rule.allowed:
        raise ConfigError(
            f"{where}: answers that take {percent(slowdown)} longer make {rule.metric} worse by {percent(share)}, no "
            f"more than the {percent(rule.allowed)} that are allowed",
            hint="Give a larger --slowdown, or allow less in the rule.",
        )
    if pairs < LEAST_PAIRS:
        raise ConfigError(
            f"load.pairs is {pairs}, and a rule of control is not decided by fewer than {LEAST_PAIRS}",
            hint=f"Set load.pairs={LEAST_PAIRS}, or more.",
        )


def conclude(sound: Trial, slowed: Trial | None, *, pairs: int) -> Outcome:
    """Say what the two runs say of the gate.

    Args:
        sound: Without a difference.

        slowed: With one; None when it was not measured, since the first run ended early.

        pairs: That were measured.
    """
    more = _MORE.format(pairs=2 * pairs)
    if sound.verdict.status == "fail":
        return Outcome(
            status="fail",
            reason="it fired at a deployment that was compared with itself: a false alarm",
            hint="Once may be chance. If it happens again, allow more in the rule, or find what disturbs the machine.",
        )
    ended = next((trial.stopped for trial in (sound, slowed) if trial and trial.stopped), "")
    if slowed is None or ended:
        return Outcome(status="undecided", reason=f"a run ended early: {ended}", hint="Start it again.")
    if slowed.verdict.status == "pass":
        return _missed(slowed)
    for trial in (sound, slowed):
        if trial.verdict.status not in {"pass", "fail"}:
            return Outcome(status="undecided", reason=f"{trial.name}: {_sentence(trial.verdict.reason)}", hint=more)
    return Outcome(status="pass", reason=f"it fired at answers {slowed.name}, and not at the same deployment")


def _missed(slowed: Trial) -> Outcome:
    """Say why a slowdown passed: the gate did not see it, or there was hardly any."""
    rule, grew = slowed.verdict.rule, slowed.grew
    seen = None if grew is None else worse_by(rule.metric, grew)
    if seen is not None and seen <= rule.allowed:
        return Outcome(
            status="undecided",
            reason=f"answers were held back, and took {percent(grew or 0.0)} longer than the control's all the same, "
            "since a server that waits for others meanwhile answers these faster",
            hint="Give a larger --slowdown, or measure with fewer in flight, such as --set load.concurrency=1.",
        )
    return Outcome(
        status="fail",
        reason=f"it passed answers {slowed.name}: {_sentence(slowed.verdict.reason)}",
        hint="Allow less in the rule. Both runs are kept in the report folder; a gate that misses much more is a bug.",
    )


def document(
    outcome: Outcome, sound: Trial, slowed: Trial | None, *, slowdown: float, confidence: float
) -> dict[str, Any]:
    """Return the selftest as plain data.

    Args:
        outcome: What the runs say.

        sound: As for :func:`conclude`.

        slowed: As for :func:`conclude`.

        slowdown: What was asked for.

        confidence: By which the rule was decided.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "gate-selftest",
        "status": outcome.status,
        "exit_code": outcome.exit_code,
        "reason": outcome.reason,
        "hint": outcome.hint,
        "rule": sound.verdict.rule.text,
        "slowdown": slowdown,
        "confidence": confidence,
        "runs": [trial.to_dict() for trial in (sound, slowed) if trial is not None],
    }


def percent(share: float) -> str:
    """Write a share."""
    return f"{share * 100:.3g} %"


def _sentence(reason: str) -> str:
    return reason.removesuffix(".")
