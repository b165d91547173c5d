"""The smoke test's outcome as JUnit XML: what CI servers read, and nothing that breaks their parsers."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree as ET

import hypothesis
import pytest
from hypothesis import strategies as st

from specdeploy.report.junit import clean
from specdeploy.smoke import CheckResult, SmokeReport
from specdeploy.smoke.junit import junit

#: Element -> (its attributes that the schema knows, those that it requires, its children).
#: Source: jenkinsci/xunit-plugin, src/main/resources/org/jenkinsci/plugins/xunit/types/model/xsd/junit-10.xsd.
SHAPE: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, set(), {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp", "hostname", "id", "package"},
        {"name", "tests", "failures", "errors"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, {"name", "value"}, set()),
    "testcase": (
        {"name", "time", "classname", "group"},
        {"name"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "skipped": ({"message", "type"}, set(), set()),
    "error": ({"message", "type"}, set(), set()),
    "failure": ({"message", "type"}, set(), set()),
    "system-out": (set(), set(), set()),
    "system-err": (set(), set(), set()),
}
TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?")
PASS = CheckResult(name="metadata", status="pass", duration_s=0.25, reason="10 inputs")
FAIL = CheckResult(name="seeds", status="fail", duration_s=1.5, reason="seed ignored", hint="look", details={"seed": 7})
UNDECIDED = CheckResult(name="lossless-sampled", status="undecided", duration_s=2.0, reason="too few samples")
SKIP = CheckResult(name="golden", status="skip", duration_s=0.0, reason="nothing recorded")


def document(*checks: CheckResult, **report: Any) -> dict[str, Any]:
    """Return a document as it is kept."""
    deployment = {"name": "tiny", "profile": "cpu", "engines": {"target": {"key": "abc"}, "draft": None}}
    made = SmokeReport(checks=checks, **report)
    return {"created": "2026-01-31T10:20:30+00:00", "deployment": deployment, **made.as_dict()}


def require_shape(element: ET.Element) -> None:
    """Fail where an element is not as the schema has it."""
    known, required, children = SHAPE[element.tag]
    assert required <= set(element.keys()) <= known, element.tag
    assert {child.tag for child in element} <= children, element.tag
    assert TIME.fullmatch(element.get("time", "")), element.tag
    for child in element:
        require_shape(child)


def suite_of(text: str) -> ET.Element:
    """Parse, and return the one suite."""
    root = ET.fromstring(text)
    require_shape(root)
    (suite,) = root
    return suite


def test_each_status_has_its_element() -> None:
    """Passed is plain, failed a failure, undecided an error, skipped skipped; the counts agree, times are seconds."""
    suite = suite_of(junit(document(PASS, FAIL, UNDECIDED, SKIP)))

    assert {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")} == {
        "metadata": ["system-out"],
        "seeds": ["failure"],
        "lossless-sampled": ["error"],
        "golden": ["skipped"],
    }
    counted = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped", "time")}
    assert counted == {"tests": "4", "failures": "1", "errors": "1", "skipped": "1", "time": "3.750"}
    assert suite.get("timestamp") == "2026-01-31T10:20:30"
    assert suite.get("name") == "specdeploy.smoke.tiny"


def test_a_failure_tells_what_to_do_and_what_was_seen() -> None:
    """The message is the reason; the text has the hint and the details, too."""
    failure = suite_of(junit(document(FAIL))).find("testcase/failure")

    assert failure is not None
    assert failure.get("message") == "seed ignored"
    assert failure.text is not None
    assert failure.text.splitlines()[:2] == ["seed ignored", "-> look"]
    assert json.loads(failure.text.split("\n", 2)[2]) == {"seed": 7}


@pytest.mark.parametrize(
    ("checks", "report", "kind"),
    [
        ((PASS, SKIP), {"server_lost": "connection refused"}, "server-lost"),
        ((PASS, SKIP), {"interrupted": 130}, "interrupted"),
        ((SKIP,), {}, "nothing-checked"),
        ((), {}, "nothing-checked"),
    ],
)
def test_what_is_no_pass_is_never_green(checks: tuple[CheckResult, ...], report: dict[str, Any], kind: str) -> None:
    """A run without a failed check that still says nothing has an error of its own, since skipped cases are green."""
    suite = suite_of(junit(document(*checks, **report)))

    assert [error.get("type") for error in suite.iter("error")] == [kind]
    assert suite.get("errors") == "1"


def test_engines_and_exit_code_are_properties() -> None:
    """A reader of the CI server sees which engines were tested."""
    suite = suite_of(junit(document(PASS, FAIL)))
    properties = {item.get("name"): item.get("value") for item in suite.iter("property")}

    assert properties == {"exit_code": "1", "profile": "cpu", "engine.target": "abc"}


def test_a_document_without_provenance_is_written_too() -> None:
    """What ``run_smoke`` returns has neither time nor deployment."""
    suite = suite_of(junit(SmokeReport(checks=(PASS,)).as_dict()))

    assert suite.get("timestamp") is None
    assert suite.get("name") == "specdeploy.smoke"


def test_control_characters_are_written_out() -> None:
    """What XML 1.0 forbids, escaped or not, is shown as Python would; line ends and markup survive."""
    reason = "a\x00b \x1b[31mred\x1b[0m \ud800 \ufffe <b attr='1'> & ]]> \"q\"\nnext\tend\r."
    text = junit(document(CheckResult(name="seeds", status="fail", duration_s=0.1, reason=reason)))

    failure = suite_of(text).find("testcase/failure")
    assert failure is not None
    shown = "a\\x00b \\x1b[31mred\\x1b[0m \\ud800 \\ufffe <b attr='1'> & ]]> \"q\"\nnext\tend\r."
    assert failure.get("message") == shown
    text.encode("utf-8")


@hypothesis.given(st.text())
def test_any_text_is_written_as_xml_that_parses(text: str) -> None:
    """Whatever a server says: the file parses, and nothing of it is lost but what XML cannot hold."""
    check = CheckResult(name="seeds", status="fail", duration_s=0.0, reason=text, details={text: [text]})
    written = junit(document(check, server_lost=text)).encode("utf-8")

    message = suite_of(written.decode("utf-8"))[1][0].get("message")
    assert message == clean(text)
