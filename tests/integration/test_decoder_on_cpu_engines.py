"""The generated repository over the CPU engines of two tiny checkpoints: what only real engines can show."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import time
import urllib.request
from typing import TYPE_CHECKING

import numpy as np
import pytest

from specdeploy.config.schema import BuildConfig, DeployConfig, ModelConfig
from specdeploy.deploy.metrics import parse_metrics
from specdeploy.triton.client import RequestFailed, TritonClient
from specdeploy.triton.protocol import GenerateRequest, join_chunks
from specdeploy.triton.repository import EngineFacts, build_repository
from specdeploy.triton.server import TritonServer
from specdeploy.triton.sources import backend_sources, model_sources, tokenizer_files
from tests.tiny import perturb_checkpoint, write_tiny_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from specdeploy.triton.server import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.cpu]

PROMPTS = ("the quick brown fox", "def main():", "a\n\nb", "0123456789 " * 4)
VOCAB = 300


def compile_engine(checkpoint: Path, output: Path) -> str:
    """Compile a checkpoint as the build does; return the engine's path."""
    argv = [sys.executable, "-m", "specdeploy.cpu.compile", "--checkpoint", str(checkpoint), "--precision", "fp32"]
    subprocess.run([*argv, "--output", str(output), "--threads", "1"], check=True, timeout=120, capture_output=True)
    return str(output)


def facts() -> EngineFacts:
    """Return what the repository has to know of an engine."""
    return EngineFacts(
        key="tiny",
        name="tiny",
        profile="cpu",
        precision="fp32",
        checkpoint="tiny",
        size_bytes=1,
        vocab_size=VOCAB,
        max_seq_len=256,
        eos_token_ids=(2,),
    )


@pytest.fixture(scope="module")
def models(triton_runtime, tmp_path_factory) -> Path:
    """The repository of all tests of this file."""
    folder = tmp_path_factory.mktemp("decoder-cpu")
    target = write_tiny_checkpoint(folder / "target", vocab=VOCAB)
    draft = perturb_checkpoint(target, folder / "draft", 0.02)
    tree = build_repository(
        DeployConfig(
            name="tiny",
            target=ModelConfig(checkpoint="target"),
            draft=ModelConfig(checkpoint="draft"),
            build=BuildConfig(max_seq_len=256),
        ),
        {"target": facts(), "draft": facts()},
        engine_paths={
            "target": compile_engine(target, folder / "engine-target"),
            "draft": compile_engine(draft, folder / "engine-draft"),
        },
        tokenizer_files=tokenizer_files(target),
        sources=model_sources(),
    )
    for name, data in tree.items():
        (folder / "models" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "models" / name).write_bytes(data)
    return folder / "models"


@pytest.fixture(scope="module")
def server(triton_runtime, models) -> Iterator[RunningServer]:
    """A server that most tests of this file share."""
    with TritonServer(triton_runtime, models, run_dir=models.with_name("run")) as running:
        yield running


@pytest.fixture(scope="module")
def slow(triton_runtime, models) -> Iterator[TritonClient]:
    """A client of a server whose engines take 10 ms for each pass."""
    sources = dict(backend_sources())
    path, pass_ = "tensorrtllm_cpu/generation.py", b"        rows = len(self._drafts) + 1\n        if"
    assert sources[path].count(pass_) == 1
    sources[path] = sources[path].replace(pass_, b"        time.sleep(0.01)\n" + pass_)
    run_dir, backends = models.with_name("run-slow"), {"tensorrtllm": sources}
    with (
        TritonServer(triton_runtime, models, run_dir=run_dir, backends=backends) as running,
        TritonClient(
            running.endpoints.http_url,
            running.endpoints.grpc_url,
            metrics_url=running.endpoints.metrics_url,
            timeout_s=60,
        ) as connected,
    ):
        yield connected


@pytest.fixture(scope="module")
def client(server) -> Iterator[TritonClient]:
    """A client of it."""
    with TritonClient(server.endpoints.http_url, server.endpoints.grpc_url, timeout_s=60) as connected:
        yield connected


