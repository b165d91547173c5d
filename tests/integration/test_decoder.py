"""The generated repository in a real tritonserver, with table models for engines: text in, text out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import queue
import re
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from specdeploy.config.schema import BuildConfig, DeployConfig, ModelConfig
from specdeploy.deploy.metrics import parse_metrics
from specdeploy.triton.client import RequestFailed, TritonClient
from specdeploy.triton.protocol import GenerateRequest, Tensor, join_chunks
from specdeploy.triton.repository import names
from specdeploy.triton.server import TritonServer
from tests import scripted_engines
from tests.scripted_engines import end_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.triton.client.triton import ModelStatistics

pytestmark = pytest.mark.triton

UNIT = Path(__file__).parents[1] / "unit" / "triton_models"
ENGINE = Path(__file__).with_name("decoder_table_engine.py")
DOCUMENT = Path(__file__).parents[2] / "docs" / "decoder.md"
DECODER = Path(__file__).parents[2] / "specdeploy" / "triton" / "models" / "speculative_decoder" / "1"
sys.path += [str(UNIT), str(DECODER)]

from table_engines import TableModel, greedy_answer  # noqa: E402 - the reference lies beside the unit tests
from tokenizers_for_tests import byte_level  # noqa: E402 - the same

PROMPT = "the quick brown fox"
DRAFTS = 3
SLOTS = 4


def config() -> DeployConfig:
    """Return a deployment of two models that no test reads."""
    checkpoint = ModelConfig(checkpoint="nowhere")
    build = BuildConfig(max_batch_size=SLOTS, max_seq_len=256)
    base = DeployConfig(name="tables", target=checkpoint, draft=checkpoint, build=build)
    speculation = dataclasses.replace(base.speculation, num_draft_tokens=DRAFTS)
    return dataclasses.replace(base, speculation=speculation)


def token(text: str) -> int:
    """Return the id of a text that is one token."""
    (only,) = byte_level().encode(text, add_special_tokens=False).ids
    return only


def write_repository(path: Path, deployment: DeployConfig, **extra: str) -> None:
    """Write the generated repository, with table models in the engines' place; *extra* are parameters of theirs."""

    def parameters(name: str) -> dict[str, str]:
        return {
            "vocab_size": str(byte_level().get_vocab_size()),
            "fails": str(token("@" if name == names.DRAFT else "#")),
            "slow": str(token("~")),
            **extra,
        }

    modules = (UNIT / "table_engines.py", DECODER / "decoder_loop.py")
    scripted_engines.write_repository(path, deployment, ENGINE, parameters, instances=SLOTS, modules=modules)


@contextlib.contextmanager
def serving(runtime, folder: Path, deployment: DeployConfig, **extra: str) -> Iterator[TritonClient]:
    """Serve a deployment of table models and connect to it."""
    write_repository(folder / "models", deployment, **extra)
    with connected_to(runtime, folder) as connected:
        yield connected


@contextlib.contextmanager
def connected_to(runtime, folder: Path) -> Iterator[TritonClient]:
    """Serve the repository of a folder and connect to it."""
    with (
        TritonServer(runtime, folder / "models", run_dir=folder / "run") as server,
        TritonClient(
            server.endpoints.http_url,
            server.endpoints.grpc_url,
            metrics_url=server.endpoints.metrics_url,
            timeout_s=30,
        ) as connected,
    ):
        connected.grpc_url, connected.http_url = server.endpoints.grpc_url, server.endpoints.http_url
        yield connected


@pytest.fixture(scope="module")
def client(triton_runtime, tmp_path_factory) -> Iterator[TritonClient]:
    """A client of a server that all tests of this file share."""
    with serving(triton_runtime, tmp_path_factory.mktemp("decoder"), config()) as connected:
        yield connected


@functools.cache
def reference(prompt: str, tokens: int, least: int = 0) -> list[int]:
    """Decode greedily with the target's table, one token at a time."""
    ids = byte_level().encode(prompt).ids
    return greedy_answer(TableModel(5, byte_level().get_vocab_size(), 2.0), ids, tokens, end_id(), least)


def text_of(ids: list[int]) -> str:
    """Return the text of an answer."""
    return byte_level().decode(ids)


def ask(prompt: str = PROMPT, tokens: int = 40, **fields) -> GenerateRequest:
    """Build a request."""
    return GenerateRequest(prompt=prompt, max_tokens=tokens, **fields)


