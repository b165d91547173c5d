"""The client against a real tritonserver: what only the real one can show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.triton.client import RequestFailed, TritonClient
from specdeploy.triton.client.http import HttpTransport
from specdeploy.triton.client.replies import read_body
from specdeploy.triton.protocol import GenerateRequest, join_chunks, make_tensor
from tests.integration.plain_triton import client_of, plain_triton

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.triton.server import RunningServer

pytestmark = pytest.mark.triton

WAYS = ("generate_http", "generate_grpc", "stream_http", "stream_grpc")


@pytest.fixture(scope="module")
def server(triton_runtime: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that all tests of this file share; none may harm it."""
    with plain_triton(triton_runtime, tmp_path_factory.mktemp("triton")) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[TritonClient]:
    """A client of the shared server."""
    with client_of(server) as connected:
        yield connected


def ask(text: str = "word", count: int = 3, **fields: Any) -> GenerateRequest:
    """Build a request."""
    return GenerateRequest(prompt=text, max_tokens=count, **fields)


def answer(client: TritonClient, way: str, request: GenerateRequest, **options: Any) -> Any:
    """Fetch a whole answer in one of the four ways."""
    result = getattr(client, way)(request, **options)
    return result if way.startswith("generate") else join_chunks(list(result))


def failure(call: Callable[[], object]) -> RequestFailed:
    """Return the failure that a call must end with."""
    with pytest.raises(RequestFailed) as caught:
        call()
    return caught.value


class TestHealth:
    """What is asked about the server."""

    def test_health_and_metadata(self, client: TritonClient) -> None:
        """A running server is live and ready, and describes its models."""
        assert client.live()
        assert client.ready()
        assert client.model_ready("ensemble")
        assert not client.model_ready("nobody")
        assert client.server()["name"] == "triton"
        about = client.metadata()
        assert (about.platform, about.input_types["seed"]) == ("ensemble", "UINT64")
        assert about.output_types["output_ids"] == "INT32"

    def test_counters(self, client: TritonClient) -> None:
        """Triton's counters move with the requests; the metrics page is there."""
        before = client.statistics("decoder")
        answer(client, "generate_grpc", ask())
        # A request is counted a moment after its answer is on the way.
        deadline = time.monotonic() + 10
        while (after := client.statistics("decoder")) == before:
            assert time.monotonic() < deadline, "the counter did not move"
        assert after.success_count == before.success_count + 1
        assert 'nv_inference_request_success{model="decoder"' in client.metrics_text()

    def test_unknown_model(self, client: TritonClient) -> None:
        """A model that does not exist is the request's fault, whatever is asked of it."""
        for call in (client.metadata, client.statistics):
            assert failure(lambda call=call: call("nobody")).label in {"invalid_argument", "unavailable"}  # type: ignore[misc]


