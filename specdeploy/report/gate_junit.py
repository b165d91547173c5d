"""The verdict as JUnit XML: a test case for each rule.

CI servers are red for a ``failure`` and for an ``error``, and green for ``skipped``. So a rule that failed is a
failure; one that could not be decided, was not measured or cannot be compared is an error, JUnit's word for a test that
could not be carried out; and an advisory rule that did not pass is skipped, since it decides nothing. Where the gate
did not pass and no rule says so, one more case does, ``verdict``. So the file is red exactly when the gate's own exit
code is not 0; a pass that could not be kept or shown elsewhere ends the command with 4 beside a file that is green.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.report import gate_outcome
from specdeploy.report.junit import DECLARATION, Case, junit_xml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.report.gate_outcome import Standing
    from specdeploy.report.junit import Status

_SUITE: Final = "specdeploy.gate"
_VERDICT: Final = "verdict"
#: How every file begins.
BEGINNING: Final = f'{DECLARATION}\n<testsuites name="{_SUITE}"'
_STATUS: Final[dict[Standing, Status]] = {
    "passed": "passed",
    "failed": "failure",
    "open": "error",
    "advice": "skipped",
}


def gate_junit(gate: Mapping[str, Any], *, name: str = "") -> str:
    """Return the XML of ``gate.json``, with its declaration; ends with a newline.

    Args:
        gate: The gate's document.

        name: Of the deployment.
    """
    cases = [_case(rule) for rule in gate.get("rules", ())]
    said = gate_outcome.complaint(gate)
    if said:
        text = "\n".join(filter(None, (said, gate_outcome.cure(gate))))
        cases.append(Case(name=_VERDICT, status="error", message=said, kind=str(gate.get("status")), text=text))
    facts = {"exit_code": gate.get("exit_code"), "status": gate.get("status")}
    return junit_xml(_SUITE, cases, name=name, created=str(gate.get("created") or ""), properties=facts)


def _case(rule: Mapping[str, Any]) -> Case:
    stands, status, reason = gate_outcome.standing(rule), str(rule.get("status")), str(rule.get("reason", ""))
    return Case(
        name=str(rule.get("rule")),
        status=_STATUS[stands],
        message=f"advisory, {gate_outcome.words(status)}: {reason}" if stands == "advice" else reason,
        kind=status,
        text=_told(rule),
    )


def _told(rule: Mapping[str, Any]) -> str:
    """Return the reason, and the numbers that it is about."""
    facts = {
        "verdict": gate_outcome.words(rule.get("status")),
        "measured": gate_outcome.measured(rule),
        "limit": gate_outcome.limit(rule),
        "load": gate_outcome.where(rule),
    }
    return "\n".join((str(rule.get("reason", "")), *(f"{name}: {value}" for name, value in facts.items() if value)))