WAYS = {
    "HTTP": lambda client, request, **options: client.generate_http(request, **options),
    "gRPC": lambda client, request, **options: client.generate_grpc(request, **options),
    "HTTP stream": lambda client, request, **options: join_chunks(list(client.stream_http(request, **options))),
    "gRPC stream": lambda client, request, **options: join_chunks(list(client.stream_grpc(request, **options))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("drafts", [None, 0, 1, 7])
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls", "speculative_decoder"])
def test_the_answer_is_the_targets_own(client, way, drafts, model) -> None:
    """However it is asked for and whatever is drafted, ids and text are those of the target decoding greedily."""
    answer = WAYS[way](client, ask(num_draft_tokens=drafts), model=model)
    ids = reference(PROMPT, 40)

    assert (ids, text_of(ids)) == (list(answer.ids), answer.text)
    assert answer.num_output_tokens == len(ids)
    assert answer.num_input_tokens == len(byte_level().encode(PROMPT).ids)
    assert answer.finish_reason == ("end_id" if ids[-1] == end_id() else "length")


def test_speculation_is_on_unless_it_is_switched_off(client) -> None:
    """Statistics are the whole request's, and add up; 0 drafts is a control that says so."""
    on, off = (client.generate_http(ask(num_draft_tokens=drafts)) for drafts in (None, 0))

    assert (on.bypass_reason, off.bypass_reason) == ("", "requested")
    assert (off.num_spec_steps, off.total_draft_tokens, off.histogram) == (0, 0, (0,))
    assert len(on.histogram) == DRAFTS + 1
    assert sum(on.histogram) == on.num_spec_steps > 0
    assert sum(j * steps for j, steps in enumerate(on.histogram)) == on.total_accepted_draft_tokens > 0
    assert on.acceptance_rate == pytest.approx(on.total_accepted_draft_tokens / on.total_draft_tokens)
    assert on.num_output_tokens == 1 + on.num_spec_steps + on.total_accepted_draft_tokens


def test_each_verified_group_is_one_chunk(client) -> None:
    """A stream has a chunk for the first token, then one for each round; only the last has a reason and is final."""
    chunks = list(client.stream_grpc(ask()))

    assert [1, *[1 + accepted for accepted in np.diff([c.total_accepted_draft_tokens for c in chunks])]] == [
        len(chunk.ids) for chunk in chunks
    ]
    assert [chunk.num_spec_steps for chunk in chunks] == list(range(len(chunks)))
    assert [bool(chunk.finish_reason) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].final


@pytest.mark.parametrize("stream", [False, True])
def test_a_trace_comes_with_the_answer_that_asks_for_it(client, stream) -> None:
    """Through the front door, as JSON text; a request that does not ask gets none."""

    def events(**fields) -> list[dict]:
        body = {"text_input": PROMPT, "max_tokens": 40, "stream": stream, **fields}
        url = f"http://{client.http_url}/v2/models/ensemble/generate_stream"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=30) as reply:
            return [json.loads(line.removeprefix(b"data: ")) for line in reply.read().splitlines() if line]

    rounds = [entry for event in events(return_decode_trace=True) for entry in json.loads(event["decode_trace"])]

    assert [token for entry in rounds for token in entry["output_ids"]] == reference(PROMPT, 40)
    assert all(entry["target_s"] > 0 for entry in rounds)
    assert not any("decode_trace" in event for event in events())


def test_one_token_needs_no_draft(client) -> None:
    """max_tokens 1 is one target call."""
    answer = client.generate_http(ask(tokens=1))

    assert (reference(PROMPT, 1), 0, "length") == (list(answer.ids), answer.num_spec_steps, answer.finish_reason)


def engine_calls(client, model: str) -> int:
    """Return the requests that an engine has answered."""
    statistics: ModelStatistics = client.statistics(model)
    return statistics.success_count


def test_a_control_is_a_single_engine_call(client) -> None:
    """What speculation is compared with has no overhead of ours but one call."""
    before = engine_calls(client, names.TARGET)
    client.generate_http(ask(num_draft_tokens=0))

    assert engine_calls(client, names.TARGET) - before == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("drafts", [None, 0])
def test_stop_words_end_the_answer_and_do_not_show(client, way, drafts) -> None:
    """Text ends in front of the word, ids with the token that completed it, the same for every way of asking."""
    ids = reference(PROMPT, 40)
    text = text_of(ids)
    word = text[20:22]
    answer = WAYS[way](client, ask(num_draft_tokens=drafts, stop_words=(word,)))

    assert (text[: text.find(word)], "stop_word") == (answer.text, answer.finish_reason)
    assert ids[: len(answer.ids)] == list(answer.ids)
    assert word in text_of(list(answer.ids))
    assert word not in text_of(list(answer.ids)[:-1])


@pytest.mark.parametrize("way", WAYS)
def test_an_end_token_ends_the_answer(client, way) -> None:
    """A request may name its own end token; it is the last id."""
    ids = reference(PROMPT, 40)
    end = ids[9]
    answer = WAYS[way](client, ask(extra={"end_id": end}))

    assert (ids[: ids.index(end) + 1], "end_id") == (list(answer.ids), answer.finish_reason)


def test_the_prompt_is_echoed_only_when_asked_for(client) -> None:
    """exclude_input_in_output false puts the prompt in front of the first text."""
    answer = client.generate_http(ask(extra={"exclude_input_in_output": False}))
    chunks = list(client.stream_http(ask(extra={"exclude_input_in_output": False})))

    assert answer.text == PROMPT + text_of(reference(PROMPT, 40)) == join_chunks(chunks).text
    assert chunks[0].text.startswith(PROMPT)


@pytest.mark.parametrize("drafts", [None, 0])
def test_a_seed_gives_the_same_answer_streamed_or_not(client, drafts) -> None:
    """Sampled with draft logits: reproducible for a seed, and another seed gives another answer."""
    sampled = functools.partial(ask, num_draft_tokens=drafts, temperature=1.0, top_p=0.9)
    one, two = client.generate_http(sampled(seed=1)), client.generate_http(sampled(seed=2))
    streamed = join_chunks(list(client.stream_grpc(sampled(seed=1))))

    assert one.ids == streamed.ids != two.ids
    assert one.text == streamed.text


def test_unseeded_samples_differ(client) -> None:
    """Without a seed every request draws its own numbers."""
    answers = {client.generate_http(ask(temperature=1.0, top_p=0.9)).ids for _ in range(3)}

    assert len(answers) == 3


def test_a_failing_draft_does_not_fail_the_request(client) -> None:
    """The target finishes alone, correctly, and the answer says so."""
    prompt = f"@{PROMPT}"
    answer = client.generate_http(ask(prompt))

    assert (reference(prompt, 40), "draft_failed") == (list(answer.ids), answer.bypass_reason)


def test_a_draft_that_keeps_failing_is_left_alone_until_it_works_again(client) -> None:
    """Requests go to the target at once, without an error in between, and one that tries the draft brings it back."""
    client.generate_http(ask())
    reasons = [client.generate_http(ask(f"@{PROMPT}")).bypass_reason for _ in range(3)]
    calls = engine_calls(client, names.DRAFT)
    alone = client.generate_http(ask())

    assert reasons == ["draft_failed"] * 3
    assert ("draft_unavailable", reference(PROMPT, 40), calls) == (
        alone.bypass_reason,
        list(alone.ids),
        engine_calls(client, names.DRAFT),
    )
    tries = (client.generate_http(ask(tokens=8)).bypass_reason for _ in asking_for(10))
    assert next((reason for reason in tries if not reason), None) == ""
    assert client.generate_http(ask()).bypass_reason == ""


def counted(client) -> dict[str, float]:
    """Return what the decoder has counted; labels but the model's and its version's are part of a name."""
    samples = (sample for sample in parse_metrics(client.metrics_text()) if sample.name.startswith("specdeploy_"))
    return {
        sample.name + "".join(value for key, value in sample.labels.items() if key not in {"model", "version"}): (
            sample.value
        )
        for sample in samples
    }


def test_requests_are_counted_on_the_metrics_page(client) -> None:
    """What the answers say is added there, by position and by reason, also the failures of the draft."""
    client.generate_http(ask())
    before = counted(client)
    speculated, failed = client.generate_http(ask()), client.generate_http(ask(f"@{PROMPT}"))
    client.generate_http(ask(num_draft_tokens=0))
    after = counted(client)
    grown = {name: after[name] - before.get(name, 0) for name in after}

    assert grown["specdeploy_requests_total"] == 3
    assert grown["specdeploy_spec_steps_total"] == speculated.num_spec_steps
    assert grown["specdeploy_accepted_draft_tokens_total"] == speculated.total_accepted_draft_tokens
    assert speculated.total_accepted_draft_tokens == sum(
        count for name, count in grown.items() if "_per_position_total" in name
    )
    assert grown["specdeploy_bypassed_requests_totalrequested"] == 1
    assert (failed.bypass_reason, grown["specdeploy_bypassed_requests_totaldraft_failed"]) == ("draft_failed", 1)
    assert grown["specdeploy_draft_failures_total"] == 1
    assert grown["specdeploy_acceptance_length_count"] == 1
    assert after["specdeploy_draft_left_alone"] == 0
    assert grown["specdeploy_draft_seconds_total"] > 0 < grown["specdeploy_target_seconds_total"]
    assert any(counted(client)["specdeploy_requests_running"] == 0 for _ in asking_for(10))


def batch_of(prompts: list[str], *, stream: bool) -> list[grpcclient.InferInput]:
    """Return the tensors of a request of several texts, as NVIDIA's clients shape them."""
    rows = len(prompts)
    values = {
        "text_input": (np.array([[prompt.encode()] for prompt in prompts], object), "BYTES"),
        "max_tokens": (np.array([[10 + 6 * row] for row in range(rows)], np.int32), "INT32"),
        "stream": (np.full((rows, 1), stream), "BOOL"),
        "stop_words": (np.full((rows, 1), b"", object), "BYTES"),
        "bad_words": (np.array([[b""] if row else [b"!"] for row in range(rows)], object), "BYTES"),
        "beam_width": (np.full((rows, 1), 1, np.int32), "INT32"),
        "return_log_probs": (np.full((rows, 1), True), "BOOL"),
    }
    tensors = []
    for name, (data, datatype) in values.items():
        tensors.append(grpcclient.InferInput(name, list(data.shape), datatype))
        tensors[-1].set_data_from_numpy(data)
    return tensors


def batch_answers(client, prompts: list[str], *, stream: bool, model: str = names.BLS) -> list[grpcclient.InferResult]:
    """Send one request over a gRPC stream and return its responses; an error is raised."""
    answers: queue.SimpleQueue = queue.SimpleQueue()
    with grpcclient.InferenceServerClient(client.grpc_url) as connection:
        connection.start_stream(lambda result, error: answers.put((result, error)))
        connection.async_stream_infer(
            model, batch_of(prompts, stream=stream), request_id="batch", enable_empty_final_response=True
        )
        results = []
        while not (results and results[-1].get_response().parameters["triton_final_response"].bool_param):
            result, error = answers.get(timeout=30)
            if error is not None:
                raise RequestFailed("model_error", str(error))
            results.append(result)
        connection.stop_stream()
    return [result for result in results if result.as_numpy("output_ids") is not None]


BATCH = [PROMPT, f"{PROMPT} and so on", "a"]


@pytest.mark.parametrize("model", [names.BLS, names.DECODER])
def test_a_request_of_several_texts_gets_one_response_with_a_row_for_each(client, model) -> None:
    """Each row is what the text would get alone, filled up to the longest."""
    (answer,) = batch_answers(client, BATCH, stream=False, model=model)
    lengths = answer.as_numpy("sequence_length").reshape(-1).tolist()
    ids, texts = answer.as_numpy("output_ids"), answer.as_numpy("text_output")

    for row, prompt in enumerate(BATCH):
        expected = reference(prompt, 10 + 6 * row)
        assert ids[row, : lengths[row]].tolist() == expected
        assert texts[row].decode() == text_of(expected)
    assert answer.as_numpy("batch_index").tolist() == [[0], [1], [2]]
    assert answer.as_numpy("total_draft_tokens").min() > 0


@pytest.mark.parametrize("model", [names.BLS, names.DECODER])
def test_a_stream_of_several_texts_says_whose_each_response_is(client, model) -> None:
    """The rows' responses come as they are made; joined, each row's are its text's own answer."""
    ids: dict[int, list[int]] = {}
    for response in batch_answers(client, BATCH, stream=True, model=model):
        ids.setdefault(response.as_numpy("batch_index").item(), []).extend(response.as_numpy("output_ids")[0].tolist())

    assert ids == {row: reference(prompt, 10 + 6 * row) for row, prompt in enumerate(BATCH)}


@pytest.mark.parametrize("stream", [False, True])
def test_one_text_that_cannot_be_answered_fails_its_request_once(client, stream) -> None:
    """There is no answer of a part of a batch, and the slots of the others are free again."""
    with pytest.raises(RequestFailed, match="out of memory, says the test"):
        batch_answers(client, [PROMPT, f"#{PROMPT}", "a"], stream=stream)

    assert list(client.generate_http(ask()).ids) == reference(PROMPT, 40)


def test_more_texts_than_are_decoded_at_once_are_refused(client) -> None:
    """Triton says so."""
    with pytest.raises(RequestFailed, match="batch-size must be <= 4"):
        batch_answers(client, [PROMPT] * (SLOTS + 1), stream=False)


def test_a_failing_target_fails_its_request_only(client) -> None:
    """The error names the engine and what it said; the next request is answered."""
    with pytest.raises(RequestFailed, match="engine 'tensorrt_llm' failed: out of memory, says the test"):
        client.generate_http(ask(f"#{PROMPT}"))

    assert list(client.generate_http(ask()).ids) == reference(PROMPT, 40)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask(tokens=0), r"max_tokens at the front door\) is \[0\]; it must be one positive number"),
        (ask(prompt=""), "the prompt is empty"),
        (ask(tokens=1000), "max_tokens 1000 make .* but the engines hold 256"),
        (ask(num_draft_tokens=-2), "num_draft_tokens is -2"),
        (ask(extra={"return_context_logits": True}), "return_context_logits is not offered"),
        (ask(extra={"embedding_bias_words": ["a"]}), "each word needs one weight"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["ensemble", "speculative_decoder"])
