"""Reads Triton's HTTP replies: JSON bodies and event streams, where an error may hide in a 200."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from specdeploy.triton.client.failures import RequestFailed, http_failure, malformed_answers, stream_failure
from specdeploy.triton.protocol import Chunk, SseDecoder, decode_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.triton.client.http import Reply

_SHOWN = 300


def read_body(reply: Reply) -> bytes:
    """Return the whole body."""
    return b"".join(iter(reply.read_some, b""))


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
        while piece := reply.read_some():
            received_s = monotonic()
            with malformed_answers():
                events = decoder.feed(piece)
            for event in events:
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
    except ValueError:
        return None
    return value
