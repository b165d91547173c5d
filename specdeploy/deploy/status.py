"""What a running server says of itself, put together: models, queues, KV cache, acceptance.

Knows Triton's index, statistics and metrics. Asks nobody. Absent is not zero: what a server does not tell is None.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdeploy.deploy.metrics import Sample

_PENDING: Final = "nv_inference_pending_request_count"
_KV_CACHE: Final = "nv_trt_llm_kv_cache_block_metrics"
_KV_KIND: Final = "kv_cache_block_type"
# Ends of the names of a decoder's counters, whatever its metrics are prefixed with.
_ACCEPTED: Final = ("accepted_draft_tokens", "accepted_draft_tokens_total")
_DRAFTED: Final = ("draft_tokens", "draft_tokens_total")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelStatus:
    """One version of a model.

    Args:
        name: The model.
        version: Its version; empty when none is loaded.
        state: As Triton's index has it, such as ``READY``.
        reason: Why it is not ready; empty when Triton does not say.
        succeeded: Requests that were answered.
        failed: Requests that were not.
        queue: Requests that wait now.
        kv_cache: KV-cache blocks by kind, such as ``used`` and ``max``.
    """

    name: str
    version: str
    state: str
    reason: str = ""
    succeeded: int | None = None
    failed: int | None = None
    queue: int | None = None
    kv_cache: Mapping[str, float] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Drafts of all requests since the server started.

    Args:
        drafted: Tokens that were proposed.
        accepted: Tokens of those that stood.
    """

    drafted: int
    accepted: int

    @property
    def rate(self) -> float | None:
        """The part that stood; None before anything was proposed."""
        return self.accepted / self.drafted if self.drafted else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**dataclasses.asdict(self), "rate": self.rate}


def model_statuses(
    index: Iterable[Mapping[str, Any]], statistics: Mapping[str, Any] | None, samples: Sequence[Sample]
) -> tuple[ModelStatus, ...]:
    """Return the state of every model of the index.

    Args:
        index: The answer of ``POST /v2/repository/index``.
        statistics: The answer of ``GET /v2/models/stats``; None when there is none.
        samples: The metrics page; empty when there is none.
    """
    counts = _counts(statistics)
    return tuple(_model(entry, counts, samples) for entry in index)


def acceptance(samples: Sequence[Sample]) -> Acceptance | None:
    """Return what the decoder's metrics say of its drafts; None when it has no such metrics."""
    accepted = _total(samples, _ACCEPTED)
    drafted = _total([sample for sample in samples if not _is_one_of(sample.name, _ACCEPTED)], _DRAFTED)
    if accepted is None or drafted is None:
        return None
    return Acceptance(drafted=int(drafted), accepted=int(accepted))


def _model(
    entry: Mapping[str, Any], counts: Mapping[tuple[str, str], tuple[int, int]], samples: Sequence[Sample]
) -> ModelStatus:
    name, version = str(entry.get("name", "")), str(entry.get("version", ""))
    succeeded, failed = counts.get((name, version), (None, None))
    pending = _of(samples, _PENDING, name, version)
    return ModelStatus(
        name=name,
        version=version,
        state=str(entry.get("state", "")),
        reason=str(entry.get("reason", "")),
        succeeded=succeeded,
        failed=failed,
        queue=int(sum(sample.value for sample in pending)) if pending else None,
        kv_cache={
            sample.labels[_KV_KIND]: sample.value
            for sample in _of(samples, _KV_CACHE, name, version)
            if _KV_KIND in sample.labels
        }
        or None,
    )


def _of(samples: Sequence[Sample], metric: str, model: str, version: str) -> list[Sample]:
    """Return the samples of one model; what carries no version is taken for every version."""
    return [
        sample
        for sample in samples
        if sample.name == metric
        and sample.labels.get("model") == model
        and sample.labels.get("version", version) == version
    ]


def _counts(statistics: Mapping[str, Any] | None) -> dict[tuple[str, str], tuple[int, int]]:
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for entry in (statistics or {}).get("model_stats", ()):
        try:
            told = entry["inference_stats"]
            key = (str(entry["name"]), str(entry["version"]))
            counts[key] = (int(told["success"]["count"]), int(told["fail"]["count"]))
        except (KeyError, TypeError, ValueError):
            continue
    return counts


def _total(samples: Sequence[Sample], ends: tuple[str, ...]) -> float | None:
    values = [sample.value for sample in samples if _is_one_of(sample.name, ends)]
    return sum(values) if values else None


def _is_one_of(name: str, ends: tuple[str, ...]) -> bool:
    return any(name == end or name.endswith(f"_{end}") for end in ends)
