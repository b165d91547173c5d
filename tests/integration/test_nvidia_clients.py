"""Requests as NVIDIA's own clients shape them, to the generated repository: the answers are read as those clients do.

Their ``end_to_end_grpc_client.py`` and ``speculative_decoding_test.py`` send every input that they know, each with a
batch dimension, empty lists too, ask for the outputs by name, and decode ``text_output[0]``. Unary calls are served by
a repository that is written not decoupled, as ``decoupled_mode`` makes NVIDIA's templates.
"""

from __future__ import annotations

import dataclasses
import json
import queue
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.integration.test_decoder import PROMPT, SLOTS, config, reference, serving, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.triton

TOKENS = 24
OUTPUTS = ("text_output",)
PERF_OUTPUTS = ("acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens")


@dataclasses.dataclass(frozen=True)
class Server:
    """Where a deployment answers."""

    http: str
    grpc: str


def served(runtime, folder, *, decoupled: bool) -> Iterator[Server]:
    """Serve table models, streaming or not."""
    base = config()
    deployment = dataclasses.replace(base, repo=dataclasses.replace(base.repo, decoupled=decoupled))
    with serving(runtime, folder, deployment) as client:
        yield Server(http=client.http_url, grpc=client.grpc_url)


@pytest.fixture(scope="module")
def decoupled(triton_runtime, tmp_path_factory) -> Iterator[Server]:
    """A server of a repository as it is written by default."""
    yield from served(triton_runtime, tmp_path_factory.mktemp("decoupled"), decoupled=True)


@pytest.fixture(scope="module")
def unary(triton_runtime, tmp_path_factory) -> Iterator[Server]:
    """A server of a repository whose models answer with one response each."""
    yield from served(triton_runtime, tmp_path_factory.mktemp("unary"), decoupled=False)


def shaped(prompt: str = PROMPT, *, stream: bool = False, drafts: int = 0) -> dict[str, np.ndarray]:
    """Return what NVIDIA's end-to-end client sends when it is told nothing but a prompt and a length."""
    inputs = {
        "text_input": np.array([[prompt]]).astype(object),
        "max_tokens": np.array([[TOKENS]], np.int32),
        "stream": np.array([[stream]], bool),
        "beam_width": np.array([[1]], np.int32),
        "temperature": np.array([[1.0]], np.float32),
        "num_return_sequences": np.array([[1]], np.int32),
        "embedding_bias_words": np.array([[]], object),
        "embedding_bias_weights": np.array([[]], np.float32),
        "exclude_input_in_output": np.array([[False]], bool),
    }
    if drafts:
        inputs |= {"num_draft_tokens": np.array([[drafts]], np.int32), "use_draft_logits": np.array([[False]], bool)}
    return inputs


def tensors(module, inputs: dict[str, np.ndarray]) -> list:
    """Return the inputs as the tensors of a client library."""
    made = []
    for name, value in inputs.items():
        made.append(module.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype)))
        made[-1].set_data_from_numpy(value)
    return made


def over_stream(server: Server, model: str, inputs, outputs=OUTPUTS) -> list[grpcclient.InferResult]:
    """Send one request over a gRPC stream and close it, which waits for all responses; errors are raised."""
    came: queue.SimpleQueue = queue.SimpleQueue()
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: came.put((result, error)))
        wanted = [grpcclient.InferRequestedOutput(name) for name in outputs]
        client.async_stream_infer(model, tensors(grpcclient, inputs), outputs=wanted, request_id="1")
        client.stop_stream()
    answers = [came.get() for _ in range(came.qsize())]
    errors = [error for _, error in answers if error is not None]
    if errors:
        raise errors[0]
    return [result for result, _ in answers]


def texts(results) -> list[str]:
    """Read the texts as NVIDIA's clients do."""
    return [result.as_numpy("text_output")[0].decode("utf-8") for result in results]


def expected(prompt: str = PROMPT) -> str:
    """Return the target's own answer behind the prompt, as it is answered when nothing is excluded."""
    return prompt + text_of(reference(prompt, TOKENS))


@pytest.mark.parametrize("server", ["decoupled", "unary"])
@pytest.mark.parametrize(("model", "drafts"), [("ensemble", 0), ("tensorrt_llm_bls", 5)])
def test_the_speculative_decoding_test_of_the_templates_would_pass(request, server, model, drafts) -> None:
    """Control and speculation are asked over a gRPC stream that does not stream; each is one response, and alike."""
    inputs = shaped(drafts=drafts)

    assert texts(over_stream(request.getfixturevalue(server), model, inputs)) == [expected()]


