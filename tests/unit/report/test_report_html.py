"""The HTML report, read as a parser reads it."""

from __future__ import annotations

import copy
import html.parser
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdeploy.bench.arrivals import Stage
from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.metrics import METRICS
from specdeploy.bench.records import LoadRun
from specdeploy.bench.schedule import LoadSettings
from specdeploy.errors import ConfigError
from specdeploy.report.html import render
from tests.unit.bench.simulated import CONTEXT, Simulator, failed
from tests.unit.report.documents import OPEN_RULES, documents, measured, open_documents

VOID = {"meta", "br", "col"}
DOCUMENTS = documents()
EVIL = "</title><script>alert('x')</script><img src=x onerror=alert(1)>&\"'\x00\ud800"


class Page(html.parser.HTMLParser):
    """A strict reading: every element is closed in order; keeps ids, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict]] = []
        self.pieces: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        """Note an element."""
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        """Refuse an end that closes something else."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Note text, the style sheet's apart."""
        if self.open and self.open[-1] != "style":
            self.pieces.append(data)

    @property
    def text(self) -> str:
        """What a reader sees, its spaces made single."""
        return " ".join(" ".join(self.pieces).split())

    def named(self, tag: str) -> list[dict]:
        """Attributes of every element of that name."""
        return [attributes for name, attributes in self.elements if name == tag]


PAGE = Page(render(DOCUMENTS))


def test_the_page_needs_nothing_else() -> None:
    """No script, no image, no font, no address that a browser would fetch; the policy forbids what we forgot."""
    text = render(DOCUMENTS)
    names = {name for name, _ in PAGE.elements}
    policy = [meta["content"] for meta in PAGE.named("meta") if meta.get("http-equiv") == "Content-Security-Policy"]

    assert names & {"script", "link", "img", "iframe", "object", "embed", "base", "form"} == set()
    assert not re.search(r"https?://|url\(|@import|javascript:", text)
    assert not any({"src", "href", "style"} & attributes.keys() for _, attributes in PAGE.elements)
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_headline_has_verdict_and_speedup_with_interval() -> None:
    """The first screen answers: how much faster, how sure, may it ship."""
    speedup = DOCUMENTS["load"]["speedup"]["1"]

    assert f"{speedup['avg']:.2f}\N{MULTIPLICATION SIGN}" in PAGE.text
    assert f"95 % interval {speedup['ci_low']:.2f}" in PAGE.text
    assert "Gate undecided: not measured" in PAGE.text


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (["error_rate <= 0"], "Gate passed"),
        (["speedup >= 9"], "Gate failed"),
        (["speedup@8 >= 1"], "Gate undecided: not measured"),
    ],
)
def test_the_verdict_is_the_gates(rules: list[str], words: str) -> None:
    """In words and not by colour alone."""
    assert words in Page(render(documents(rules=rules))).text


def test_every_chart_can_be_announced() -> None:
    """Each picture is an image with a title and a description of its own, and ids are unique."""
    ids = [attributes["id"] for _, attributes in PAGE.elements if "id" in attributes]
    pictures = [svg for svg in PAGE.named("svg") if svg.get("aria-hidden") != "true"]
    labels = [label for svg in pictures for label in svg["aria-labelledby"].split()]

    assert len(ids) == len(set(ids))
    assert set(labels) <= set(ids)
    assert all(svg["role"] == "img" for svg in pictures)
    # paired ratios, throughput, the timeline, acceptance by kind of prompt
    # three latencies and two acceptance charts at each of two concurrencies
    # two percentiles of three latencies, and two of acceptance, by concurrency
    assert len(pictures) == 4 + 2 * (3 + 2) + (2 * 3 + 2)


