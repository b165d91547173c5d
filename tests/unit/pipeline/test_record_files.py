"""Raw records on the disk: a file that is whole or not there, and memory that does not grow with it."""

from __future__ import annotations

import json
import math
import os
import resource
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from specdeploy.bench.records import records_to_jsonl
from specdeploy.errors import ConfigError
from specdeploy.pipeline.record_files import reading_records, record_file
from specdeploy.pipeline.subject import read_document
from specdeploy.system.files import sha256_file
from tests.unit.bench.simulated import failed, record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECORDS = [record(index=0), failed(index=1), record(index=2, output_ids=(4, 5))]


def write(path: Path, records, ends=lambda: None) -> None:
    """Write records, and end somehow."""
    with record_file(path) as store:
        for item in records:
            store.add(item)
        ends()


def test_a_file_of_records_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Under its name from the end on, and with nothing beside it; a table of it has the records in full."""
    path = tmp_path / "reports" / "load_records.jsonl"
    with record_file(path) as store:
        for item in RECORDS:
            store.add(item)
            assert list(store.since(0)) == RECORDS[: len(store)]
        assert list(store.since(2)) == RECORDS[2:]
        assert not path.exists()

    assert path.read_text() == records_to_jsonl(RECORDS)
    assert store.sha256 == sha256_file(path)
    assert list(path.parent.iterdir()) == [path]
    with reading_records(path, {"records_sha256": store.sha256}) as table:
        assert list(table) == RECORDS


def test_a_run_that_fails_leaves_what_was_there_before(tmp_path: Path) -> None:
    """The records of the last run, and none of a half."""
    path = tmp_path / "load_records.jsonl"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError):
        write(path, [record()], ends=lambda: 1 / 0)

    assert (path.read_text(), list(tmp_path.iterdir())) == ("before", [path])


def test_a_disk_that_is_full_is_named(tmp_path: Path) -> None:
    """An error that says which file, and nothing half-written."""
    path = tmp_path / "load_records.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"load_records\.jsonl cannot be written"):
            write(path, [record()] * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert not list(tmp_path.iterdir())


def test_memory_does_not_grow_with_the_records(tmp_path: Path) -> None:
    """Ten thousand more take no more than a few buffers."""
    long = record(chunk_s=tuple(map(float, range(64))), chunk_tokens=(1,) * 64, output_ids=tuple(range(64)))
    with record_file(tmp_path / "load_records.jsonl") as store:
        for _ in range(200):
            store.add(long)
        tracemalloc.start()
        for _ in range(10_000):
            store.add(long)
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert grown < 1_000_000


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "records line 2 is not JSON"),
        ("\xff", "records line 2 is not JSON"),
        ("[]", "records line 2 is list"),
        ('{"arm": "control"}', "not a request record"),
        ("[" * 100_000, "records line 2 is not JSON"),
        (json.dumps(record().to_dict() | {"sent_s": math.nan}), "records line 2 is not JSON: NaN is no number"),
        (json.dumps(record().to_dict() | {"chunk_s": [math.inf]}), "records line 2 is not JSON: Infinity is no number"),
        ('{"arm": "control", "arm": "speculation"}', "records line 2 is not JSON: 'arm' stands there twice"),
        *(
            (json.dumps(record().to_dict() | {key: value}), f"records line 2 is not a request record: {key} is ")
            for key, value in [
                ("sent_s", "soon"),
                ("sent_s", 1e308),
                ("ended_s", True),
                ("first_s", -7.0),
                ("last_s", -7.0),
                ("ended_s", -7.0),
                ("chunk_s", [-7.0]),
                ("chunk_s", [1e308]),
                ("chunk_s", [0.1, None]),
                ("chunk_s", [10**400]),
                ("chunk_tokens", [1.5]),
                ("arm", "third"),
                ("histogram", 3),
                ("output_ids", ["a"]),
                ("pair", 10**30),
                ("pair", 2**62),
                ("index", -1),
                ("concurrency", "4"),
                ("concurrency", 1.5),
                ("rate", 5.0),
                ("rate", [1]),
                ("error", 5),
                ("category", None),
                ("bypass_reason", ["a"]),
                ("output_tokens", 1.5),
            ]
        ),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    """With its file, its number and what is wrong."""
    path = tmp_path / "load_records.jsonl"
    path.write_bytes(records_to_jsonl([record()]).encode() + line.encode("latin-1") + b"\n")

    with pytest.raises(ConfigError) as caught, reading_records(path):
        pytest.fail("it was read")
    assert said in caught.value.message
    assert str(path) in caught.value.message


def test_records_of_another_document_are_refused(tmp_path: Path) -> None:
    """By the digest in it, also where there are as many; what no document has said is anybody's."""
    path = tmp_path / "load_records.jsonl"
    write(path, RECORDS)
    told = {"records_sha256": sha256_file(path)}
    write(path, [*RECORDS[:-1], record(index=3)])

    with pytest.raises(ConfigError, match="other records than those"), reading_records(path, told):
        pytest.fail("it was read")
    with reading_records(path, {}) as table:
        assert len(table) == len(RECORDS)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A pipe that nobody writes to is not waited for."""
    make(path := tmp_path / "load_records.jsonl")

    with pytest.raises(ConfigError, match="is no regular file"), reading_records(path):
        pytest.fail("it was read")
    with pytest.raises(ConfigError, match="is no regular file"):
        read_document(path)


def test_half_a_character_is_read_as_its_escape(tmp_path: Path) -> None:
    """Such as a server said it; every export and every terminal takes it then."""
    path = tmp_path / "load_records.jsonl"
    path.write_text(json.dumps(record(category="\ud800").to_dict()))

    with reading_records(path) as table:
        assert table[0].category == "\\ud800"


def test_records_that_are_not_there_are_named(tmp_path: Path) -> None:
    """As a file that cannot be read."""
    with (
        pytest.raises(ConfigError, match=r"nothing\.jsonl cannot be read"),
        reading_records(tmp_path / "nothing.jsonl"),
    ):
        pytest.fail("it was read")
