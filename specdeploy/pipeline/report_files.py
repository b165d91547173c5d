"""What our commands write into the report folder, in one place: no other output may take the name of one of these."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

#: Patterns of paths within the report folder, and what the file is; ``*`` also stands for folders.
REPORT_FILES: Final = {
    "smoke.json": "the smoke test's results",
    "smoke-*.json": "the results of a smoke test",
    "load.json": "the load test's results",
    "load_records.jsonl": "the load test's records",
    "load_records.parquet": "the load test's records, exported",
    "load.csv": "the load test's results, exported",
    "benchmark-*-is-better.json": "the load test's results, exported",
    "aiperf/*": "the load test's results, exported",
    "load-shard-*-of-*": "a part of a load test",
    "gate.json": "the gate's own results",
    "gate-selftest.json": "the results of the gate's selftest",
    "gate-selftest/*": "the results of the gate's selftest",
    "report.html": "the report",
}


def what_is(path: Path, reports: Path) -> str:
    """Say what a command of ours writes under a path, whether or not it is there yet; empty where none does.

    Args:
        path: The file, resolved.

        reports: The report folder.
    """
    if not path.is_relative_to(reports):
        return ""
    name = path.relative_to(reports).as_posix()
    return next((what for pattern, what in REPORT_FILES.items() if fnmatchcase(name, pattern)), "")