def test_coordinates_are_numbers() -> None:
    """Nothing is drawn at NaN or infinity, nothing with a negative size."""
    for tag, attributes in PAGE.elements:
        for key in {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height"} & attributes.keys():
            if tag != "meta":
                assert re.fullmatch(r"-?\d+(\.\d+)?", attributes[key]), (tag, attributes)
        assert not any(attributes.get(key, "").startswith("-") for key in ("width", "height"))
        assert "nan" not in attributes.get("d", "")


def test_every_metric_is_defined_on_the_page() -> None:
    """Key, formula and when it is undefined."""
    for metric in METRICS.values():
        assert metric.key in PAGE.text
        assert metric.formula in PAGE.text


def test_rules_checks_findings_and_circumstances_are_on_the_page() -> None:
    """What was asked, what was seen, what to beware of, and where it was measured."""
    for words in (
        *(rule["reason"] for rule in DOCUMENTS["gate"]["rules"]),
        *(check["reason"] for check in DOCUMENTS["smoke"]["checks"]),
        *(finding["message"] for finding in DOCUMENTS["load"]["findings"]),
        "Example CPU",
        "ABBA",
    ):
        assert words in PAGE.text


def test_what_the_run_was_measured_with_is_on_the_page() -> None:
    """Field by field."""
    load = {**DOCUMENTS["load"], "fingerprint": {"engine.target": "0123456789abcdef", "driver": "550.54"}}
    page = Page(render({**DOCUMENTS, "load": load}))

    assert all(word in page.text for word in ("Fingerprint", "engine.target", "0123456789abcdef", "550.54"))


def test_it_follows_the_readers_light_or_dark() -> None:
    """Both schemes define the same colours."""
    style = render(DOCUMENTS)
    light, dark = (
        set(re.findall(r"(--[a-z]+):", block)) for block in re.findall(r":root \{(.*?)\}", style, flags=re.DOTALL)
    )

    assert "prefers-color-scheme: dark" in style
    assert light == dark


def test_text_from_outside_stays_text() -> None:
    """A name, a reason, a prompt id or an error message that is markup is shown and not obeyed."""
    poisoned = documents(
        deployment={"name": EVIL, "profile": EVIL, EVIL: {EVIL: EVIL}},
        records=[failed(EVIL[:30], prompt_id=EVIL[:-1], error_message=EVIL[:-1])],
    )
    poisoned["smoke"]["checks"][0]["reason"] = EVIL
    poisoned["gate"]["rules"][0]["reason"] = EVIL
    poisoned["load"]["findings"][0]["message"] = EVIL
    text = render(poisoned)
    page = Page(text)

    assert {"script", "img"} & {name for name, _ in page.elements} == set()
    assert text.encode("utf-8")
    assert "<script>alert('x')</script>" in page.text
    assert "\x00" not in text


@given(st.text(max_size=40))
@settings(max_examples=30)
def test_any_name_is_shown_as_it_is(name: str) -> None:
    """Whatever a deployment is called, the page stays well-formed."""
    page = Page(render({"deployment": {"name": name}}))

    assert page.named("html") == [{"lang": "en"}]
    assert {name for name, _ in page.elements} & {"script", "img"} == set()


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("load", "The load test was not run"),
        ("smoke", "The smoke test was not run."),
        ("gate", "No gate was run"),
        ("records", "The raw records are not here."),
    ],
)
def test_what_was_not_run_is_said(missing: str, words: str) -> None:
    """A part that is absent is named; the others are shown."""
    assert words in Page(render({**DOCUMENTS, missing: None})).text


def test_nothing_at_all_is_a_page_too() -> None:
    """Without any document it says that nothing was done."""
    page = Page(render({}))

    for words in ("Not judged", "The load test was not run", "The smoke test was not run."):
        assert words in page.text


def empty(*records, stop_reason=""):
    """Documents of a run with only these records."""
    _, plan = Simulator().run(LoadSettings())
    load = build_load_report(LoadRun(records=records, stop_reason=stop_reason), plan, CONTEXT)
    return {"load": load, "records": records}


def test_a_run_in_which_everything_failed() -> None:
    """No number is invented: not measured where it would stand, the failures by label, and what is missing by name."""
    page = Page(render(empty(failed("timeout"), failed("timeout", arm="control"), stop_reason="the server is gone")))

    assert "requests failed (1 timeout)" in page.text
    assert "The load test is partial: the server is gone." in page.text
    assert "Speed-up not measured" in page.text
    assert "speculation, concurrency 1" in page.text
    assert "Time to first token, Time to first token, from the intended send" in page.text


def test_a_run_without_any_request() -> None:
    """The page stands, and says for the planned concurrency that nothing was measured."""
    page = Page(render(empty(stop_reason="interrupted from the keyboard")))

    assert "Nothing was measured." in page.text
    assert "both arms, concurrency 1 Speed-up" in page.text


@pytest.mark.parametrize("kind", ["load", "smoke", "gate"])
def test_other_documents_are_refused(kind: str) -> None:
    """Another kind, another schema, or no object at all is an error that names the part."""
    for wrong in ([], {"kind": "other"}, {**DOCUMENTS[kind], "schema_version": "9.0"}):
        with pytest.raises(ConfigError, match=kind):
            render({**DOCUMENTS, kind: wrong})


