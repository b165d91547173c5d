"""Adds up the drafts of all requests where operators look: counters on the server's metrics page.

Knows Triton's metrics and what they are called; what an engine keeps to itself is not counted. A server without metrics
has none, and decodes all the same.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from collections.abc import Mapping

    from decoder_stats import Statistics

# Prometheus' convention: a counter's name says what it counts, and ends in _total.
_COUNTERS: Final[Mapping[str, str]] = {
    "specdeploy_spec_steps_total": "Verify steps of all requests that carried draft tokens",
    "specdeploy_draft_tokens_total": "Draft tokens of all requests that the target checked",
    "specdeploy_accepted_draft_tokens_total": "Draft tokens of all requests that the target accepted",
}


class DraftMetrics:
    """The counters of one model.

    Args:
        args: What Triton gives a model when it starts: its name and version are the labels.
    """

    def __init__(self, args: Mapping[str, str]) -> None:
        # Triton 2.51 loses the model's process when two threads count at once.
        self._one_at_a_time = threading.Lock()
        labels = {"model": args["model_name"], "version": args["model_version"]}
        try:
            # A family must live as long as its metrics, or the server forgets both.
            self._families = [
                pb_utils.MetricFamily(name=name, description=what, kind=pb_utils.MetricFamily.COUNTER)
                for name, what in _COUNTERS.items()
            ]
            self._counters = [family.Metric(labels=labels) for family in self._families]
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_info(f"this server counts no drafts on its metrics page: {error}")
            self._counters = []

    def add(self, statistics: Statistics) -> None:
        """Add what one whole request drafted."""
        counts = (statistics.steps, statistics.drafted, statistics.accepted)
        with self._one_at_a_time:
            for counter, count in zip(self._counters, counts, strict=False):
                if count:
                    counter.increment(count)
