"""The client against a Triton without sockets: failures under their labels, deadlines kept, everything closed."""

from __future__ import annotations

import http.client
import itertools
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from specdeploy.errors import ConfigError, ServerFault
from specdeploy.triton.client import HINTS, RequestFailed, TritonClient
from specdeploy.triton.client.failures import (
    GRPC_LABELS,
    grpc_failure,
    http_failure,
    label_of_message,
    socket_failures,
    stream_failure,
)
from specdeploy.triton.client.http import host_and_port
from specdeploy.triton.protocol import CHUNK_OUTPUTS, FRONT_DOOR_INPUTS, GenerateRequest, make_tensor
from tests.unit.triton.fake_triton import (
    FakeChannel,
    FakeReply,
    FakeRpcError,
    FakeTransport,
    error_response,
    event_reply,
    json_reply,
    metadata_of,
    response,
    tensors_of,
    text_outputs,
)

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST = GenerateRequest(prompt="Say", max_tokens=3)
METADATA = metadata_of("ensemble", dict(FRONT_DOOR_INPUTS), dict(CHUNK_OUTPUTS))


def http_client(answer: Callable[[], FakeReply], **options: Any) -> tuple[TritonClient, FakeTransport]:
    """Make a client whose metadata is in order and whose other requests get *answer*."""
    transport = FakeTransport(
        lambda method, path, body: json_reply(METADATA) if path == "/v2/models/ensemble" else answer()
    )
    return TritonClient("host", "host", transport=transport, channel=FakeChannel(lambda _: None), **options), transport


def grpc_client(answer: Callable[[Any], Any], **options: Any) -> tuple[TritonClient, FakeChannel]:
    """Make a client whose metadata is in order and whose gRPC messages get *answer*."""
    channel = FakeChannel(answer)
    transport = FakeTransport(lambda method, path, body: json_reply(METADATA))
    return TritonClient("host", "host", transport=transport, channel=channel, **options), channel


def say(message: Any) -> list[Any]:
    """Answer with two chunks; the second is final."""
    return [
        response(message.id, text_outputs("a", [1]), final=False),
        response(message.id, text_outputs("b", [2], "length"), final=True),
    ]


