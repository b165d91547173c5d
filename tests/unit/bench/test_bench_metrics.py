"""The table of metrics."""

from __future__ import annotations

from specdeploy.bench.goodput import parse_objectives
from specdeploy.bench.metrics import DISTRIBUTION_STATS, METRICS
from specdeploy.bench.records import CONTROL, SPECULATION
from specdeploy.bench.schedule import LoadSettings
from specdeploy.bench.stats import summarize
from tests.unit.bench.simulated import Simulator, failed, record

AIPERF_KEYS = {
    "time_to_first_token": "ms",
    "inter_token_latency": "ms",
    "inter_chunk_latency": "ms",
    "request_latency": "ms",
    "output_sequence_length": "tokens",
    "input_sequence_length": "tokens",
    "output_token_throughput": "tokens/sec",
    "output_token_throughput_per_user": "tokens/sec/user",
    "request_throughput": "requests/sec",
    "request_count": "requests",
    "error_request_count": "requests",
    "benchmark_duration": "sec",
    "spec_decode_draft_acceptance_rate": "ratio",
    "spec_decode_acceptance_length": "tokens",
}


def _everything():
    run, _ = Simulator().run(LoadSettings(concurrency=(1,)))
    records = (*run.records, failed(arm=CONTROL), failed(arm=SPECULATION))
    # A server that does not tell what it accepted has the stream instead.
    silent = record(concurrency=2, num_spec_steps=None, draft_tokens=None, accepted_tokens=None, histogram=())
    return summarize((*records, silent), parse_objectives(["time_to_first_token <= 1s"]))


def test_keys_and_units_are_those_that_dashboards_for_aiperf_read() -> None:
    """The shared metrics carry AIPerf's names and units."""
    assert AIPERF_KEYS.items() <= {key: metric.unit for key, metric in METRICS.items()}.items()


def test_every_definition_is_complete() -> None:
    """A metric says how it is computed and when it is undefined, under the key that it is found by."""
    for key, metric in METRICS.items():
        assert (metric.key, bool(metric.formula), bool(metric.undefined)) == (key, True, True)


def test_a_summary_uses_only_defined_metrics_and_their_units() -> None:
    """What stands in a summary is in the table, in the table's unit."""
    seen = {(key, value["unit"]) for arm in _everything() for key, value in arm.metrics.items()}

    assert seen <= {(key, metric.unit) for key, metric in METRICS.items()}


def test_every_defined_metric_is_computed() -> None:
    """No entry of the table is a mere promise: a full run yields each, but for the speed-up, which belongs to pairs."""
    seen = {key for arm in _everything() for key in arm.metrics}

    assert seen == METRICS.keys() - {"speedup"}


def test_the_shape_of_a_value_is_that_of_its_kind() -> None:
    """Distributions carry every statistic, scalars only their value, lists their values by position."""
    fields = {
        "distribution": {"unit", "percentile_cis", *DISTRIBUTION_STATS},
        "scalar": {"unit", "avg"},
        "list": {"unit", "values"},
    }
    for arm in _everything():
        for key, value in arm.metrics.items():
            assert set(value) - {"ci_low", "ci_high"} == fields[METRICS[key].kind], key
