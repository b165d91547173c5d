"""What a Triton server counts, read from pages as Triton 2.51 writes them."""

from __future__ import annotations

import pytest

from specdeploy.deploy.counts import ModelCounts, gauges, read_counts
from specdeploy.deploy.metrics import parse_metrics

PAGE = """\
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 12
nv_inference_request_success{model="ensemble",version="1"} 7
specdeploy_draft_tokens{model="speculative_decoder"} 40
specdeploy_accepted_draft_tokens{model="speculative_decoder"} 30
"""


def entry(name: str = "ensemble", version: str = "1", requests: int = 3) -> dict[str, object]:
    """Return what the statistics say of a model; each stage takes a thousand nanoseconds a request."""
    stages = ("success", "queue", "compute_input", "compute_infer", "compute_output")
    times = {stage: {"count": requests, "ns": 1000 * requests} for stage in stages}
    told = {**times, "fail": {"count": 1, "ns": 5}}
    return {
        "name": name,
        "version": version,
        "inference_count": 2 * requests,
        "execution_count": requests,
        "inference_stats": told,
    }


def test_counters_of_a_model_are_read() -> None:
    """Compute is input, inference and output together."""
    counts = read_counts({"model_stats": [entry()]})

    assert counts.models["ensemble"] == ModelCounts(
        requests=3, failures=1, executions=3, inferences=6, total_ns=3000, queue_ns=3000, compute_ns=9000
    )
    assert counts.drafts is None


def test_versions_are_added_up_and_nonsense_is_left_out() -> None:
    """A request goes to whichever version there is."""
    told = [entry(), entry(version="2", requests=4), {"name": "odd"}, None, {"name": "x", "inference_stats": []}]

    assert {name: counts.requests for name, counts in read_counts({"model_stats": told}).models.items()} == {
        "ensemble": 7
    }


def test_drafts_and_gauges_come_from_the_metrics_page() -> None:
    """Counters are not gauges."""
    samples = parse_metrics(PAGE)
    drafts = read_counts({}, samples).drafts

    assert drafts is not None
    assert (drafts.drafted, drafts.accepted) == (40, 30)
    assert gauges(samples) == {
        'nv_gpu_utilization{gpu_uuid="GPU-1"}': 0.5,
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"}': 12.0,
    }


@pytest.mark.parametrize(("before", "decreased"), [(2, False), (4, True)])
def test_a_difference_tells_a_model_that_began_anew(before: int, decreased: bool) -> None:
    """Its counters went down."""
    earlier, later = (read_counts({"model_stats": [entry(requests=n)]}).models["ensemble"] for n in (before, 3))

    assert later.since(earlier).decreased is decreased