class TestLabels:
    """Kinds of failure."""

    def test_every_label_has_a_hint(self) -> None:
        """A failure of any kind is a server fault that says its label."""
        for label in HINTS:
            error = RequestFailed(label, "why")
            assert isinstance(error, ServerFault)
            assert (error.label, error.said) == (label, "why")
            assert error.message == f"{label}: why"

    def test_every_grpc_status_has_a_label(self) -> None:
        """The table is complete, and names no status that does not exist."""
        assert {status.name for status in grpc.StatusCode} == set(GRPC_LABELS)

    @pytest.mark.parametrize("status", [200, 301, *range(400, 418), 429, 499, *range(500, 506)])
    def test_every_http_status_has_a_label(self, status: int) -> None:
        """Whatever the status, the label is one of ours and the words are the server's."""
        error = http_failure(status, "why")

        assert error.label in HINTS
        assert error.said == "why"
        assert f"(HTTP {status})" in error.message

    @pytest.mark.parametrize(
        ("status", "label"),
        [
            (400, "invalid_argument"),
            (404, "invalid_argument"),
            (408, "timeout"),
            (429, "unavailable"),
            (499, "cancelled"),
            (500, "internal"),
            (501, "invalid_argument"),
            (503, "unavailable"),
            (504, "timeout"),
            (302, "protocol"),
        ],
    )
    def test_http_statuses(self, status: int, label: str) -> None:
        """Statuses mean what HTTP and Triton mean by them."""
        assert http_failure(status, "why").label == label

    @pytest.mark.parametrize(
        ("message", "label"),
        [
            ("Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer", "invalid_argument"),
            ("Request for unknown model: 'nope' is not found", "invalid_argument"),
            (
                "[request id: 7] inference input 'x' data-type is 'FP32', but model 'm' expects 'INT32'",
                "invalid_argument",
            ),
            ("in ensemble 'ensemble', Stub process 'decoder_0_0' is not healthy.", "unavailable"),
            ("[request id: 1] Exceeds maximum queue size", "unavailable"),
            ("Request timeout expired", "unavailable"),
            ("Server is stopping, scheduler for model has stopped accepting new inference requests", "unavailable"),
            ("Request for unknown model: 'ensemble' has no available versions", "unavailable"),
            ("generate expects model to produce exactly 1 response, use generate stream", "protocol"),
            ("the engine broke", "model_error"),
        ],
    )
    def test_messages_within_a_stream(self, message: str, label: str) -> None:
        """A stream carries no status: Triton's own messages are known, anything else is the model's."""
        assert stream_failure(message).label == label

    def test_a_known_message_beats_the_status(self) -> None:
        """Triton answers JSON of the wrong type with 500; the request is at fault all the same."""
        assert http_failure(500, "Unable to parse 'data': ...").label == "invalid_argument"
        assert label_of_message("something else", "internal") == "internal"

    def test_the_status_of_a_call_is_the_channels(self) -> None:
        """UNAVAILABLE from gRPC itself means that there is no connection."""
        assert grpc_failure("UNAVAILABLE", "failed to connect to all addresses").label == "connection"
        assert grpc_failure("UNAVAILABLE", "Exceeds maximum queue size").label == "unavailable"

    @pytest.mark.parametrize(
        ("error", "label"),
        [
            (TimeoutError(), "timeout"),
            (ConnectionRefusedError("no"), "connection"),
            (ConnectionResetError("no"), "connection"),
            (BrokenPipeError(), "connection"),
            (OSError("no route"), "connection"),
            (http.client.RemoteDisconnected("closed"), "connection"),
            (http.client.IncompleteRead(b""), "connection"),
            (UnicodeEncodeError("idna", "a..b", 0, 4, "label empty or too long"), "connection"),
            (http.client.BadStatusLine("SSH-2.0"), "protocol"),
            (http.client.LineTooLong("header line"), "protocol"),
            (http.client.UnknownProtocol("x"), "protocol"),
        ],
    )
    def test_what_sockets_raise(self, error: Exception, label: str) -> None:
        """Exceptions of sockets and http.client come out under a label, with the address."""
        with pytest.raises(RequestFailed, match="here:1") as caught, socket_failures("here:1"):
            raise error
        assert caught.value.label == label


class TestAddresses:
    """How an address is written."""

    @pytest.mark.parametrize("url", ["h:5", "http://h:5", "grpc://h:5", "http://h:5/"])
    def test_with_or_without_scheme(self, url: str) -> None:
        """An address may be written as host and port or as a URL."""
        assert host_and_port(url, 1) == ("h", 5)

    def test_default_port(self) -> None:
        """Without a port the protocol's usual one is taken; an IPv6 address keeps its colons."""
        assert host_and_port("h", 8000) == ("h", 8000)
        assert host_and_port("[::1]:5", 8000) == ("::1", 5)

    @pytest.mark.parametrize("url", ["https://h:5", "", "h:port", "http://", "[::1:8000", "a..b:1", "a b:1"])
    def test_refuses_what_it_cannot_reach(self, url: str) -> None:
        """Triton has no HTTPS; an address that is none is the user's to mend."""
        with pytest.raises(ConfigError, match="no address"):
            host_and_port(url, 1)

    def test_a_password_is_not_repeated(self) -> None:
        """An address that is refused is shown without what stands in front of its host."""
        with pytest.raises(ConfigError, match=r"\.\.\.@h:port") as failed:
            host_and_port("me:secret@h:port", 1)
        assert "secret" not in failed.value.message