def test_a_wrong_request_gets_a_clear_error(client, request_, message, way, model) -> None:
    """The error names the input and the value, and the server lives on."""
    with pytest.raises(RequestFailed, match=message):
        WAYS[way](client, request_, model=model)


def test_a_missing_prompt_is_noticed(client) -> None:
    """Triton lets a missing input pass when another makes up the number; the error comes from us."""
    with pytest.raises(RequestFailed, match=r"QUERY \(text_input at the front door\) is missing"):
        client.post_generate({"REQUEST_OUTPUT_LEN": 3, "END_ID": 2}, model=names.PREPROCESSING)


@pytest.mark.parametrize("model", [names.ENSEMBLE, names.DECODER])
def test_a_wrong_text_is_the_clients_fault(client, model) -> None:
    """Its status says so, which retries and alerts go by: also where one model asked the other."""
    with pytest.raises(RequestFailed, match="the prompt is empty: QUERY") as caught:
        client.generate_http(ask(prompt=""), model=model)

    assert caught.value.status == 400
    assert "failed:" not in caught.value.said


def test_penalties_switch_speculation_off(client) -> None:
    """The answer says which input did, and streamed its first token leaves at once as any other's."""
    request = ask(extra={"repetition_penalty": 1.3})
    answer, chunks = client.generate_http(request), list(client.stream_grpc(request))

    assert (answer.bypass_reason, answer.num_spec_steps) == ("repetition_penalty", 0)
    assert (1, answer.ids) == (len(chunks[0].ids), join_chunks(chunks).ids)