def ask(prompt: str = PROMPTS[0], tokens: int = 32, **fields) -> GenerateRequest:
    """Build a request."""
    return GenerateRequest(prompt=prompt, max_tokens=tokens, **fields)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_answers_are_the_targets_own(client, prompt) -> None:
    """Drafted or not, streamed or not, the ids are the same, and drafting is worth something."""
    control = client.generate_http(ask(prompt, num_draft_tokens=0))

    for drafts in (1, 4, 9):
        answer = client.generate_http(ask(prompt, num_draft_tokens=drafts))
        streamed = join_chunks(list(client.stream_grpc(ask(prompt, num_draft_tokens=drafts))))

        assert (control.ids, control.text) == (answer.ids, answer.text) == (streamed.ids, streamed.text)
        assert answer.bypass_reason == ""
        assert answer.total_draft_tokens > 0
    assert control.ids == join_chunks(list(client.stream_grpc(ask(prompt, num_draft_tokens=0)))).ids


def test_a_draft_that_resembles_the_target_is_accepted(client) -> None:
    """Verification really takes several tokens at a time."""
    answers = [client.generate_http(ask(prompt)) for prompt in PROMPTS]

    assert sum(a.total_accepted_draft_tokens for a in answers) > sum(a.num_spec_steps for a in answers)


@pytest.mark.parametrize("logits", [True, False])
def test_sampled_answers_repeat_for_a_seed(client, logits) -> None:
    """Rejection sampling and token match run in the engine, reproducibly."""
    request = ask(temperature=0.8, top_p=0.9, seed=11, extra={"use_draft_logits": logits})
    first, again = client.generate_http(request), join_chunks(list(client.stream_grpc(request)))
    other = client.generate_http(dataclasses.replace(request, seed=12))

    assert first.ids == again.ids != other.ids
    assert (first.bypass_reason, first.num_output_tokens) == ("", len(first.ids))


@pytest.mark.parametrize(
    "extra",
    [
        {"min_tokens": 12, "end_id": 40},
        {"bad_words": ["e"]},
        {"embedding_bias_words": ["e", "t"], "embedding_bias_weights": [-20.0, 3.0]},
    ],
    ids=["min_tokens", "bad_words", "embedding_bias"],
)
def test_inputs_that_every_token_obeys_keep_speculation_exact(client, extra) -> None:
    """Greedy ids under these inputs are the same with drafts and without."""
    on, off = (client.generate_http(ask(num_draft_tokens=drafts, extra=extra)) for drafts in (4, 0))

    assert on.ids == off.ids
    assert (on.bypass_reason, off.bypass_reason) == ("", "requested")


ONE_CALL = {"return_generation_logits": True, "end_id": -1}
LONG = 200


def test_a_call_under_way_ends_with_its_time_and_gives_what_it_has(slow) -> None:
    """An answer with its logits is one call, which the engine is told to end: nothing else would."""
    whole = slow.generate_http(ask(tokens=LONG, extra=ONE_CALL))
    body = ask(tokens=LONG, stream=False, extra=ONE_CALL).to_json()
    cut = slow.post_generate({**body, "timeout": 700_000})

    assert (whole.num_output_tokens, whole.finish_reason) == (LONG, "length")
    assert cut.finish_reason == "timeout"
    assert 0 < cut.num_output_tokens < LONG
    assert whole.ids[: cut.num_output_tokens] == cut.ids
    assert whole.text.startswith(cut.text)


def test_a_call_under_way_ends_when_its_client_goes(slow) -> None:
    """Long before the answer would be whole, and its slot is free."""

    def running() -> float:
        page = parse_metrics(slow.metrics_text())
        return sum(sample.value for sample in page if sample.name == "specdeploy_requests_running")

    began_s = time.monotonic()
    slow.generate_grpc(ask(tokens=LONG, extra=ONE_CALL))
    whole_s = time.monotonic() - began_s

    with pytest.raises(RequestFailed):
        slow.generate_grpc(ask(tokens=LONG, extra=ONE_CALL), model="speculative_decoder", timeout_s=whole_s / 4)
    pause = threading.Event()
    began_s = time.monotonic()
    while running():
        assert time.monotonic() - began_s < 60
        pause.wait(0.02)

    assert time.monotonic() - began_s < whole_s / 2


@pytest.mark.parametrize(
    ("reason", "extra"),
    [
        ("repetition_penalty", {"repetition_penalty": 1.5}),
        ("presence_penalty", {"presence_penalty": 0.8}),
        ("frequency_penalty", {"frequency_penalty": 0.4}),
    ],
)
def test_penalties_are_decoded_by_the_target(client, reason, extra) -> None:
    """A penalty counts over prompt and answer, in however many calls it is decoded, and changes it."""
    request = ask(tokens=40, extra={**extra, "end_id": -1})
    in_one_call = ask(tokens=40, extra={**extra, **ONE_CALL})
    answer, chunks = client.generate_http(request), list(client.stream_grpc(request))

    assert (answer.bypass_reason, len(chunks) > 2, len(chunks[0].ids)) == (reason, True, 1)
    assert answer.ids == join_chunks(chunks).ids == client.generate_http(in_one_call).ids
    assert answer.ids != client.generate_http(ask(tokens=40, extra={"end_id": -1})).ids


