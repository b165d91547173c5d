"""Requests over real gRPC on this machine: streams used again, deadlines, cancelling, and what servers say."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2_grpc

from specdeploy.bench.wire.grpc import GrpcCodec, GrpcWire
from specdeploy.errors import ConfigError
from specdeploy.triton.client import RequestFailed, replies
from specdeploy.triton.protocol import GenerateRequest
from tests.unit.bench.wire.scripted import ask, count_of, play
from tests.unit.triton.fake_triton import error_response, response, tensors_of, text_outputs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from specdeploy.bench.wire.call import Reply

REQUEST = GenerateRequest(prompt="hi", max_tokens=3)


async def words(message: Any, _context: Any) -> AsyncIterator[Any]:
    """Answer with two pieces and, as Triton does, an empty end."""
    yield response(message.id, text_outputs("a", [1]), final=False)
    yield response(message.id, text_outputs("b", [2], "length"), final=False)
    yield response(message.id, [], final=True)


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A gRPC server on a free port; ``answer(message, context)`` yields the responses to a request."""

    def __init__(self, answer: Callable[[Any, Any], AsyncIterator[Any]]) -> None:
        self._answer = answer
        self.streams = 0
        self.ended = 0
        self.finished = 0
        self.messages: list[Any] = []

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Answer the requests of a stream, one after another."""
        self.streams += 1
        try:
            async for message in requests:
                self.messages.append(message)
                async for piece in self._answer(message, context):
                    yield piece
            self.finished += not context.cancelled()
        finally:
            self.ended += 1

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.url = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)


@contextlib.asynccontextmanager
async def wire_to(server: Triton, streams: int = 1):
    """Open a wire for the time of the block."""
    wire = GrpcWire(server.url)
    try:
        await wire.open(streams)
        yield wire
    finally:
        await wire.close()


def label(reply: Reply) -> str | None:
    """Return the label of what a request failed with."""
    return None if reply.fault is None else reply.fault.label


class TestAnswers:
    """What comes of a request that is answered."""

    def test_streams_are_used_again(self) -> None:
        """One request after another goes over the same stream, and is decoded as the blocking session decodes it."""

        async def scenario() -> None:
            codec = GrpcCodec(model="door")
            async with Triton(words) as server, wire_to(server) as wire:
                replies = [await ask(wire, codec.prepare(REQUEST)) for _ in range(3)]
                assert (server.streams, wire.received, wire.in_flight) == (1, 9, 0)
            for reply in replies:
                answer = codec.decode(reply, REQUEST)
                assert [(chunk.text, chunk.ids, chunk.final) for chunk in answer.chunks] == [
                    ("a", (1,), False),
                    ("b", (2,), False),
                ]
                assert [chunk.received_s for chunk in answer.chunks] == reply.arrived_s[:2]
                assert (answer.fault, reply.opened) == (None, False)
                assert reply.sent_s <= reply.arrived_s[0] <= reply.arrived_s[-1] <= reply.ended_s
            assert [message.model_name for message in server.messages] == ["door"] * 3
            assert len({message.id for message in server.messages}) == 3
            sent = {tensor.name: tensor.data.reshape(-1).tolist() for tensor in tensors_of(server.messages[0])}
            assert sent == {"text_input": [b"hi"], "max_tokens": [3], "stream": [True]}

        play(scenario)

    def test_more_at_a_time_than_streams(self) -> None:
        """A request that finds no free stream begins one, and says so."""

        async def scenario() -> None:
            all_there = asyncio.Barrier(3)

            async def answer(message: Any, context: Any) -> AsyncIterator[Any]:
                await all_there.wait()
                async for piece in words(message, context):
                    yield piece

            codec = GrpcCodec(model="door")
            async with Triton(answer) as server, wire_to(server, 2) as wire:
                replies = await asyncio.gather(*(ask(wire, codec.prepare(REQUEST)) for _ in range(3)))
                assert [reply.opened for reply in replies] == [False, False, True]
                assert server.streams == 3

        play(scenario)

    def test_an_input_that_the_model_does_not_have(self) -> None:
        """A typo is found before anything is sent."""
        with pytest.raises(ConfigError, match="max_tokens"):
            GrpcCodec(model="door", inputs={"text_input": "BYTES", "stream": "BOOL"}).prepare(REQUEST)


class TestFaults:
    """What comes of a request that fails; the next one is not harmed."""

    def test_an_error_of_the_model(self) -> None:
        """An error in a response is the request's failure, in the server's words, after the pieces before it."""

        async def answer(message: Any, _context: Any) -> AsyncIterator[Any]:
            yield response(message.id, text_outputs("a", [1]), final=False)
            yield error_response(message.id, "boom")

        async def scenario() -> None:
            codec = GrpcCodec(model="door")
            async with Triton(answer) as server, wire_to(server) as wire:
                replies = [await ask(wire, codec.prepare(REQUEST)) for _ in range(2)]
                decoded = [codec.decode(reply, REQUEST) for reply in replies]
                assert [label(reply) for reply in replies] == ["model_error"] * 2
                assert [[chunk.text for chunk in answer.chunks] for answer in decoded] == [["a"]] * 2
                assert all(answer.fault and answer.fault.said == "boom" for answer in decoded)
                assert server.streams == 2

        play(scenario)

    @pytest.mark.parametrize(
        ("status", "expected"),
        [("INVALID_ARGUMENT", "invalid_argument"), ("UNAVAILABLE", "connection"), (None, "connection")],
    )
    def test_a_stream_that_ends(self, status: str | None, expected: str) -> None:
        """A stream that the server ends, with a status or without, fails the request that it carries."""

        async def scenario() -> None:
            server = Triton(words)

            async def stream(_requests: Any, context: Any) -> AsyncIterator[Any]:
                if status:
                    await context.abort(grpc.StatusCode[status], "why")
                for nothing in ():
                    yield nothing

            server.ModelStreamInfer = stream  # type: ignore[method-assign, assignment]
            codec = GrpcCodec(model="door")
            async with server, wire_to(server, 0) as wire:
                assert label(await ask(wire, codec.prepare(REQUEST))) == expected

        play(scenario)

    def test_a_response_to_another_request(self) -> None:
        """A response with another id fails the request as `protocol`."""

        async def answer(_message: Any, _context: Any) -> AsyncIterator[Any]:
            yield response("other", text_outputs("a"), final=True)

        async def scenario() -> None:
            async with Triton(answer) as server, wire_to(server) as wire:
                assert label(await ask(wire, GrpcCodec(model="door").prepare(REQUEST))) == "protocol"

        play(scenario)

    def test_silence(self) -> None:
        """The deadline is for the whole answer; the stream is cancelled, and the next request begins another."""

        async def scenario() -> None:
            async def answer(message: Any, context: Any) -> AsyncIterator[Any]:
                if len(server.messages) == 1:
                    await asyncio.Event().wait()
                async for piece in words(message, context):
                    yield piece

            server = Triton(answer)
            codec = GrpcCodec(model="door")
            async with server, wire_to(server) as wire:
                first = await ask(wire, codec.prepare(REQUEST), timeout_s=0.1)
                second = await ask(wire, codec.prepare(REQUEST))
                assert (label(first), label(second), server.ended) == ("timeout", None, 1)

        play(scenario)

    def test_nobody_there(self) -> None:
        """Without a server, connecting fails as `timeout`, for gRPC keeps trying, and a request as `connection`."""

        async def scenario() -> None:
            async with Triton(words) as server:
                url = server.url
            wire = GrpcWire(url)
            with pytest.raises(RequestFailed) as failed:
                await wire.open(1, timeout_s=0.1)
            assert failed.value.label == "timeout"
            assert label(await ask(wire, GrpcCodec(model="door").prepare(REQUEST))) == "connection"
            await wire.close()

        play(scenario)


def test_an_answer_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that goes on sending is given up, and its stream is not used again."""
    monkeypatch.setattr(replies, "MAX_ANSWER_BYTES", 2_000)

    async def answer(message: Any, _context: Any) -> AsyncIterator[Any]:
        while True:
            yield response(message.id, text_outputs("x" * 100, [1]), final=False)

    async def scenario() -> None:
        codec = GrpcCodec(model="door")
        async with Triton(answer) as server, wire_to(server) as wire:
            reply = await ask(wire, codec.prepare(REQUEST))

            assert label(reply) == "protocol"
            assert "longer than" in str(reply.fault)
            assert len(reply.events) < 20

    play(scenario)


