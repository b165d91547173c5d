"""Reads what an OpenAI-compatible server answers: JSON bodies, event streams, and errors in their several shapes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.openai.answers import decode_answer
from specdeploy.triton.client.failures import MALFORMED, RequestFailed, http_failure, stream_failure
from specdeploy.triton.client.replies import arrivals, parse_json, read_body
from specdeploy.triton.protocol import EventSplitter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from specdeploy.triton.client.http import Reply
    from specdeploy.triton.protocol import Chunk

_SHOWN: Final = 300
_DONE: Final = b"[DONE]"


def read_object(status: int, body: bytes) -> dict[str, Any]:
    """Return the object in a body.

    Raises:
        RequestFailed: The status is not 200, the object is an error all the same, or there is no object.
    """
    value = parse_json(body)
    said = error_in(value)
    if status != 200:
        raise http_failure(status, said or body[:_SHOWN].decode(errors="replace"))
    if said:
        raise stream_failure(said)
    if not isinstance(value, dict):
        raise RequestFailed("protocol", f"not a JSON object: {body[:_SHOWN]!r}")
    return value


def error_in(value: object) -> str:
    """Return what an error says; nothing when the value is none.

    The shapes: ``{"error": {"message": ...}}`` (OpenAI, llama.cpp, vLLM), ``{"error": "..."}`` (Triton),
    ``{"object": "error", "message": ...}`` (trtllm-serve, older vLLM) and ``{"detail": ...}`` (FastAPI).
    """
    if not isinstance(value, dict):
        return ""
    if value.get("error"):
        error = value["error"]
        said = (error.get("message") or error.get("type")) if isinstance(error, dict) else None
        return str(said or error)
    if value.get("object") == "error":
        return str(value.get("message") or value)
    if "choices" not in value and value.get("detail"):
        return _shown(value["detail"])
    return ""


def read_events(reply: Reply, monotonic: Callable[[], float], *, stop_words: bool) -> Iterator[Chunk]:
    """Yield the pieces of a streamed answer as they arrive, and end the exchange.

    The piece that says why the answer ended is held back until the stream has ended: numbers of tokens and of drafts
    come after it. Events without text, ids and reason (a chat's first one names the role only) are passed over.

    Args:
        reply: The answer, its body unread.

        monotonic: The clock of ``Chunk.received_s``.

        stop_words: Whether the request has stop words; see :func:`~specdeploy.openai.answers.decode_answer`.

    Raises:
        RequestFailed: An event is an error, or the stream breaks off or ends before ``[DONE]``.
    """
    splitter = EventSplitter()
    with reply:
        if reply.status != 200:
            read_object(reply.status, read_body(reply))
        yield from read_pieces(arrivals(reply, splitter, monotonic), splitter, stop_words=stop_words)


def read_pieces(events: Iterable[tuple[bytes, float]], splitter: EventSplitter, *, stop_words: bool) -> Iterator[Chunk]:
    """Yield the pieces of a streamed answer as :func:`read_events` does, whoever waits for its events.

    Args:
        events: The data of each event with the time it came at.

        splitter: What the events were cut out by; looked at after the last of them.

        stop_words: As in :func:`read_events`.

    Raises:
        RequestFailed: As :func:`read_events`.
    """
    return _marked_last(_decoded(_until_done(events, splitter), stop_words=stop_words))


def _until_done(events: Iterable[tuple[bytes, float]], splitter: EventSplitter) -> Iterator[tuple[bytes, float]]:
    """Pass on what is in front of ``[DONE]``, and make sure that it comes and is the end.

    That a connection breaks off, ``events`` tell; a stream that ends here without ``[DONE]`` was ended by the server.
    """
    done = begun = False
    for event, received_s in events:
        begun = True
        if done:
            raise RequestFailed("protocol", f"an event follows [DONE]: {event[:_SHOWN]!r}")
        if event.strip() == _DONE:
            done = True
        else:
            yield event, received_s
    if not done:
        if splitter.rest.lstrip().startswith(b"{"):
            # Some servers write an error into a stream that has begun as a plain body.
            read_object(200, splitter.rest)
        if splitter.unfinished:
            raise RequestFailed("connection", "the event stream broke off within an event")
        if not begun:
            raise RequestFailed("empty_stream", "the stream ended without a response")
        raise RequestFailed("stream_ended_early", "the stream ended before [DONE]")


def _decoded(events: Iterable[tuple[bytes, float]], *, stop_words: bool) -> Iterator[Chunk]:
    for event, received_s in events:
        answer = read_object(200, event)
        try:
            chunk = decode_answer(answer, stop_words=stop_words, received_s=received_s)
        except MALFORMED as error:
            raise RequestFailed("protocol", str(error)) from error
        yield chunk


def _marked_last(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Hold back the newest piece that is worth telling, lay later counts over it, and mark the very last."""
    held: Chunk | None = None
    for chunk in chunks:
        if not (chunk.text or chunk.ids or chunk.finish_reason):
            held = None if held is None else _with_counts(held, chunk)
            continue
        if held is not None:
            yield held
        if chunk.finish_reason:
            held = chunk
        else:
            yield chunk
            held = None
    if held is not None:
        yield dataclasses.replace(held, final=True)


_COUNTS: Final = (
    "acceptance_rate",
    "num_spec_steps",
    "total_draft_tokens",
    "total_accepted_draft_tokens",
    "histogram",
    "num_input_tokens",
    "num_output_tokens",
)


def _with_counts(chunk: Chunk, later: Chunk) -> Chunk:
    told = {name: getattr(later, name) for name in _COUNTS if getattr(later, name) not in {None, ()}}
    return dataclasses.replace(chunk, **told)


def _shown(detail: object) -> str:
    """Return FastAPI's ``detail``: a text, or a list of what is wrong and where."""
    if not isinstance(detail, list):
        return str(detail)
    faults = [item for item in detail if isinstance(item, dict)]
    told = [f"{'.'.join(map(str, fault.get('loc', ())))}: {fault.get('msg', fault)}" for fault in faults]
    return "; ".join(told) or str(detail)