def test_banned_words_are_banned_across_calls(client) -> None:
    """Every pair of characters of an answer, also where one call ends and the next begins, is none of another."""
    plain = client.generate_http(ask(tokens=24, extra={"end_id": -1}))
    pairs = {plain.text[at : at + 2] for at in range(len(plain.text) - 1)}
    banned = {pair: {"bad_words": [pair], "end_id": -1} for pair in pairs if pair.isprintable() and " " not in pair}
    asked = {pair: list(client.stream_grpc(ask(tokens=24, extra=extra))) for pair, extra in banned.items()}
    of_several = {pair: chunks for pair, chunks in asked.items() if chunks[-1].bypass_reason == "bad_words"}

    assert any(join_chunks(chunks).ids != plain.ids for chunks in of_several.values())
    for pair, chunks in of_several.items():
        whole = client.generate_http(ask(tokens=24, extra={**banned[pair], **ONE_CALL}))
        assert (join_chunks(chunks).ids, len(chunks) > 2) == (whole.ids, True)


def answer_of(server: RunningServer, request: GenerateRequest) -> dict:
    """Return the whole answer of the front door as JSON has it."""
    url = f"http://{server.endpoints.http_url}/v2/models/ensemble/generate"
    body = json.dumps(request.to_json()).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as reply:
        return json.load(reply)


def log_probabilities(server: RunningServer, drafts: int) -> tuple[list[float], float]:
    """Return the log probability of every id of an answer, and their sum as the server says."""
    answer = answer_of(server, ask(num_draft_tokens=drafts, stream=False, extra={"return_log_probs": True}))
    assert len(answer["output_log_probs"]) == answer["num_output_tokens"]
    return answer["output_log_probs"], answer["cum_log_probs"]


def test_log_probabilities_are_those_of_the_target_alone(server) -> None:
    """Every id has one, whether it was drafted or not, and they add up."""
    (on, on_sum), (off, off_sum) = log_probabilities(server, 4), log_probabilities(server, 0)

    assert on == pytest.approx(off, abs=1e-3)
    assert (sum(on), sum(off)) == pytest.approx((on_sum, off_sum), abs=1e-3)
    assert all(value <= 0 for value in on)


def measured(server: RunningServer, prompt: str, **fields) -> dict:
    """Ask for the engine's measurements, too."""
    return answer_of(server, ask(prompt, stream=False, extra={"return_perf_metrics": True, **fields}))


def test_the_engines_measurements_are_those_of_the_whole_request(server) -> None:
    """Blocks of the prompt that were there before, not those that a round finds of the round before; times in order."""
    prompt = "a prompt that nobody else in this file sends, of more than one block of sixty-four tokens or so, and some"
    first, again = measured(server, prompt), measured(server, prompt)
    times = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")

    assert first["num_spec_steps"] > 2
    assert (first["kv_cache_reused_blocks"], again["kv_cache_reused_blocks"]) == (0, 1)
    assert first["kv_cache_alloc_total_blocks"] == again["kv_cache_alloc_total_blocks"] >= 2
    assert first["kv_cache_alloc_new_blocks"] > again["kv_cache_alloc_new_blocks"]
    assert [again[name] for name in times] == sorted({again[name] for name in times})
    assert again["arrival_time_ns"] > first["last_token_time_ns"]


def test_logits_of_the_answer_come_when_asked_for(server) -> None:
    """A row for each token, whose best is the token; the target decodes alone, and says why."""
    answer = measured(server, PROMPTS[0], return_generation_logits=True)
    rows = np.array(answer["generation_logits"]).reshape(-1, VOCAB)

    assert answer["bypass_reason"] == "return_generation_logits"
    assert rows.argmax(axis=1).tolist() == answer["output_ids"]


def test_a_prompt_and_answer_that_fill_the_engines(client) -> None:
    """At the engines' limit every token of room is used, drafted or not."""
    used = client.generate_http(ask("a" * 150, 1)).num_input_tokens
    on, off = (client.generate_http(ask("a" * 150, 256 - used, num_draft_tokens=drafts)) for drafts in (4, 0))

    assert on.ids == off.ids
    assert (used + len(on.ids), on.finish_reason) in {(256, "length"), (used + len(on.ids), "end_id")}
