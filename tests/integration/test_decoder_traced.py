"""A traced deployment as its users set it up: Triton's spans and the decoder's, in one tree at one collector."""

from __future__ import annotations

import json
import re
import secrets
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.deployments import specdeploy, write_deployment
from tests.otlp_collector import Collector, attributes_of, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.cpu, pytest.mark.triton, pytest.mark.timeout(240)]

DOCUMENT = Path(__file__).parents[2] / "docs" / "decoder.md"
EXAMPLE = "http://127.0.0.1:4318/v1/traces"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """A collector."""
    running = Collector()
    yield running
    running.close()


@pytest.fixture(scope="module", params=["parameter", "environment"])
def http_url(
    request: pytest.FixtureRequest, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Address of a server that traces every request, as the page says how; spans go where it, or a variable, says."""
    folder = tmp_path_factory.mktemp("traced")
    config = write_deployment(folder)
    (page,) = re.findall(r"```yaml\n(serve:.*?)(repo:.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    serve, repo = (text.replace(EXAMPLE, collector.url).replace("rate=100", "rate=1") for text in page)
    extended = config.read_text().replace("repo:\n", repo if request.param == "parameter" else "repo:\n")
    config.write_text(extended + serve)
    for command in ("build", "repo"):
        done = specdeploy(command, cwd=folder)
        assert done.returncode == 0, done.stderr
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url.removesuffix("/v1/traces")}
    env = variables if request.param == "environment" else {}
    done = specdeploy("serve", "--detach", "--json", cwd=folder, env=env)
    try:
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)["http_url"]
    finally:
        specdeploy("serve", "stop", cwd=folder)


def trace_of(http_url: str, collector: Collector, **body: Any) -> tuple[Any, dict[str, list]]:
    """Send a request of a trace of its own; return the answer and the trace's spans by name, once all are there."""
    trace = secrets.token_hex(16)
    headers = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"}
    url = f"http://{http_url}/v2/models/ensemble/generate"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60
        ) as reply:
            answer = json.load(reply)
    except urllib.error.HTTPError as error:
        answer = json.load(error)
    by_name: dict[str, list] = {}
    # Each sender's last ones: spans arrive when they have ended, those below before those above.
    while not {"decode", "speculative_decoder", "InferRequest"} <= by_name.keys():
        _, sent = collector.requests.get(timeout=60)
        for span in spans_of(sent):
            if span["traceId"] == trace:
                by_name.setdefault(span["name"], []).append(span)
    return answer, by_name


def test_calls_to_both_engines_are_spans_of_the_requests_trace(http_url: str, collector: Collector) -> None:
    """Below Triton's span of the decoder; what they say adds up to what the answer says."""
    answer, spans = trace_of(
        http_url,
        collector,
        text_input="Hello there",
        max_tokens=16,
        num_draft_tokens=3,
        return_decode_trace=True,
    )
    rounds = json.loads(answer["decode_trace"])
    (own,) = spans["decode"]
    (decoder,) = spans["speculative_decoder"]

    assert own["parentSpanId"] == decoder["spanId"]
    assert [span["parentSpanId"] for span in spans["draft"] + spans["target"]] == [own["spanId"]] * (
        len(spans["draft"]) + len(spans["target"])
    )
    assert len(spans["target"]) == len(rounds)
    assert len(spans["draft"]) == sum(entry["draft_s"] > 0 for entry in rounds)
    accepted = [int(str(attributes_of(span)["specdeploy.accepted_draft_tokens"])) for span in spans["target"]]
    assert accepted == [entry["accepted"] for entry in rounds]
    assert {attributes_of(span)["triton.model_name"] for span in spans["draft"]} == {"tensorrt_llm_draft"}
    said = attributes_of(own)
    assert said["specdeploy.draft_tokens"] == str(answer["total_draft_tokens"])
    assert said["specdeploy.accepted_draft_tokens"] == str(answer["total_accepted_draft_tokens"])
    assert said["gen_ai.usage.output_tokens"] == "16"
    assert int(decoder["startTimeUnixNano"]) <= int(own["startTimeUnixNano"]) <= int(own["endTimeUnixNano"])


def test_a_refused_request_has_its_error_in_its_span(http_url: str, collector: Collector) -> None:
    """The span that says why is the decoder's; no engine was asked."""
    answer, spans = trace_of(http_url, collector, text_input="Hello", max_tokens=5000)

    assert "the engines hold 1024" in answer["error"]
    assert [span["status"]["code"] for span in spans["decode"]] == [2]
    assert "the engines hold 1024" in spans["decode"][0]["status"]["message"]
    assert not {"draft", "target"} & spans.keys()
