"""What stands on the metrics page, over a stub of Triton's metrics, and what the page of the documentation says."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
import triton_stub
import yaml

triton_stub.install()

import decoder_metrics  # noqa: E402 - imports Triton's module
from decoder_metrics import COUNTERS, GAUGES, HISTOGRAMS, DraftMetrics  # noqa: E402 - the same
from decoder_stats import Statistics  # noqa: E402

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
ARGS = {"model_name": "speculative_decoder", "model_version": "1"}
OF = ("speculative_decoder", "1")


@pytest.fixture
def metrics() -> DraftMetrics:
    """Return the metrics of a model that has just been loaded."""
    triton_stub.METRICS.clear()
    return DraftMetrics(ARGS)


def value(name: str, *label: str) -> float:
    """Return the value of a metric."""
    return triton_stub.METRICS[(name, *OF, *label)]


def test_a_request_adds_its_steps_drafts_and_what_was_accepted_where(metrics) -> None:
    """10 steps of 3 drafts: position 0 was accepted by all that accepted any, position 2 by those that accepted all."""
    metrics.add(Statistics(steps=10, drafted=30, accepted=17, histogram=(2, 3, 1, 4)))

    assert [value(name) for name in (decoder_metrics.STEPS, decoder_metrics.DRAFTED, decoder_metrics.ACCEPTED)] == [
        10,
        30,
        17,
    ]
    assert [value(decoder_metrics.ACCEPTED_AT, str(position)) for position in range(3)] == [8, 5, 4]
    assert sum(value(decoder_metrics.ACCEPTED_AT, str(position)) for position in range(3)) == 17
    assert (value(decoder_metrics.LENGTH), value(decoder_metrics.ACCEPTANCE)) == (3.0, pytest.approx(2.7))


def test_bypasses_are_counted_by_reason(metrics) -> None:
    """They are requests, too, and nothing else is counted of them."""
    alone = Statistics(steps=0, drafted=0, accepted=0, histogram=(0,))
    for reason in ("requested", "beam_width", "requested"):
        metrics.add(alone, reason)
    metrics.draft_failed()
    metrics.draft_left_alone(alone=True)

    assert (value(decoder_metrics.BYPASSES, "requested"), value(decoder_metrics.BYPASSES, "beam_width")) == (2, 1)
    assert (value(decoder_metrics.REQUESTS), value(decoder_metrics.STEPS)) == (3, 0)
    assert (value(decoder_metrics.FAILURES), value(decoder_metrics.LEFT_ALONE)) == (1, 1)
    assert (decoder_metrics.LENGTH, *OF) not in triton_stub.METRICS


def test_what_an_engine_keeps_to_itself_is_not_counted(metrics) -> None:
    """An engine that drafts on its own tells no steps; its drafts are counted all the same."""
    metrics.add(Statistics(steps=None, drafted=8, accepted=2, histogram=None))
    metrics.add(Statistics(steps=None, drafted=None, accepted=None, histogram=None))

    assert (value(decoder_metrics.DRAFTED), value(decoder_metrics.STEPS), value(decoder_metrics.REQUESTS)) == (8, 0, 2)


def test_a_server_without_metrics_has_none(monkeypatch) -> None:
    """And counting does nothing."""

    def refuse(**_) -> None:
        raise triton_stub.TritonModelException("metrics are off")

    refuse.COUNTER = refuse.GAUGE = refuse.HISTOGRAM = 0
    monkeypatch.setattr(decoder_metrics.pb_utils, "MetricFamily", refuse)
    metrics = DraftMetrics(ARGS)

    metrics.add(Statistics(steps=1, drafted=1, accepted=1, histogram=(0, 1)), "requested")
    metrics.draft_failed()
    metrics.draft_left_alone(alone=True)
    metrics.add_seconds(draft_s=1.0, target_s=1.0)
    with metrics.running():
        pass


def test_seconds_and_requests_under_way_are_counted(metrics) -> None:
    """A request counts as running while it is decoded, also when it fails; time that nobody knows is absent."""
    with metrics.running(), metrics.running():
        assert value(decoder_metrics.RUNNING) == 2
    with pytest.raises(ValueError, match="the target"), metrics.running():
        raise ValueError("the target is gone")
    metrics.add_seconds(draft_s=0.0, target_s=1.5)
    metrics.add_seconds(draft_s=0.25, target_s=2.0)

    assert [value(name) for name in (decoder_metrics.RUNNING, decoder_metrics.TARGET_SECONDS)] == [0, 3.5]
    assert value(decoder_metrics.DRAFT_SECONDS) == 0.25


def test_counting_from_many_threads_loses_nothing(metrics) -> None:
    """One thread at a time is inside Triton's metrics."""

    def count() -> None:
        for _ in range(200):
            metrics.add(Statistics(steps=1, drafted=2, accepted=1, histogram=(0, 1, 0)))

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert value(decoder_metrics.STEPS) == 1600


def test_every_metric_is_documented_with_what_the_page_says_of_it_and_an_alert() -> None:
    """The table has each name once, and each name is in the expression of a rule."""
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(specdeploy_\w+)` \| \w+ \| ([^|]+) \|", text, re.MULTILINE))
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    rules = [rule for group in yaml.safe_load(block)["groups"] for rule in group["rules"]]

    assert rows == {**COUNTERS, **GAUGES, **HISTOGRAMS}
    assert set(rows) == {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for rule in rules
        for name in re.findall(r"specdeploy_\w+", rule["expr"])
    }
    assert all({"alert", "expr", "for", "labels", "annotations"} <= rule.keys() for rule in rules)
    assert len({rule["alert"] for rule in rules}) == len(rules)