def test_min_tokens_is_exact_with_speculation(client) -> None:
    """The end token does not come early, and drafts do not change where it comes."""
    end = reference(PROMPT, 40)[4]
    speculated, alone = (
        client.generate_http(ask(num_draft_tokens=drafts, extra={"min_tokens": 12, "end_id": end}))
        for drafts in (None, 0)
    )

    assert speculated.ids == alone.ids
    assert end not in alone.ids[:12]
    assert speculated.num_spec_steps > 0


@pytest.mark.parametrize("model", ["ensemble", "speculative_decoder"])
def test_bad_words_and_bias_reach_the_engines(client, model) -> None:
    """Tensors of every optional kind arrive; one token keeps speculation on, two switch it off."""
    one, two = (client.generate_http(ask(extra={"bad_words": [word]}), model=model) for word in ("!", "zq"))
    bias = {"embedding_bias_words": ["a"], "embedding_bias_weights": [2.0]}
    biased = client.generate_http(ask(extra=bias), model=model)

    assert [answer.bypass_reason for answer in (one, two, biased)] == ["", "bad_words", ""]


def decoder_tensors(prompt: str, *, stream: bool, tokens: int = 100, **counts: int) -> list[Tensor]:
    """Return what the decoder is sent when it is called without the ensemble."""
    ids = np.array([byte_level().encode(prompt).ids], np.int32)
    values = {
        "text_input": (np.array([[prompt.encode()]], object), "BYTES"),
        "input_ids": (ids, "INT32"),
        "input_lengths": (np.array([[ids.size]], np.int32), "INT32"),
        "request_output_len": (np.array([[tokens]], np.int32), "INT32"),
        "end_id": (np.array([[-1]], np.int32), "INT32"),
        "stream": (np.array([[stream]]), "BOOL"),
        **{name: (np.array([[count]], np.int32), "INT32") for name, count in counts.items()},
    }
    return [Tensor(name=name, data=data, datatype=datatype) for name, (data, datatype) in values.items()]


