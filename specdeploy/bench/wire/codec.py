"""Between a request or a reply and its bytes: the two ways of text over HTTP that a load test speaks.

``prepare`` makes a request once, before it is due. ``decode`` reads a reply once, after it has ended, with the code and
to the same result as the blocking clients do while they wait.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from specdeploy.openai.body import make_body
from specdeploy.openai.redact import Redactor
from specdeploy.openai.replies import read_object, read_pieces
from specdeploy.triton.client.failures import RequestFailed
from specdeploy.triton.client.http import host_and_port
from specdeploy.triton.client.replies import read_chunks
from specdeploy.triton.protocol import FRONT_DOOR_INPUTS, EventSplitter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from specdeploy.bench.wire.call import Reply
    from specdeploy.openai import Dialect, ServerAddress
    from specdeploy.triton.protocol import Chunk, GenerateRequest

PayloadT_co = TypeVar("PayloadT_co", covariant=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What a reply says.

    Args:
        chunks: The pieces of the answer, as far as it came, each with ``received_s``.

        fault: Why it failed; None when it did not.
    """

    chunks: tuple[Chunk, ...]
    fault: RequestFailed | None


class Codec(Protocol[PayloadT_co]):
    """What requests and replies of one kind of server look like."""

    def prepare(self, request: GenerateRequest) -> PayloadT_co:
        """Return what a ``Wire`` sends for a request, to be sent once. Every request is for a stream, if there are any.

        Raises:
            ConfigError: The server has no such input, or a value does not fit it.
        """

    def decode(self, reply: Reply, request: GenerateRequest) -> Answer:
        """Read the reply to a request; raises nothing."""


class TritonCodec:
    """Triton's HTTP ``generate_stream``.

    Args:
        url: ``host:port`` of the server.

        model: The front door.

        inputs: The inputs that the front door has: name -> Triton data type.

        streams: Whether it can answer in pieces; without, each answer is one event.
    """

    def __init__(
        self, url: str, *, model: str, inputs: Mapping[str, str] = FRONT_DOOR_INPUTS, streams: bool = True
    ) -> None:
        self._inputs = inputs
        self._streams = streams
        self._head = _head(url, f"/v2/models/{model}/generate_stream", {})

    def prepare(self, request: GenerateRequest) -> bytes:
        """Return a whole HTTP request; see ``Codec``."""
        return _post(self._head, dataclasses.replace(request, stream=self._streams).to_json(self._inputs))

    def decode(self, reply: Reply, request: GenerateRequest) -> Answer:  # noqa: ARG002 - as in Codec
        """Read a reply; see ``Codec``."""
        if reply.status == 200:
            return collect(read_chunks(200, arrivals(reply), reply.splitter))
        # An error may come as an event, whatever its status is.
        splitter = EventSplitter()
        events = splitter.feed(reply.body)
        whole = dataclasses.replace(reply, events=events, arrived_s=[reply.ended_s] * len(events))
        return collect(read_chunks(reply.status, arrivals(whole), splitter))


class OpenAICodec:
    """OpenAI's ``/v1/completions``, or ``/v1/chat/completions`` where the dialect says so.

    Args:
        address: Where the server is.

        model: Name of the model on it.

        dialect: What the server offers beyond OpenAI's API.

        api_key: Sent as ``Authorization: Bearer``; no failure and no reason for an end repeats it, whatever the server
            says.
    """

    def __init__(self, address: ServerAddress, *, model: str, dialect: Dialect, api_key: str | None = None) -> None:
        self._model = model
        self._dialect = dialect
        self._redact = Redactor(api_key)
        route = "chat/completions" if dialect.chat else "completions"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._head = _head(address.host, f"{address.api}/{route}", headers)

    def prepare(self, request: GenerateRequest) -> bytes:
        """Return a whole HTTP request; see ``Codec``."""
        return _post(self._head, make_body(request, model=self._model, dialect=self._dialect, stream=True))

    def decode(self, reply: Reply, request: GenerateRequest) -> Answer:
        """Read a reply; see ``Codec``."""
        return collect(self._redacted(_pieces(reply, stop_words=bool(request.stop_words))))

    def _redacted(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        with self._redact.failures():
            for chunk in chunks:
                said = chunk.finish_reason
                yield dataclasses.replace(chunk, finish_reason=self._redact.text(said)) if said else chunk


def arrivals(reply: Reply) -> Iterator[tuple[Any, float]]:
    """Yield each event with the time it came at, then raise what the reply failed with.

    Raises:
        RequestFailed: There is no complete answer.
    """
    yield from zip(reply.events, reply.arrived_s, strict=True)
    if reply.fault is not None:
        raise reply.fault


def collect(chunks: Iterable[Chunk]) -> Answer:
    """Gather the pieces of an answer, and what ended it."""
    came: list[Chunk] = []
    try:
        came.extend(chunks)
    except RequestFailed as fault:
        return Answer(chunks=tuple(came), fault=fault)
    return Answer(chunks=tuple(came), fault=None)


def _pieces(reply: Reply, *, stop_words: bool) -> Iterator[Chunk]:
    if reply.status != 200:
        if reply.fault is not None:
            raise reply.fault
        read_object(reply.status, reply.body)
    yield from read_pieces(arrivals(reply), reply.splitter, stop_words=stop_words)


def _head(url: str, path: str, headers: Mapping[str, str]) -> bytes:
    host, port = host_and_port(url, 8000)
    shown = f"[{host}]" if ":" in host else host
    fixed = {
        "Host": f"{shown}:{port}",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        **headers,
    }
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fixed.items()), "Content-Length: "]
    return "\r\n".join(lines).encode("latin-1")


def _post(head: bytes, body: Mapping[str, object]) -> bytes:
    data = json.dumps(body).encode()
    return b"%s%d\r\n\r\n%s" % (head, len(data), data)