def test_a_smoke_test_that_failed_stands_beside_the_gates_verdict() -> None:
    """The gate knows nothing of it, and the page must not look as if all were well; what to do is told, too."""
    failed = documents(rules=["error_rate <= 0"])
    (check, *_) = [check for check in failed["smoke"]["checks"] if check["status"] == "fail"]
    page = Page(render(failed | {"smoke": failed["smoke"] | {"checks": [check | {"hint": "Look at the log."}]}})).text
    whole = failed | {"smoke": failed["smoke"] | {"counts": failed["smoke"]["counts"] | {"fail": 0, "undecided": 0}}}

    assert "Gate passed" in page
    assert "Smoke test failed" in page
    assert "Look at the log." in page
    assert "Smoke test failed" not in Page(render(whole)).text


OPEN = open_documents()
OPEN_PAGE = Page(render(OPEN))
RATES = (1.0, 2.0, 4.0, 8.0, 16.0)


def pictures(page: Page) -> list[str]:
    """Names of the charts of a page."""
    return [svg["aria-labelledby"].split()[0].removesuffix("-title") for svg in page.named("svg") if "role" in svg]


def one_arm(**changes) -> dict:
    """A changing load with speculation alone."""
    stages = (Stage(start=2.0, end=6.0, duration_s=4.0),)
    settings = LoadSettings(shape="constant", stages=stages, pairs=2, compare=False)
    return measured(settings, ["error_rate <= 0"], **changes)


def test_an_open_loop_is_shown_by_its_rates() -> None:
    """Each rate has its own charts; latencies of both arms are compared in place of throughput."""
    ratio = OPEN["load"]["open_loop"][0]["request_latency_ratio"]

    for words in ("5 requests/s", "20 requests/s", "Latency, speculation / control", f"{ratio['avg']:.2f}"):
        assert words in OPEN_PAGE.text
    assert f"95 % interval {ratio['ci_low']:.2f}" in OPEN_PAGE.text
    assert "Concurrency" not in OPEN_PAGE.text
    assert "Speed-up not measured" not in OPEN_PAGE.text
    assert "What bounds it" not in OPEN_PAGE.text
    assert {
        "ratio-request_latency",
        "ratio-time_to_first_token",
        "throughput-5-per-s",
        "time_to_first_token-20-per-s",
        "request_latency-p99-against-5-per-s",
        "goodput-5-per-s",
        "by-category",
    } <= set(pictures(OPEN_PAGE))


def test_two_rates_do_not_run_into_one() -> None:
    """A chart of a load has the requests of that load and of no other."""
    other = copy.deepcopy(OPEN)
    some = [record for record in other["records"] if record.rate == 5.0]
    page = Page(render({**other, "records": some}))

    assert "request_latency-5-per-s" in pictures(page)
    assert "request_latency-20-per-s" not in pictures(page)


def test_without_a_control_nothing_is_compared() -> None:
    """One arm has no column of the other, and no comparison is missed."""
    page = Page(render(one_arm()))

    assert "Request latency, median" in page.text
    assert "Throughput" in page.text
    assert "of speculation; the control was left out" in page.text
    assert "control: the target alone" not in page.text
    assert "answers identical" not in page.text
    for words in ("Speed-up not measured", "both arms, "):
        assert words not in page.text


def test_many_loads_share_their_charts() -> None:
    """A chart has all loads in it, where one after another would be a page for each."""
    page = Page(render(measured(LoadSettings(shape="poisson", rates=RATES, requests=4, pairs=2), OPEN_RULES)))
    names = pictures(page)

    assert {"time_to_first_token-control", "request_latency-speculation", "histogram-all"} <= set(names)
    assert not [
        name for name in names if name.endswith("-per-s") and "against" not in name and "throughput" not in name
    ]
    assert "pale for 1 requests/s, strong for 16 requests/s" in page.text
    assert "All loads together" in page.text


def test_percentiles_have_their_intervals() -> None:
    """Both bounds, one where there were too few requests for the other."""
    metrics = OPEN["load"]["arms"][0]["metrics"]["request_latency"]
    low, high = metrics["percentile_cis"]["p50"]

    assert f"{low:,.0f} to {high:,.0f}" in OPEN_PAGE.text
    assert metrics["percentile_cis"]["p99"][1] is None
    assert f"from {metrics['percentile_cis']['p99'][0]:,.0f}" in OPEN_PAGE.text


