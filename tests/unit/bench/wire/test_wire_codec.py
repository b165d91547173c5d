"""The codecs send what the blocking clients send, and read every reply to the same result, however it is cut."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.wire.codec import Answer, OpenAICodec, TritonCodec
from specdeploy.bench.wire.connection import Connection
from specdeploy.bench.wire.exchange import Exchange
from specdeploy.bench.wire.grpc import GrpcCodec
from specdeploy.errors import ConfigError
from specdeploy.openai import Dialect, OpenAIClient, ServerAddress
from specdeploy.triton.client import RequestFailed, TritonClient
from specdeploy.triton.protocol import FRONT_DOOR_INPUTS, Chunk, GenerateRequest
from tests.unit.bench.wire.scripted import chunk
from tests.unit.triton.fake_triton import FakeReply, FakeTransport, json_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.bench.wire.call import Reply
ADDRESS = ServerAddress.parse("http://[::1]:5/prefix/v1")
REQUEST = GenerateRequest(prompt="one two", max_tokens=5, stop_words=("x",))


class NullTransport(asyncio.Transport):
    """Takes what is written, and closes."""

    def write(self, data: Any) -> None:
        """Drop it."""

    def is_closing(self) -> bool:
        """Say no."""
        return False

    def abort(self) -> None:
        """Do nothing."""


class Clock:
    """Time that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


class NullPool:
    """The owner of one connection that leads nowhere."""

    address = "nowhere:1"

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock
        self.received = 0
        self.buffer = memoryview(bytearray(65536))

    def made(self, connection: Connection) -> None:
        """Take note of nothing, as do the rest."""

    put_back = forget = made

    def lost(self, connection: Connection, *, replace: bool) -> None:
        """Take note of nothing."""

    def send_over_new(self, exchange: Exchange) -> None:
        """Fail: an answer has begun."""
        raise AssertionError


def reply_of(status: int, pieces: list[bytes], *, whole: bool) -> Reply:
    """Return what a connection makes of an answer that comes in these pieces, piece i at second i."""
    clock = Clock()
    pool = NullPool(clock)
    connection = Connection(pool)
    connection.connection_made(NullTransport())
    replies: list[Reply] = []
    connection.send(Exchange(pool, b"", replies.append))
    head = b"HTTP/1.1 %d Said So\r\nTransfer-Encoding: chunked\r\n\r\n" % status
    framed = [head, *(chunk(piece) for piece in pieces), *([b"0\r\n\r\n"] if whole else [])]
    for number, data in enumerate(framed):
        clock.now_s = number - 1
        if not replies:
            pool.buffer[: len(data)] = data
            connection.buffer_updated(len(data))
    connection.connection_lost(None)
    (reply,) = replies
    return reply


def blocking(client: Callable[[FakeTransport, Clock], Any], status: int, pieces: list[bytes], *, whole: bool) -> Answer:
    """Return what a blocking client makes of the same."""
    clock = Clock()

    def timed() -> Iterator[bytes | Exception]:
        for number, piece in enumerate(pieces):
            clock.now_s = number
            yield piece
        if not whole:
            yield RequestFailed("connection", "cut")

    came: list[Chunk] = []
    try:
        for piece in client(FakeTransport(lambda *_: FakeReply(status, timed())), clock).stream_http(REQUEST):
            came.append(piece)  # noqa: PERF402 - what came before a failure counts
    except RequestFailed as fault:
        return Answer(chunks=tuple(came), fault=fault)
    return Answer(chunks=tuple(came), fault=None)


def openai_client(transport: FakeTransport, clock: Clock) -> OpenAIClient:
    """Make a blocking client of OpenAI's API."""
    return OpenAIClient(ADDRESS, model="m", transport=transport, monotonic=clock)


def triton_client(transport: FakeTransport, clock: Clock) -> TritonClient:
    """Make a blocking client of Triton that knows the front door's inputs."""
    client = TritonClient("h:1", "h:2", model="m", transport=transport, monotonic=clock)
    client._input_types["m"] = dict(FRONT_DOOR_INPUTS)
    return client


