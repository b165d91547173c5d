"""The summary of one arm under one load as AIPerf writes it: ``profile_export_aiperf.json``, schema 1.4.

Shape: ``aiperf/common/models/export_models.py`` (``JsonExportData``) of AIPerf 0.13, and what ``aiperf plot`` looks up
in it (``aiperf/plot/core/data_loader.py``). ``input_config`` holds only what a plot needs and what we know, the name
of the model and the load; an endpoint of AIPerf there was not. What AIPerf would have measured and we have not, such
as GPU telemetry, is absent.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from specdeploy import __version__
from specdeploy.bench.blocks import finished_s
from specdeploy.bench.metrics import DISTRIBUTION_STATS
from specdeploy.bench.table import table_of
from specdeploy.report.exports.aiperf_shape import (
    epoch_ns,
    epoch_offset,
    find_entry,
    records_of,
    translate,
)
from specdeploy.report.exports.readings import finite, load_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdeploy.bench.records import Arm, RequestRecord

SUMMARY_FILE: Final = "profile_export_aiperf.json"
SCHEMA_VERSION: Final = "1.4"
_HISTOGRAM: Final = "spec_decode_acceptance_histogram"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Shapes of ours that are types of AIPerf's phases.
_PHASE_TYPES: Final = ("constant", "poisson", "gamma")


def aiperf_json(
    document: Mapping[str, Any],
    records: Iterable[RequestRecord],
    *,
    arm: Arm,
    load: str,
    epoch_offset_s: float | None = None,
) -> str:
    """Return the content of ``profile_export_aiperf.json``.

    Args:
        document: Content of ``load.json``.

        records: Raw records of the same run; those of other arms and loads are ignored.

        arm: The arm.

        load: What the load is called (`load_label`).

        epoch_offset_s: What has to be added to the records' times to get seconds since the epoch; None takes it from
            the document. When it has none either, ``start_time`` and ``end_time`` are left out.

    Raises:
        ConfigError: The arm was not measured under that load, or there are no records of it.
    """
    entry = find_entry(document, arm, load)
    own = records_of(records, entry)
    offset_s = epoch_offset(document) if epoch_offset_s is None else epoch_offset_s
    content = {
        "schema_version": SCHEMA_VERSION,
        **_metrics(entry),
        **_histogram(entry),
        "input_config": _input_config(document, entry),
        "run_info": _run_info(document, entry),
        "metadata": {"generator": f"specdeploy {__version__}", "variation_label": f"{arm}, {load}"},
        "was_cancelled": bool(document.get("partial")),
        "is_complete": not document.get("partial"),
        **({"incomplete_reason": document["stop_reason"]} if document.get("stop_reason") else {}),
        "error_summary": _error_summary(own),
        **({} if offset_s is None else _period(own, offset_s)),
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _metrics(entry: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the metrics that are single numbers or distributions; AIPerf's have no lists."""
    metrics: dict[str, dict[str, Any]] = {}
    for key, value in (entry.get("metrics") or {}).items():
        translation = translate(key, str(value.get("unit", "")))
        statistics = {stat: number for stat in DISTRIBUTION_STATS if (number := finite(value.get(stat))) is not None}
        scaled = {
            stat: number if stat == "count" else translation.scaled(number) for stat, number in statistics.items()
        }
        if scaled:
            metrics[translation.tag] = {"unit": translation.unit, **scaled}
    return metrics


def _histogram(entry: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    values = ((entry.get("metrics") or {}).get(_HISTOGRAM) or {}).get("values")
    if not values:
        return {}
    return {"pooled_spec_decode_acceptance_histogram": {str(j): count for j, count in enumerate(values) if count}}


def _input_config(document: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a plot groups and labels runs by: the arm as the model's name, and the load."""
    deployment = document.get("deployment") or {}
    return {
        "models": {"items": [{"name": f"{deployment.get('name') or 'model'}, {entry.get('arm')}"}]},
        "phases": [{"name": "profiling", **_phase(document, entry)}],
    }


def _phase(document: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    metrics = entry.get("metrics") or {}
    counts = [finite((metrics.get(key) or {}).get("avg")) for key in ("request_count", "error_request_count")]
    sent = {"requests": round(sum(count or 0 for count in counts))} if any(counts) else {}
    if entry.get("rate") is None:
        return {"type": "concurrency", "concurrency": entry.get("concurrency"), **sent}
    shape = (document.get("plan") or {}).get("shape")
    return {**({"type": shape} if shape in _PHASE_TYPES else {}), "rate": entry["rate"], **sent}


def _run_info(document: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    label = f"{entry.get('arm')}, {load_label(entry)}"
    seed = (document.get("plan") or {}).get("seed")
    loads = {f"phases.profiling.{key}": entry[key] for key in ("concurrency", "rate") if entry.get(key) is not None}
    return {
        "run_label": label,
        "variation_label": label,
        "variation_values": loads,
        **({} if seed is None else {"random_seed": seed}),
    }


def _error_summary(records: Sequence[RequestRecord]) -> list[dict[str, Any]]:
    """Return each kind of failure with the words of its first one."""
    failed = [record for record in records if record.error is not None]
    first = {record.error: record for record in reversed(failed)}
    return [
        {
            "error_details": {"type": label, "message": first[label].error_message or label},
            "count": sum(record.error == label for record in failed),
        }
        for label in sorted(first, key=str)
    ]


def _period(records: Sequence[RequestRecord], offset_s: float) -> dict[str, str]:
    """Return when the first request was sent and the last one ended; blocks of the other arm lie between."""
    table = table_of(records)
    ends = float(table["sent_s"].min()), float(finished_s(table).max())
    start, end = (_EPOCH + timedelta(microseconds=epoch_ns(moment_s, offset_s) // 1000) for moment_s in ends)
    return {"start_time": start.isoformat(), "end_time": end.isoformat()}