def test_goodput_is_shown_with_what_was_promised() -> None:
    """The objectives, how many kept them, and how sure that is; without objectives, that there were none."""
    good = OPEN["load"]["arms"][0]["metrics"]

    assert all(objective in OPEN_PAGE.text for objective in OPEN["load"]["objectives"])
    assert f"{good['good_request_count']['avg']:.0f} of {good['request_count']['avg']:.0f}" in OPEN_PAGE.text
    assert "No objective was set" in PAGE.text
    assert "Share of good requests, Goodput" not in PAGE.text


def test_a_goodput_that_was_promised_and_not_measured_is_missed() -> None:
    """An objective makes it a metric like any other."""
    load = copy.deepcopy(OPEN["load"])
    for arm in load["arms"]:
        del arm["metrics"]["goodput"]

    assert "control, 5 requests/s Goodput" in Page(render({**OPEN, "load": load})).text


def test_a_degraded_run_is_marked() -> None:
    """At the head of the page and beside the lag; a run that kept up says that, too."""
    late = {"severity": "warning", "code": "load.degraded", "message": "late for 9 % of the time", "hint": "Free it."}
    load = {**OPEN["load"], "degraded": True, "findings": [late]}
    page = Page(render({**OPEN, "load": load}))

    assert "Degraded run" in page.text
    assert "Degraded : late for 9 % of the time. What is slow may be" in page.text
    assert "Degraded" not in OPEN_PAGE.text
    assert "The load generator kept up" in OPEN_PAGE.text
    assert "Dispatch lag (ms)" in OPEN_PAGE.text


def test_acceptance_is_shown_by_kind_of_prompt_and_position() -> None:
    """All loads together, from counts: what the two rates accepted of a kind, of what they drafted."""
    of_kind = [arm["categories"]["python"] for arm in OPEN["load"]["arms"] if arm["arm"] == "speculation"]
    accepted, drafted = (
        sum(kind[f"spec_decode_{name}"]["sum"] for kind in of_kind if f"spec_decode_{name}" in kind)
        for name in ("accepted_draft_tokens", "draft_tokens")
    )

    assert "Kind of prompt Requests Drafted Accepted Tokens a step Draft 1 Draft 2 Draft 3 Draft 4" in OPEN_PAGE.text
    assert f"{drafted:,.0f} {accepted / drafted * 100:.1f} %" in OPEN_PAGE.text


def test_a_kind_of_prompt_may_be_called_anything() -> None:
    """Names of kinds are from a file of prompts: text, however long, and never markup."""
    load = copy.deepcopy(OPEN["load"])
    for arm in load["arms"]:
        arm["categories"][EVIL] = arm["categories"].pop("python")
    page = Page(render({**OPEN, "load": load}))

    assert {"script", "img"} & {name for name, _ in page.elements} == set()
    assert "\N{HORIZONTAL ELLIPSIS}" in page.text


def test_a_document_of_an_earlier_version_is_shown() -> None:
    """Closed loops only, no intervals of percentiles, no kinds of prompts, no objectives."""
    old = copy.deepcopy(DOCUMENTS)
    load = old["load"]
    del load["open_loop"], load["objectives"], load["plan"]["rates"], load["plan"]["shape"], load["plan"]["compare"]
    for entry in (*load["arms"], *load["blocks"], *load["limits"]):
        del entry["rate"]
    for arm in load["arms"]:
        del arm["categories"]
        for metric in arm["metrics"].values():
            metric.pop("percentile_cis", None)
    page = Page(render(old))

    assert "by-category" not in pictures(page)
    assert "too few for an interval" not in page.text
    assert f"{load['speedup']['1']['avg']:.2f}\N{MULTIPLICATION SIGN}" in page.text


@pytest.mark.parametrize("settings", [{"rates": (7.0,)}, {"stages": (Stage(start=1.0, end=2.0, duration_s=9.0),)}])
def test_an_open_loop_without_any_request(settings: dict) -> None:
    """The page stands; a rate that was planned is named, stages have no name before they were measured."""
    _, plan = Simulator().run(LoadSettings(shape="poisson", **settings))
    load = build_load_report(LoadRun(records=(), stop_reason="interrupted"), plan, CONTEXT)
    text = Page(render({"load": load})).text

    assert "Nothing was measured." in text
    assert ("both arms, 7 requests/s Request latency, speculation / control" in text) == ("rates" in settings)
