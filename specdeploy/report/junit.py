"""JUnit XML, which CI servers show: cases in, text out.

The shape is that of Jenkins' schema (jenkinsci/xunit-plugin, ``junit-10.xsd``): ``testsuites``, ``testsuite``, and a
``testcase`` for each case with ``failure``, ``error`` or ``skipped``. Knows no document; who has one makes cases of it.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Status: TypeAlias = Literal["passed", "failure", "error", "skipped"]

DECLARATION: Final = '<?xml version="1.0" encoding="UTF-8"?>'
# What XML 1.0 cannot hold, not even escaped. Source: the production Char of its section 2.2.
_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One test case; its texts may hold any character.

    Args:
        name: Of the case, within its suite.

        status: ``passed``, ``failure``, ``error`` or ``skipped``. CI servers are red for the two in the middle.

        message: One sentence: why, or of a case that passed what was seen.

        kind: What sort of failure or error it is.

        text: All that is to be told of a failure or an error.

        duration_s: How long it took, in seconds.
    """

    name: str
    status: Status
    message: str = ""
    kind: str = ""
    text: str = ""
    duration_s: float = 0.0


def junit_xml(
    suite: str,
    cases: Sequence[Case],
    *,
    name: str = "",
    created: str = "",
    properties: Mapping[str, object] | None = None,
) -> str:
    """Return the XML of one suite, with its declaration; ends with a newline.

    Args:
        suite: Of whom the cases are; their class name.

        cases: In the order in which they are shown.

        name: Of what was tested; shown behind that of the suite.

        created: When, in ISO 8601.

        properties: What else is to be known; None is left out.
    """
    elements = [_element(suite, case) for case in cases]
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.status == "failure" for case in cases)),
        "errors": str(sum(case.status == "error" for case in cases)),
        "time": _seconds(sum(case.duration_s for case in cases)),
    }
    root = ET.Element("testsuites", {"name": suite, **counts})
    skipped = str(sum(case.status == "skipped" for case in cases))
    title = clean(f"{suite}.{name}" if name else suite)
    element = ET.SubElement(root, "testsuite", {"name": title, **counts, "skipped": skipped})
    if created:
        # In UTC and without its zone: Ant's own schema has none.
        element.set("timestamp", clean(created[:19]))
    _add_properties(element, properties or {})
    element.extend(elements)
    ET.indent(root)
    return f"{DECLARATION}\n{ET.tostring(root, encoding='unicode')}\n"


def clean(text: str) -> str:
    r"""Return a text in which what XML 1.0 cannot hold is written as Python would, such as ``\x1b``."""
    return _NOT_XML.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def _add_properties(suite: ET.Element, facts: Mapping[str, object]) -> None:
    properties = ET.SubElement(suite, "properties")
    for name, value in facts.items():
        if value is not None:
            ET.SubElement(properties, "property", {"name": clean(name), "value": clean(str(value))})


def _element(suite: str, case: Case) -> ET.Element:
    known = {"classname": suite, "name": clean(case.name), "time": _seconds(case.duration_s)}
    element, message = ET.Element("testcase", known), clean(case.message)
    if case.status == "skipped":
        ET.SubElement(element, "skipped", {"message": message})
    elif case.status != "passed":
        told = ET.SubElement(element, case.status, {"message": message, "type": clean(case.kind)})
        told.text = clean(case.text)
    elif message:
        ET.SubElement(element, "system-out").text = message
    return element


def _seconds(value: float) -> str:
    return f"{value:.3f}"