def same(ours: Answer, theirs: Answer) -> None:
    """Make sure that two answers are the same, up to the words for a lost connection."""
    assert ours.chunks == theirs.chunks
    assert (ours.fault is None) == (theirs.fault is None)
    if ours.fault is not None and theirs.fault is not None:
        assert (ours.fault.label, ours.fault.status) == (theirs.fault.label, theirs.fault.status)
        if theirs.fault.said != "cut":
            assert ours.fault.said == theirs.fault.said


#: Parts of a body that are no event, or none that is sound.
ODD = [b": comment\n\n", b'{"error": "boom"}', b"data: cut", b"data: \xff\n\n", b"event: x\ndata\n\n"]


@st.composite
def streams(draw: st.DrawFn, events: st.SearchStrategy[str]) -> list[bytes]:
    """Draw the body of an answer, sound or not, in pieces of any size."""
    end_of_line = draw(st.sampled_from([b"\n", b"\r\n"]))
    parts = []
    for text in draw(st.lists(events, max_size=6)):
        lines = [b"data: " + line for line in text.encode().split(b"\n")]
        parts.append(end_of_line.join([*lines, b"", b""]))
    parts += draw(st.lists(st.sampled_from(ODD), max_size=1))
    whole = b"".join(draw(st.permutations(parts)) if draw(st.booleans()) else parts)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    return [piece for piece in pieces if piece]


def spaced(value: object) -> st.SearchStrategy[str]:
    """Draw a spelling of a value."""
    return st.sampled_from(
        [json.dumps(value), json.dumps(value, indent=1), json.dumps(value, ensure_ascii=False) + " "]
    )


counts = st.fixed_dictionaries(
    {}, optional={"usage": st.none() | st.just({"prompt_tokens": 2, "completion_tokens": 3})}
)
choices = st.fixed_dictionaries(
    {},
    optional={
        "text": st.sampled_from(["", "a", "é", " \U0001f642"]),
        "delta": st.sampled_from([{"role": "assistant", "content": ""}, {"content": "b"}, {"content": 1}]),
        "finish_reason": st.sampled_from([None, "length", "stop", 1]),
        "token_ids": st.sampled_from([[1, 2], [], ["x"], None]),
    },
)
openai_events = st.builds(
    lambda choice, more: {"choices": [choice] if choice else [], **more}, choices, counts
).flatmap(spaced) | st.sampled_from(
    ["[DONE]", " [DONE]", '{"error": {"message": "boom"}}', "nothing", "[1]", '{"a": 1},{"b": 2}', "", '{"choices": [']
)
triton_events = st.fixed_dictionaries(
    {"text_output": st.sampled_from(["", "a", "é"])},
    optional={
        "output_ids": st.sampled_from([1, [1, 2]]),
        "finish_reason": st.sampled_from(["", "length", 3]),
        "num_output_tokens": st.integers(0, 5),
        "acceptance_rate": st.sampled_from([0.5, "x"]),
    },
).flatmap(spaced) | st.sampled_from(['{"error": "unknown model"}', '{"a": 1}', "nothing", "", "[DONE]"])
statuses = st.sampled_from([200, 200, 200, 400, 503])


