"""A load test as files of other tools, made from the two that it left."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from specdeploy.pipeline.parquet import PARQUET, records_to_parquet, require_parquet
from specdeploy.pipeline.record_files import reading_records
from specdeploy.report.exports import exports
from specdeploy.system.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def require_exports(formats: Iterable[str]) -> None:
    """Stop, before anything is measured, when a format cannot be written.

    Raises:
        EnvironmentFault: The package for Parquet is not installed.
    """
    if PARQUET in formats:
        require_parquet()


def export(folder: Path, document: Mapping[str, Any], formats: Iterable[str]) -> tuple[Path, ...]:
    """Write a load test for other tools, beside its own files, and return what was written.

    Args:
        folder: Where its files are.

        document: The document of the load test.

        formats: ``csv``, ``github``, ``aiperf``, ``parquet``.

    Raises:
        ConfigError: A format is not one of these.

        EnvironmentFault: The package for Parquet is not installed.
    """
    wanted = tuple(dict.fromkeys(formats))
    if not wanted:
        return ()
    path = folder / document["records_file"]
    tables = [path.with_suffix(".parquet")] if PARQUET in wanted else []
    with reading_records(path) as records:
        for table in tables:
            write_atomic(table, records_to_parquet(records))
        wanted = tuple(name for name in wanted if name != PARQUET)
        files = exports(document, records, wanted, epoch_offset_s=_epoch_offset_s(document))  # type: ignore[arg-type]
    written = tables
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
        written.append(path)
    return tuple(written)


def _epoch_offset_s(document: Mapping[str, Any]) -> float:
    """Return what is added to a time of the records to have seconds since 1970."""
    return dt.datetime.fromisoformat(document["started_at"]).timestamp() - float(document["started_s"])
