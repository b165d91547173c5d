"""The raw records of a load test as Parquet, by Apache Arrow's own writer, which the extra ``parquet`` installs."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import ConfigError, EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdeploy.bench.records import RequestRecord

PARQUET: Final = "parquet"
#: Columns whose types a short run does not show: nothing failed, say, or no response had tokens.
_TYPES: Final = {
    "concurrency": "int64",
    "rate": "float64",
    "first_s": "float64",
    "last_s": "float64",
    "input_tokens": "int64",
    "output_tokens": "int64",
    "num_spec_steps": "int64",
    "draft_tokens": "int64",
    "accepted_tokens": "int64",
    "error": "string",
}
_LISTS: Final = {"chunk_s": "float64", "chunk_tokens": "int64", "output_ids": "int64", "histogram": "int64"}


def require_parquet() -> None:
    """Stop, before anything is measured, when there is no writer.

    Raises:
        EnvironmentFault: The package is not installed.
    """
    _arrow()


def records_to_parquet(records: Iterable[RequestRecord]) -> bytes:
    """Return the records as a Parquet file: a row each, a column for each field, in order.

    Raises:
        EnvironmentFault: The package is not installed.

        ConfigError: A server told of a number that needs more than 64 bits.
    """
    arrow, parquet = _arrow()
    rows = [record.to_dict() for record in records]
    try:
        table = arrow.Table.from_pylist(rows)
    except (OverflowError, arrow.ArrowInvalid) as error:
        raise ConfigError(
            f"the records cannot be written as Parquet: {error}",
            hint="Its numbers have 64 bits; take the records as they are, in load_records.jsonl.",
        ) from error
    for number, field in enumerate(table.schema):
        if field.name in _TYPES or field.name in _LISTS:
            kind = arrow.type_for_alias(_TYPES.get(field.name) or _LISTS[field.name])
            wanted = kind if field.name in _TYPES else arrow.list_(kind)
            table = table.set_column(number, field.name, table.column(number).cast(wanted))
    target = io.BytesIO()
    parquet.write_table(table, target, compression="zstd")
    return target.getvalue()


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415  of an extra, and heavy
        import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415  as above
    except ImportError as error:
        raise EnvironmentFault(
            f"Parquet needs the package pyarrow, which cannot be imported: {error}",
            hint="pip install 'specdeploy[parquet]', or take the records as they are, in load_records.jsonl",
        ) from error
    return pa, pq