def test_a_cancelled_request_stops_calling_the_engines(client) -> None:
    """After the client has gone, the round in progress is finished and no other is begun."""
    tensors = decoder_tensors(f"~{PROMPT}", stream=True)
    start = engine_calls(client, names.TARGET)
    list(client.send_tensors(tensors, model=names.DECODER))
    whole = engine_calls(client, names.TARGET) - start

    chunks = client.send_tensors(tensors, model=names.DECODER)
    next(chunks)
    chunks.close()

    assert settled(lambda: engine_calls(client, names.TARGET)) - start - whole < whole / 2


@pytest.mark.parametrize("way", ["HTTP stream", "gRPC stream"])
def test_a_client_of_the_decoder_itself_that_goes_away_stops_the_engines(client, way) -> None:
    """Text in, text out as at the front door, and a connection that is closed ends the answer within a round or two."""
    request = ask(f"~{PROMPT}", 200, extra={"end_id": -1})
    stream = {"HTTP stream": client.stream_http, "gRPC stream": client.stream_grpc}[way]
    start = engine_calls(client, names.TARGET)
    whole = join_chunks(list(stream(request, model=names.DECODER)))
    calls = engine_calls(client, names.TARGET) - start

    chunks = stream(request, model=names.DECODER)
    next(chunks)
    chunks.close()

    assert (whole.num_output_tokens, calls) > (199, 50)
    # A server hears of a closed HTTP connection when it writes.
    assert settled(lambda: engine_calls(client, names.TARGET)) - start - calls < calls / 2


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"max_tokens": ([[3]], "INT32")}, "input_ids is missing or empty, and so is text_input"),
        ({"input_ids": ([[1, 2]], "INT32"), "max_tokens": ([[3]], "INT32")}, "input_lengths is missing"),
        (
            {
                "input_ids": ([[1, 2]], "INT32"),
                "input_lengths": ([[2]], "INT32"),
                "max_tokens": ([[3]], "INT32"),
                "bad_words": ([[b"a"]], "BYTES"),
            },
            "bad_words: words go with text_input",
        ),
        (
            {
                "text_input": ([[b"a"]], "BYTES"),
                "max_tokens": ([[3]], "INT32"),
                "request_output_len": ([[9]], "INT32"),
            },
            "request_output_len: goes with input_ids",
        ),
        (
            {"input_ids": ([[1, -2]], "INT32"), "input_lengths": ([[2]], "INT32"), "max_tokens": ([[3]], "INT32")},
            "input_ids has -2, which is no token",
        ),
    ],
)
def test_what_the_decoder_itself_misses_has_a_name(client, tensors, message) -> None:
    """All inputs are optional to Triton, since a prompt is text or ids."""
    types = {"INT32": np.int32, "BYTES": object}
    sent = [Tensor(name=name, data=np.array(v, types[kind]), datatype=kind) for name, (v, kind) in tensors.items()]
    with pytest.raises(RequestFailed, match=message):
        list(client.send_tensors(sent, model=names.DECODER))


