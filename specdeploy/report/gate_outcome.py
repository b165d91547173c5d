"""What a rule's verdict means for the pipeline, in one place for every way to show it.

A rule that passed is good news, one that failed bad, and one of which nothing is known keeps the gate from passing as
well. A rule that is advisory decides nothing, whatever became of it. What a document does not say is never a pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specdeploy.errors import EXIT_CANNOT_DECIDE, EXIT_OK, SpecdeployError
from specdeploy.findings import Finding
from specdeploy.report.exports.readings import finite, load_label
from specdeploy.report.numbers import amount, told_apart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.findings import Severity

#: ``open`` is a rule that could not be decided, was not measured or cannot be compared.
Standing: TypeAlias = Literal["passed", "failed", "open", "advice"]

_SEVERITY: Final[dict[Standing, Severity]] = {"failed": "error", "open": "warning"}
NOTHING_MEASURED: Final = "not_measured"
#: Of a gate that could not judge at all: a damaged document, a server that is not there.
ERROR: Final = "error"


def unjudged(why: SpecdeployError, *, created: str) -> dict[str, Any]:
    """Return the document of a gate that judged nothing, so that nobody takes an earlier verdict for its own.

    Args:
        why: Ends with it.

        created: When, in ISO 8601.
    """
    return {
        "schema_version": "1.2",
        "kind": "gate",
        "created": created,
        "status": NOTHING_MEASURED if why.exit_code == EXIT_CANNOT_DECIDE else ERROR,
        "exit_code": why.exit_code,
        "rules": [],
        "reason": why.message,
        "hint": why.hint,
    }


def named_control(gate: Mapping[str, Any]) -> str:
    """Return what ``gate.json`` says of another server that was the control; empty where it was the target alone."""
    known = gate.get("fingerprint")
    said = known.get("control", "-") if isinstance(known, dict) else "-"
    return "" if said == "-" else str(said)


def words(status: object) -> str:
    """Return a status as it is written for people: ``not measured``."""
    return str(status).replace("_", " ")


def standing(rule: Mapping[str, Any]) -> Standing:
    """Return what a rule of ``gate.json`` does to the pipeline."""
    if rule.get("status") == "pass":
        return "passed"
    if rule.get("advisory"):
        return "advice"
    return "failed" if rule.get("status") == "fail" else "open"


def where(entry: Mapping[str, Any]) -> str:
    """Return the load at which a rule was judged or an arm measured; empty when that is not known."""
    known = {"level": entry.get("level"), "rate": finite(entry.get("rate")), "concurrency": entry.get("concurrency")}
    return load_label(known) if any(value is not None for value in known.values()) else ""


def measured(rule: Mapping[str, Any]) -> str:
    """Return what was measured, with its unit."""
    return _shown(rule)[0]


def limit(rule: Mapping[str, Any]) -> str:
    """Return what was asked for, with its unit; empty when the rule has no number of its own."""
    shown = _shown(rule)[1]
    return f"{rule.get('comparison', '')} {shown}".strip() if shown else ""


def _shown(rule: Mapping[str, Any]) -> tuple[str, str]:
    """Return value and limit, with digits that tell them apart."""
    value, asked, unit = finite(rule.get("value")), finite(rule.get("limit")), str(rule.get("unit", ""))
    if value is None or asked is None:
        return amount(value, unit), "" if asked is None else amount(asked, unit)
    return told_apart(value, asked, unit)


def complaint(gate: Mapping[str, Any]) -> str:
    """Return why the gate did not pass where no rule says it; empty when one does, or when it passed."""
    if gate.get("exit_code") == EXIT_OK or any(standing(rule) in {"failed", "open"} for rule in gate.get("rules", ())):
        return ""
    return str(gate.get("reason") or f"the gate ended with exit code {gate.get('exit_code')}, and no rule says why")


def cure(gate: Mapping[str, Any]) -> str:
    """Return what to do where nothing was judged; empty when there is nothing to say."""
    return str(gate.get("hint") or "")


def findings(gate: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what a reader of the pipeline has to know: errors are failures, warnings what is not known, or advice."""
    for rule in gate.get("rules", ()):
        stands, status = standing(rule), str(rule.get("status"))
        if stands == "passed":
            continue
        # Advice that cannot be given is worth a line, advice that was not heeded a warning.
        severity = _SEVERITY.get(stands) or ("warning" if status == "fail" else "info")
        name = str(rule.get("rule"))
        # A rule may say so itself.
        advice = "advisory: " if stands == "advice" and not name.startswith("advisory:") else ""
        message = f"{advice}{name}: {words(status)}. {rule.get('reason', '')}".strip()
        yield Finding(severity=severity, code=f"gate.{status.replace('_', '-')}", message=message)
    said = complaint(gate)
    if said:
        yield Finding(
            severity="error", code=f"gate.{str(gate.get('status')).replace('_', '-')}", message=said, hint=cure(gate)
        )
