"""Raw records as Parquet, read again by Arrow."""

from __future__ import annotations

import io
import sys

import pyarrow.parquet
import pytest

from specdeploy.bench.records import RequestRecord
from specdeploy.errors import ConfigError, EnvironmentFault
from specdeploy.pipeline.parquet import records_to_parquet, require_parquet
from tests.unit.bench.simulated import record


def rows(*records: RequestRecord) -> pyarrow.Table:
    """Write records, and read them."""
    return pyarrow.parquet.read_table(io.BytesIO(records_to_parquet(records)))


def test_records_come_back_as_they_were() -> None:
    """Whatever failed, and however many responses there were."""
    records = (record(), record(index=1, error="timeout", first_s=None, chunk_s=(), chunk_tokens=(), output_ids=()))

    assert tuple(RequestRecord.from_dict(row) for row in rows(*records).to_pylist()) == records


def test_columns_have_their_types_whatever_a_run_showed() -> None:
    """So that files of several runs are one table."""
    bare = record(rate=None, error=None, chunk_s=(), chunk_tokens=(), output_ids=(), histogram=(), input_tokens=None)
    full = record(rate=2.5, concurrency=None, error="timeout")

    assert rows(bare).schema.equals(rows(full).schema)


def test_numbers_that_a_server_may_say() -> None:
    """Up to 64 bits they are kept; what needs more is refused with the cure."""
    large = record(output_ids=(2**40, 2**63 - 1), chunk_tokens=(2**40,), histogram=(2**40,))
    assert rows(large).to_pylist()[0]["output_ids"] == [2**40, 2**63 - 1]

    for changes in ({"output_ids": (2**70,)}, {"output_tokens": 2**70}, {"histogram": (2**63,)}):
        with pytest.raises(ConfigError, match="cannot be written as Parquet") as refused:
            records_to_parquet([record(**changes)])
        assert "load_records.jsonl" in refused.value.hint


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that has it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(EnvironmentFault, match="pyarrow") as caught:
        require_parquet()

    assert "specdeploy[parquet]" in caught.value.hint
