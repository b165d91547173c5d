"""What a report is made from, smoke, load, gate and raw records, and how to look things up in them.

Knows the documents' shapes and refuses others; knows nothing of HTML or terminals. A document that is not there is
None and its part of the report says so.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.metrics import METRICS
from specdeploy.bench.records import ARMS, CONTROL, SPECULATION, LoadPoint
from specdeploy.bench.table import table_of
from specdeploy.errors import ConfigError
from specdeploy.report.numbers import DASH, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdeploy.bench.records import Arm
    from specdeploy.bench.table import RecordTable

#: Metrics whose ratio of the arms an open loop has in place of a speed-up.
RATIO_METRICS: Final = ("request_latency", "time_to_first_token")
#: More loads than this are drawn together and not one after another.
CROWD: Final = 4
_MAJOR: Final = "1"
#: What the control arm cannot have: it drafts nothing.
_SPECULATIVE: Final = frozenset(key for key in METRICS if "spec_decode" in key)
#: What nobody has who promised nothing.
_PROMISED: Final = frozenset({"good_request_count", "good_request_fraction", "goodput"})


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
    records: RecordTable

    @property
    def points(self) -> tuple[LoadPoint, ...]:
        """Every load that was measured, lowest first."""
        return points(self.load) if self.load else ()

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Who was to be measured."""
        return arms(self.load) if self.load else ARMS

    @property
    def other_control(self) -> str:
        """Which other server answered for the control; empty where none did."""
        return other_control(self.load) if self.load else ""

    def of_request(self, arm: Arm, point: LoadPoint) -> RecordTable:
        """Return the successful requests of an arm that count."""
        return self._successful.get(point, self.records[:0]).of(arm)

    @functools.cached_property
    def _successful(self) -> dict[LoadPoint, RecordTable]:
        return self.records.measured.good.by_point()


def read_bundle(documents: Mapping[str, Any]) -> Bundle:
    """Read what a report is made from.

    Args:
        documents: ``load``, ``smoke`` and ``gate`` as mappings, ``records`` of the load test, and ``deployment``; each
            may be None or absent.

    Raises:
        ConfigError: A document is of another kind or schema.
    """
    load, smoke, gate = (_document(documents.get(kind), kind) for kind in ("load", "smoke", "gate"))
    return Bundle(
        # What was measured, and not what the configuration names by now.
        deployment=(load or {}).get("deployment") or documents.get("deployment") or {},
        load=load,
        smoke=smoke,
        gate=gate,
        records=table_of(documents.get("records") or ()),
    )


def point_of(entry: Mapping[str, Any]) -> LoadPoint:
    """Return the load that an entry of ``load.json`` belongs to; before there were open loops, none had a rate."""
    return LoadPoint(concurrency=entry.get("concurrency"), rate=entry.get("rate"))


def points(load: Mapping[str, Any]) -> tuple[LoadPoint, ...]:
    """Return every load that was measured: closed loops first, lowest first."""
    return tuple(sorted({point_of(arm) for arm in load["arms"]}, key=lambda point: point.order))


def planned(load: Mapping[str, Any]) -> tuple[LoadPoint, ...]:
    """Return every load that was to be measured, lowest first; none for a trace and for stages, which have no name."""
    plan = load["plan"]
    if not is_open(load):
        return tuple(LoadPoint(concurrency=number) for number in sorted(plan["concurrency"]))
    named = plan["shape"] != "trace" and not plan.get("stages")
    return tuple(LoadPoint(rate=rate) for rate in sorted(plan["rates"])) if named else ()


def axis(point: LoadPoint) -> str:
    """Return what a load is an amount of, for the axis of a chart."""
    return "concurrency" if point.rate is None else "requests/s"


def axis_name(kind: str) -> str:
    """Return what `axis` names, in a word for titles."""
    return "concurrency" if kind == "concurrency" else "rate"


def amount_of(point: LoadPoint) -> float:
    """Return how much a load is, on the axis that `axis` names."""
    return float(point.rate or point.concurrency or 0)


def by_axis(measured: Iterable[LoadPoint]) -> dict[str, list[LoadPoint]]:
    """Return loads by the axis that can show them together."""
    groups: dict[str, list[LoadPoint]] = {}
    for point in measured:
        groups.setdefault(axis(point), []).append(point)
    return groups


def slug(point: LoadPoint) -> str:
    """Return a load as part of an id."""
    return point.key.replace("/", "-per-")


