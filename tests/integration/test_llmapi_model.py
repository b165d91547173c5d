"""The model of the ``llmapi`` profile in a real tritonserver behind both front doors, around a strict stand-in."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import queue
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from specdeploy.errors import ServerFault
from specdeploy.triton.client import RequestFailed, TritonClient
from specdeploy.triton.protocol import GenerateRequest, Tensor, join_chunks
from specdeploy.triton.repository import names
from specdeploy.triton.server import TritonServer
from tests.llmapi_standin.deployment import DRAFTS, MAX_SEQ_LEN, SLOTS, STANDIN, Deployment, write_deployment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.triton.server import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.timeout(120)]

UNIT = Path(__file__).parents[1] / "unit" / "triton_models"
DECODER = Path(__file__).parents[2] / "specdeploy" / "triton" / "models" / "speculative_decoder" / "1"
sys.path += [str(UNIT), str(DECODER)]

from tokenizers_for_tests import END, byte_level  # noqa: E402 - it lies beside the unit tests

PROMPT = "the quick brown fox"
MODELS = ["ensemble", "tensorrt_llm_bls", "speculative_decoder"]
# First character of a prompt -> what the stand-in does with it.
STEERS = {"echo": "=", "slow": "~", "fail": "#", "active": "?", "aborted": "!"}


def token(text: str) -> int:
    """Return the id of a text that is one token."""
    (only,) = byte_level().encode(text, add_special_tokens=False).ids
    return only


def end_id() -> int:
    """Return the end token's id."""
    return byte_level().token_to_id(END)


def table(**changes: Any) -> dict[str, Any]:
    """Return what stands in place of the weights."""
    return {
        "seed": 11,
        "vocab_size": byte_level().get_vocab_size(),
        "metrics": "totals",
        "reports_end_id": True,
        "never": [end_id()],
        "steers": {name: token(character) for name, character in STEERS.items()},
        **changes,
    }


def deployment(**changes: Any) -> Deployment:
    """Return a speculating deployment of the current release."""
    return Deployment(**{"tokenizer": byte_level(), "end_id": end_id(), "table": table(), **changes})


@contextlib.contextmanager
def served(runtime, folder: Path, deployed: Deployment) -> Iterator[TritonClient]:
    """Serve a deployment and connect to it."""
    write_deployment(folder / "models", deployed)
    with (
        TritonServer(runtime, folder / "models", run_dir=folder / "run") as server,
        TritonClient(server.endpoints.http_url, server.endpoints.grpc_url, timeout_s=30) as connected,
    ):
        yield connected


@pytest.fixture(scope="module")
def speculating(triton_runtime, tmp_path_factory) -> Iterator[RunningServer]:
    """The speculating deployment, which most tests of this file share."""
    folder = tmp_path_factory.mktemp("llmapi")
    write_deployment(folder / "models", deployment())
    with TritonServer(triton_runtime, folder / "models", run_dir=folder / "run") as server:
        yield server


@pytest.fixture(scope="module")
def client(speculating) -> Iterator[TritonClient]:
    """A client of the speculating deployment."""
    where = speculating.endpoints
    with TritonClient(where.http_url, where.grpc_url, timeout_s=30) as connected:
        yield connected


@pytest.fixture(scope="module")
def alone(triton_runtime, tmp_path_factory) -> Iterator[RunningServer]:
    """A deployment without speculation, whose sampler applies penalties."""
    folder = tmp_path_factory.mktemp("alone")
    document = {"sampler_type": "TRTLLMSampler", "guided_decoding_backend": "xgrammar"}
    write_deployment(folder / "models", deployment(speculates=False, document=document))
    with TritonServer(triton_runtime, folder / "models", run_dir=folder / "run") as server:
        yield server


def post(server: RunningServer, model: str = names.ENSEMBLE, **inputs: Any) -> dict[str, Any]:
    """Ask over HTTP and return the JSON as it comes."""
    address = f"http://{server.endpoints.http_url}/v2/models/{model}/generate"
    request = urllib.request.Request(address, json.dumps(inputs).encode())
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


def the_table(**changes: Any):
    """Return the stand-in's own table, as its server has it."""
    sys.path.insert(0, str(STANDIN))
    try:
        from table import Table
    finally:
        sys.path.remove(str(STANDIN))
    return Table(table(**changes))


