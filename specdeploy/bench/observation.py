"""What the responses to one request add up to: arrival times, tokens, totals, and whether the answer came to its end.

Knows the meaning of a response's fields; reads no clock and raises nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdeploy.triton.protocol import Chunk


@dataclasses.dataclass
class Observation:
    """The responses of one request so far."""

    chunk_s: list[float] = dataclasses.field(default_factory=list)
    chunk_tokens: list[int] = dataclasses.field(default_factory=list)
    ids: list[int] = dataclasses.field(default_factory=list)
    tokens: int = 0
    last: Chunk | None = None

    def add(self, chunk: Chunk, received_s: float) -> None:
        """Note a response; one without tokens and text carries totals, and is no moment of the answer."""
        counted = len(chunk.ids) or max((chunk.num_output_tokens or 0) - self.tokens, 0)
        # After text that nobody counted, a total is of the whole answer, and not of the response that it comes with.
        new = 0 if self.chunk_s and not self.tokens and not chunk.ids else counted
        if new or chunk.text:
            self.chunk_s.append(received_s)
            self.chunk_tokens.append(new)
        self.tokens += counted
        self.ids += chunk.ids
        self.last = chunk

    def fault(self) -> tuple[str | None, str]:
        """Say what is wrong with a stream that ended without an exception."""
        if self.last is None:
            return "empty_stream", "the stream ended without a response"
        if self.last.finish_reason == "cancelled":
            return "cancelled", "the server cancelled the request"
        if self.last.finish_reason == "timeout":
            return "timeout", f"the time that the request may take was up after {self.tokens} tokens"
        if not self.last.finish_reason and not self.last.final:
            return "stream_ended_early", f"the stream ended after {self.tokens} tokens without saying why"
        return None, ""

    def fields(self) -> dict[str, object]:
        """Return the fields of a record that come from responses."""
        times = {"first_s": self.chunk_s[0], "last_s": self.chunk_s[-1]} if self.chunk_s else {}
        return {
            "first_s": None,
            "last_s": None,
            **times,
            "chunk_s": tuple(self.chunk_s),
            "chunk_tokens": tuple(self.chunk_tokens),
            "output_ids": tuple(self.ids),
            **(_totals(self.last, self.tokens) if self.last else {}),
        }


def _totals(last: Chunk, tokens: int) -> dict[str, object]:
    return {
        "input_tokens": last.num_input_tokens,
        "output_tokens": last.num_output_tokens if last.num_output_tokens is not None else tokens or None,
        "num_spec_steps": last.num_spec_steps,
        "draft_tokens": last.total_draft_tokens,
        "accepted_tokens": last.total_accepted_draft_tokens,
        "histogram": last.histogram,
        "finish_reason": last.finish_reason,
        "bypass_reason": last.bypass_reason,
    }