def asking_for(seconds: float) -> Iterator[None]:
    """Yield every tenth of a second for so long."""
    pause, end = threading.Event(), time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        pause.wait(0.1)


def test_a_cancelled_control_stops_calling_the_target(client) -> None:
    """Nothing has been answered yet, and the client is gone all the same: the answer is not decoded to its end.

    The server is asked ten times a second; a call takes half as long, and decodes 16 tokens where a stop word may come.
    """
    stop_words = Tensor(name="stop_words", data=np.array([[b"never"]], object), datatype="BYTES")
    tensors = [*decoder_tensors(f"~{PROMPT}", stream=False, tokens=200, num_draft_tokens=0), stop_words]
    start = engine_calls(client, names.TARGET)
    with pytest.raises(RequestFailed):
        list(client.send_tensors(tensors, model=names.DECODER, timeout_s=0.02))

    assert 1 <= settled(lambda: engine_calls(client, names.TARGET)) - start <= 4


def settled(count: Callable[[], int]) -> int:
    """Return a counter once it has stood still for half a second, ten rounds of a slow engine."""
    pause = threading.Event()
    seen = [count()]
    while len(seen) < 6 or len(set(seen[-6:])) > 1:
        assert len(seen) < 300, f"still counting: {seen[-6:]}"
        pause.wait(0.1)
        seen.append(count())
    return seen[-1]


