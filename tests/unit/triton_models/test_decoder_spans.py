"""Spans of a text, and how they are sent: whose children they are, what they say, and that nothing waits for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from decoder_answer import Response
from decoder_loop import Answer, Group
from decoder_otlp import SpanExporter, read_headers, traces_endpoint
from decoder_settings import SettingsError
from decoder_spans import Parent, TextSpans, read_context
from decoder_stats import StepCounter

from tests.otlp_collector import Collector, attributes_of, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
NOW_NS = 1_000_000_000_000_000_000


def carried(traceparent: object) -> str:
    """Return a context as Triton hands it over."""
    return json.dumps({"traceparent": traceparent})


def test_a_context_names_the_trace_and_the_span_above() -> None:
    """As W3C Trace Context spells it; what later versions add behind is not ours."""
    for text in (f"00-{TRACE}-{PARENT}-01", f"01-{TRACE}-{PARENT}-03-more"):
        assert read_context(carried(text)) == Parent(trace_id=TRACE, span_id=PARENT)


@pytest.mark.parametrize(
    "context",
    [
        None,
        "",
        "{}",
        "[]",
        "no JSON",
        carried(None),
        carried(7),
        carried(f"00-{TRACE}-{PARENT}-00"),
        carried(f"00-{TRACE}-{PARENT}"),
    ],
)
def test_what_is_not_traced_has_no_context(context) -> None:
    """Nothing, not sampled, or nothing that can be read."""
    assert read_context(context) is None


def group(tokens: int, *, drafted: int = 0, draft_s: float = 0.0) -> Group:
    """Return a round of two seconds in the target."""
    ids = np.arange(tokens, dtype=np.int32)
    return Group(answer=Answer(ids=ids), drafted=drafted, accepted=tokens - 1, draft_s=draft_s, target_s=2.0)


def last_response() -> Response:
    """Return the last response of an answer of four tokens."""
    counter = StepCounter(3)
    counter.record(drafted=3, accepted=2)
    return Response(
        texts=("text",), ids=np.arange(4, dtype=np.int32), log_probs=None, cum_log_prob=None, num_output_tokens=4,
        finish_reason="length", bypass_reason="", statistics=counter.snapshot(),
    )  # fmt: skip


def test_each_call_is_a_span_below_the_texts_own() -> None:
    """Times are those of the calls, one behind the other, up to when the round came."""
    sent: list = []
    models = {"target": "big", "draft": "small"}
    spans = TextSpans(Parent(trace_id=TRACE, span_id=PARENT), sent.append, models=models, clock_ns=lambda: NOW_NS)
    seen = list(spans.rounds([group(1), group(3, drafted=3, draft_s=0.5)]))
    spans.note(last_response(), num_input_tokens=7, batch_index=1)
    spans.end()
    first, draft, second, own = sent

    assert [entry.answer.ids.size for entry in seen] == [1, 3]
    assert [span["name"] for span in sent] == ["target", "draft", "target", "decode"]
    assert {span["traceId"] for span in sent} == {TRACE}
    assert own["parentSpanId"] == PARENT
    assert {span["parentSpanId"] for span in (first, draft, second)} == {own["spanId"]}
    assert len({span["spanId"] for span in sent}) == 4
    assert [int(draft[key]) - NOW_NS for key in ("startTimeUnixNano", "endTimeUnixNano")] == [-2.5e9, -2e9]
    assert [int(second[key]) - NOW_NS for key in ("startTimeUnixNano", "endTimeUnixNano")] == [-2e9, 0]
    assert attributes_of(second) == {
        "triton.model_name": "big", "specdeploy.round": "1", "specdeploy.draft_tokens": "3",
        "specdeploy.accepted_draft_tokens": "2", "gen_ai.usage.output_tokens": "3",
    }  # fmt: skip
    assert attributes_of(draft)["triton.model_name"] == "small"
    assert attributes_of(own) == {
        "gen_ai.usage.input_tokens": "7", "gen_ai.usage.output_tokens": "4", "specdeploy.batch_index": "1",
        "specdeploy.finish_reason": "length", "specdeploy.bypass_reason": "", "specdeploy.spec_steps": "1",
        "specdeploy.draft_tokens": "3", "specdeploy.accepted_draft_tokens": "2",
    }  # fmt: skip
    assert own["status"] == {}


def test_a_text_that_fails_says_so() -> None:
    """Its span has the error, and ends."""
    sent: list = []
    spans = TextSpans(Parent(trace_id=TRACE, span_id=PARENT), sent.append, models={})
    spans.fail("engine 'big' failed")
    spans.end()

    assert [span["status"] for span in sent] == [{"code": 2, "message": "engine 'big' failed"}]


def test_without_a_parent_there_are_no_spans() -> None:
    """And the rounds are handed on as they are."""
    sent: list = []
    spans = TextSpans(None, sent.append, models={})
    rounds = [group(1)]

    assert spans.rounds(rounds) is rounds
    spans.note(last_response(), num_input_tokens=7, batch_index=0)
    spans.end()
    assert sent == []


@pytest.mark.parametrize(
    ("parameter", "environment", "endpoint"),
    [
        ("", {}, ""),
        ("http://a:1/v1/traces", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:2"}, "http://a:1/v1/traces"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:2/"}, "http://b:2/v1/traces"),
        (
            "",
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c/x", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:2"},
            "https://c/x",
        ),
    ],
)
def test_where_spans_go(parameter, environment, endpoint) -> None:
    """The parameter, then the variable for traces, then the one for everything, to which the path is added."""
    assert traces_endpoint(parameter, environment) == endpoint


def test_an_endpoint_that_is_no_url_is_named() -> None:
    """A collector's host and port alone are a common mistake; a file is no collector."""
    with pytest.raises(SettingsError, match=r"parameter 'otlp_traces_endpoint' of config.pbtxt is 'file:///etc'"):
        traces_endpoint("file:///etc", {})
    with pytest.raises(SettingsError, match="OTEL_EXPORTER_OTLP_ENDPOINT is 'collector:4318/v1/traces'"):
        traces_endpoint("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"})