def is_open(load: Mapping[str, Any]) -> bool:
    """Whether requests were sent by a schedule."""
    return bool(load["plan"].get("shape", "closed") != "closed")


def arms(load: Mapping[str, Any]) -> tuple[Arm, ...]:
    """Return who was to be measured: both arms, or speculation alone."""
    return ARMS if load["plan"].get("compare", True) else (SPECULATION,)


def other_control(load: Mapping[str, Any]) -> str:
    """Say which server answered for the control where it was another one, which may draft, too; else empty."""
    if load["plan"].get("own_control", True) or CONTROL not in arms(load):
        return ""
    about = load["deployment"].get("control")
    if not isinstance(about, dict):
        return "another server"
    server = f" at {about['server']}" if about.get("server") else ""
    return f"{about.get('name') or 'another deployment'}{server}"


def arm_entry(load: Mapping[str, Any], arm: Arm, point: LoadPoint) -> Mapping[str, Any]:
    """Return what stands in the document of an arm under a load; empty when it was not measured."""
    return next((entry for entry in load["arms"] if (entry["arm"], point_of(entry)) == (arm, point)), {})


def arm_metrics(load: Mapping[str, Any], arm: Arm, point: LoadPoint) -> Mapping[str, Any]:
    """Return what an arm did under a load, by metric; empty when it was not measured."""
    metrics: Mapping[str, Any] = arm_entry(load, arm, point).get("metrics", {})
    return metrics


def speedup(load: Mapping[str, Any], point: LoadPoint) -> Mapping[str, Any] | None:
    """Return the speed-up under a load; None when it was not measured."""
    entry: Mapping[str, Any] | None = load["speedup"].get(point.key)
    return entry


def category_ratios(load: Mapping[str, Any], point: LoadPoint) -> Mapping[str, Mapping[str, Any]]:
    """Return by kind of prompt how much faster it was answered; empty where that was not compared."""
    entries: Iterable[Mapping[str, Any]] = load.get("open_loop", ())
    entry = speedup(load, point) or next((entry for entry in entries if point_of(entry) == point), {})
    ratios: Mapping[str, Mapping[str, Any]] = entry.get("categories", {})
    return ratios


def latency_ratios(load: Mapping[str, Any], point: LoadPoint) -> dict[str, Mapping[str, Any]]:
    """Return by metric how an open loop's latencies changed, speculation / control; without what was not measured."""
    entries: Iterable[Mapping[str, Any]] = load.get("open_loop", ())
    entry = next((entry for entry in entries if point_of(entry) == point), {})
    return {key: ratio for key in RATIO_METRICS if (ratio := entry.get(f"{key}_ratio"))}


def statistic(metrics: Mapping[str, Any], key: str, stat: str = "avg") -> float | None:
    """Return one number of a metric; None when it was not measured."""
    value = metrics.get(key, {}).get(stat)
    return None if value is None else float(value)


def listed(metrics: Mapping[str, Any], key: str) -> tuple[float, ...]:
    """Return the values of a metric by position; empty when it was not measured."""
    return tuple(metrics.get(key, {}).get("values", ()))


def not_measured(load: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the titles of metrics that are missing, by place."""
    missing: dict[str, tuple[str, ...]] = {}
    for point in points(load) or planned(load):
        for arm in arms(load):
            metrics = arm_metrics(load, arm, point)
            titles = tuple(METRICS[key].title for key in _wanted(load, arm) if key not in metrics)
            if titles:
                missing[f"{arm}, {point}"] = titles
        if titles := _missing_ratios(load, point):
            missing[f"both arms, {point}"] = titles
    return missing


def _wanted(load: Mapping[str, Any], arm: Arm) -> list[str]:
    """Return the metrics that an arm could have; what the control cannot have is not missed there."""
    # What is seen in the stream stands in for what the answers do not tell.
    beside = {
        "speedup",
        "tokens_per_response",
        *(_SPECULATIVE if arm == CONTROL else ()),
        *(() if load.get("objectives") else _PROMISED),
    }
    return [key for key in METRICS if key not in beside]


def _missing_ratios(load: Mapping[str, Any], point: LoadPoint) -> tuple[str, ...]:
    if CONTROL not in arms(load):
        return ()
    if point.rate is None:
        return () if speedup(load, point) else (METRICS["speedup"].title,)
    measured = latency_ratios(load, point)
    return tuple(f"{METRICS[key].title}, speculation / control" for key in RATIO_METRICS if key not in measured)


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
