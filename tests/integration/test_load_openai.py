"""The load test against an OpenAI-compatible server that is not ours: llama.cpp's, by llama-cpp-python 0.3.36.

It answers one request at a time, and does not count the tokens of what it streams.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.deployments import specdeploy
from tests.llamacpp_server import MODEL, llamacpp_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.openai, pytest.mark.timeout(300)]

#: Without it the server cuts off an answer as soon as another request comes.
ALONE = ("--interrupt_requests", "False")
DRAFTS = ("--draft_model", "prompt-lookup-decoding", "--draft_model_num_pred_tokens", "4")
PROMPTS = ("1, 2, 3, 1, 2, 3, 1, 2,", "Monday, Tuesday, Wednesday,", "A, B, C, A, B, C, A,", "one two three one two")
TOKENS = 6
SMALL = (
    *("--set", "load.prompts=prompts.jsonl", "--set", f"load.max_tokens={TOKENS}", "--set", "load.warmup_requests=1"),
    *("--set", "load.requests=3"),
)


class Servers(NamedTuple):
    """Two servers of one model: one that drafts and one that does not, and a configuration for both."""

    drafting: str
    plain: str
    folder: Path


@pytest.fixture(name="servers", scope="module")
def _servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("load")
    (folder / "specdeploy.yaml").write_text("name: other\ntarget: {checkpoint: target}\ndraft: {checkpoint: draft}\n")
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in PROMPTS))
    with llamacpp_server(*ALONE, *DRAFTS) as drafting, llamacpp_server(*ALONE) as plain:
        yield Servers(drafting, plain, folder)


def load(servers: Servers, *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Run ``specdeploy load`` with success; return the document, the records, and what was said."""
    done = specdeploy("load", "--openai", servers.drafting, *SMALL, *arguments, cwd=servers.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    reports = servers.folder / "reports"
    records = [json.loads(line) for line in (reports / "load_records.jsonl").read_text().splitlines()]
    return json.loads((reports / "load.json").read_text()), records, done.stdout + done.stderr


def test_both_servers_in_pairs(servers: Servers) -> None:
    """Latencies of both arms; what is made of tokens is not measured, which is said, and is not 0 anywhere."""
    document, records, said = load(servers, "--control", servers.plain, "--set", "load.pairs=2", "--export=aiperf")

    assert document["deployment"]["name"] == document["deployment"]["control"]["name"] == MODEL
    assert [(arm["arm"], arm["errors"], arm["metrics"]["request_count"]["avg"]) for arm in document["arms"]] == [
        ("control", {}, 6),
        ("speculation", {}, 6),
    ]
    for arm in document["arms"]:
        assert 0 < arm["metrics"]["time_to_first_token"]["p50"] <= arm["metrics"]["request_latency"]["p50"]
        assert not arm["metrics"].keys() & {"output_token_throughput", "inter_token_latency", "output_sequence_length"}
    assert [finding["code"] for finding in document["findings"]] == ["load.tokens-uncounted"]
    assert "does not say how many tokens" in said
    assert " 0 tokens/s" not in said
    # One response for each token at least, but for those that are half a character, and none for the end.
    assert all(1 <= len(record["chunk_s"]) <= TOKENS for record in records)
    assert {record["finish_reason"] for record in records} == {"length"}
    exported = {path.parent.name for path in servers.folder.glob("reports/aiperf/*/profile_export.jsonl")}
    assert exported == {"control-concurrency-1", "speculation-concurrency-1"}


def test_a_schedule(servers: Servers) -> None:
    """Requests go out when the schedule says, though the server takes one at a time and the others wait."""
    shape = ("--set", "load.shape=constant", "--set", "load.rates=[20]")
    document, records, _ = load(servers, "--set", "load.pairs=1", *shape)
    counted = sorted((record for record in records if record["pair"] == 0), key=lambda record: record["index"])

    assert [record["rate"] for record in counted] == [20.0] * 3
    intended = [record["intended_s"] - counted[0]["intended_s"] for record in counted]
    assert intended == pytest.approx([0.0, 0.05, 0.1])
    assert all(record["sent_s"] < counted[0]["ended_s"] for record in counted)
    assert document["arms"][0]["metrics"]["request_count"]["avg"] == 3


def test_a_search(servers: Servers) -> None:
    """Every load is kept that is allowed such a time."""
    objective = ("--set", 'load.slo=["request_latency <= 100s"]', "--set", "load.pairs=1", "--search")
    document, _, said = load(servers, *objective)

    assert document["search"]["arms"]["speculation"]["highest_kept"] == 3
    assert "3 of 3 requests good: kept" in said