def test_headers_come_from_the_environment() -> None:
    """As OpenTelemetry spells them; what has no value is passed over."""
    assert read_headers({"OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b, x=1,none,=2"}) == {"api-key": "a b", "x": "1"}
    assert read_headers({"OTEL_EXPORTER_OTLP_TRACES_HEADERS": "y=2", "OTEL_EXPORTER_OTLP_HEADERS": "x=1"}) == {"y": "2"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector."""
    running = Collector()
    yield running
    running.close()


def test_spans_arrive_in_batches(collector) -> None:
    """With the service's name and the headers; what waits at the end is sent, and what comes later is not."""
    environment = {"OTEL_SERVICE_NAME": "mine", "OTEL_EXPORTER_OTLP_HEADERS": "api-key=k"}
    complaints: list[str] = []
    exporter = SpanExporter(collector.url, environment, complaints.append)
    for number in range(700):
        exporter.add({"spanId": str(number)})
    exporter.close()
    exporter.add({"spanId": "late"})
    arrived = []
    while not collector.requests.empty():
        headers, body = collector.requests.get()
        assert (headers["Api-Key"], headers["Content-Type"]) == ("k", "application/json")
        (entry,) = body["resourceSpans"]
        assert entry["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "mine"}}]
        arrived.append([span["spanId"] for span in spans_of(body)])

    assert [name for batch in arrived for name in batch] == [str(number) for number in range(700)]
    assert len(arrived) <= 3
    assert complaints == []


def test_spans_do_not_wait_for_the_end(collector) -> None:
    """A single one is sent a second later, while the model serves on."""
    exporter = SpanExporter(collector.url, {}, lambda _: None)
    exporter.add({"spanId": "one"})

    assert [span["spanId"] for span in spans_of(collector.requests.get(timeout=20)[1])] == ["one"]
    exporter.close()


def test_a_collector_that_refuses_costs_its_spans_and_one_line(collector) -> None:
    """The log says how many were dropped and why, and not again for a while, or until the end."""
    collector.status = 503
    complaints: list[str] = []
    exporter = SpanExporter(collector.url, {}, complaints.append)
    for number in range(2000):
        exporter.add({"spanId": str(number)})
    exporter.close()

    assert 1 <= len(complaints) <= 2
    assert sum(int(line.split()[0]) for line in complaints) == 2000
    assert all(collector.url in line and "503" in line for line in complaints)


def test_what_was_lost_and_not_told_yet_is_told_at_the_end() -> None:
    """However short ago the last line was; and whatever becomes of them, adding never waits."""
    complaints: list[str] = []
    exporter = SpanExporter("http://127.0.0.1:9/v1/traces", {}, complaints.append)
    for number in range(20_000):
        exporter.add({"spanId": str(number)})
    exporter.close()

    assert sum(int(line.split()[0]) for line in complaints) == 20_000


def test_an_answer_that_sends_elsewhere_takes_nothing(collector) -> None:
    """Behind it is a page to log in at, which answers everybody."""
    collector.status = 302
    complaints: list[str] = []
    exporter = SpanExporter(collector.url, {}, complaints.append)
    exporter.add({"spanId": "one"})
    exporter.close()

    assert len(complaints) == 1
    assert complaints[0].startswith("1 spans were dropped")