class TestAnswers:
    """Text in, text out."""

    @pytest.mark.parametrize("way", WAYS)
    def test_four_ways_one_answer(self, client: TritonClient, way: str) -> None:
        """HTTP and gRPC, whole and streamed, give the same text and the same ids."""
        chunk = answer(client, way, ask("žluťoučký 🐎", 4))

        assert chunk.text == "".join(f"žluťoučký 🐎 {i} " for i in range(4))
        assert (chunk.ids, chunk.finish_reason, chunk.num_output_tokens) == ((0, 1, 2, 3), "length", 4)

    @pytest.mark.parametrize("way", ["stream_http", "stream_grpc"])
    def test_streams_come_in_pieces(self, client: TritonClient, way: str) -> None:
        """One chunk for each response; an end that comes apart adds none."""
        for text in ("word", "end apart"):
            assert [chunk.ids for chunk in getattr(client, way)(ask(text))] == [(0,), (1,), (2,)]

    @pytest.mark.parametrize("way", WAYS)
    def test_lists_and_large_numbers_arrive(self, client: TritonClient, way: str) -> None:
        """Lists of texts and the whole range of seeds survive both encodings, a list of one too."""
        for words in (("a",), ("a", "b c", "")):
            chunk = answer(client, way, ask("inputs", stop_words=words, seed=2**64 - 1))
            assert chunk.text == "|".join([*words, str(2**64 - 1)])

    @pytest.mark.parametrize("way", WAYS)
    def test_large_messages(self, client: TritonClient, way: str) -> None:
        """Prompts and answers of several megabytes pass; gRPC's usual limit is 4 MiB."""
        text = "x" * 3_000_000

        chunk = answer(client, way, ask(text, 2))

        assert chunk.text == f"{text} 0 {text} 1 "

    def test_why_there_is_no_unary_call(self, server: RunningServer, client: TritonClient) -> None:
        """Triton refuses plain inference on such a model over HTTP (501) and unary gRPC (UNIMPLEMENTED)."""
        from tritonclient import grpc, utils

        body = {
            "inputs": [
                {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["word"]},
                {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32", "data": [2]},
            ]
        }
        path = "/v2/models/ensemble/infer"
        with HttpTransport(server.endpoints.http_url).send("POST", path, json.dumps(body).encode(), 10) as reply:
            assert b"decoupled" in read_body(reply)
        assert reply.status == 501
        with (
            grpc.InferenceServerClient(server.endpoints.grpc_url) as unary,
            pytest.raises(utils.InferenceServerException, match="UNIMPLEMENTED"),
        ):
            unary.infer("ensemble", [], client_timeout=10)
        assert answer(client, "generate_grpc", ask()).ids == (0, 1, 2)


class TestErrors:
    """What is wrong is said, under its label."""

    @pytest.mark.parametrize("way", WAYS)
    def test_a_refusal_of_the_model(self, client: TritonClient, way: str) -> None:
        """The model's words come through; HTTP tells the status as well."""
        error = failure(lambda: answer(client, way, ask(count=0)))

        assert "max_tokens must be at least 1" in error.said
        assert error.label == ("invalid_argument" if way.endswith("http") else "model_error")

    @pytest.mark.parametrize("way", ["stream_http", "stream_grpc"])
    def test_an_error_within_a_stream(self, client: TritonClient, way: str) -> None:
        """What came before the error is delivered, then the error is raised."""
        chunks = getattr(client, way)(ask("break", 5))

        assert [next(chunks).ids, next(chunks).ids] == [(0,), (1,)]
        error = failure(lambda: next(chunks))
        assert (error.label, "the engine broke" in error.said) == ("model_error", True)

    def test_an_error_with_status_200(self, client: TritonClient) -> None:
        """Several responses to HTTP generate are an error inside a 200."""
        body = {"text_input": "word", "max_tokens": 3, "stream": True}

        error = failure(lambda: client.post_generate(body))

        assert (error.label, error.status) == ("protocol", None)
        assert "exactly 1 response" in error.said

    @pytest.mark.parametrize(
        "body",
        [{"text_input": "word", "max_tokens": "three"}, {"text_input": "word"}, {"max_tokens": 3}],
    )
    def test_wrong_bodies_over_http(self, client: TritonClient, body: dict[str, object]) -> None:
        """A wrong type (which Triton answers with 500) and a missing input are the request's fault."""
        assert failure(lambda: client.post_generate(body)).label == "invalid_argument"

    @pytest.mark.parametrize(
        ("length", "model"),
        [
            (make_tensor("max_tokens", "FP32", 3.0), "ensemble"),
            (make_tensor("max_token", "INT32", 3), "ensemble"),
            (make_tensor("max_tokens", "INT32", [3, 4]), "ensemble"),
            (make_tensor("max_tokens", "INT32", 3), "nobody"),
        ],
    )
    def test_wrong_requests_over_grpc(self, client: TritonClient, length: Any, model: str) -> None:
        """A wrong type, name, shape or model is the request's fault, and the next request is answered."""
        tensors = (make_tensor("text_input", "BYTES", "word"), length)

        assert failure(lambda: list(client.send_tensors(tensors, model=model))).label == "invalid_argument"
        assert answer(client, "generate_grpc", ask()).ids == (0, 1, 2)

    def test_nobody_there(self, server: RunningServer) -> None:
        """Without a server every call fails at once as a connection."""
        from specdeploy.system.files import free_port

        nowhere = f"127.0.0.1:{free_port('127.0.0.1')}"
        with TritonClient(nowhere, nowhere) as nobody:
            assert not nobody.live()
            assert failure(nobody.server).label == "connection"
            tensors = (make_tensor("text_input", "BYTES", "word"),)
            assert failure(lambda: list(nobody.send_tensors(tensors, timeout_s=10))).label == "connection"

    def test_something_else_there(self, server: RunningServer) -> None:
        """The ports mixed up is a failure with a label, and no wait."""
        with TritonClient(server.endpoints.grpc_url, server.endpoints.http_url) as mixed:
            assert failure(lambda: mixed.server(timeout_s=5)).label in {"protocol", "connection"}
            tensors = (make_tensor("text_input", "BYTES", "word"),)
            assert failure(lambda: list(mixed.send_tensors(tensors, timeout_s=5))).label in {"connection", "timeout"}


class TestDeadlines:
    """Nothing waits for ever."""

    @pytest.mark.parametrize("way", WAYS[2:])
    def test_a_slow_stream_ends_in_time(self, client: TritonClient, way: str) -> None:
        """The deadline is for the whole answer, though chunks keep coming."""
        chunks = getattr(client, way)(ask("slow", 200), timeout_s=0.5)
        began = time.monotonic()

        assert failure(lambda: list(chunks)).label == "timeout"
        assert time.monotonic() - began < 10

    @pytest.mark.parametrize("way", WAYS[2:])
    def test_leaving_a_stream_cancels_the_request(self, client: TritonClient, way: str) -> None:
        """The model sees that nobody wants the rest.

        Asked for directly: an ensemble passes a cancellation on between its steps only (triton-inference-server/core
        PR 263), so that a step in progress runs to its end.
        """
        (before,) = answer(client, "generate_grpc", ask("count cancellations", 1)).ids
        chunks = getattr(client, way)(ask("slow", 400), model="decoder")
        next(chunks)
        chunks.close()

        deadline = time.monotonic() + 10
        while (after := answer(client, "generate_grpc", ask("count cancellations", 1)).ids) == (before,):
            assert time.monotonic() < deadline, "the model was not told"
        assert after == (before + 1,)

    def test_arrival_times_are_those_of_arrival(self, client: TritonClient) -> None:
        """A caller that is late sees when a chunk came, not when it was fetched."""
        began = time.monotonic()
        chunks = client.stream_grpc(ask("slow", 5))
        first = next(chunks)
        answer(client, "stream_http", ask("slow", 12))
        fetched = time.monotonic()
        times = [chunk.received_s for chunk in (first, *chunks)]

        assert times == sorted(times)
        assert began < times[0]
        assert times[-1] < fetched - 0.2
        assert times[-1] - times[0] > 0.1


class TestSharing:
    """Many requests, many threads."""

    def test_one_session_carries_many_requests(self, client: TritonClient) -> None:
        """Hundreds of requests over one stream each get their own answer, errors among them."""
        with client.session() as session:
            for i in range(200):
                if i % 20 == 7:
                    assert failure(lambda: list(session.stream(ask(count=0)))).label == "model_error"
                chunks = list(session.stream(ask(f"n{i}", 3)))
                assert "".join(chunk.text for chunk in chunks) == f"n{i} 0 n{i} 1 n{i} 2 "
                assert [chunk.final for chunk in chunks] == [False, False, True]

    def test_eight_threads_share_a_client(self, client: TritonClient) -> None:
        """Answers go to those who asked."""

        def work(thread: int) -> list[str]:
            return [answer(client, WAYS[i % 4], ask(f"t{thread} i{i}", 2)).text for i in range(24)]

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(work, range(8)))

        assert results == [[f"t{t} i{i} 0 t{t} i{i} 1 " for i in range(24)] for t in range(8)]

    def test_eight_sessions_at_once(self, client: TritonClient) -> None:
        """Streams over one connection do not disturb each other."""

        def work(thread: int) -> list[str]:
            with client.session() as session:
                return [join_chunks(list(session.stream(ask(f"t{thread}", 3)))).text for _ in range(20)]

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(work, range(8)))

        assert results == [[f"t{t} 0 t{t} 1 t{t} 2 "] * 20 for t in range(8)]

    def test_leaves_no_thread_behind(self, server: RunningServer) -> None:
        """After close no reading thread is left."""
        with client_of(server) as connected, connected.session() as session:
            list(session.stream(ask()))
            next(connected.stream_grpc(ask("slow", 50)))
        deadline = time.monotonic() + 5
        while any(thread.name == "triton-stream" for thread in threading.enumerate()):
            assert time.monotonic() < deadline

    @pytest.mark.parametrize("ending", ["client.close()", "pass"])
    def test_a_process_ends(self, server: RunningServer, ending: str) -> None:
        """A program ends whether or not it closed its client, with a request in flight."""
        program = (
            "from specdeploy.triton.client import TritonClient\n"
            "from specdeploy.triton.protocol import GenerateRequest\n"
            f"client = TritonClient({server.endpoints.http_url!r}, {server.endpoints.grpc_url!r})\n"
            "chunks = client.stream_grpc(GenerateRequest(prompt='slow', max_tokens=500))\n"
            "print(next(chunks).text)\n"
            f"{ending}\n"
        )

        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

        assert (done.returncode, done.stdout) == (0, "slow 0 \n")


