"""What a report is made from, smoke, load, gate and raw records, and how to look things up in them.

Knows the documents' shapes and refuses others; knows nothing of HTML or terminals. A document that is not there is
None and its part of the report says so.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.metrics import METRICS
from specdeploy.bench.records import ARMS, CONTROL, RequestRecord, records_from_jsonl
from specdeploy.errors import ConfigError
from specdeploy.report.numbers import DASH, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.bench.records import Arm

_MAJOR: Final = "1"
#: What the control arm cannot have: it drafts nothing.
_SPECULATIVE: Final = frozenset(key for key in METRICS if "spec_decode" in key)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bundle:
    """Everything that a report shows.

    Args:
        deployment: What was deployed.

        load: Content of ``load.json``. ``smoke`` and ``gate`` likewise.

        records: Raw records of the load test; empty when they are not there.
    """

    deployment: Mapping[str, Any]
    load: Mapping[str, Any] | None
    smoke: Mapping[str, Any] | None
    gate: Mapping[str, Any] | None
    records: tuple[RequestRecord, ...]

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Every concurrency that was measured, lowest first."""
        return concurrencies(self.load) if self.load else ()

    def of_request(self, arm: Arm, concurrency: int) -> tuple[RequestRecord, ...]:
        """Return the successful requests of an arm that count."""
        return tuple(
            record
            for record in self.records
            if record.counts and record.ok and (record.arm, record.concurrency) == (arm, concurrency)
        )


def read_bundle(documents: Mapping[str, Any]) -> Bundle:
    """Read what a report is made from.

    Args:
        documents: ``load``, ``smoke`` and ``gate`` as mappings, ``records`` as the text of the records file, and
            ``deployment``; each may be None or absent.

    Raises:
        ConfigError: A document is of another kind or schema, or the records file is damaged.
    """
    load, smoke, gate = (_document(documents.get(kind), kind) for kind in ("load", "smoke", "gate"))
    return Bundle(
        deployment=documents.get("deployment") or (load or {}).get("deployment") or {},
        load=load,
        smoke=smoke,
        gate=gate,
        records=records_from_jsonl(documents.get("records") or ""),
    )


def concurrencies(load: Mapping[str, Any]) -> tuple[int, ...]:
    """Return every concurrency that was measured, lowest first."""
    return tuple(sorted({arm["concurrency"] for arm in load["arms"]}))


def arm_metrics(load: Mapping[str, Any], arm: Arm, concurrency: int) -> Mapping[str, Any]:
    """Return what an arm did at a concurrency, by metric; empty when it was not measured."""
    for entry in load["arms"]:
        if (entry["arm"], entry["concurrency"]) == (arm, concurrency):
            metrics: Mapping[str, Any] = entry["metrics"]
            return metrics
    return {}


def statistic(metrics: Mapping[str, Any], key: str, stat: str = "avg") -> float | None:
    """Return one number of a metric; None when it was not measured."""
    value = metrics.get(key, {}).get(stat)
    return None if value is None else float(value)


def listed(metrics: Mapping[str, Any], key: str) -> tuple[float, ...]:
    """Return the values of a metric by position; empty when it was not measured."""
    return tuple(metrics.get(key, {}).get("values", ()))


def not_measured(load: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the titles of metrics that are missing, by place; what the control cannot have is not missed there."""
    missing: dict[str, tuple[str, ...]] = {}
    for concurrency in concurrencies(load) or tuple(load["plan"]["concurrency"]):
        for arm in ARMS:
            metrics = arm_metrics(load, arm, concurrency)
            wanted = [key for key in METRICS if key != "speedup" and not (arm == CONTROL and key in _SPECULATIVE)]
            titles = tuple(METRICS[key].title for key in wanted if key not in metrics)
            if titles:
                missing[f"{arm}, concurrency {concurrency}"] = titles
        if str(concurrency) not in load["speedup"]:
            missing[f"both arms, concurrency {concurrency}"] = (METRICS["speedup"].title,)
    return missing


def flatten(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested data as rows of dotted names and values, for a table."""
    rows: list[tuple[str, str]] = []
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            rows += flatten(value, f"{name}.")
        else:
            rows.append((name, _shown(value)))
    return rows


def _shown(value: object) -> str:
    if value is None or value in ("", [], ()):
        return DASH
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain(value) if isinstance(value, float) else str(value)


def _document(data: Any, kind: str) -> Mapping[str, Any] | None:  # noqa: ANN401 - whatever JSON a file held
    if data is None:
        return None
    if not isinstance(data, dict) or data.get("kind") != kind:
        raise ConfigError(f"not the document of {kind}", hint=f"Run `specdeploy {kind}` again.")
    version = str(data.get("schema_version"))
    if version.partition(".")[0] != _MAJOR:
        raise ConfigError(f"{kind} document of schema {version}", hint=f"Run `specdeploy {kind}` of this version.")
    return data
