"""Every metric of a load test, defined once: key, unit, formula, better direction, and when it is undefined.

Knows names, units and sentences; computes nothing (see ``specdeploy.bench.stats``). Keys and units follow AIPerf, so
that dashboards made for it read ours; where the field disagrees about a name, the formula beside it settles what is
meant.

Symbols in the formulae: t0 intended send, ts actual send, t1 first response with tokens, tn last response with
tokens, n output tokens, f tokens in the first response, S verify steps, D drafted tokens, A accepted drafted tokens,
and h[j] the number of steps that accepted exactly j drafts. All times are read from one monotonic clock of the
client; all token counts come from the server.
"""

from __future__ import annotations

import dataclasses
from typing import Final, Literal, TypeAlias

Better: TypeAlias = Literal["higher", "lower", "none"]
Kind: TypeAlias = Literal["distribution", "scalar", "list", "interval"]

PERCENTILES: Final = (1, 5, 10, 25, 50, 75, 90, 95, 99)
DISTRIBUTION_STATS: Final = (
    "avg",
    "min",
    "max",
    *(f"p{percentile}" for percentile in PERCENTILES),
    "std",
    "count",
    "sum",
)
SCALAR_STATS: Final = ("avg",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """The definition of one metric.

    Args:
        key: Name in every document and rule.

        title: Name for people.

        unit: Unit of the stored value.

        better: Direction of improvement; ``none`` for what only describes the workload.

        kind: ``distribution`` has one value per request and all of `DISTRIBUTION_STATS`; ``scalar`` has ``avg`` alone;
            ``list`` has ``values`` by position; ``interval`` has an average with its confidence bounds.

        formula: How it is computed, in the symbols of the module docstring.

        undefined: When it is absent from a summary. Absent is not zero.

        maximum: Largest value that the quantity can have, if it is bounded. The smallest is always 0.
    """

    key: str
    title: str
    unit: str
    better: Better
    kind: Kind
    formula: str
    undefined: str
    maximum: float | None = None

    def largest(self, stat: str) -> float | None:
        """Return the largest value that a statistic can have; None if nothing bounds it."""
        return None if stat in {"sum", "count"} else self.maximum

    def unit_of(self, stat: str) -> str:
        """Return the unit of a statistic: the metric's own, except for ``count``."""
        return "requests" if stat == "count" else self.unit

    @property
    def stats(self) -> tuple[str, ...]:
        """Names of the single numbers that a rule or a table can ask this metric for."""
        return {"distribution": DISTRIBUTION_STATS, "scalar": SCALAR_STATS, "list": (), "interval": ()}[self.kind]


def _latency(key: str, title: str, formula: str, undefined: str) -> Metric:
    return Metric(
        key=key, title=title, unit="ms", better="lower", kind="distribution", formula=formula, undefined=undefined
    )


_NO_RESPONSE = "the request failed"
_NO_OBJECTIVE = "no objective was set, or nothing was sent"
_NO_STEPS = "no verify step was reported, or the reported counts contradict each other"
_NO_DRAFTS = "no draft was reported, or the reported counts contradict each other"

_LATENCIES = (
    _latency("time_to_first_token", "Time to first token", "t1 - ts", _NO_RESPONSE),
    _latency(
        "time_to_first_token_from_intended",
        "Time to first token, from the intended send",
        "t1 - t0",
        _NO_RESPONSE,
    ),
    _latency(
        "inter_token_latency",
        "Inter-token latency",
        "(tn - t1) / (n - f), per request",
        "the request failed, or all its tokens came in the first response",
    ),
    _latency(
        "time_per_output_token",
        "Time per output token",
        "(tn - ts) / n, per request: the wait for the first token is in it",
        "the request failed, or the server did not say how many tokens it had",
    ),
    _latency(
        "inter_chunk_latency",
        "Inter-chunk latency",
        "gaps between consecutive responses, pooled over requests; with speculation one response holds several tokens",
        "no request had two responses",
    ),
    _latency("request_latency", "Request latency", "tn - ts", _NO_RESPONSE),
    _latency("request_latency_from_intended", "Request latency, from the intended send", "tn - t0", _NO_RESPONSE),
    _latency("dispatch_lag", "Dispatch lag", "ts - t0: how late the load generator was", "nothing was sent"),
)

_LENGTHS = (
    Metric(
        key="input_sequence_length",
        title="Input length",
        unit="tokens",
        better="none",
        kind="distribution",
        formula="prompt tokens, as counted by the server",
        undefined="the server did not say",
    ),
    Metric(
        key="output_sequence_length",
        title="Output length",
        unit="tokens",
        better="none",
        kind="distribution",
        formula="n, as counted by the server",
        undefined=_NO_RESPONSE,
    ),
)

_THROUGHPUTS = (
    Metric(
        key="output_token_throughput",
        title="Output token throughput",
        unit="tokens/sec",
        better="higher",
        kind="scalar",
        formula="sum of n over successful requests / benchmark_duration",
        undefined="no request succeeded, or the server did not say how many tokens an answer had",
    ),
    Metric(
        key="steady_output_token_throughput",
        title="Steady output token throughput",
        unit="tokens/sec",
        better="higher",
        kind="scalar",
        formula="tokens of successful requests that came between a block's first response and its last send / that "
        "time, all blocks together: without ramp-up and drain",
        undefined="every request was sent before the first response, or no response said how many tokens it had",
    ),
    Metric(
        key="output_token_throughput_per_user",
        title="Output token throughput per user",
        unit="tokens/sec/user",
        better="higher",
        kind="distribution",
        formula="1 / inter_token_latency, per request",
        undefined="inter_token_latency is undefined or 0",
    ),
    Metric(
        key="request_throughput",
        title="Request throughput",
        unit="requests/sec",
        better="higher",
        kind="scalar",
        formula="request_count / benchmark_duration",
        undefined="no request succeeded",
    ),
    Metric(
        key="request_count",
        title="Successful requests",
        unit="requests",
        better="none",
        kind="scalar",
        formula="requests that ended without an error",
        undefined="nothing was sent",
    ),
    Metric(
        key="error_request_count",
        title="Failed requests",
        unit="requests",
        better="lower",
        kind="scalar",
        formula="requests that ended with an error, of any label",
        undefined="nothing was sent",
    ),
    Metric(
        key="error_rate",
        title="Error rate",
        unit="ratio",
        better="lower",
        kind="scalar",
        formula="error_request_count / (request_count + error_request_count)",
        undefined="nothing was sent",
        maximum=1.0,
    ),
    Metric(
        key="benchmark_duration",
        title="Measured time",
        unit="sec",
        better="none",
        kind="scalar",
        formula="sum over blocks of (last response or failure - first send); blocks of the other arm do not count",
        undefined="nothing was sent",
    ),
)

_GOODPUT = (
    Metric(
        key="good_request_count",
        title="Good requests",
        unit="requests",
        better="higher",
        kind="scalar",
        formula="requests that succeeded and kept every objective of load.slo",
        undefined=_NO_OBJECTIVE,
    ),
    Metric(
        key="good_request_fraction",
        title="Share of good requests",
        unit="ratio",
        better="higher",
        kind="scalar",
        formula="good_request_count / all requests, failed ones included; 95 % Wilson interval",
        undefined=_NO_OBJECTIVE,
        maximum=1.0,
    ),
    Metric(
        key="goodput",
        title="Goodput",
        unit="requests/sec",
        better="higher",
        kind="scalar",
        formula="good_request_count / benchmark_duration",
        undefined=_NO_OBJECTIVE,
    ),
)

_ACCEPTANCE = (
    Metric(
        key="spec_decode_draft_acceptance_rate",
        title="Draft acceptance rate",
        unit="ratio",
        better="higher",
        kind="distribution",
        formula="A / D, per request; its average weighs every request alike",
        undefined=_NO_DRAFTS,
        maximum=1.0,
    ),
    Metric(
        key="overall_spec_decode_draft_acceptance_rate",
        title="Draft acceptance rate, overall",
        unit="ratio",
        better="higher",
        kind="scalar",
        formula="sum of A / sum of D; weighs every drafted token alike",
        undefined=_NO_DRAFTS,
        maximum=1.0,
    ),
    Metric(
        key="spec_decode_acceptance_length",
        title="Acceptance length",
        unit="tokens",
        better="higher",
        kind="distribution",
        formula="1 + A / S, per request: tokens per verify step, the target's own token included",
        undefined=_NO_STEPS,
    ),
    Metric(
        key="overall_spec_decode_acceptance_length",
        title="Acceptance length, overall",
        unit="tokens",
        better="higher",
        kind="scalar",
        formula="1 + sum of A / sum of S; weighs every verify step alike",
        undefined=_NO_STEPS,
    ),
    Metric(
        key="spec_decode_per_position_acceptance",
        title="Acceptance by draft position",
        unit="ratio",
        better="higher",
        kind="list",
        formula="p_i = sum of h[j] for j >= i / S, for i = 1, 2, ...: the share of steps that kept the i-th draft",
        undefined=_NO_STEPS,
        maximum=1.0,
    ),
    Metric(
        key="spec_decode_conditional_acceptance",
        title="Acceptance by draft position, of those that came so far",
        unit="ratio",
        better="higher",
        kind="list",
        formula="p_i / p_(i-1), with p_0 = 1: of the steps that kept the draft before it, the share that kept the i-th",
        undefined=_NO_STEPS,
        maximum=1.0,
    ),
    Metric(
        key="spec_decode_acceptance_histogram",
        title="Accepted drafts per verify step",
        unit="steps",
        better="none",
        kind="list",
        formula="h[j] summed over requests, for j = 0, 1, ...",
        undefined=_NO_STEPS,
    ),
    Metric(
        key="spec_decode_accepted_per_verified",
        title="Kept of what was verified",
        unit="ratio",
        better="higher",
        kind="distribution",
        formula="(A + S) / (D + S), per request: the share of the verified positions whose token was kept",
        undefined=_NO_STEPS,
        maximum=1.0,
    ),
    Metric(
        key="spec_decode_steps",
        title="Verify steps",
        unit="steps",
        better="none",
        kind="distribution",
        formula="S, per request",
        undefined=_NO_STEPS,
    ),
    Metric(
        key="spec_decode_draft_tokens",
        title="Drafted tokens",
        unit="tokens",
        better="none",
        kind="distribution",
        formula="D, per request",
        undefined=_NO_DRAFTS,
    ),
    Metric(
        key="spec_decode_accepted_draft_tokens",
        title="Accepted drafted tokens",
        unit="tokens",
        better="none",
        kind="distribution",
        formula="A, per request",
        undefined=_NO_DRAFTS,
    ),
)

_STREAM = (
    Metric(
        key="tokens_per_response",
        title="Tokens per response",
        unit="tokens",
        better="none",
        kind="scalar",
        formula="tokens of the responses after the first / these responses: where each verify step is sent at once, "
        "its acceptance length",
        undefined="the answers tell their acceptances, or no response held several tokens",
    ),
)

_PAIRED = (
    Metric(
        key="speedup",
        title="Speed-up",
        unit="x",
        better="higher",
        kind="interval",
        formula=(
            "output_token_throughput of speculation / of the control, per interleaved pair; geometric mean with the "
            "two-sided 95 % Student-t interval of the log-ratios"
        ),
        undefined="no pair was complete and free of errors; the interval needs two such pairs",
    ),
)

#: What vLLM and AIPerf's users call them -> our key.
ALIASES: Final = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_token_latency",
    "e2el": "request_latency",
}

METRICS: Final[dict[str, Metric]] = {
    metric.key: metric
    for metric in (*_LATENCIES, *_LENGTHS, *_THROUGHPUTS, *_GOODPUT, *_ACCEPTANCE, *_STREAM, *_PAIRED)
}