class TestHealth:
    """What is asked about the server."""

    def test_ready_is_status_200(self) -> None:
        """Only a 200 means yes."""
        client, _ = http_client(lambda: FakeReply(200, []))
        assert client.live()
        assert client.ready()
        client, _ = http_client(lambda: FakeReply(400, [b'{"error":"Model version not ready"}']))
        assert not client.model_ready("m")

    def test_no_server_is_not_live(self) -> None:
        """When nothing answers, live is false and not an exception."""

        def refuse() -> FakeReply:
            raise RequestFailed("connection", "refused")

        client, _ = http_client(refuse)
        assert not client.live()

    def test_unknown_model(self) -> None:
        """Triton's message comes through."""
        client, _ = http_client(lambda: json_reply({"error": "Request for unknown model: 'x' is not found"}, 404))
        with pytest.raises(RequestFailed, match="unknown model") as caught:
            client.metadata("x")
        assert caught.value.label == "invalid_argument"

    def test_statistics(self) -> None:
        """Counters are read for the model asked for; another answer is a protocol error."""
        entry = {"name": "m", "inference_stats": {"success": {"count": 2}, "fail": {"count": 0}}}
        client, transport = http_client(lambda: json_reply({"model_stats": [entry]}))
        assert client.statistics("m").success_count == 2
        assert transport.sent[-1][1] == "/v2/models/m/stats"
        with pytest.raises(RequestFailed) as caught:
            client.statistics("other")
        assert caught.value.label == "protocol"

    def test_metrics_need_their_address(self) -> None:
        """Metrics have a port of their own, which the client must have been told."""
        client, _ = http_client(lambda: FakeReply(200, []))
        with pytest.raises(ConfigError, match="metrics"):
            client.metrics_text()


class TestGenerateHttp:
    """One answer over HTTP."""

    def test_whole_answer(self) -> None:
        """One JSON object is the answer, final and with the time it came; stream is sent as false."""
        client, transport = http_client(
            lambda: json_reply({"text_output": "hi", "output_ids": 7}), monotonic=lambda: 5.0
        )

        chunk = client.generate_http(REQUEST)

        assert (chunk.text, chunk.ids, chunk.final, chunk.received_s) == ("hi", (7,), True, 5.0)
        assert transport.sent[-1] == (
            "POST",
            "/v2/models/ensemble/generate",
            {"text_input": "Say", "max_tokens": 3, "stream": False},
        )
        assert all(reply.closed for reply in transport.replies)

    def test_200_with_an_error_is_an_error(self) -> None:
        """Triton answers some failures with status 200 and an error inside."""
        client, _ = http_client(lambda: json_reply({"error": "generate expects model to produce exactly 1 response"}))
        with pytest.raises(RequestFailed, match="exactly 1") as caught:
            client.generate_http(REQUEST)
        assert caught.value.label == "protocol"

    @pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'{"no": "text"}', b"[" * 200_000])
    def test_200_with_something_else_is_an_error(self, body: bytes) -> None:
        """An answer that is no text response is not taken for an empty one."""
        client, _ = http_client(lambda: FakeReply(200, [body]))
        with pytest.raises(RequestFailed) as caught:
            client.generate_http(REQUEST)
        assert caught.value.label == "protocol"

    def test_an_answer_without_end(self) -> None:
        """A body or a stream that does not end is given up at a size that no answer has."""
        client, _ = http_client(lambda: FakeReply(200, itertools.repeat(b" " * 2**20)))
        with pytest.raises(RequestFailed, match="the answer is longer than 64 MiB"):
            client.generate_http(REQUEST)
        with pytest.raises(RequestFailed, match="an event is longer than 16 MiB") as caught:
            list(client.stream_http(REQUEST))
        assert caught.value.label == "protocol"

    def test_an_error_page_that_is_no_json(self) -> None:
        """A proxy's page is quoted and labelled by its status."""
        client, _ = http_client(lambda: FakeReply(503, [b"<h1>busy</h1>"]))
        with pytest.raises(RequestFailed, match="busy") as caught:
            client.generate_http(REQUEST)
        assert caught.value.label == "unavailable"

    def test_a_typo_is_found_before_anything_is_sent(self) -> None:
        """Names are checked against the inputs that this server has, which are asked for once."""
        client, transport = http_client(lambda: json_reply({"text_output": "hi"}))
        for _ in range(2):
            with pytest.raises(ConfigError, match="num_draft_token"):
                client.generate_http(GenerateRequest(prompt="a", max_tokens=1, extra={"num_draft_token": 0}))
        assert transport.sent == [("GET", "/v2/models/ensemble", None)]

    def test_deadlines_are_passed_on(self) -> None:
        """A call's own time-out counts, or else the client's."""
        client, transport = http_client(lambda: json_reply({"text_output": "hi"}), timeout_s=9.0)
        client.generate_http(REQUEST, timeout_s=2.0)
        client.generate_http(REQUEST)
        assert transport.timeouts[1:] == [2.0, 9.0]


