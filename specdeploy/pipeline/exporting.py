"""A load test as files of other tools, made from the two that it left."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.records import LoadPoint
from specdeploy.errors import ConfigError
from specdeploy.pipeline.outputs import require_writable
from specdeploy.pipeline.parquet import PARQUET, records_to_parquet, require_parquet
from specdeploy.pipeline.record_files import reading_records
from specdeploy.report.exports import exports
from specdeploy.system.files import explained, write_atomic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

_AIPERF: Final = "aiperf"
_FILES: Final = {
    "csv": ("load.csv",),
    "github": ("benchmark-bigger-is-better.json", "benchmark-smaller-is-better.json"),
    PARQUET: ("load_records.parquet",),
}


def require_exports(formats: Collection[str], folder: Path, rates: Iterable[float] = ()) -> None:
    """Stop, before anything is measured, when a format cannot be written.

    Args:
        formats: Which.

        folder: Where the files of the load test are.

        rates: The loads of an open loop, as far as they are known.

    Raises:
        EnvironmentFault: The package for Parquet is not installed.

        ConfigError: A file cannot be written, or two loads would have one name.
    """
    if PARQUET in formats:
        require_parquet()
    for name in (name for form in formats for name in _FILES.get(form, ())):
        require_writable(folder / name, "--export")
    if _AIPERF not in formats:
        return
    if (folder / _AIPERF).exists() and not (folder / _AIPERF).is_dir():
        raise ConfigError(
            f"--export {_AIPERF}: {folder / _AIPERF} is no folder", hint="move it away; nothing was asked yet"
        )
    names = [LoadPoint(rate=rate).key for rate in rates]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"--export {_AIPERF} has a folder for each load, and two of load.rates would be {twice[0]}",
            hint="give rates that differ in their first six digits",
        )


def export(folder: Path, document: Mapping[str, Any], formats: Iterable[str]) -> tuple[Path, ...]:
    """Write a load test for other tools, beside its own files, and return what was written.

    Args:
        folder: Where its files are.

        document: The document of the load test.

        formats: ``csv``, ``github``, ``aiperf``, ``parquet``.

    Raises:
        ConfigError: A format is not one of these, or a file cannot be written.

        EnvironmentFault: The package for Parquet is not installed.
    """
    wanted = tuple(dict.fromkeys(formats))
    if not wanted:
        return ()
    path = folder / document["records_file"]
    tables = [path.with_suffix(".parquet")] if PARQUET in wanted else []
    with reading_records(path, document) as records:
        for table in tables:
            data = records_to_parquet(records)
            with explained(table):
                write_atomic(table, data)
        wanted = tuple(name for name in wanted if name != PARQUET)
        files = exports(document, records, wanted, epoch_offset_s=_epoch_offset_s(document))  # type: ignore[arg-type]
    written = tables
    for name, text in files.items():
        path = folder / name
        with explained(path):
            write_atomic(path, text)
        written.append(path)
    return tuple(written)


def _epoch_offset_s(document: Mapping[str, Any]) -> float:
    """Return what is added to a time of the records to have seconds since 1970."""
    return dt.datetime.fromisoformat(document["started_at"]).timestamp() - float(document["started_s"])
