"""Adds up the drafts of all requests where operators look: on the server's metrics page.

Knows Triton's metrics and what they are called; what an engine keeps to itself is not counted. A server without metrics
has none, and decodes all the same.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from decoder_stats import Statistics

# Triton's own classes carry no types.
Metric: TypeAlias = Any

STEPS: Final = "specdeploy_spec_steps_total"
DRAFTED: Final = "specdeploy_draft_tokens_total"
ACCEPTED: Final = "specdeploy_accepted_draft_tokens_total"
ACCEPTED_AT: Final = "specdeploy_accepted_draft_tokens_per_position_total"
REQUESTS: Final = "specdeploy_requests_total"
BYPASSES: Final = "specdeploy_bypassed_requests_total"
FAILURES: Final = "specdeploy_draft_failures_total"
DRAFT_SECONDS: Final = "specdeploy_draft_seconds_total"
TARGET_SECONDS: Final = "specdeploy_target_seconds_total"
RUNNING: Final = "specdeploy_requests_running"
LEFT_ALONE: Final = "specdeploy_draft_left_alone"
LENGTH: Final = "specdeploy_draft_length"
ACCEPTANCE: Final = "specdeploy_acceptance_length"

# Prometheus' convention: a counter's name says what it counts, and ends in _total.
COUNTERS: Final[Mapping[str, str]] = {
    STEPS: "Verify steps of all requests that carried draft tokens",
    DRAFTED: "Draft tokens of all requests that the target checked",
    ACCEPTED: "Draft tokens of all requests that the target accepted",
    ACCEPTED_AT: "Verify steps that accepted the draft token at this position, the first being 0",
    REQUESTS: "Requests that were answered to their end, or until they were cancelled or out of time",
    BYPASSES: "Those of them that the target finished alone, by reason",
    FAILURES: "Requests whose draft failed on the way, so that the target finished alone",
    DRAFT_SECONDS: "Seconds that all requests waited for calls to the draft",
    TARGET_SECONDS: "Seconds that all requests waited for calls to the target",
}
GAUGES: Final[Mapping[str, str]] = {
    RUNNING: "Requests that are being decoded; those that wait in Triton's queue are not among them",
    LEFT_ALONE: "1 while the draft is left alone because it kept failing, else 0",
    LENGTH: "Draft tokens in a verify step of the speculating request that ended last, on average",
}
HISTOGRAMS: Final[Mapping[str, str]] = {
    ACCEPTANCE: "Tokens that a verify step of a request came to, on average: 1 and what was accepted",
}
_ACCEPTANCE_BUCKETS: Final = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0]


class DraftMetrics:
    """The metrics of one model; may be used from any thread.

    Args:
        args: What Triton gives a model when it starts: its name and version are the labels.
    """

    def __init__(self, args: Mapping[str, str]) -> None:
        # Triton 2.51 loses the model's process when two threads count at once.
        self._one_at_a_time = threading.Lock()
        self._labels = {"model": args["model_name"], "version": args["model_version"]}
        self._metrics: dict[tuple[str, str], Metric] = {}
        self._running = 0
        self._left_alone = False
        try:
            # A family must live as long as its metrics, or the server forgets both.
            self._families = dict(_families())
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_info(f"this server counts no drafts on its metrics page: {error}")
            self._families = {}
            return
        # Those without a label of their own stand there from the beginning, at 0.
        for name in (STEPS, DRAFTED, ACCEPTED, REQUESTS, FAILURES, LEFT_ALONE, RUNNING):
            self._metric(name)

    def add(self, statistics: Statistics, bypass_reason: str = "") -> None:
        """Add what one whole request drafted, and why it did not."""
        if not self._families:
            return
        with self._one_at_a_time:
            self._metric(REQUESTS).increment(1)
            if bypass_reason:
                self._metric(BYPASSES, reason=bypass_reason).increment(1)
            self._count(statistics)

    def add_seconds(self, *, draft_s: float, target_s: float) -> None:
        """Add what one whole request waited for its engines."""
        if not self._families:
            return
        with self._one_at_a_time:
            for name, seconds in ((DRAFT_SECONDS, draft_s), (TARGET_SECONDS, target_s)):
                if seconds:
                    self._metric(name).increment(seconds)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count a request as one that is being decoded, for as long as the block takes."""
        self._run(1)
        try:
            yield
        finally:
            self._run(-1)

    def draft_failed(self) -> None:
        """Count a request whose draft failed."""
        if self._families:
            with self._one_at_a_time:
                self._metric(FAILURES).increment(1)

    def draft_left_alone(self, *, alone: bool) -> None:
        """Say whether requests go without the draft because it kept failing."""
        if self._families:
            with self._one_at_a_time:
                if alone != self._left_alone:
                    self._left_alone = alone
                    self._metric(LEFT_ALONE).set(int(alone))

    def _run(self, more: int) -> None:
        if self._families:
            with self._one_at_a_time:
                self._running += more
                self._metric(RUNNING).set(self._running)

    def _count(self, statistics: Statistics) -> None:
        counts = {STEPS: statistics.steps, DRAFTED: statistics.drafted, ACCEPTED: statistics.accepted}
        for name, count in counts.items():
            if count:
                self._metric(name).increment(count)
        if not (statistics.steps and statistics.histogram):
            return
        for position in range(len(statistics.histogram) - 1):
            steps = sum(statistics.histogram[position + 1 :])
            if steps:
                self._metric(ACCEPTED_AT, position=str(position)).increment(steps)
        self._metric(LENGTH).set((statistics.drafted or 0) / statistics.steps)
        self._metric(ACCEPTANCE).observe(1 + (statistics.accepted or 0) / statistics.steps)

    def _metric(self, name: str, **label: str) -> Metric:
        """Return a metric of a family, which is made when it is first needed."""
        key = (name, "".join(label.values()))
        if key not in self._metrics:
            buckets = {"buckets": _ACCEPTANCE_BUCKETS} if name in HISTOGRAMS else {}
            self._metrics[key] = self._families[name].Metric(labels={**self._labels, **label}, **buckets)
        return self._metrics[key]


def _families() -> Iterator[tuple[str, Any]]:
    kinds = (
        (COUNTERS, pb_utils.MetricFamily.COUNTER),
        (GAUGES, pb_utils.MetricFamily.GAUGE),
        (HISTOGRAMS, pb_utils.MetricFamily.HISTOGRAM),
    )
    for names, kind in kinds:
        for name, what in names.items():
            yield name, pb_utils.MetricFamily(name=name, description=what, kind=kind)