class TestCancel:
    """Giving requests up."""

    def test_one_and_all(self) -> None:
        """A request that is cancelled hands over what had come, once; closing cancels what is left."""

        async def answer(message: Any, _context: Any) -> AsyncIterator[Any]:
            yield response(message.id, text_outputs("a", [1]), final=False)
            await asyncio.Event().wait()

        async def scenario() -> None:
            codec = GrpcCodec(model="door")
            replies: list[Reply] = []
            async with Triton(answer) as server:
                async with wire_to(server, 2) as wire:
                    calls = [wire.start(codec.prepare(REQUEST), 30, replies.append) for _ in range(3)]
                    await count_of(wire, 3)
                    calls[0].cancel()
                    calls[0].cancel()
                    assert [label(reply) for reply in replies] == ["cancelled"]
                assert [label(reply) for reply in replies] == ["cancelled"] * 3
                assert [[chunk.text for chunk in codec.decode(reply, REQUEST).chunks] for reply in replies] == [
                    ["a"]
                ] * 3
                with pytest.raises(RequestFailed, match="closed"):
                    wire.start(codec.prepare(REQUEST), 30, replies.append)
                await wire.close()

        play(scenario)


def test_streams_end_before_their_loop_does() -> None:
    """By the server: what gRPC tells of one that is cancelled is an error on stderr in the loop of a later run."""

    async def scenario() -> None:
        replies: list[Reply] = []
        async with Triton(words) as server:
            async with wire_to(server, 3) as wire:
                wire.start(GrpcCodec(model="door").prepare(REQUEST), 30, replies.append)
                await count_of(wire, 3)
            assert (server.streams, server.finished) == (3, 3)

    play(scenario)
