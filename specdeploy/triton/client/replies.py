"""Reads Triton's HTTP replies: JSON bodies and event streams, where an error may hide in a 200."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from specdeploy.triton.client.failures import MALFORMED, RequestFailed, http_failure, stream_failure
from specdeploy.triton.protocol import Chunk, EventSplitter, decode_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from specdeploy.triton.client.http import Reply

_SHOWN = 300
_MIB = 2**20
#: The longest body, and the longest stream, that is read (bytes): no answer to a text request comes near it.
MAX_ANSWER_BYTES: Final = 64 * _MIB
#: The most events of one stream: each is a token at least, and no answer has nearly so many.
MAX_EVENTS: Final = 100_000
#: The longest event of a stream (bytes).
MAX_EVENT_BYTES: Final = 16 * _MIB
_DECODER: Final = json.JSONDecoder()


class SizeLimit:
    """Counts the bytes of one answer as they arrive, so that none without end is read or kept."""

    def __init__(self) -> None:
        self._length = 0
        self._pending = 0
        self._events = 0

    def body(self, length: int) -> None:
        """Count bytes.

        Raises:
            RequestFailed: ``protocol``: the answer is longer than ``MAX_ANSWER_BYTES``.
        """
        self._length += length
        if self._length > MAX_ANSWER_BYTES:
            raise RequestFailed("protocol", f"the answer is longer than {MAX_ANSWER_BYTES // _MIB} MiB")

    def events(self, length: int, completed: int) -> None:
        """Count bytes of a stream, and how many events they complete.

        Raises:
            RequestFailed: As ``body``, or an event is longer than ``MAX_EVENT_BYTES``, or there are more than
                ``MAX_EVENTS``.
        """
        self.body(length)
        self._events += completed
        if self._events > MAX_EVENTS:
            raise RequestFailed("protocol", f"the answer has more than {MAX_EVENTS:,} events")
        self._pending = 0 if completed else self._pending + length
        if self._pending > MAX_EVENT_BYTES:
            raise RequestFailed("protocol", f"an event is longer than {MAX_EVENT_BYTES // _MIB} MiB")


def read_body(reply: Reply) -> bytes:
    """Return the whole body.

    Raises:
        RequestFailed: It breaks off, or is longer than ``MAX_ANSWER_BYTES``.
    """
    limit, pieces = SizeLimit(), []
    while piece := reply.read_some():
        limit.body(len(piece))
        pieces.append(piece)
    return b"".join(pieces)


def parse_json(body: bytes) -> object:
    """Return the value in a body or an event; None when it is not JSON."""
    try:
        text = body.decode()
        if text[:1] == "{" and text[-1:] == "}":
            # What json.loads does for any text takes longer than a short event itself.
            value, end = _DECODER.raw_decode(text)
            if end == len(text):
                return value
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def read_json(status: int, body: bytes) -> dict[str, Any]:
    """Return the object in a body.

    Raises:
        RequestFailed: The status is not 200, the object has an ``error``, or there is no object.
    """
    value = parse_json(body)
    message = str(value["error"]) if isinstance(value, dict) and "error" in value else None
    if status != 200:
        raise http_failure(status, message or body[:_SHOWN].decode(errors="replace"))
    if message is not None:
        raise stream_failure(message)
    if not isinstance(value, dict):
        raise RequestFailed("protocol", f"not a JSON object: {body[:_SHOWN]!r}")
    return value


def read_events(reply: Reply, monotonic: Callable[[], float]) -> Iterator[Chunk]:
    """Yield the chunks of a ``generate_stream`` reply as they arrive, and end the exchange.

    Raises:
        RequestFailed: An event is an error, or the stream breaks off.
    """
    splitter = EventSplitter()
    with reply:
        yield from read_chunks(reply.status, arrivals(reply, splitter, monotonic), splitter)


def arrivals(reply: Reply, splitter: EventSplitter, monotonic: Callable[[], float]) -> Iterator[tuple[bytes, float]]:
    """Yield the data of each event of a reply with the time it came at.

    Args:
        reply: The answer, its body unread.

        splitter: Holds what is left when the stream has ended.

        monotonic: The clock.

    Raises:
        RequestFailed: The stream breaks off, or it or one event of it is longer than allowed.
    """
    limit = SizeLimit()
    while piece := reply.read_some():
        received_s = monotonic()
        events = splitter.feed(piece)
        limit.events(len(piece), len(events))
        for event in events:
            yield event, received_s


def read_chunks(status: int, events: Iterable[tuple[bytes, float]], splitter: EventSplitter) -> Iterator[Chunk]:
    """Yield the chunks of a ``generate_stream`` reply, whoever waits for its events.

    Args:
        status: The HTTP status.

        events: The data of each event with the time it came at.

        splitter: What the events were cut out by; looked at after the last of them.

    Raises:
        RequestFailed: An event is an error, or the stream breaks off.
    """
    for event, received_s in events:
        yield read_chunk(read_json(status, event), received_s=received_s)
    if status != 200:
        # What Triton finds wrong before it starts comes as a plain body and not as an event.
        read_json(status, splitter.rest)
    if splitter.unfinished:
        raise RequestFailed("connection", "the event stream broke off within an event")


def read_chunk(outputs: dict[str, Any], *, received_s: float, final: bool = False) -> Chunk:
    """Decode the JSON of one response.

    Raises:
        RequestFailed: ``protocol``: it is no response of a text model.
    """
    try:
        return decode_chunk(outputs, final=final, received_s=received_s)
    except MALFORMED as error:
        raise RequestFailed("protocol", str(error)) from error
