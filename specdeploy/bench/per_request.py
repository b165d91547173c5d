"""The metrics that each request has a value of: latency, length and throughput as one user sees them.

Knows the formulae, for all requests of a table at once; NaN where one is undefined. Knows nothing of arms, blocks and
averages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from specdeploy.bench.table import MISSING

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from specdeploy.bench.table import RecordTable

#: One number for each request, shape [requests].
Values: TypeAlias = "NDArray[np.float64]"

_MS: Final = 1000.0


def milliseconds(start_s: Values, end_s: Values) -> Values:
    """Return the time between moments."""
    return (end_s - start_s) * _MS


def defined(values: Values) -> Values:
    """Return the values of those requests that have one."""
    return values[~np.isnan(values)]


def _until(end: str, start: str) -> Callable[[RecordTable], Values]:
    return lambda table: milliseconds(table[start], table[end])


def _inter_token_latency_ms(table: RecordTable) -> Values:
    """(tn - t1) / (n - f): the tokens of the first response were not waited for between t1 and tn."""
    first, tokens = table["first_tokens"], table["output_tokens"]
    known = (tokens != MISSING) & (first != MISSING)
    # A server that counts at the end alone says 0 of each response, but a response with text has a token at least.
    waited_for = np.where(known, tokens, 0) - np.maximum(first, 1)
    return _divided(milliseconds(table["first_s"], table["last_s"]), waited_for, where=waited_for > 0)


def _time_per_output_token_ms(table: RecordTable) -> Values:
    tokens = np.where(table["output_tokens"] == MISSING, 0, table["output_tokens"])
    return _divided(milliseconds(table["sent_s"], table["last_s"]), tokens, where=tokens > 0)


def _per_user(table: RecordTable) -> Values:
    latency_ms = _inter_token_latency_ms(table)
    return _divided(np.full(len(table), _MS), latency_ms, where=latency_ms != 0)


def _divided(above: Values, below: NDArray[Any], *, where: NDArray[np.bool_]) -> Values:
    out: Values = np.full(len(above), np.nan)
    np.divide(above, below, out=out, where=where)
    return out


def _tokens(name: str) -> Callable[[RecordTable], Values]:
    return lambda table: np.where(table[name] == MISSING, np.nan, table[name])


def chunk_gaps_ms(table: RecordTable) -> Values:
    """Return the time between each response and the one before it, all requests together, shape [gaps].

    With speculation one response holds several tokens.
    """
    gaps = [np.empty(0)]
    for rows, at_s, _ in table.responses():
        gaps.append(milliseconds(at_s[:-1], at_s[1:])[rows[:-1] == rows[1:]])
    return np.concatenate(gaps)


OF_REQUEST: Final[dict[str, Callable[[RecordTable], Values]]] = {
    "time_to_first_token": _until("first_s", "sent_s"),
    "time_to_first_token_from_intended": _until("first_s", "intended_s"),
    "inter_token_latency": _inter_token_latency_ms,
    "time_per_output_token": _time_per_output_token_ms,
    "request_latency": _until("last_s", "sent_s"),
    "request_latency_from_intended": _until("last_s", "intended_s"),
    "input_sequence_length": _tokens("input_tokens"),
    "output_sequence_length": _tokens("output_tokens"),
    "output_token_throughput_per_user": _per_user,
}
