"""Which files an export consists of: relative paths and texts, for a caller who writes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from specdeploy.bench.records import ARMS
from specdeploy.errors import ConfigError
from specdeploy.report.exports.aiperf import SUMMARY_FILE, aiperf_json
from specdeploy.report.exports.aiperf_records import RECORDS_FILE, aiperf_records
from specdeploy.report.exports.github import github_benchmark
from specdeploy.report.exports.readings import load_label
from specdeploy.report.exports.table import csv_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdeploy.bench.records import RequestRecord

Format: TypeAlias = Literal["csv", "github", "aiperf"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)


def exports(
    document: Mapping[str, Any],
    records: Iterable[RequestRecord],
    wanted: Iterable[Format] = FORMATS,
    *,
    epoch_offset_s: float | None = None,
) -> dict[str, str]:
    """Return every file of the wanted formats.

    Args:
        document: Content of ``load.json``.

        records: Raw records of the same run; only AIPerf's artifacts need them.

        wanted: Formats; one that comes twice counts once.

        epoch_offset_s: What has to be added to the records' times to get seconds since the epoch; None takes it from
            the document.

    Returns:
        Texts by path, relative to the folder of the reports: ``load.csv``; ``benchmark-bigger-is-better.json`` and
        ``benchmark-smaller-is-better.json``; and a folder ``aiperf/ARM-LOAD`` for each run that AIPerf would call one.

    Raises:
        ConfigError: A format is unknown, or the records are not those of the document.
    """
    formats = dict.fromkeys(wanted)
    if unknown := [name for name in formats if name not in FORMATS]:
        raise ConfigError(f"{unknown[0]!r} is no export format", hint=f"Those are {', '.join(FORMATS)}.")
    files: dict[str, str] = {}
    if "csv" in formats:
        files["load.csv"] = csv_table(document)
    if "github" in formats:
        files["benchmark-bigger-is-better.json"] = github_benchmark(document, better="higher")
        files["benchmark-smaller-is-better.json"] = github_benchmark(document, better="lower")
    if "aiperf" in formats:
        files |= _aiperf(document, tuple(records), epoch_offset_s)
    return files


def _aiperf(
    document: Mapping[str, Any], records: tuple[RequestRecord, ...], epoch_offset_s: float | None
) -> dict[str, str]:
    files: dict[str, str] = {}
    entries = list(document.get("arms") or ())
    for arm in ARMS:
        for load in (load_label(entry) for entry in entries if entry.get("arm") == arm):
            folder = _folder(arm, load)
            if f"{folder}/{SUMMARY_FILE}" in files:
                raise ConfigError(f"two loads would be exported to {folder}", hint="Give one of them another name.")
            files[f"{folder}/{SUMMARY_FILE}"] = aiperf_json(
                document, records, arm=arm, load=load, epoch_offset_s=epoch_offset_s
            )
            files[f"{folder}/{RECORDS_FILE}"] = aiperf_records(
                document, records, arm=arm, load=load, epoch_offset_s=epoch_offset_s
            )
    return files


def _folder(arm: str, load: str) -> str:
    """Return where a run goes: one folder below ``aiperf``, whatever the load is called."""
    return f"aiperf/{arm}-{re.sub(r'[^A-Za-z0-9.]+', '-', load).strip('-.')}"
