"""What AIPerf and this project call the same things, and in which units: shared by its summary and its records.

Names and units are those of AIPerf 0.13 (``aiperf/metrics/types/``), which writes its artifacts in display units. A
metric that is not renamed here has the same name, unit and formula in both, or AIPerf has none like it; its artifacts
allow further metrics. What the formulae do not share is in the documentation.
"""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import ConfigError
from specdeploy.report.exports.readings import finite, load_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdeploy.bench.records import Arm, RequestRecord

_NS: Final = 1_000_000_000
#: Fields that tell one load from another.
_LOAD_FIELDS: Final = ("concurrency", "rate", "level")


@dataclasses.dataclass(frozen=True)
class Translation:
    """What AIPerf calls a metric.

    Args:
        tag: Its name there.

        unit: Its unit there.

        scale: What a value of ours is multiplied by.
    """

    tag: str
    unit: str
    scale: int = 1

    def scaled(self, value: float) -> float:
        """Return a value in AIPerf's unit, unchanged where the units are the same."""
        return value if self.scale == 1 else value * self.scale


_TRANSLATIONS: Final = {
    "error_rate": Translation("request_error_rate", "%", 100),
    "spec_decode_draft_acceptance_rate": Translation("spec_decode_draft_acceptance_rate", "%", 100),
    "overall_spec_decode_draft_acceptance_rate": Translation("spec_decode_overall_draft_acceptance_rate", "%", 100),
    "spec_decode_acceptance_length": Translation("spec_decode_acceptance_length", "ratio"),
    "overall_spec_decode_acceptance_length": Translation("spec_decode_token_weighted_acceptance_length", "ratio"),
    "spec_decode_steps": Translation("spec_decode_steps", "count"),
}


def translate(key: str, unit: str) -> Translation:
    """Return what AIPerf calls a metric; its own name and unit for one that AIPerf does not know otherwise."""
    return _TRANSLATIONS.get(key, Translation(key, unit))


def find_entry(document: Mapping[str, Any], arm: Arm, load: str) -> Mapping[str, Any]:
    """Return what an arm did under a load.

    Raises:
        ConfigError: It was not measured.
    """
    entries: list[Mapping[str, Any]] = list(document.get("arms") or ())
    for entry in entries:
        if (entry.get("arm"), load_label(entry)) == (arm, load):
            return entry
    there = "; ".join(f"{entry.get('arm')}, {load_label(entry)}" for entry in entries) or "nothing"
    raise ConfigError(f"{arm}, {load} was not measured", hint=f"The load document has: {there}.")


def records_of(records: Iterable[RequestRecord], entry: Mapping[str, Any]) -> tuple[RequestRecord, ...]:
    """Return the requests that an entry of ``arms`` summarises, in the order in which they were sent.

    Raises:
        ConfigError: There is none.
    """
    found = [record for record in records if record.counts and _belongs(record, entry)]
    if not found:
        raise ConfigError(
            f"there are no records of {entry.get('arm')}, {load_label(entry)}",
            hint="Export from the load_records.jsonl of the same run as load.json, or measure again.",
        )
    return tuple(sorted(found, key=lambda record: record.sent_s))


def epoch_ns(moment_s: float, offset_s: float) -> int:
    """Return a moment of the records' clock in nanoseconds since the epoch.

    The two are added as whole numbers: seconds since the epoch leave a float no digits for nanoseconds, and the
    differences between moments would suffer.
    """
    return _nanoseconds(moment_s) + _nanoseconds(offset_s)


def epoch_offset(document: Mapping[str, Any]) -> float | None:
    """Return what has to be added to a moment of the records' clock to get seconds since the epoch.

    It follows from ``started_at`` and ``started_s``, one moment on both clocks; None when the document has them not.

    Raises:
        ConfigError: ``started_at`` is no date and time.
    """
    started_at, started_s = document.get("started_at"), finite(document.get("started_s"))
    if started_at is None or started_s is None:
        return None
    try:
        moment = datetime.fromisoformat(started_at)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"started_at of the load document is {started_at!r}", hint="It is an ISO 8601 time; measure again."
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - started_s


def _nanoseconds(seconds: float) -> int:
    whole = math.floor(seconds)
    return whole * _NS + round((seconds - whole) * _NS)


def _belongs(record: RequestRecord, entry: Mapping[str, Any]) -> bool:
    """Whether a record is of an entry's arm and load; a field that records have not does not tell them apart."""
    fields = [name for name in _LOAD_FIELDS if hasattr(record, name)]
    return record.arm == entry.get("arm") and all(getattr(record, name) == entry.get(name) for name in fields)