class TestStreamHttp:
    """An answer in pieces over HTTP."""

    def test_chunks_as_they_come(self) -> None:
        """Each event is a chunk; stream is sent as true, whatever the request said."""
        client, transport = http_client(lambda: event_reply([{"text_output": "a"}, {"text_output": "b"}]))

        chunks = list(client.stream_http(GenerateRequest(prompt="a", max_tokens=1, stream=False)))

        assert [chunk.text for chunk in chunks] == ["a", "b"]
        assert transport.sent[-1][1:] == (
            "/v2/models/ensemble/generate_stream",
            {"text_input": "a", "max_tokens": 1, "stream": True},
        )
        assert transport.replies[-1].closed

    def test_an_error_within_the_stream(self) -> None:
        """The chunks before an error are delivered; then it is raised, and the exchange ends."""
        client, transport = http_client(lambda: event_reply([{"text_output": "a"}, {"error": "the engine broke"}]))
        chunks = client.stream_http(REQUEST)

        assert next(chunks).text == "a"
        with pytest.raises(RequestFailed, match="the engine broke") as caught:
            next(chunks)
        assert caught.value.label == "model_error"
        assert transport.replies[-1].closed

    @pytest.mark.parametrize(
        "reply",
        [
            lambda: event_reply([{"error": "max_tokens is 0"}], status=400),
            lambda: json_reply({"error": "max_tokens is 0"}, status=400),
        ],
    )
    def test_an_error_before_the_stream(self, reply: Callable[[], FakeReply]) -> None:
        """Triton sends it as an event or as a plain body; either way it has its status."""
        client, _ = http_client(reply)
        with pytest.raises(RequestFailed, match="max_tokens is 0") as caught:
            list(client.stream_http(REQUEST))
        assert (caught.value.label, caught.value.status) == ("invalid_argument", 400)

    def test_a_status_without_words(self) -> None:
        """An empty answer with an error status is no empty stream."""
        client, _ = http_client(lambda: FakeReply(502, []))
        with pytest.raises(RequestFailed) as caught:
            list(client.stream_http(REQUEST))
        assert caught.value.label == "internal"

    @pytest.mark.parametrize("tail", [b'data: {"text_out', b'data: {"text_output": "b"}\n'])
    def test_a_cut_stream(self, tail: bytes) -> None:
        """A stream that ends within an event lost its connection."""
        client, _ = http_client(lambda: FakeReply(200, [b'data: {"text_output": "a"}\n\n', tail]))
        with pytest.raises(RequestFailed) as caught:
            list(client.stream_http(REQUEST))
        assert caught.value.label == "connection"

    def test_bytes_that_are_no_text(self) -> None:
        """An event that is not UTF-8 is a protocol error."""
        client, _ = http_client(lambda: FakeReply(200, [b"data: \xff\n\n"]))
        with pytest.raises(RequestFailed) as caught:
            list(client.stream_http(REQUEST))
        assert caught.value.label == "protocol"

    def test_leaving_early_ends_the_exchange(self) -> None:
        """Closing the iterator closes the connection, which cancels the request on the server."""
        client, transport = http_client(lambda: event_reply([{"text_output": "a"}] * 3))
        chunks = client.stream_http(REQUEST)
        next(chunks)
        chunks.close()  # type: ignore[attr-defined]
        assert transport.replies[-1].closed


