"""What a Triton server counts about its requests, as differences between two moments, and what it measures in between.

Knows Triton's statistics and metrics pages. Asks nobody. Absent is not zero: what a server does not count is left out.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.deploy.status import Acceptance, acceptance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdeploy.deploy.metrics import Sample

#: Metrics that go up and down, so that a look now and then is all there is: requests and KV cache of the engines, what
#: waits, and what Triton tells of the machine's GPUs and processor.
GAUGES: Final = (
    "nv_trt_llm_request_metrics",
    "nv_trt_llm_kv_cache_block_metrics",
    "nv_trt_llm_inflight_batcher_metrics",
    "nv_inference_pending_request_count",
    "nv_gpu_utilization",
    "nv_gpu_memory_used_bytes",
    "nv_gpu_power_usage",
    "nv_cpu_utilization",
    "nv_cpu_memory_used_bytes",
)
_STAGES: Final = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelCounts:
    """Triton's counters of one model; times are sums over requests (nanoseconds).

    Args:
        requests: Answered.

        failures: Not answered.

        executions: Batches that were computed.

        inferences: Requests in those batches.

        total_ns: From the arrival of a request to its answer.

        queue_ns: What of that it waited.

        compute_ns: What of that the model worked, input and output included.
    """

    requests: int
    failures: int
    executions: int
    inferences: int
    total_ns: int
    queue_ns: int
    compute_ns: int

    def since(self, before: ModelCounts) -> ModelCounts:
        """Return what was added since an earlier moment."""
        pairs = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return ModelCounts(**{name: value - getattr(before, name) for name, value in pairs})

    def and_also(self, other: ModelCounts) -> ModelCounts:
        """Return the sum of two windows."""
        names = [field.name for field in dataclasses.fields(self)]
        return ModelCounts(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def decreased(self) -> bool:
        """Whether a counter went down: the model was loaded anew, or the server."""
        return any(getattr(self, field.name) < 0 for field in dataclasses.fields(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerCounts:
    """Everything that a server had counted at one moment.

    Args:
        models: By name, all versions together.

        drafts: Drafts of the decoder; None when it does not count them.
    """

    models: Mapping[str, ModelCounts]
    drafts: Acceptance | None = None


def read_counts(statistics: Mapping[str, Any], samples: Sequence[Sample] = ()) -> ServerCounts:
    """Return the counters.

    Args:
        statistics: The answer of ``GET /v2/models/stats``; what in it is not understood is left out.

        samples: The metrics page; empty when there is none.
    """
    models: dict[str, ModelCounts] = {}
    for entry in statistics.get("model_stats", ()):
        found = _model(entry)
        if found is not None:
            name, counts = found
            models[name] = models[name].and_also(counts) if name in models else counts
    return ServerCounts(models=models, drafts=acceptance(samples))


def gauges(samples: Iterable[Sample]) -> dict[str, float]:
    """Return what goes up and down, under ``name{label="value"}`` as Prometheus writes it."""
    return {_written(sample): sample.value for sample in samples if sample.name in GAUGES}


def _model(entry: object) -> tuple[str, ModelCounts] | None:
    try:
        told = entry["inference_stats"]  # type: ignore[index]  # whatever it is
        stages = {stage: (int(told[stage].get("count", 0)), int(told[stage].get("ns", 0))) for stage in _STAGES}
        counts = ModelCounts(
            requests=stages["success"][0],
            failures=stages["fail"][0],
            executions=int(entry.get("execution_count", 0)),  # type: ignore[attr-defined]
            inferences=int(entry.get("inference_count", 0)),  # type: ignore[attr-defined]
            total_ns=stages["success"][1],
            queue_ns=stages["queue"][1],
            compute_ns=sum(stages[stage][1] for stage in _STAGES[3:]),
        )
        return str(entry["name"]), counts  # type: ignore[index]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _written(sample: Sample) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
    return f"{sample.name}{{{labels}}}" if labels else sample.name