def timed_out(client, way: str, model: str, limit_us: int) -> dict:
    """Ask for a long slow answer that may take so many microseconds, and return its last response."""
    if way != "gRPC":
        body = {"text_input": f"~{PROMPT}", "max_tokens": 200, "timeout": limit_us, "stream": way == "HTTP stream"}
        url = f"http://{client.http_url}/v2/models/{model}/generate_stream"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=30) as reply:
            return json.loads(reply.read().decode().strip().split("\n\n")[-1].removeprefix("data: "))
    answers: queue.SimpleQueue = queue.SimpleQueue()
    text, length = (
        grpcclient.InferInput("text_input", [1, 1], "BYTES"),
        grpcclient.InferInput("max_tokens", [1, 1], "INT32"),
    )
    text.set_data_from_numpy(np.array([[f"~{PROMPT}".encode()]], object))
    length.set_data_from_numpy(np.array([[200]], np.int32))
    with grpcclient.InferenceServerClient(client.grpc_url) as connection:
        connection.start_stream(lambda result, error: answers.put((result, error)))
        connection.async_stream_infer(model, [text, length], timeout=limit_us)
        result, error = answers.get(timeout=30)
        connection.stop_stream()
    assert error is None
    return {name: result.as_numpy(name).reshape(-1)[0] for name in ("finish_reason", "num_output_tokens")}


@pytest.mark.parametrize("way", ["HTTP", "HTTP stream", "gRPC"])
def test_a_request_whose_time_is_up_ends_with_what_it_has(client, way) -> None:
    """Through the ensemble, which passes no cancellation on; the engines are asked for nothing more."""
    start = engine_calls(client, names.TARGET)
    last = timed_out(client, way, names.ENSEMBLE, 300_000)

    reason = last["finish_reason"]
    assert (reason.decode() if isinstance(reason, bytes) else reason) == "timeout"
    assert 1 <= last["num_output_tokens"] < 200
    # The whole answer has 200 tokens, of which a round brings four at most.
    assert settled(lambda: engine_calls(client, names.TARGET)) - start < 200 / (1 + DRAFTS)


def test_a_tokenizer_that_hangs_frees_its_workers(triton_runtime, tmp_path) -> None:
    """Requests with text are given up in time, and those with ids are served meanwhile, by as many workers as ever."""
    write_repository(tmp_path / "models", config())
    model = tmp_path / "models" / names.PREPROCESSING / "1" / "model.py"
    code, line = model.read_text(), "        ids = self._prompt_ids(tensors)\n"
    assert code.count(line) == 1
    model.write_text(code.replace(line, f"        __import__('time').sleep(2)\n{line}"))
    body = {"text_input": PROMPT, "max_tokens": 9, "timeout": 300_000}

    def ask_in_words(connected) -> str:
        with pytest.raises(RequestFailed) as caught:
            connected.post_generate(body, model=names.DECODER)
        return caught.value.said

    with connected_to(triton_runtime, tmp_path) as connected, ThreadPoolExecutor(2 * SLOTS) as pool:
        began_s = time.monotonic()
        said = [pool.submit(ask_in_words, connected) for _ in range(SLOTS)]
        answers = [future.result(timeout=60) for future in said]
        given_up_s = time.monotonic() - began_s
        ids = list(connected.send_tensors(decoder_tensors(PROMPT, stream=False, tokens=9), model=names.DECODER))

    assert all("model 'preprocessing' has not answered within" in text for text in answers)
    # They are tokenized one after the other, two seconds each.
    assert given_up_s < 2 * SLOTS
    assert list(join_chunks(ids).ids) == greedy_answer(
        TableModel(5, byte_level().get_vocab_size(), 2.0), byte_level().encode(PROMPT).ids, 9, -1
    )


EXAMPLES = re.findall(r"^\$ curl -s (\S+) -d '(.*)'$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("address", "body"), EXAMPLES)
def test_the_requests_of_the_page_are_answered(client, address, body) -> None:
    """As they stand there, but for an answer that fits these engines."""
    data = json.dumps({**json.loads(body), "max_tokens": 40}).encode()
    url = f"http://{address.replace('127.0.0.1:8000', client.http_url)}"
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as reply:
        last = json.loads(reply.read().decode().strip().split("\n\n")[-1].removeprefix("data: "))

    assert (last["finish_reason"], last["num_output_tokens"]) == ("length", 40)


def test_there_are_requests_on_the_page() -> None:
    """At the front door, and at the decoder itself."""
    assert [address.split("/")[3] for address, _ in EXAMPLES] == [names.ENSEMBLE, names.DECODER]


def test_requests_beyond_the_slots_wait_and_all_are_answered(client) -> None:
    """Many requests at once: each gets its own answer, streamed or not, drafted or not."""
    prompts = [f"{PROMPT} {number}" for number in range(24)]
    ways = list(WAYS.values())

    def one(number: int) -> list[int]:
        request = ask(prompts[number], 12, num_draft_tokens=(None, 0, 2)[number % 3])
        return list(ways[number % 4](client, request).ids)

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(one, range(24)))

    assert [reference(prompt, 12) for prompt in prompts] == answers


