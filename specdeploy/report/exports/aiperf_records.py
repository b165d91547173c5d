"""The requests of one arm under one load as AIPerf writes them: ``profile_export.jsonl``, a line of JSON for each.

Shape: ``aiperf/common/models/record_models.py`` (``MetricRecordInfo``) of AIPerf 0.13. Times are wall clock
nanoseconds there; ours come from a monotonic clock and are moved as a whole.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdeploy.bench.acceptance import acceptance_of_requests
from specdeploy.bench.blocks import finished_s
from specdeploy.bench.metrics import METRICS
from specdeploy.bench.per_request import OF_REQUEST
from specdeploy.bench.table import table_of
from specdeploy.report.exports.aiperf_shape import (
    epoch_ns,
    epoch_offset,
    find_entry,
    records_of,
    translate,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdeploy.bench.per_request import Values
    from specdeploy.bench.records import Arm, RequestRecord

RECORDS_FILE: Final = "profile_export.jsonl"
#: AIPerf's records name the processes that made them; we have one.
_WORKER: Final = "specdeploy"


def aiperf_records(
    document: Mapping[str, Any],
    records: Iterable[RequestRecord],
    *,
    arm: Arm,
    load: str,
    epoch_offset_s: float | None = None,
) -> str:
    """Return the lines of ``profile_export.jsonl``, in the order in which the requests were sent.

    Warm-up requests, and those that we cut off ourselves, are left out as they are of every statistic: ``aiperf plot``
    does not tell them from others.

    Args:
        document: Content of ``load.json``.

        records: Raw records of the same run; those of other arms and loads are ignored.

        arm: The arm.

        load: What the load is called (`load_label`).

        epoch_offset_s: What has to be added to the records' times to get seconds since the epoch; None takes it from
            the document. When it has none either, times stay on the records' own clock.

    Raises:
        ConfigError: The arm was not measured under that load, or there are no records of it.
    """
    entry = find_entry(document, arm, load)
    own = records_of(records, entry)
    offset_s = (epoch_offset(document) or 0.0) if epoch_offset_s is None else epoch_offset_s
    # Counts that the summary refused, because they contradict each other somewhere, are not told one by one.
    speculates = "spec_decode_steps" in (entry.get("metrics") or {})
    engine = str((document.get("deployment") or {}).get("profile") or _WORKER) if speculates else ""
    table = table_of(own)
    ended_s = finished_s(table).tolist()
    columns = {key: of(table) for key, of in OF_REQUEST.items()}
    acceptance = acceptance_of_requests(table) if engine else {}
    lines = (
        {
            "metadata": _metadata(number, record, ended_s[number], offset_s),
            **_measured(record, _at(columns, number), _at(acceptance, number), engine),
        }
        for number, record in enumerate(own)
    )
    return "".join(f"{json.dumps(line, ensure_ascii=False, allow_nan=False)}\n" for line in lines)


def _metadata(number: int, record: RequestRecord, ended_s: float, offset_s: float) -> dict[str, Any]:
    return {
        "session_num": number,
        "conversation_id": record.prompt_id,
        "credit_issued_ns": epoch_ns(record.intended_s, offset_s),
        "request_start_ns": epoch_ns(record.sent_s, offset_s),
        "request_end_ns": epoch_ns(ended_s, offset_s),
        "worker_id": _WORKER,
        "record_processor_id": _WORKER,
        "benchmark_phase": "profiling",
    }


def _at(columns: Mapping[str, Values], number: int) -> dict[str, float]:
    """Return what is defined of one request."""
    return {key: float(column[number]) for key, column in columns.items() if not np.isnan(column[number])}


def _measured(
    record: RequestRecord, values: Mapping[str, float], acceptance: Mapping[str, float], engine: str
) -> dict[str, Any]:
    """Return what was measured of a request; nothing but the error of one that failed.

    Args:
        record: The request.

        values: Its metrics.

        acceptance: Those of acceptance; empty when it is not to be told.

        engine: Who speculated.
    """
    if not record.ok:
        return {"metrics": {}, "error": {"type": record.error, "message": record.error_message or record.error}}
    gaps_ms = [(after_s - before_s) * 1000.0 for before_s, after_s in itertools.pairwise(record.chunk_s)]
    metrics = _translated({**values, "inter_chunk_latency": gaps_ms or None, **acceptance})
    if not acceptance:
        return {"metrics": metrics}
    return {"metrics": metrics, "spec_decode_acceptance": _spec_decode(record, acceptance, engine)}


def _spec_decode(record: RequestRecord, acceptance: Mapping[str, float], engine: str) -> dict[str, Any]:
    """Return AIPerf's own record of acceptance; its rate is a fraction, where the metric is a percentage."""
    return {
        "engine": engine,
        "mean_acceptance_length": acceptance["spec_decode_acceptance_length"],
        "draft_acceptance_rate": acceptance["spec_decode_draft_acceptance_rate"],
        "acceptance_histogram": {str(j): count for j, count in enumerate(record.histogram) if count},
        "num_accepted_draft_tokens": record.accepted_tokens,
        "num_draft_tokens": record.draft_tokens,
        "num_spec_steps": record.num_spec_steps,
        **({} if record.output_tokens is None else {"completion_tokens": record.output_tokens}),
    }


def _translated(values: Mapping[str, float | list[float] | None]) -> dict[str, dict[str, Any]]:
    """Return the metrics that are defined, under AIPerf's names and in its units."""
    metrics: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if value is not None:
            translation = translate(key, METRICS[key].unit)
            number = value if isinstance(value, list) else translation.scaled(value)
            metrics[translation.tag] = {"value": number, "unit": translation.unit}
    return metrics
