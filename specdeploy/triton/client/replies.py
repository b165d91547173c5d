"""Reads Triton's HTTP replies: JSON bodies and event streams, where an error may hide in a 200."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from specdeploy.triton.client.failures import RequestFailed, http_failure, malformed_answers, stream_failure
from specdeploy.triton.protocol import Chunk, SseDecoder, decode_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.triton.client.http import Reply

_SHOWN = 300
_MIB = 2**20
#: The longest body, and the longest stream, that is read (bytes): no answer to a text request comes near it.
MAX_ANSWER_BYTES: Final = 64 * _MIB
#: The longest event of a stream (bytes).
MAX_EVENT_BYTES: Final = 16 * _MIB


def read_body(reply: Reply) -> bytes:
    """Return the whole body.

    Raises:
        RequestFailed: It breaks off, or is longer than ``MAX_ANSWER_BYTES``.
    """
    return b"".join(_pieces(reply))


def feed_events(reply: Reply, decoder: SseDecoder, monotonic: Callable[[], float]) -> Iterator[tuple[str, float]]:
    """Yield the data of each event of a stream, with the time it came at.

    Args:
        reply: The answer, its body unread.

        decoder: Holds what is left when the stream has ended.

        monotonic: The clock.

    Raises:
        RequestFailed: The stream breaks off, is not UTF-8, or it or one event of it is longer than allowed.
    """
    pending = 0
    for piece in _pieces(reply):
        received_s = monotonic()
        with malformed_answers():
            events = decoder.feed(piece)
        pending = 0 if events else pending + len(piece)
        if pending > MAX_EVENT_BYTES:
            raise RequestFailed("protocol", f"an event is longer than {MAX_EVENT_BYTES // _MIB} MiB")
        for event in events:
            yield event, received_s


def _pieces(reply: Reply) -> Iterator[bytes]:
    length = 0
    while piece := reply.read_some():
        length += len(piece)
        if length > MAX_ANSWER_BYTES:
            raise RequestFailed("protocol", f"the answer is longer than {MAX_ANSWER_BYTES // _MIB} MiB")
        yield piece


def read_json(status: int, body: bytes) -> dict[str, Any]:
    """Return the object in a body.

    Raises:
        RequestFailed: The status is not 200, the object has an ``error``, or there is no object.
    """
    value = _parse(body)
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
    decoder = SseDecoder()
    with reply:
        for event, received_s in feed_events(reply, decoder, monotonic):
            yield read_chunk(read_json(reply.status, event.encode()), received_s=received_s)
    if reply.status != 200:
        # What Triton finds wrong before it starts comes as a plain body and not as an event.
        read_json(reply.status, decoder.rest)
    if decoder.unfinished:
        raise RequestFailed("connection", "the event stream broke off within an event")


def read_chunk(outputs: dict[str, Any], *, received_s: float, final: bool = False) -> Chunk:
    """Decode the JSON of one response.

    Raises:
        RequestFailed: ``protocol``: it is no response of a text model.
    """
    with malformed_answers():
        return decode_chunk(outputs, final=final, received_s=received_s)


def _parse(body: bytes) -> object:
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value
