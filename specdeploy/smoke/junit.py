"""The outcome of a smoke test as JUnit XML: a document in, text out.

A check that could not decide is an ``error``: JUnit's word for a test that could not be carried out. A ``failure``
would say that the deployment is broken, and a ``skipped`` would leave the pipeline green, but undecided is never a
pass. For the same reason a run that was cut short, lost its server or checked nothing has one more case, ``run``, with
an error.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from specdeploy.report.junit import Case, junit_xml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.report.junit import Status

_SUITE: Final = "specdeploy.smoke"
_RUN: Final = "run"
_STATUS: Final[dict[str, Status]] = {"pass": "passed", "fail": "failure", "skip": "skipped"}


def junit(document: Mapping[str, Any]) -> str:
    """Return the XML of ``smoke.json``, with its declaration; ends with a newline.

    Args:
        document: The smoke test's document; ``created`` and ``deployment`` are shown where it has them.
    """
    deployment = document.get("deployment") or {}
    cases = [_case(check) for check in document["checks"]]
    complaint = _complaint(document)
    if complaint is not None:
        kind, message = complaint
        cases.append(Case(name=_RUN, status="error", message=message, kind=kind, text=message))
    return junit_xml(
        _SUITE,
        cases,
        name=str(deployment.get("name") or ""),
        created=str(document.get("created") or ""),
        properties={
            "exit_code": document["exit_code"],
            "profile": deployment.get("profile"),
            **{f"engine.{role}": engine.get("key") for role, engine in _engines(deployment).items()},
        },
    )


def _engines(deployment: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    engines = deployment.get("engines") or {}
    return {role: engine for role, engine in engines.items() if isinstance(engine, dict)}


def _case(check: Mapping[str, Any]) -> Case:
    return Case(
        name=check["name"],
        status=_STATUS.get(check["status"], "error"),
        message=check["reason"],
        kind=check["status"],
        text=_told(check),
        duration_s=check["duration_s"],
    )


def _told(check: Mapping[str, Any]) -> str:
    """Return reason, hint and details, as a reader of the CI server wants them."""
    lines = [check["reason"]]
    if check.get("hint"):
        lines.append(f"-> {check['hint']}")
    if check["details"]:
        lines.append(json.dumps(check["details"], indent=2, ensure_ascii=False, default=str))
    return "\n".join(lines)


def _complaint(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return type and message of what the run as a whole has to say, which no check does."""
    if document.get("interrupted"):
        return "interrupted", "the run was interrupted: this report is partial"
    if document["server_lost"]:
        return "server-lost", document["server_lost"]
    if not any(check["status"] != "skip" for check in document["checks"]):
        return "nothing-checked", "no check ran, so nothing is known"
    return None