def test_a_streaming_client_joins_the_pieces(decoupled) -> None:
    """Speculation and streaming at once, which NVIDIA's decoder refuses."""
    pieces = texts(over_stream(decoupled, "tensorrt_llm_bls", shaped(stream=True, drafts=5)))

    assert len(pieces) > 2
    assert "".join(pieces) == expected()


def test_perf_metrics_are_those_of_the_whole_request(decoupled) -> None:
    """Asked for as the client asks for them, with the counts of NVIDIA's names."""
    inputs = {**shaped(drafts=3), "return_perf_metrics": np.array([[True]], bool)}
    (answer,) = over_stream(decoupled, "tensorrt_llm_bls", inputs, (*OUTPUTS, *PERF_OUTPUTS))
    rate, accepted, drafted = (answer.as_numpy(name)[0][0] for name in PERF_OUTPUTS)

    assert drafted > accepted > 0
    assert rate == pytest.approx(accepted / drafted)


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
@pytest.mark.parametrize("module", [grpcclient, httpclient])
def test_unary_infer_is_answered_where_nothing_streams(unary, module, model) -> None:
    """Over gRPC and HTTP; several requests are decoded at once by the one instance."""
    address = unary.grpc if module is grpcclient else unary.http
    options = {} if module is grpcclient else {"concurrency": SLOTS}

    with module.InferenceServerClient(address, **options) as client:
        wanted = [module.InferRequestedOutput(name) for name in OUTPUTS]
        answer = client.infer(model, tensors(module, shaped(drafts=4)), outputs=wanted, request_id="1")

    assert texts([answer]) == [expected()]


def test_one_instance_answers_unary_requests_side_by_side(unary) -> None:
    """Engines that take 50 ms a call answer as many as there are slots in hardly more time than one."""
    with grpcclient.InferenceServerClient(unary.grpc) as client, ThreadPoolExecutor(SLOTS) as pool:

        def answers(count: int) -> tuple[list[str], float]:
            began_s = time.monotonic()
            requests = [tensors(grpcclient, shaped(f"~ {PROMPT}")) for _ in range(count)]
            futures = [pool.submit(client.infer, "ensemble", request) for request in requests]
            return texts([future.result(timeout=60) for future in futures]), time.monotonic() - began_s

        (alone, alone_s), (together, together_s) = answers(1), answers(SLOTS)

    assert {*alone, *together} == {expected(f"~ {PROMPT}")}
    assert together_s < 0.6 * SLOTS * alone_s


@pytest.mark.parametrize("server", ["decoupled", "unary"])
@pytest.mark.parametrize(("path", "prefix"), [("generate", b""), ("generate_stream", b"data: ")])
def test_the_curl_of_the_templates_is_answered(request, server, path, prefix) -> None:
    """Empty bad and stop words, and ids for the end that no token has, as in their README."""
    body = {"text_input": PROMPT, "max_tokens": TOKENS, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2}
    body |= {"num_draft_tokens": 4, "use_draft_logits": False, "stream": False}
    url = f"http://{request.getfixturevalue(server).http}/v2/models/tensorrt_llm_bls/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=30) as reply:
        events = [line.removeprefix(prefix) for line in reply.read().splitlines() if line]

    assert [json.loads(event)["text_output"] for event in events] == [text_of(reference(PROMPT, TOKENS))]


def test_a_request_that_streams_is_refused_where_nothing_streams(unary) -> None:
    """As by NVIDIA's engines, and with the way out; the server lives on."""
    with pytest.raises(InferenceServerException, match="streaming is only supported in decoupled mode; send stream fa"):
        over_stream(unary, "tensorrt_llm_bls", shaped(stream=True))

    assert texts(over_stream(unary, "ensemble", shaped())) == [expected()]


def test_several_texts_come_as_one_list(unary) -> None:
    """A batch is stacked by the client, and its answer has a text for each, one after the other."""
    prompts = [PROMPT, "a"]
    batch = {name: np.concatenate([value] * 2) for name, value in shaped().items()}
    batch["text_input"] = np.array([[prompt] for prompt in prompts]).astype(object)
    (answer,) = over_stream(unary, "ensemble", batch, (*OUTPUTS, "batch_index"))

    assert [text.decode() for text in answer.as_numpy("text_output")] == [expected(prompt) for prompt in prompts]
    assert answer.as_numpy("batch_index").tolist() == [[0], [1]]
