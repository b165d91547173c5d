"""What a running server says of itself, put together; and what it does not say, which is not zero."""

from __future__ import annotations

from specdeploy.deploy.metrics import parse_metrics
from specdeploy.deploy.status import acceptance, model_statuses

INDEX = [
    {"name": "ensemble", "version": "1", "state": "READY"},
    {"name": "tensorrt_llm", "version": "1", "state": "READY"},
    {"name": "idle"},
    {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "no engine"},
]
STATISTICS = {
    "model_stats": [
        {"name": "tensorrt_llm", "version": "1", "inference_stats": {"success": {"count": 5}, "fail": {"count": 2}}},
        {"name": "ensemble", "version": "1"},
    ]
}
# The first two as Triton 2.51 writes them; the third from the names in NVIDIA's custom_metrics_reporter.cc.
PAGE = """\
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 3
nv_cpu_utilization 0.5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 12
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 448
some_text{label="a\\"b,c"} nan
damaged line
"""


def test_queue_and_kv_cache_are_those_of_their_model() -> None:
    """Each model has its own; counts come from Triton's statistics."""
    found = {model.name: model for model in model_statuses(INDEX, STATISTICS, parse_metrics(PAGE))}

    target = found["tensorrt_llm"]
    assert (target.succeeded, target.failed, target.queue) == (5, 2, 3)
    assert target.kv_cache == {"used": 12, "max": 448}


def test_what_is_not_told_is_none() -> None:
    """No counter, no queue and no KV cache are shown as not measured, and not as zero."""
    found = {model.name: model for model in model_statuses(INDEX, STATISTICS, parse_metrics(PAGE))}

    for name in ("ensemble", "idle"):
        assert found[name].queue is None
        assert found[name].kv_cache is None
        assert found[name].succeeded is None
    assert found["idle"].state == ""
    assert found["broken"].reason == "no engine"


def test_a_server_without_statistics_and_metrics_is_still_described() -> None:
    """Both can be switched off or restricted."""
    found = model_statuses(INDEX, None, ())

    assert [model.name for model in found] == ["ensemble", "tensorrt_llm", "idle", "broken"]
    assert all(model.queue is None for model in found)


def test_acceptance_comes_from_the_counters_of_a_decoder() -> None:
    """Summed over what they are split by; without them it is not measured."""
    page = 'x_draft_tokens_total{m="a"} 30\nx_draft_tokens_total{m="b"} 10\nx_accepted_draft_tokens_total 10\n'
    found = acceptance(parse_metrics(page))

    assert found is not None
    assert (found.accepted, found.drafted, found.rate) == (10, 40, 0.25)
    assert acceptance(parse_metrics(PAGE)) is None


def test_a_decoder_that_has_not_drafted_yet_has_no_rate() -> None:
    """Nothing of nothing is not zero."""
    found = acceptance(parse_metrics("draft_tokens_total 0\naccepted_draft_tokens_total 0\n"))

    assert found is not None
    assert found.rate is None
    assert found.as_dict() == {"drafted": 0, "accepted": 0, "rate": None}


def test_a_metrics_page_is_read_line_by_line() -> None:
    """Escapes in labels are kept, values that are no numbers and lines that are none are left out."""
    samples = parse_metrics('a{x="1,2",y="}"} 1e3 1700000000\nb 2\nc{ 3\nd +Inf\n')

    assert [(sample.name, dict(sample.labels), sample.value) for sample in samples] == [
        ("a", {"x": "1,2", "y": "}"}, 1000.0),
        ("b", {}, 2.0),
    ]
