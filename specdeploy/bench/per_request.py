"""The metrics that each request has a value of: latency, length and throughput as one user sees them.

Knows the formulae for one record; None where one is undefined. Knows nothing of arms, blocks and averages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.bench.records import RequestRecord

_MS: Final = 1000.0


def milliseconds(start_s: float, end_s: float) -> float:
    """Return the time between two moments."""
    return (end_s - start_s) * _MS


def _until(end: str, start: str) -> Callable[[RequestRecord], float | None]:
    def latency(record: RequestRecord) -> float | None:
        end_s = getattr(record, end)
        return None if end_s is None else milliseconds(getattr(record, start), end_s)

    return latency


def _inter_token_latency_ms(record: RequestRecord) -> float | None:
    """(tn - t1) / (n - f): the tokens of the first response were not waited for between t1 and tn."""
    if record.first_s is None or record.last_s is None or record.output_tokens is None or not record.chunk_tokens:
        return None
    # A server that counts at the end alone says 0 of each response, but a response with text has a token at least.
    waited_for = record.output_tokens - max(record.chunk_tokens[0], 1)
    return milliseconds(record.first_s, record.last_s) / waited_for if waited_for > 0 else None


def _per_user(record: RequestRecord) -> float | None:
    latency_ms = _inter_token_latency_ms(record)
    return _MS / latency_ms if latency_ms else None


def chunk_gaps_ms(record: RequestRecord) -> list[float]:
    """Return the time between each response and the one before it; with speculation one holds several tokens."""
    return [milliseconds(before, after) for before, after in zip(record.chunk_s, record.chunk_s[1:], strict=False)]


OF_REQUEST: Final[dict[str, Callable[[RequestRecord], float | None]]] = {
    "time_to_first_token": _until("first_s", "sent_s"),
    "time_to_first_token_from_intended": _until("first_s", "intended_s"),
    "inter_token_latency": _inter_token_latency_ms,
    "request_latency": _until("last_s", "sent_s"),
    "request_latency_from_intended": _until("last_s", "intended_s"),
    "input_sequence_length": lambda record: record.input_tokens,
    "output_sequence_length": lambda record: record.output_tokens,
    "output_token_throughput_per_user": _per_user,
}