class TestDeath:
    """What happens when the other side goes."""

    def test_a_dead_model_process(self, triton_runtime: Any, tmp_path: Any) -> None:
        """A stream in flight ends at its deadline; new requests are told; readiness does not change."""
        with plain_triton(triton_runtime, tmp_path) as running, client_of(running) as client:
            chunks = client.stream_grpc(ask("slow", 400), timeout_s=3)
            next(chunks)
            began = time.monotonic()
            assert failure(lambda: answer(client, "generate_http", ask("die"))).label == "unavailable"
            assert failure(lambda: list(chunks)).label == "timeout"
            assert time.monotonic() - began < 15
            for way in WAYS:
                error = failure(lambda way=way: answer(client, way, ask()))  # type: ignore[misc]
                assert (error.label, "not healthy" in error.said) == ("unavailable", True)
            assert client.ready()

    def test_a_server_that_goes(self, triton_runtime: Any, tmp_path: Any) -> None:
        """Streams in flight and new requests fail as a connection, each at once."""
        with plain_triton(triton_runtime, tmp_path) as running, client_of(running) as client:
            streams = [getattr(client, way)(ask("slow", 600)) for way in WAYS[2:]]
            for chunks in streams:
                next(chunks)
            os.kill(running.state.server.pid, signal.SIGKILL)
            for chunks in streams:
                assert failure(lambda chunks=chunks: list(chunks)).label == "connection"  # type: ignore[misc]
            deadline = time.monotonic() + 10
            while running.alive():
                assert time.monotonic() < deadline
            for way in WAYS:
                assert failure(lambda way=way: answer(client, way, ask())).label == "connection"  # type: ignore[misc]
            assert not client.live()