def test_a_draft_that_hangs_loses_its_requests_to_other_workers(triton_runtime, tmp_path) -> None:
    """Each is answered whole by the target, once, and what the draft comes back with afterwards goes nowhere."""
    base = config()
    limits = dataclasses.replace(base.repo, parameters=("speculative_decoder draft_timeout_ms=30",))
    deployment = dataclasses.replace(base, repo=limits)
    slow = f"~{PROMPT}"
    with serving(triton_runtime, tmp_path, deployment) as client, ThreadPoolExecutor(2 * SLOTS) as pool:
        # On a busy machine even an engine that answers at once may be too late.
        first = client.generate_http(ask())
        answers = list(pool.map(lambda way: way(client, ask(slow, 24)), list(WAYS.values()) * 2))
        numbers = counted(client)
        tries = (client.generate_http(ask(tokens=8)).bypass_reason for _ in asking_for(10))
        assert next((reason for reason in tries if not reason), None) == ""

    assert all(list(answer.ids) == reference(slow, 24) for answer in answers)
    reasons = {answer.bypass_reason for answer in answers}
    assert "draft_failed" in reasons
    assert reasons <= {"draft_failed", "draft_unavailable"}
    failed = sum(answer.bypass_reason == "draft_failed" for answer in (first, *answers))
    assert numbers["specdeploy_draft_failures_total"] == failed
    assert numbers["specdeploy_requests_total"] == 1 + len(answers)


def test_a_request_whose_time_is_up_does_not_wait_for_the_draft(triton_runtime, tmp_path) -> None:
    """A draft that hangs longer than the request may take has not failed by that, and the answer comes at once."""
    deployment = config()
    with serving(triton_runtime, tmp_path, deployment, pause_s="5") as client:
        started_s = time.monotonic()
        last = timed_out(client, "HTTP stream", names.ENSEMBLE, 200_000)
        took_s = time.monotonic() - started_s
        numbers = counted(client)

    assert (last["finish_reason"], last["bypass_reason"], last["num_output_tokens"]) == ("timeout", "", 1)
    assert took_s < 4
    assert numbers["specdeploy_draft_failures_total"] == 0
    assert numbers["specdeploy_requests_total"] == 1


def test_batches_with_a_row_that_is_refused_harm_nobody(client) -> None:
    """Many at once: each fails as a whole, while its other rows are decoded, and the server lives on."""

    def one(number: int) -> str:
        tensors = [
            Tensor(name="text_input", datatype="BYTES", data=np.array([[PROMPT.encode()]] * 3, object)),
            Tensor(name="max_tokens", datatype="INT32", data=np.array([[60], [60], [1000]], np.int32)),
            Tensor(name="seed", datatype="UINT64", data=np.array([[number]] * 3, np.uint64)),
        ]
        with pytest.raises(RequestFailed) as refused:
            list(client.send_tensors(tensors, model=names.BLS))
        return refused.value.message

    with ThreadPoolExecutor(4) as pool:
        assert all("(max_seq_len)" in message for message in pool.map(one, range(200)))
    assert list(client.generate_http(ask()).ids) == reference(PROMPT, 40)


def test_adaptive_drafts_change_how_fast_an_answer_comes_and_nothing_else(triton_runtime, tmp_path) -> None:
    """With a schedule and lengths that follow what is measured, answers are the target's; what is pinned is drafted."""
    base = config()
    speculation = dataclasses.replace(base.speculation, adaptive=True, draft_len_schedule=("1: 3", "3: 0"))
    deployment = dataclasses.replace(base, speculation=speculation)
    with serving(triton_runtime, tmp_path, deployment) as adaptive, ThreadPoolExecutor(2 * SLOTS) as pool:
        alone = adaptive.generate_http(ask())
        # Each has its own place in the crowd, so that some are drafted for and some are not, as others come and go.
        crowd = list(pool.map(lambda _: adaptive.generate_grpc(ask()), range(6 * SLOTS)))
        pinned = list(pool.map(lambda _: adaptive.generate_grpc(ask(num_draft_tokens=2)), range(2 * SLOTS)))

    ids = reference(PROMPT, 40)
    assert all(list(answer.ids) == ids for answer in (alone, *crowd, *pinned))
    assert alone.num_spec_steps > 0
    assert {answer.bypass_reason for answer in crowd} <= {"", "draft_len_schedule", "low_acceptance", "not_faster"}
    assert "draft_len_schedule" in {answer.bypass_reason for answer in crowd}
    assert all(answer.bypass_reason == "" and len(answer.histogram) == 3 for answer in pinned)
    assert all(answer.total_draft_tokens > answer.num_spec_steps for answer in pinned)