@functools.cache
def reference(prompt: str, tokens: int, end: int | None = None) -> list[int]:
    """Return the ids that a table answers, one token at a time, up to the end token."""
    last = end_id() if end is None else end
    answer: list[int] = []
    for one in itertools.islice(the_table().answer(byte_level().encode(prompt).ids, end_id=last), tokens):
        answer.append(one)
        if one == last:
            break
    return answer


def text_of(ids: list[int]) -> str:
    """Return the text of an answer."""
    return byte_level().decode(ids)


def ask(prompt: str = PROMPT, tokens: int = 40, **fields: Any) -> GenerateRequest:
    """Build a request."""
    return GenerateRequest(prompt=prompt, max_tokens=tokens, **fields)


WAYS = {
    "HTTP": lambda client, request, **options: client.generate_http(request, **options),
    "gRPC": lambda client, request, **options: client.generate_grpc(request, **options),
    "HTTP stream": lambda client, request, **options: join_chunks(list(client.stream_http(request, **options))),
    "gRPC stream": lambda client, request, **options: join_chunks(list(client.stream_grpc(request, **options))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("drafts", [None, DRAFTS])
@pytest.mark.parametrize("model", MODELS)
def test_the_answer_is_the_engines_own(client, way, drafts, model) -> None:
    """However it is asked for, ids, text, counts and reason are those of the engine; its own length may be named."""
    answer = WAYS[way](client, ask(num_draft_tokens=drafts), model=model)
    ids = reference(PROMPT, 40)

    assert (ids, text_of(ids)) == (list(answer.ids), answer.text)
    assert answer.num_output_tokens == len(ids)
    assert answer.num_input_tokens == len(byte_level().encode(PROMPT).ids)
    assert (answer.finish_reason, answer.bypass_reason) == ("length", "")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", ["=über den Wolken 😀😀 für 日本語 の", "=日本語日本語日本語 😀"])
def test_text_of_many_bytes_arrives_whole(client, way, text) -> None:
    """A character whose bytes are spread over tokens and steps is never broken; the end token does not show."""
    answer = WAYS[way](client, ask(text, 200))

    assert (answer.text, answer.finish_reason) == (text[1:], "end_id")
    assert answer.ids[-1] == end_id()


def test_a_stream_has_a_chunk_for_each_step(client) -> None:
    """More chunks than one, fewer than tokens, as the engine speculates; only the last has a reason and is final."""
    chunks = list(client.stream_grpc(ask()))

    assert 1 < len(chunks) < 40
    assert len(chunks[0].ids) == 1
    assert max(len(chunk.ids) for chunk in chunks) <= DRAFTS + 1
    assert [bool(chunk.finish_reason) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].final


@pytest.mark.parametrize("way", WAYS)
def test_one_token_is_one_token(client, way) -> None:
    """max_tokens 1 is served."""
    answer = WAYS[way](client, ask(tokens=1))

    assert (reference(PROMPT, 1), "length", 1) == (list(answer.ids), answer.finish_reason, answer.num_output_tokens)


@pytest.mark.parametrize("way", WAYS)
def test_stop_words_end_the_answer_and_do_not_show(client, way) -> None:
    """Text ends in front of the word, ids with the token that completed it, the same for every way of asking."""
    ids = reference(PROMPT, 40)
    text = text_of(ids)
    word = text[20:22]
    answer = WAYS[way](client, ask(stop_words=(word,)))

    assert (text[: text.find(word)], "stop_word") == (answer.text, answer.finish_reason)
    assert ids[: len(answer.ids)] == list(answer.ids)
    assert word in text_of(list(answer.ids))
    assert word not in text_of(list(answer.ids)[:-1])


def test_a_stop_word_ends_the_request_in_the_engine(client) -> None:
    """What would follow the word is not decoded: the request is aborted."""
    text = text_of(reference(f"~{PROMPT}", 200))
    before = aborted(client)
    client.generate_http(ask(f"~{PROMPT}", 200, stop_words=(text[3:5],)))

    assert settled(lambda: aborted(client), before + 1) == before + 1


@pytest.mark.parametrize("way", WAYS)
def test_an_end_token_ends_the_answer(client, way) -> None:
    """A request may name its own end token; it is the last id."""
    end = reference(PROMPT, 40)[9]
    answer = WAYS[way](client, ask(extra={"end_id": end}))

    assert (reference(PROMPT, 40, end), "end_id") == (list(answer.ids), answer.finish_reason)


def test_the_prompt_is_echoed_only_when_asked_for(client) -> None:
    """exclude_input_in_output false puts the prompt in front of the first text."""
    answer = client.generate_http(ask(extra={"exclude_input_in_output": False}))
    chunks = list(client.stream_http(ask(extra={"exclude_input_in_output": False})))

    assert answer.text == PROMPT + text_of(reference(PROMPT, 40)) == join_chunks(chunks).text


@pytest.mark.parametrize("way", WAYS)
def test_acceptance_numbers_are_numbers(client, way) -> None:
    """Accepted, drafted and their ratio are the engine's, and fit the number of tokens; steps are not known."""
    answer = WAYS[way](client, ask())

    assert answer.total_draft_tokens % DRAFTS == 0
    assert 0 < answer.total_accepted_draft_tokens < answer.total_draft_tokens
    assert answer.acceptance_rate == pytest.approx(answer.total_accepted_draft_tokens / answer.total_draft_tokens)
    assert (answer.num_spec_steps, answer.histogram) == (None, ())


def test_acceptance_tensors_are_typed(speculating) -> None:
    """Counts are whole numbers and the ratio is one, never text; what is not known has no tensor at all."""
    body = post(speculating, text_input=PROMPT, max_tokens=40)

    assert {type(body[name]) for name in ("total_accepted_draft_tokens", "total_draft_tokens")} == {int}
    assert type(body["acceptance_rate"]) is float
    assert not body.keys() & {"num_spec_steps", "spec_decode_acceptance_histogram", "cum_log_probs"}


def test_acceptance_tensors_are_typed_on_the_wire(speculating) -> None:
    """Over gRPC they are INT32 and FP32, which is what the front door declares."""
    infer = grpcclient.InferInput("text_input", [1, 1], "BYTES")
    infer.set_data_from_numpy(np.array([[PROMPT.encode()]], object))
    most = grpcclient.InferInput("max_tokens", [1, 1], "INT32")
    most.set_data_from_numpy(np.array([[40]], np.int32))
    replies: queue.Queue = queue.Queue()
    with grpcclient.InferenceServerClient(speculating.endpoints.grpc_url) as connection:
        connection.start_stream(lambda result, error: replies.put((result, error)), stream_timeout=30)
        connection.async_stream_infer("ensemble", [infer, most])
        result, error = replies.get(timeout=30)

    assert error is None
    types = {output.name: output.datatype for output in result.get_response().outputs}
    assert types["total_accepted_draft_tokens"] == types["total_draft_tokens"] == "INT32"
    assert types["acceptance_rate"] == "FP32"


def test_a_release_that_counts_by_position_gives_steps_and_histogram(triton_runtime, tmp_path) -> None:
    """Newer releases say how far each step came; the histogram adds up to the other numbers."""
    with served(triton_runtime, tmp_path, deployment(table=table(metrics="positions"))) as connected:
        whole, streamed = connected.generate_http(ask()), join_chunks(list(connected.stream_grpc(ask())))

    for answer in (whole, streamed):
        assert len(answer.histogram) == DRAFTS + 1
        assert sum(answer.histogram) == answer.num_spec_steps > 0
        assert sum(j * steps for j, steps in enumerate(answer.histogram)) == answer.total_accepted_draft_tokens
        assert answer.total_draft_tokens == DRAFTS * answer.num_spec_steps


def test_a_release_that_reports_zeros_and_no_end_token(triton_runtime, tmp_path) -> None:
    """Accepted tokens follow from the steps, drafted ones stay unknown; the end token is in the answer all the same."""
    changed = deployment(table=table(metrics="zeros", reports_end_id=False), version="1.0.0")
    with served(triton_runtime, tmp_path, changed) as connected:
        answer = connected.generate_http(ask())
        chunks = list(connected.stream_grpc(ask()))
        ended = [WAYS[way](connected, ask("=fox", 200)) for way in WAYS]

    assert answer.total_accepted_draft_tokens == 40 - len(chunks)
    assert (answer.total_draft_tokens, answer.acceptance_rate, answer.num_spec_steps) == (None, None, None)
    assert {(one.text, one.ids[-1], one.finish_reason) for one in ended} == {("fox", end_id(), "end_id")}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask(num_draft_tokens=0), "num_draft_tokens is 0, but this deployment's engine always drafts 3"),
        (ask(num_draft_tokens=5), "the control is a deployment without speculation"),
        (ask(tokens=0), r"max_tokens at the front door\) is \[0\]; it must be one positive number"),
        (ask(prompt=""), "the prompt is empty"),
        (ask(tokens=1000), f"max_tokens 1000 make .* but the engines hold {MAX_SEQ_LEN}"),
        (ask(extra={"embedding_bias_words": ["a"], "embedding_bias_weights": [2.0]}), "embedding_bias_words: not"),
        (ask(extra={"beam_width": 2}), "beam_width: not served"),
        (ask(extra={"num_return_sequences": 2}), "num_return_sequences: not served"),
        (ask(extra={"return_generation_logits": True}), "return_generation_logits: not served"),
        (ask(extra={"lora_task_id": 1}), "lora_task_id: not served"),
        (ask(extra={"repetition_penalty": 1.3}), "repetition_penalty: the sampler .* does nothing"),
        (ask(extra={"return_log_probs": True}), "return_log_probs: not served by an engine that speculates"),
        (ask(extra={"bad_words": ["zq"]}), "one of these words has several"),
        (ask(extra={"guided_decoding_guide_type": "json"}), "no guided_decoding_backend"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_served_is_refused_by_name(client, request_, message, way) -> None:
    """The error names the input and says what to do, and the server lives on."""
    with pytest.raises(RequestFailed, match=message):
        WAYS[way](client, request_)


@pytest.mark.parametrize("way", WAYS)
def test_a_failing_engine_fails_its_request_only(client, way) -> None:
    """The error is one line with what the engine said; the next request is answered."""
    with pytest.raises(RequestFailed, match="the engine failed: CUDA error: an illegal memory access, says the test"):
        WAYS[way](client, ask(f"#{PROMPT}"))

    assert list(client.generate_http(ask()).ids) == reference(PROMPT, 40)


def decoder_tensors(prompt: str, *, stream: bool, tokens: int = 200) -> list[Tensor]:
    """Return what the decoder is sent when it is called without the ensemble."""
    ids = np.array([byte_level().encode(prompt).ids], np.int32)
    values = {
        "text_input": (np.array([[prompt.encode()]], object), "BYTES"),
        "input_ids": (ids, "INT32"),
        "input_lengths": (np.array([[ids.size]], np.int32), "INT32"),
        "request_output_len": (np.array([[tokens]], np.int32), "INT32"),
        "end_id": (np.array([[-1]], np.int32), "INT32"),
        "stream": (np.array([[stream]]), "BOOL"),
    }
    return [Tensor(name=name, data=data, datatype=datatype) for name, (data, datatype) in values.items()]


def active(client) -> int:
    """Return how many other requests the stand-in decodes."""
    (count,) = client.generate_http(ask("?", 1)).ids
    return count


def aborted(client) -> int:
    """Return how many requests were aborted in the stand-in."""
    (count,) = client.generate_http(ask("!", 1)).ids
    return count


def settled(count: Callable[[], int], wanted: int) -> int:
    """Return a count once it is as wanted, or what it is after ten seconds."""
    pause = threading.Event()
    for _ in range(200):
        if count() == wanted:
            break
        pause.wait(0.05)
    return count()


@pytest.mark.parametrize("stream", [True, False])
def test_a_cancelled_request_frees_its_slot_and_the_engine(client, stream) -> None:
    """All slots are taken by slow requests whose clients go: the engine drops them, and the next client is served."""
    tensors = decoder_tensors(f"~{PROMPT}", stream=stream)
    before = aborted(client)
    with ThreadPoolExecutor(SLOTS) as pool:
        list(pool.map(lambda _: abandon(client, tensors, stream=stream), range(SLOTS)))

    assert settled(lambda: aborted(client), before + SLOTS) == before + SLOTS
    assert active(client) == 0
    assert list(client.generate_http(ask(), timeout_s=10).ids) == reference(PROMPT, 40)


def abandon(client, tensors: list[Tensor], *, stream: bool) -> None:
    """Begin a request and go away: after the first chunk of a stream, or after a short while of waiting."""
    # Long enough to reach the engine on a busy machine, and less than the fifty steps of 20 ms that the answer takes.
    chunks = client.send_tensors(tensors, model=names.DECODER, timeout_s=30 if stream else 1.0)
    if stream:
        next(chunks)
        chunks.close()
    else:
        with pytest.raises(RequestFailed):
            list(chunks)


@pytest.mark.parametrize("model", MODELS)
def test_a_request_whose_time_is_up_ends_with_what_it_has(client, speculating, model) -> None:
    """Also through the ensembles, which pass no cancellation on; the engine drops it."""
    before = aborted(client)
    answer = post(speculating, model, text_input=f"~{PROMPT}", max_tokens=200, timeout=300_000)

    assert answer["finish_reason"] == "timeout"
    assert answer["num_output_tokens"] < 200
    assert settled(lambda: aborted(client), before + 1) == before + 1


def test_requests_beyond_the_slots_wait_and_all_are_answered(client) -> None:
    """Many requests at once: each gets its own answer, streamed or not, through both front doors."""
    prompts = [f"{PROMPT} {number}" for number in range(32)]
    ways = list(WAYS.values())

    def one(number: int) -> list[int]:
        return list(ways[number % 4](client, ask(prompts[number], 12), model=MODELS[number // 4 % 2]).ids)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one, range(32)))

    assert [reference(prompt, 12) for prompt in prompts] == answers


def test_slow_requests_are_decoded_side_by_side(client) -> None:
    """As many as there are slots are in the engine at once: together they take little longer than one."""
    with ThreadPoolExecutor(SLOTS) as pool:
        running = [pool.submit(client.generate_grpc, ask(f"~{PROMPT} {n}", 200)) for n in range(SLOTS - 1)]
        most = 0
        while not all(future.done() for future in running):
            most = max(most, *client.generate_http(ask("?", 1)).ids)

    assert most == SLOTS - 1


@pytest.mark.parametrize("drafts", [None, 0])
def test_a_deployment_without_speculation_is_the_control(alone, drafts) -> None:
    """0 drafts is fine there, the answer is the same, says why there were no drafts, and the counts are true zeros."""
    body = post(alone, text_input=PROMPT, max_tokens=40, **({} if drafts is None else {"num_draft_tokens": drafts}))

    assert (body["output_ids"], body["bypass_reason"]) == (reference(PROMPT, 40), "no_draft_model")
    assert (body["total_draft_tokens"], body["total_accepted_draft_tokens"], body["acceptance_rate"]) == (0, 0, 0.0)
    assert (body["num_spec_steps"], body["spec_decode_acceptance_histogram"]) == (0, 0)


def test_without_speculation_more_is_served(alone) -> None:
    """Penalties that the sampler applies, log probabilities, single banned tokens and guides are handed on."""
    ids = reference(PROMPT, 8)
    banned, word = next((one, text_of([one])) for one in ids if byte_level().encode(text_of([one])).ids == [one])
    extra = {
        "repetition_penalty": 1.3,
        "return_log_probs": True,
        "bad_words": [word],
        "guided_decoding_guide_type": "regex",
        "guided_decoding_guide": "[a-z]+",
        "min_tokens": 3,
    }
    body = post(alone, text_input=PROMPT, max_tokens=8, **extra)

    assert len(body["output_log_probs"]) == len(body["output_ids"]) == 8
    assert body["cum_log_probs"] == pytest.approx(-0.5 * 8)
    assert banned not in body["output_ids"]


def test_sampled_requests_are_served(client) -> None:
    """Temperature, top_p, top_k and seed are fields that the LLM API has."""
    answer = client.generate_grpc(ask(temperature=0.8, top_p=0.9, top_k=5, seed=2**63 + 5))

    assert answer.num_output_tokens == 40


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"model": "../nowhere"},
            r"tensorrt_llm.LLM does not start: Failed to load weights from \S+/models/\.\./nowhere",
        ),
        ({"max_btach_size": 4}, "tensorrt_llm.LLM does not start: .*max_btach_size Extra inputs are not permitted"),
        ({"speculative_config": [1]}, "speculative_config of model.yaml is .*; it must be a mapping"),
    ],
)
def test_an_engine_that_does_not_load_says_why_in_one_line(triton_runtime, tmp_path, document, message) -> None:
    """The start fails with the cause that the LLM API gave."""
    with (
        pytest.raises(ServerFault, match=message),
        served(triton_runtime, tmp_path, deployment(document=document)),
    ):
        pass


def test_unloading_shuts_the_engine_down(triton_runtime, tmp_path) -> None:
    """The engine's processes and its GPU memory are given back."""
    with served(triton_runtime, tmp_path, deployment()) as connected:
        assert list(connected.generate_http(ask()).ids) == reference(PROMPT, 40)
        assert not (tmp_path / "target" / "shut-down").exists()

    assert (tmp_path / "target" / "shut-down").is_file()
