"""The load test for github-action-benchmark."""

from __future__ import annotations

import copy
import json
import math

import pytest

from specdeploy.bench.metrics import METRICS
from specdeploy.report.exports import github_benchmark
from tests.unit.report.exported import closed_loop, open_loop

DOCUMENT, _ = closed_loop()


def entries(document: dict, better: str) -> dict[str, dict]:
    """The entries of a list by name; every name is there once."""
    listed = json.loads(github_benchmark(document, better=better), parse_constant=pytest.fail)
    named = {entry["name"]: entry for entry in listed}
    assert len(named) == len(listed)
    return named


def test_each_metric_is_in_the_list_of_its_direction() -> None:
    """What only describes the workload is in neither."""
    keys = {
        better: {name.split(",")[0].split()[0] for name in entries(DOCUMENT, better)} for better in ("higher", "lower")
    }

    measured = {key for entry in DOCUMENT["arms"] for key in entry["metrics"]} | {"speedup"}
    ratios = {"request_latency_ratio", "time_to_first_token_ratio", "inter_token_latency_ratio"}
    assert keys["higher"] == {key for key in measured if METRICS[key].better == "higher"}
    assert keys["lower"] == {key for key in measured if METRICS[key].better == "lower"} | ratios


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_every_value_is_the_documents_own(better: str) -> None:
    """Name, unit and value as the action reads them, and nothing else."""
    metrics = {(entry["arm"], entry["concurrency"]): entry["metrics"] for entry in DOCUMENT["arms"]}
    for name, entry in entries(DOCUMENT, better).items():
        assert set(entry) <= {"name", "unit", "value", "range", "extra"}
        metric, *where = name.split(", ")
        if len(where) < 2:
            continue
        arm, concurrency = where[0], int(where[1].removeprefix("concurrency "))
        key, *stat = metric.split(" ")
        value = metrics[arm, concurrency][key]
        expected = value["values"][int(stat[1]) - 1] if stat[:1] == ["position"] else value[(stat or ["avg"])[0]]
        assert (entry["value"], entry["unit"]) == (expected, value["unit"])


def test_a_name_carries_metric_arm_and_load() -> None:
    """The action joins runs by the name."""
    lower, higher = entries(DOCUMENT, "lower"), entries(DOCUMENT, "higher")

    assert "request_latency p50, speculation, concurrency 4" in lower
    assert "error_rate, control, concurrency 1" in lower
    assert "output_token_throughput, speculation, concurrency 4" in higher
    assert "spec_decode_per_position_acceptance position 1, speculation, concurrency 4" in higher
    assert "request_latency p50, control, 5 requests/s" in entries(open_loop()[0], "lower")


def test_the_speedup_has_its_interval_as_range() -> None:
    """And says how many pairs it is from."""
    speedup = DOCUMENT["speedup"]["1"]
    entry = entries(DOCUMENT, "higher")["speedup, concurrency 1"]

    assert entry["value"] == speedup["avg"]
    assert entry["range"] == f"{speedup['ci_low']} to {speedup['ci_high']}"
    assert entry["extra"].endswith(f"pairs {speedup['pairs']}")


def test_an_interval_of_a_percentile_is_that_percentiles_range() -> None:
    """The bounds without another name are the average's; a single bound is no interval."""
    document = copy.deepcopy(DOCUMENT)
    intervals = {"p50": [5.0, None], "p99": [3.0, 4.0]}
    document["arms"][0]["metrics"]["request_latency"] |= {"ci_low": 1.0, "ci_high": 2.0, "percentile_cis": intervals}
    found = entries(document, "lower")
    ranges = {
        stat: found[f"request_latency {stat}, control, concurrency 1"].get("range") for stat in ("avg", "p50", "p99")
    }

    assert ranges == {"avg": "1.0 to 2.0", "p50": None, "p99": "3.0 to 4.0"}


def test_categories_get_no_charts() -> None:
    """There would be too many to see the ones that matter."""
    document = copy.deepcopy(DOCUMENT)
    document["arms"][0]["categories"] = {"prose": document["arms"][0]["metrics"]}

    assert entries(document, "lower") == entries(DOCUMENT, "lower")


def test_what_makes_a_run_less_is_said_with_every_number() -> None:
    """A chart outlives the report."""
    document = {**DOCUMENT, "partial": True, "stop_reason": "the deadline passed", "degraded": True}
    extras = [entry["extra"] for entry in entries(document, "lower").values()]

    assert all("partial: the deadline passed\ndegraded: " in extra for extra in extras)
    assert not any("partial" in entry["extra"] for entry in entries(DOCUMENT, "lower").values())


def test_nothing_measured_is_an_empty_list() -> None:
    """Neither is NaN, nor a metric that nobody defined, a number to chart."""
    odd = {"arm": "control", "concurrency": 1, "metrics": {"odd": {"avg": 1.0}, "error_rate": {"avg": math.nan}}}

    assert entries({}, "higher") == {}
    assert entries({"arms": [odd]}, "lower") == {}
