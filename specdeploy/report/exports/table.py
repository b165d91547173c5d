"""A load test as a table for spreadsheets and data frames: CSV after RFC 4180, a row for each metric."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.metrics import DISTRIBUTION_STATS
from specdeploy.report.exports.readings import readings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.report.exports.readings import Reading

_NAMES: Final = ("arm", "load", "concurrency", "rate", "category", "metric", "unit", "better", "position", "value")
_STATISTICS: Final = (*DISTRIBUTION_STATS, "ci_low", "ci_high")
#: Order of the columns that only some documents have.
_BOUNDS: Final = tuple(f"{stat}_ci_{side}" for stat in DISTRIBUTION_STATS for side in ("low", "high"))


def csv_table(document: Mapping[str, Any]) -> str:
    """Return every metric of every arm under every load, then the ratios of the arms.

    A metric with a value for each position has a row for each, with the number in ``value``; every other has one row
    with its statistics. Rows without a category are of all prompts. A cell is empty where nothing was measured.
    Numbers are written so that they are read back as they stand in the document.

    Args:
        document: Content of ``load.json``.

    Returns: Text with a header; lines end with CR LF.
    """
    rows = [row for reading in readings(document) for row in _rows(reading)]
    # What a document has beyond the usual statistics is appended, never dropped.
    found = {name for row in rows for name in row} - {*_NAMES, *_STATISTICS}
    more = (*(name for name in _BOUNDS if name in found), *sorted(found.difference(_BOUNDS)))
    text = io.StringIO()
    table = csv.DictWriter(text, (*_NAMES, *_STATISTICS, *more), restval="")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _rows(reading: Reading) -> Iterator[dict[str, Any]]:
    names = {
        "arm": reading.arm,
        "load": reading.load,
        "concurrency": reading.concurrency,
        "rate": reading.rate,
        "category": reading.category,
        "metric": reading.key,
        "unit": reading.unit,
        "better": reading.better,
    }
    positions = reading.positions()
    for position, value in positions.items():
        yield {**names, "position": position, "value": value}
    statistics = reading.statistics()
    if statistics or not positions:
        yield {**names, **statistics}