class TestTheSameAsBlocking:
    """Both kinds of client, given the same bytes."""

    @given(streams(openai_events), statuses, st.booleans(), st.booleans())
    def test_openai(self, pieces: list[bytes], status: int, done: bool, whole: bool) -> None:
        """Chunks, times and failures are those of ``OpenAIClient.stream_http``."""
        pieces = [*pieces, *([b"data: [DONE]\n\n"] if done else [])]
        codec = OpenAICodec(ADDRESS, model="m", dialect=Dialect())
        ours = codec.decode(reply_of(status, pieces, whole=whole), REQUEST)
        same(ours, blocking(openai_client, status, pieces, whole=whole))

    @given(streams(triton_events), statuses, st.booleans())
    def test_triton(self, pieces: list[bytes], status: int, whole: bool) -> None:
        """Chunks, times and failures are those of ``TritonClient.stream_http``; a refusal comes at the end."""
        reply = reply_of(status, pieces, whole=whole)
        ours = TritonCodec("h:1", model="m").decode(reply, REQUEST)
        same(ours, blocking(triton_client, status, pieces, whole=whole))

    @pytest.mark.parametrize("status", [200, 401])
    @pytest.mark.parametrize("said", [b'{"error": {"message": "bad key: Bearer sk-0123456789"}}', b"sk-0123456789?"])
    def test_no_failure_repeats_the_key(self, status: int, said: bytes) -> None:
        """A server that repeats the header in its error does not bring the key into a record."""
        codec = OpenAICodec(ADDRESS, model="m", dialect=Dialect(), api_key="sk-0123456789")
        piece = b"data: %s\n\n" % said if status == 200 else said
        fault = codec.decode(reply_of(status, [piece], whole=True), REQUEST).fault
        assert fault is not None
        assert "***" in fault.said
        assert "sk-0123456789" not in f"{fault!r} {fault.message} {fault.said}"

    @pytest.mark.parametrize(("status", "label"), [(200, "protocol"), (500, "internal")])
    def test_deep_nesting(self, status: int, label: str) -> None:
        """JSON that is nested deeper than Python reads is a failure like other garbage, and ends no run."""
        half = b"[" * 50_000
        for codec in (OpenAICodec(ADDRESS, model="m", dialect=Dialect()), TritonCodec("h:1", model="m")):
            fault = codec.decode(reply_of(status, [b"data: " + half, half + b"\n\n"], whole=True), REQUEST).fault
            assert fault is not None
            assert fault.label == label


class TestPrepare:
    """What goes out."""

    def test_openai(self) -> None:
        """The body is that of ``OpenAIClient``; the head names the host, the length and the key."""
        transport = FakeTransport(lambda *_: json_reply({}, 500))
        for chat in (False, True):
            dialect = Dialect(chat=chat)
            with pytest.raises(RequestFailed):
                list(OpenAIClient(ADDRESS, model="m", dialect=dialect, transport=transport).stream_http(REQUEST))
            method, path, body = transport.sent[-1]
            codec = OpenAICodec(ADDRESS, model="m", dialect=dialect, api_key="sk-x")
            head, _, data = codec.prepare(REQUEST).partition(b"\r\n\r\n")
            assert json.loads(data) == body
            first, *lines = head.split(b"\r\n")
            assert first == f"{method} {path} HTTP/1.1".encode()
            sent = {b"Host: [::1]:5", b"Content-Length: %d" % len(data), b"Authorization: Bearer sk-x"}
            assert sent <= set(lines)

    def test_triton(self) -> None:
        """The body is that of ``TritonClient``, asked for as a stream."""
        head, _, data = TritonCodec("h:1", model="m").prepare(REQUEST).partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v2/models/m/generate_stream HTTP/1.1\r\nHost: h:1\r\n")
        assert json.loads(data) == {"text_input": "one two", "max_tokens": 5, "stop_words": ["x"], "stream": True}

    def test_a_front_door_that_does_not_stream(self) -> None:
        """It is asked for one answer, which comes as one event."""
        body = TritonCodec("h:1", model="m", streams=False).prepare(REQUEST).partition(b"\r\n\r\n")[2]
        message = GrpcCodec(model="m", streams=False).prepare(REQUEST)

        assert json.loads(body)["stream"] is False
        assert dict(zip([i.name for i in message.inputs], message.raw_input_contents, strict=True))["stream"] == b"\0"

    def test_an_input_that_the_model_does_not_have(self) -> None:
        """A typo is found before anything is sent."""
        request = GenerateRequest(prompt="x", max_tokens=1, num_draft_tokens=3)
        inputs = {"text_input": "BYTES", "max_tokens": "INT32", "stream": "BOOL"}
        with pytest.raises(ConfigError, match="num_draft_tokens"):
            TritonCodec("h:1", model="m", inputs=inputs).prepare(request)