class TestGrpc:
    """Answers over a gRPC stream of their own."""

    def test_stream(self) -> None:
        """Chunks come in order with the time of their arrival; the last is final; the stream is closed."""
        client, channel = grpc_client(say)

        chunks = list(client.stream_grpc(REQUEST))

        assert [(c.text, c.ids, c.final) for c in chunks] == [("a", (1,), False), ("b", (2,), True)]
        assert all(chunk.received_s is not None for chunk in chunks)
        assert channel.calls[0].cancelled

    def test_what_is_sent(self) -> None:
        """The message holds the model, the tensors, and the wish to be told the end."""
        seen = []

        def answer(message: Any) -> list[Any]:
            seen.append(message)
            return say(message)

        client, _ = grpc_client(answer)
        list(client.stream_grpc(REQUEST, model="tensorrt_llm_bls"))

        (message,) = seen
        assert message.model_name == "tensorrt_llm_bls"
        assert message.parameters["triton_enable_empty_final_response"].bool_param
        assert GenerateRequest.from_tensors(tensors_of(message)) == REQUEST
        assert all(list(spec.shape) == [1, 1] for spec in message.inputs)

    def test_an_empty_final_response_is_no_chunk(self) -> None:
        """A server may say the end apart from the last chunk."""
        client, _ = grpc_client(
            lambda m: [response(m.id, text_outputs("a"), final=False), response(m.id, [], final=True)]
        )
        assert [chunk.text for chunk in client.stream_grpc(REQUEST)] == ["a"]

    @pytest.mark.parametrize("pieces", [0, 2])
    def test_a_whole_answer_is_one_response(self, pieces: int) -> None:
        """More or fewer than one response to a request that does not stream is a protocol error."""
        client, _ = grpc_client(
            lambda m: [
                *[response(m.id, text_outputs("a"), final=False)] * pieces,
                response(m.id, [], final=True),
            ]
        )
        with pytest.raises(RequestFailed, match=f"{pieces} responses") as caught:
            client.generate_grpc(REQUEST)
        assert caught.value.label == "protocol"

    def test_an_error_response(self) -> None:
        """The server's words come through."""
        client, _ = grpc_client(lambda m: [error_response(m.id, "in ensemble 'ensemble', max_tokens is 0")])
        with pytest.raises(RequestFailed, match="max_tokens is 0") as caught:
            client.generate_grpc(REQUEST)
        assert caught.value.label == "model_error"

    @pytest.mark.parametrize(
        ("status", "label"),
        [("UNAVAILABLE", "connection"), ("UNIMPLEMENTED", "invalid_argument"), ("CANCELLED", "cancelled")],
    )
    def test_a_call_that_ends_with_a_status(self, status: str, label: str) -> None:
        """The channel's status gets its label."""
        client, _ = grpc_client(lambda m: [FakeRpcError(status, "why")])
        with pytest.raises(RequestFailed, match="why") as caught:
            client.generate_grpc(REQUEST)
        assert caught.value.label == label

    def test_a_bug_in_the_reader_is_told(self) -> None:
        """Any exception of the reading thread reaches the caller; none leaves it waiting."""
        client, _ = grpc_client(lambda m: [ValueError("odd")])
        with pytest.raises(RequestFailed, match="ValueError: odd") as caught:
            client.generate_grpc(REQUEST)
        assert caught.value.label == "protocol"

    def test_outputs_that_do_not_fit_their_shape(self) -> None:
        """A response that lies about its shapes is a protocol error."""

        def answer(message: Any) -> list[Any]:
            bad = response(message.id, [make_tensor("output_ids", "INT32", [1, 2])], final=True)
            bad.infer_response.outputs[0].shape[:] = [1, 3]
            return [bad]

        client, _ = grpc_client(answer)
        with pytest.raises(RequestFailed, match="output_ids") as caught:
            client.generate_grpc(REQUEST)
        assert caught.value.label == "protocol"

    def test_silence_ends_at_the_deadline(self) -> None:
        """A server that never answers (a dead model process) is a time-out, and the request is cancelled."""
        client, channel = grpc_client(lambda m: None)
        with pytest.raises(RequestFailed) as caught:
            client.generate_grpc(REQUEST, timeout_s=0.05)
        assert caught.value.label == "timeout"
        assert channel.calls[0].cancelled

    def test_the_deadline_is_for_the_whole_answer(self) -> None:
        """Chunks that keep coming do not move the deadline."""
        now = iter(range(100))
        client, _ = grpc_client(
            lambda m: (response(m.id, text_outputs("a"), final=False) for _ in range(50)),
            monotonic=lambda: float(next(now)) if threading.current_thread() is threading.main_thread() else 0.0,
        )
        chunks = client.stream_grpc(REQUEST, timeout_s=5)
        with pytest.raises(RequestFailed) as caught:
            for _ in chunks:
                pass
        assert caught.value.label == "timeout"

    def test_leaving_early_cancels(self) -> None:
        """Closing the iterator cancels the call."""
        client, channel = grpc_client(lambda m: [response(m.id, text_outputs("a"), final=False)])
        chunks = client.stream_grpc(REQUEST)
        next(chunks)
        chunks.close()  # type: ignore[attr-defined]
        assert channel.calls[0].cancelled

    def test_close_is_for_ever(self) -> None:
        """A client closes its channel at the end of its block, and closing again does nothing."""
        client, channel = grpc_client(say)
        with client:
            pass
        client.close()
        assert channel.closed


