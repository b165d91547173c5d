"""What the front door answers, as a value, whether it came as tensors (gRPC) or as JSON (HTTP)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from specdeploy.triton.protocol.tensors import MOST_COUNTED, MOST_POSITIONS, MalformedResponse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Output -> Triton data type: everything that ``Chunk`` reads.
CHUNK_OUTPUTS: Final[Mapping[str, str]] = {
    "text_output": "BYTES",
    "output_ids": "INT32",
    "finish_reason": "BYTES",
    "bypass_reason": "BYTES",
    "acceptance_rate": "FP32",
    "num_spec_steps": "INT32",
    "total_draft_tokens": "INT32",
    "total_accepted_draft_tokens": "INT32",
    "spec_decode_acceptance_histogram": "INT32",
    "num_input_tokens": "INT32",
    "num_output_tokens": "INT32",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """One response: a piece of a streamed answer, or a whole answer.

    Text and ids are this response's own; all counts are for the request so far, so the last chunk's are the totals.
    A count is None when the server does not say.

    Args:
        text: New text.

        ids: New token ids; empty when the server does not say.

        finish_reason: Why the answer ended, on the last response; else empty.

        bypass_reason: Why the target decoded alone; empty when it did not.

        acceptance_rate: ``total_accepted_draft_tokens / total_draft_tokens``, 0 to 1.

        num_spec_steps: Rounds in which the target verified drafts.

        total_draft_tokens: Tokens that were drafted.

        total_accepted_draft_tokens: Drafted tokens that were accepted.

        histogram: ``histogram[j]`` rounds accepted exactly j drafts.

        num_input_tokens: Length of the prompt, in tokens.

        num_output_tokens: Length of the answer so far, in tokens.

        final: Whether the transport said that nothing follows.

        received_s: When it arrived, on the clock of ``time.monotonic`` (seconds); None when nobody looked.
    """

    text: str
    ids: tuple[int, ...] = ()
    finish_reason: str = ""
    bypass_reason: str = ""
    acceptance_rate: float | None = None
    num_spec_steps: int | None = None
    total_draft_tokens: int | None = None
    total_accepted_draft_tokens: int | None = None
    histogram: tuple[int, ...] = ()
    num_input_tokens: int | None = None
    num_output_tokens: int | None = None
    final: bool = False
    received_s: float | None = None


def decode_chunk(outputs: Mapping[str, object], *, final: bool = False, received_s: float | None = None) -> Chunk:
    """Read a response.

    Args:
        outputs: By name: arrays of any shape, or the scalars and lists of HTTP JSON (where a list of one is a scalar).
            Outputs that ``Chunk`` does not hold are passed over.

        final: As in ``Chunk``.

        received_s: As in ``Chunk``.

    Raises:
        MalformedResponse: No ``text_output``, a value that is no text or number, a whole number beyond 32 bits, or a
            histogram of more than `MOST_POSITIONS`.
    """
    if "text_output" not in outputs:
        raise MalformedResponse(f"the response has no text_output; it has {', '.join(sorted(outputs)) or 'nothing'}")
    return Chunk(
        text="".join(_texts(outputs, "text_output")),
        ids=_integers(outputs, "output_ids"),
        finish_reason="".join(_texts(outputs, "finish_reason")),
        bypass_reason="".join(_texts(outputs, "bypass_reason")),
        acceptance_rate=_number(outputs, "acceptance_rate"),
        num_spec_steps=_count(outputs, "num_spec_steps"),
        total_draft_tokens=_count(outputs, "total_draft_tokens"),
        total_accepted_draft_tokens=_count(outputs, "total_accepted_draft_tokens"),
        histogram=_histogram(outputs),
        num_input_tokens=_count(outputs, "num_input_tokens"),
        num_output_tokens=_count(outputs, "num_output_tokens"),
        final=final,
        received_s=received_s,
    )


def join_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """Put a streamed answer together: texts and ids joined, everything else from the last chunk.

    Raises:
        MalformedResponse: There is no chunk at all.
    """
    if not chunks:
        raise MalformedResponse("the stream ended without a response")
    text = "".join(chunk.text for chunk in chunks)
    ids = tuple(token for chunk in chunks for token in chunk.ids)
    return dataclasses.replace(chunks[-1], text=text, ids=ids)


def _values(outputs: Mapping[str, object], name: str) -> list[object]:
    value = outputs.get(name)
    if value is None:
        return []
    if isinstance(value, np.ndarray):
        return list(value.reshape(-1).tolist())
    return list(value) if isinstance(value, list | tuple) else [value]


def _texts(outputs: Mapping[str, object], name: str) -> list[str]:
    return [_text(name, value) for value in _values(outputs, name)]


def _text(name: str, value: object) -> str:
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise MalformedResponse(f"{name} is not UTF-8: {value!r}") from error
    if not isinstance(text, str):
        raise MalformedResponse(f"{name} is not a text: {value!r}")
    return text


def _integers(outputs: Mapping[str, object], name: str) -> tuple[int, ...]:
    return tuple(_integer(name, value) for value in _values(outputs, name))


def _integer(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise MalformedResponse(f"{name} is not a whole number: {value!r}")
    if abs(value) > MOST_COUNTED:
        raise MalformedResponse(f"{name} is {value!r:.30}, which no 32 bits hold")
    return value


def _histogram(outputs: Mapping[str, object]) -> tuple[int, ...]:
    histogram = _integers(outputs, "spec_decode_acceptance_histogram")
    if len(histogram) > MOST_POSITIONS:
        raise MalformedResponse(f"the acceptance histogram has {len(histogram)} positions, more than {MOST_POSITIONS}")
    return histogram


def _count(outputs: Mapping[str, object], name: str) -> int | None:
    values = _integers(outputs, name)
    return values[0] if values else None


def _number(outputs: Mapping[str, object], name: str) -> float | None:
    values = _values(outputs, name)
    if not values:
        return None
    if isinstance(values[0], float):
        return values[0]
    if not isinstance(values[0], int) or isinstance(values[0], bool):
        raise MalformedResponse(f"{name} is not a number: {values[0]!r}")
    return float(_integer(name, values[0]))
