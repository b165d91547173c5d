"""The outcome of a smoke test as JUnit XML, which CI servers show: a document in, text out.

The shape is that of Jenkins' schema (jenkinsci/xunit-plugin, ``junit-10.xsd``): ``testsuites``, ``testsuite``, and a
``testcase`` for each check with ``failure``, ``error`` or ``skipped``.

A check that could not decide is an ``error``: JUnit's word for a test that could not be carried out. A ``failure``
would say that the deployment is broken, and a ``skipped`` would leave the pipeline green, but undecided is never a
pass. For the same reason a run that was cut short, lost its server or checked nothing has one more case, ``run``, with
an error.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Mapping

_SUITE: Final = "specdeploy.smoke"
_RUN: Final = "run"
# What XML 1.0 cannot hold, not even escaped. Source: the production Char of its section 2.2.
_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(document: Mapping[str, Any]) -> str:
    """Return the XML of ``smoke.json``, with its declaration; ends with a newline.

    Args:
        document: The smoke test's document; ``created`` and ``deployment`` are shown where it has them.
    """
    cases = [_case(check) for check in document["checks"]]
    complaint = _complaint(document)
    if complaint is not None:
        cases.append(_run_case(*complaint))
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(sum(case.find("error") is not None for case in cases)),
        "time": _seconds(sum(check["duration_s"] for check in document["checks"])),
    }
    root = ET.Element("testsuites", {"name": _SUITE, **counts})
    skipped = str(sum(case.find("skipped") is not None for case in cases))
    suite = ET.SubElement(root, "testsuite", {"name": _suite_name(document), **counts, "skipped": skipped})
    if "created" in document:
        # In UTC and without its zone: Ant's own schema has none.
        suite.set("timestamp", str(document["created"])[:19])
    _add_properties(suite, document)
    suite.extend(cases)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def clean(text: str) -> str:
    r"""Return a text in which what XML 1.0 cannot hold is written as Python would, such as ``\x1b``."""
    return _NOT_XML.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def _suite_name(document: Mapping[str, Any]) -> str:
    name = (document.get("deployment") or {}).get("name")
    return clean(f"{_SUITE}.{name}" if name else _SUITE)


def _add_properties(suite: ET.Element, document: Mapping[str, Any]) -> None:
    deployment = document.get("deployment") or {}
    facts = {
        "exit_code": document["exit_code"],
        "profile": deployment.get("profile"),
        **{f"engine.{role}": engine.get("key") for role, engine in _engines(deployment).items()},
    }
    known = {name: str(value) for name, value in facts.items() if value is not None}
    properties = ET.SubElement(suite, "properties")
    for name, value in known.items():
        ET.SubElement(properties, "property", {"name": clean(name), "value": clean(value)})


def _engines(deployment: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    engines = deployment.get("engines") or {}
    return {role: engine for role, engine in engines.items() if isinstance(engine, dict)}


def _case(check: Mapping[str, Any]) -> ET.Element:
    case = ET.Element("testcase", {"classname": _SUITE, "name": check["name"], "time": _seconds(check["duration_s"])})
    reason = clean(check["reason"])
    if check["status"] == "skip":
        ET.SubElement(case, "skipped", {"message": reason})
    elif check["status"] != "pass":
        tag = "failure" if check["status"] == "fail" else "error"
        told = ET.SubElement(case, tag, {"message": reason, "type": check["status"]})
        told.text = clean(_told(check))
    elif reason:
        ET.SubElement(case, "system-out").text = reason
    return case


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


def _run_case(kind: str, message: str) -> ET.Element:
    case = ET.Element("testcase", {"classname": _SUITE, "name": _RUN, "time": _seconds(0)})
    ET.SubElement(case, "error", {"message": clean(message), "type": kind}).text = clean(message)
    return case


def _seconds(value: float) -> str:
    return f"{value:.3f}"