class TestSession:
    """Many requests over one gRPC stream."""

    def test_many_requests_share_one_stream(self) -> None:
        """Requests that end well do not cost a new stream."""
        client, channel = grpc_client(say)
        with client.session() as session:
            texts = ["".join(chunk.text for chunk in session.stream(REQUEST)) for _ in range(5)]
        assert texts == ["ab"] * 5
        assert len(channel.calls) == 1
        assert channel.calls[0].cancelled

    def test_the_stream_flag_is_the_requests_own(self) -> None:
        """A load test decides for itself whether to stream."""
        seen = []

        def answer(message: Any) -> list[Any]:
            seen.append(GenerateRequest.from_tensors(tensors_of(message)).stream)
            return say(message)

        client, _ = grpc_client(answer)
        with client.session() as session:
            for stream in (True, False):
                list(session.stream(GenerateRequest(prompt="a", max_tokens=1, stream=stream)))
        assert seen == [True, False]

    def test_the_last_chunk_is_enough(self) -> None:
        """A caller that stops at the final chunk has read the answer to its end."""
        client, channel = grpc_client(say)
        with client.session() as session:
            for _ in range(2):
                chunks = session.stream(REQUEST)
                while not next(chunks).final:
                    pass
            del chunks
            assert [chunk.text for chunk in session.stream(REQUEST)] == ["a", "b"]
        assert len(channel.calls) == 1

    @pytest.mark.parametrize("failure", ["error", "status", "silence", "abandoned", "foreign"])
    def test_goes_on_after_a_failure(self, failure: str) -> None:
        """After any failure the next request gets a new stream and the right answer."""
        first = True

        def answer(message: Any) -> list[Any] | None:
            nonlocal first
            if not first:
                return say(message)
            first = False
            return {
                "error": [error_response(message.id, "no")],
                "status": [FakeRpcError("UNAVAILABLE", "gone")],
                "silence": None,
                "abandoned": [response(message.id, text_outputs("old"), final=False)],
                "foreign": [response("99", text_outputs("old"), final=True)],
            }[failure]

        client, channel = grpc_client(answer)
        with client.session() as session:
            chunks = session.stream(REQUEST, 0.05)
            if failure == "abandoned":
                next(chunks)
            else:
                with pytest.raises(RequestFailed):
                    next(chunks)
            second = session.stream(REQUEST)
            del chunks
            assert [chunk.text for chunk in second] == ["a", "b"]
        assert len(channel.calls) == 2

    def test_a_second_final_response_is_noticed(self) -> None:
        """A response that belongs to an earlier request is never taken for an answer to this one."""
        client, _ = grpc_client(lambda m: [*say(m), response(m.id, text_outputs("again"), final=True)])
        with client.session() as session:
            list(session.stream(REQUEST))
            with pytest.raises(RequestFailed, match="arrived during request 2") as caught:
                list(session.stream(REQUEST))
        assert caught.value.label == "protocol"

    def test_closing_from_another_thread_ends_the_wait(self) -> None:
        """A load test that is stopped closes its sessions under the requests in flight."""
        asked = threading.Event()

        def answer(message: Any) -> None:
            asked.set()

        client, _ = grpc_client(answer)
        session = client.session(timeout_s=60)
        failures: list[RequestFailed] = []

        def wait() -> None:
            try:
                list(session.stream(REQUEST))
            except RequestFailed as error:
                failures.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert asked.wait(10)
        session.close()
        thread.join(10)
        assert [error.label for error in failures] == ["cancelled"]

    def test_leaves_no_thread_behind(self) -> None:
        """Closing ends the reading thread."""
        client, _ = grpc_client(say)
        with client.session() as session:
            list(session.stream(REQUEST))
        assert "triton-stream" not in {thread.name for thread in threading.enumerate()}
