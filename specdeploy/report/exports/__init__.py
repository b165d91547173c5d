"""What a load test leaves for other tools: CSV, the input of github-action-benchmark, and AIPerf's artifacts.

Every function goes from the load document and the raw records to text; nothing is written. Each number is the
document's own: what was not measured is left out, and units are converted only where a format fixes its own.
"""

from __future__ import annotations

from specdeploy.report.exports.aiperf import aiperf_json
from specdeploy.report.exports.aiperf_records import aiperf_records
from specdeploy.report.exports.github import github_benchmark
from specdeploy.report.exports.plan import FORMATS, Format, exports
from specdeploy.report.exports.readings import load_label
from specdeploy.report.exports.table import csv_table

__all__ = [
    "FORMATS",
    "Format",
    "aiperf_json",
    "aiperf_records",
    "csv_table",
    "exports",
    "github_benchmark",
    "load_label",
]
