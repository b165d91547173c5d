"""The verdict for CI servers: Markdown in which names stay names, JUnit that is red when the gate is, annotations."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree as ET

import hypothesis
import pytest
from hypothesis import strategies as st

from specdeploy.cli import _render
from specdeploy.errors import CannotDecide, ConfigError
from specdeploy.report import gate_outcome
from specdeploy.report.gate_junit import gate_junit
from specdeploy.report.gate_markdown import gate_markdown
from specdeploy.report.junit import clean
from specdeploy.report.markdown import code, escape, table
from specdeploy.report.numbers import TIMES
from specdeploy.report.text import gate_table, one_line
from tests.unit.report.documents import documents, open_documents
from tests.unit.smoke.test_junit import suite_of

DOCUMENTS = documents()
HOSTILE = (
    "a|b",
    "`code` and ``more``",
    "first\nsecond\r\n\n# heading\n| cell |",
    "<b onmouseover=alert(1)>x</b> <!-- gone --> &lt;",
    "::set-output name=x::y",
    "\n::error::hidden",
    "##[group]folded",
    "[link](http://example.com) ![image](x) www.example.com",
    "**bold** _slanted_ ~~gone~~ $x^2$",
    "@everyone #1 \\| \\",
    "\x1b[31mred\x00\ud800\ufffe\u202e",
)


def rule(status: str, text: str = "error_rate <= 0", **changes: Any) -> dict[str, Any]:
    """Return an entry of ``gate.json``."""
    entry = {"rule": text, "metric": "error_rate", "stat": "avg", "arm": "speculation", "concurrency": 1, "rate": None}
    numbers = {"comparison": "<=", "value": 0.03, "limit": 0.01, "unit": "ratio"}
    return {**entry, **numbers, "status": status, "reason": "error_rate is 3 %.", **changes}


def gate(*rules: dict[str, Any], exit_code: int = 0, status: str = "pass", **changes: Any) -> dict[str, Any]:
    """Return ``gate.json``."""
    told = {"schema_version": "1.0", "kind": "gate", "created": "2026-01-31T10:20:30+00:00"}
    return {**told, "status": status, "exit_code": exit_code, "rules": list(rules), **changes}


def cells(line: str) -> list[str]:
    """Return the cells of a table's row as a reader of GitHub's Markdown splits them."""
    assert line.startswith("| ")
    assert line.endswith(" |")
    return line[2:-2].split(" | ")


def read(text: str) -> str:
    """Return what a page shows of an escaped text."""
    return re.sub(r"&#(\d+);", lambda found: chr(int(found[1])), text)


# Markdown


@pytest.mark.parametrize("text", HOSTILE)
def test_an_escaped_text_has_no_markup_left(text: str) -> None:
    """It stays in one line and one cell, and begins neither an element, a link, a code span nor emphasis."""
    escaped = escape(text)
    left = re.sub(r"&#\d+;", "", escaped)

    assert "\n" not in escaped
    assert not set(left) & set("|`<>[]*~$\\&@#")
    assert "://" not in left
    assert escaped.isprintable()
    escaped.encode("utf-8")


def test_the_names_of_metrics_stay_readable() -> None:
    """An underscore between letters begins nothing and is left alone, at an edge it is not."""
    assert escape("time_to_first_token.p99") == "time_to_first_token.p99"
    assert escape("_a_ b") == "&#95;a&#95; b"
    assert code("a_b <= 1%") == "<code>a_b &#60;= 1%</code>"


@hypothesis.given(st.text())
def test_a_reader_sees_every_character(text: str) -> None:
    """Nothing is lost: the references read as the text does in one line."""
    assert read(escape(text)) == one_line(text)


@hypothesis.given(st.lists(st.tuples(st.text(), st.text(), st.text()), max_size=4))
def test_no_text_breaks_a_table(rows: list[tuple[str, ...]]) -> None:
    """Every row has the columns of the header, whatever is in it."""
    lines = table(("A", "B", "C"), [[code(cell) for cell in row] for row in rows], right=("B",)).split("\n")

    assert lines[:2] == ["| A | B | C |", "| --- | ---: | --- |"]
    assert len(lines) == 2 + len(rows)
    assert all(line.count("|") == 4 for line in lines)


def test_the_summary_has_verdict_rules_and_what_speculation_did() -> None:
    """A heading, a row for each rule with its numbers and its sentence, speed-up with interval, and acceptance."""
    text = gate_markdown(DOCUMENTS["gate"], DOCUMENTS["load"])
    lines = text.splitlines()
    rules = DOCUMENTS["gate"]["rules"]
    speedup = DOCUMENTS["load"]["speedup"]["1"]

    assert lines[0] == "## Gate could not decide"
    assert text.endswith("\n")
    first = lines.index("| Verdict | Rule | Measured | Limit | Load | Why |")
    shown = [cells(line) for line in lines[first + 2 : first + 2 + len(rules)]]
    assert [read(row[1]) for row in shown] == [f"<code>{entry['rule']}</code>" for entry in rules]
    assert [read(row[5]) for row in shown] == [entry["reason"] for entry in rules]
    assert shown[0][:5] == ["pass", "<code>error_rate &#60;= 0</code>", "0 %", "&#60;= 0 %", "concurrency 1"]
    assert "**not measured**" in {row[0] for row in shown}
    assert f"{speedup['avg']:.2f}{TIMES} (95 % interval {speedup['ci_low']:.2f}{TIMES}" in text
    accepted = DOCUMENTS["load"]["arms"][1]["metrics"]["spec_decode_accepted_draft_tokens"]["sum"]
    assert f"{accepted:.0f} / " in text
    assert f"Measured {DOCUMENTS['load']['created']}, judged 2026-01-31." in text


def test_an_open_loop_compares_latency() -> None:
    """Throughput follows the rate that is offered, so a speed-up is not claimed."""
    opened = open_documents()
    text = gate_markdown(opened["gate"], opened["load"])
    ratio = opened["load"]["open_loop"][0]["request_latency_ratio"]

    assert "| 5 requests/s | request latency " + f"{ratio['avg']:.2f}{TIMES}" in text
    assert "speed-up" not in text.lower()


@pytest.mark.parametrize(
    ("exit_code", "status", "heading"),
    [(0, "pass", "passed"), (1, "fail", "failed"), (3, "undecided", "could not decide")],
)
def test_the_heading_follows_the_exit_code(exit_code: int, status: str, heading: str) -> None:
    """What decides is in bold, what only advises is not."""
    text = gate_markdown(gate(rule(status), rule("fail", advisory=True), exit_code=exit_code, status=status), None)

    assert text.startswith(f"## Gate {heading}\n")
    assert f"| {'pass' if status == 'pass' else f'**{status}**'} | <code>" in text
    assert "| fail (advisory) | <code>" in text
    assert "### Speculation" not in text


def test_a_fingerprint_is_folded() -> None:
    """As a word or by its parts, those left out that the run has not; and nothing where the documents have none."""
    parts = {"gpu": "H100|80GB", "driver": None, "image": "-", "engines": {"target": "ab"}}
    shown = "gpu <code>H100&#124;80GB</code>, engines target <code>ab</code>"

    assert "\n\nMeasured with <code>sha256:12</code>\n\n</details>" in gate_markdown(
        gate(fingerprint="sha256:12"), None
    )
    for text in (gate_markdown(gate(), {"fingerprint": parts}), gate_markdown(gate(fingerprint=parts), None)):
        assert f"<details><summary>Fingerprint</summary>\n\nMeasured with {shown}\n\n</details>\n" in text
    for nothing in (None, {}, {"driver": "-"}):
        assert "Fingerprint" not in gate_markdown(gate(fingerprint=nothing), {**DOCUMENTS["load"], "fingerprint": {}})


def test_what_makes_a_run_less_than_it_seems_is_said() -> None:
    """A partial and a degraded run are named below the numbers."""
    load = {**DOCUMENTS["load"], "partial": True, "stop_reason": "the <deadline> passed", "degraded": True}
    text = gate_markdown(DOCUMENTS["gate"], load)

    assert "The run is partial: the &#60;deadline&#62; passed." in text
    assert "The run is degraded" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_can_change_the_summary(text: str) -> None:
    """Rule, reason, name and fingerprint: the page has the same lines as with harmless ones."""

    def summary(word: str) -> str:
        load = {**DOCUMENTS["load"], "deployment": {"name": word, "profile": word}, "partial": True}
        load |= {"stop_reason": word, "fingerprint": {word: word}}
        verdict = gate(rule("fail", word, reason=word), exit_code=1, status="fail")
        return gate_markdown(verdict, load)

    plain, hostile = summary("word").splitlines(), summary(text).splitlines()
    assert len(plain) == len(hostile)
    assert [line.count("|") for line in plain] == [line.count("|") for line in hostile]
    assert not any(line.lstrip().startswith(("::", "##[")) for line in hostile)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("arms", "speedup", "open_loop", "plan", "deployment", "partial", "stop_reason", "fingerprint", "created")
ENTRY_KEYS = ("concurrency", "rate", "level", "metrics")


@hypothesis.given(
    st.dictionaries(st.sampled_from(KEYS), JSON), st.dictionaries(st.sampled_from(ENTRY_KEYS), JSON), st.booleans()
)
def test_a_damaged_load_document_invents_nothing(load: dict[str, Any], entry: dict[str, Any], has_arms: bool) -> None:
    """Whatever was edited by hand, the summary is written, in the same shape."""
    damaged = {**load, "arms": [{"arm": "speculation", **entry}]} if has_arms else load
    text = gate_markdown(gate(rule("pass")), damaged)

    assert text.startswith("## Gate passed\n")
    assert all(line.count("|") in {0, 6, 7} for line in text.splitlines())


# JUnit


@pytest.mark.parametrize(
    ("entry", "element"),
    [
        (rule("pass"), "system-out"),
        (rule("fail"), "failure"),
        (rule("undecided"), "error"),
        (rule("not_measured", value=None), "error"),
        (rule("not_comparable"), "error"),
        (rule("of another version"), "error"),
        (rule("fail", advisory=True), "skipped"),
        (rule("undecided", advisory=True), "skipped"),
        (rule("pass", advisory=True), "system-out"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["status"],
)
def test_each_verdict_has_its_element(entry: dict[str, Any], element: str) -> None:
    """A failure is a failure; what is not known is an error and never green; advice is skipped, and says what it is."""
    red = element in {"failure", "error"}
    suite = suite_of(gate_junit(gate(entry, exit_code=3 if red else 0, status=entry["status"]), name="tiny"))
    (case,) = suite.iter("testcase")
    (told,) = case

    assert (case.get("classname"), case.get("name"), told.tag) == ("specdeploy.gate", "error_rate <= 0", element)
    assert (suite.get("name"), suite.get("timestamp")) == ("specdeploy.gate.tiny", "2026-01-31T10:20:30")
    if element == "failure":
        assert told.text is not None
        assert {"measured: 3 %", "limit: <= 1 %", "load: concurrency 1"} <= set(told.text.splitlines())
    if element == "skipped":
        assert str(told.get("message")).startswith(f"advisory, {entry['status']}: ")


STATUSES = ("pass", "fail", "undecided", "not_measured", "not_comparable")


@hypothesis.given(st.lists(st.tuples(st.sampled_from(STATUSES), st.booleans()), max_size=4))
def test_it_is_red_exactly_when_the_exit_code_is_not_0(rules: list[tuple[str, bool]]) -> None:
    """By whatever mixture of rules; a gate without any is no pass."""
    required = [status for status, advisory in rules if not advisory]
    open_ = 0 if rules and all(status == "pass" for status in required) else 3
    exit_code = 1 if "fail" in required else open_
    entries = [rule(status, advisory=advisory) for status, advisory in rules]
    suite = suite_of(gate_junit(gate(*entries, exit_code=exit_code, status="any")))

    assert (int(suite.get("failures", "")) + int(suite.get("errors", "")) > 0) == (exit_code != 0)


def test_a_gate_that_no_rule_explains_is_not_green() -> None:
    """A case of its own says why, in JUnit, Markdown and as an annotation."""
    why = CannotDecide("there is no load.json", hint="run it")
    document = gate_outcome.unjudged(why, created="2026-01-31T10:20:30+00:00")
    (error,) = suite_of(gate_junit(document)).iter("error")
    (finding,) = gate_outcome.findings(document)

    assert (error.get("type"), error.get("message")) == ("not_measured", "there is no load.json")
    assert (finding.severity, finding.code, finding.message) == ("error", "gate.not-measured", "there is no load.json")
    text = gate_markdown(document, None)
    assert text.startswith(
        "## Gate could not decide\n\nno rule was judged, exit code 3.\n\n**there is no load.json**\n\nrun it\n"
    )
    assert (error.text, finding.hint) == ("there is no load.json\nrun it", "run it")


@hypothesis.given(st.text())
def test_any_name_is_written_as_xml_that_parses(text: str) -> None:
    """Surrogates and control characters are written out; the rest survives."""
    written = gate_junit(gate(rule("fail", text, reason=text), exit_code=1, status="fail"), name=text).encode("utf-8")
    (case,) = ET.fromstring(written).iter("testcase")

    assert case.get("name") == clean(text)
    assert case[0].get("message") == clean(text)


# Annotations, and the terminal


def test_annotations_are_errors_warnings_and_notices(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure is an error; what is not known, and advice that was not heeded, a warning; a pass is not worth one."""
    rules = (
        rule("pass"),
        rule("fail", reason="50%, too much."),
        rule("undecided"),
        rule("not_comparable"),
        rule("fail", advisory=True),
        rule("not_measured", "advisory: error_rate <= 0", advisory=True),
    )
    _render.github_annotations(gate_outcome.findings(gate(*rules, exit_code=1, status="fail")), "")
    lines = capsys.readouterr().out.splitlines()

    assert [line.split("::")[1] for line in lines] == [
        "error title=gate.fail",
        "warning title=gate.undecided",
        "warning title=gate.not-comparable",
        "warning title=gate.fail",
        "notice title=gate.not-measured",
    ]
    assert lines[0].endswith("::error_rate <= 0: fail. 50%25, too much.")
    assert "::advisory: error_rate <= 0: fail." in lines[3]
    assert "::advisory: error_rate <= 0: not measured." in lines[4]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_can_speak_to_the_runner(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line end within a name begins no workflow command, neither in an annotation nor in the table."""
    document = gate(rule("fail", text, reason=text), exit_code=1, status="fail")
    _render.github_annotations(gate_outcome.findings(document), "")
    annotations = capsys.readouterr().out.splitlines()
    lines = gate_table(document).splitlines()

    assert [line[:25] for line in annotations] == ["::error title=gate.fail::"]
    assert len(lines) == 5
    # The runner takes a command behind white space, too.
    assert not any(line.lstrip().startswith(("::", "##[")) for line in lines)


def test_the_table_knows_what_is_advice_and_what_cannot_be_compared() -> None:
    """On the terminal, too."""
    text = gate_table(gate(rule("not_comparable"), rule("fail", advisory=True), exit_code=3, status="not_comparable"))

    assert "NOT COMPARABLE   error_rate <= 0" in text
    assert "FAIL (advisory)  error_rate <= 0" in text
    assert text.endswith("gate: NOT COMPARABLE (exit code 3)")


def test_documents_of_a_gate_are_plain_json() -> None:
    """What says that nothing was judged can be kept like any other."""
    document = gate_outcome.unjudged(ConfigError("why"), created="now")

    assert json.loads(json.dumps(document)) == document


def test_a_measured_value_and_its_limit_are_told_apart() -> None:
    """With more digits where three are the same, and none are added to what is equal."""
    near = {"value": 0.3801, "limit": 0.3799, "unit": "x", "comparison": ">="}
    large = {"value": 456_401.0, "limit": 456_400.0, "unit": "B", "comparison": "<="}
    same = {"value": 0.5, "limit": 0.5, "unit": "ratio", "comparison": "<="}

    assert (gate_outcome.measured(near), gate_outcome.limit(near)) == (
        "0.3801\N{MULTIPLICATION SIGN}",
        ">= 0.3799\N{MULTIPLICATION SIGN}",
    )
    assert gate_outcome.measured(large) != gate_outcome.limit(large).removeprefix("<= ")
    assert (gate_outcome.measured(same), gate_outcome.limit(same)) == ("50 %", "<= 50 %")
