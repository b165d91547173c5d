"""When a shard begins, and what it reads and writes."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from specdeploy.bench.records import records_to_jsonl
from specdeploy.bench.shards import Shard
from specdeploy.errors import CannotDecide, ConfigError
from specdeploy.gate.fingerprint import take_fingerprint
from specdeploy.pipeline.shards import ALONE, Files, Generator, merge_results, parse_start
from specdeploy.system.clock import SystemClock
from specdeploy.system.files import sha256_file, write_atomic, write_json_atomic
from tests.unit.bench.simulated import CONTEXT, record

if TYPE_CHECKING:
    from pathlib import Path

NOW_S = 1_769_851_800.0
SECOND = Generator(shard=Shard(number=2, of=3))


class TestStart:
    """``--start-at``."""

    @pytest.mark.parametrize(
        "text",
        [
            "2026-01-31T09:35:00Z",
            "2026-01-31T10:35:00+01:00",
            " 2026-01-31 09:35:00+00:00",
            "1769852100",
            "1769852100.0",
        ],
    )
    def test_a_moment_however_it_is_written(self, text: str) -> None:
        """ISO 8601 in any time zone, or seconds since 1970."""
        assert parse_start(text, now_s=NOW_S) == NOW_S + 300

    @pytest.mark.parametrize(
        ("text", "said", "cure"),
        [
            ("soon", "cannot read --start-at 'soon'", "2026-01-31T09:30:00Z"),
            ("1769852100000", "cannot read", "seconds"),
            ("nan", "cannot read", "seconds"),
            ("2026-01-31T09:35:00", "has no time zone", "Z"),
            ("2026-01-31T09:29:00Z", r"has passed, 60 s ago \(2026-01-31T09:29:00", "all shards are ready"),
            ("1769851800", "has passed, 0 s ago", "all shards are ready"),
            ("2026-01-31T22:30:00Z", "is 13.0 hours ahead", "time zone"),
        ],
    )
    def test_a_moment_that_is_none(self, text: str, said: str, cure: str) -> None:
        """Refused with the value and what to write."""
        with pytest.raises(ConfigError, match=said) as refused:
            parse_start(text, now_s=NOW_S)

        assert cure in refused.value.hint

    def test_blocks_begin_in_step(self) -> None:
        """By the wall clock, told on the monotonic one; the connections are opened before."""
        start_s = time.time() + 2.0
        begin = Generator(start_s=start_s, every_s=7.0).beginnings(SystemClock())
        assert begin is not None
        first_s, third_s = asyncio.run(begin(0)), asyncio.run(begin(2))

        assert first_s - time.monotonic() == pytest.approx(start_s - time.time(), abs=0.2)
        assert third_s - first_s == pytest.approx(14.0)

    def test_without_an_interval_only_the_first_block_waits(self) -> None:
        """The others begin when they are ready."""
        begin = Generator(start_s=time.time() + 2.0).beginnings(SystemClock())
        assert begin is not None

        assert asyncio.run(begin(0)) == asyncio.run(begin(5))
        assert ALONE.beginnings(SystemClock()) is None

    def test_a_start_that_passed_while_the_load_was_prepared(self) -> None:
        """Nothing is sent: the shard would be late."""
        with pytest.raises(ConfigError, match=r"passed 3\.\d s ago, while the load was prepared"):
            Generator(start_s=time.time() - 3.0).beginnings(SystemClock())

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"every_s": 1.0}, "--block-every counts from a common start"),
            ({"every_s": 0.0, "start_s": NOW_S}, "--block-every is 0 s"),
            ({"every_s": float("nan"), "start_s": NOW_S}, "--block-every is nan s"),
        ],
    )
    def test_an_interval_that_cannot_be_kept(self, fields, said: str) -> None:
        """Refused before anything is prepared."""
        with pytest.raises(ConfigError, match=said):
            Generator(**fields)


def write(folder: Path, number: int, *, of: int = 2, **shard) -> Path:
    """Write what a shard of one request leaves; return its document's path."""
    records = (record(index=number - 1),)
    document = {
        "schema_version": "1.0",
        "kind": "load",
        "created": CONTEXT.created,
        "started_at": CONTEXT.created,
        "started_s": 0.0,
        "duration_s": 1.0,
        "partial": False,
        "stop_reason": "",
        "degraded": False,
        "client": {"cpu_s": 0.1, "processes": 1},
        "deployment": {},
        "environment": {},
        "plan": {"temperature": 0.0, "shape": "closed", "duration_s": None},
        "objectives": [],
        "shard": {
            "number": number,
            "of": of,
            "schedule": "a",
            "start_at": None,
            "epoch_offset_s": NOW_S,
            "records": len(records),
            "blocks": [{"arm": "speculation", "pair": 0, "concurrency": 1, "rate": None, "start_s": 0.0}],
            "findings": [],
            **shard,
        },
    }
    files = Files(folder / f"load-shard-{number}-of-{of}.json", folder / f"load-shard-{number}-of-{of}_records.jsonl")
    write_atomic(files.records, records_to_jsonl(records))
    write_json_atomic(files.document, document | {"records_file": files.records.name})
    return files.document


class TestFiles:
    """What is written and read."""

    def test_shards_share_a_folder(self, tmp_path: Path) -> None:
        """Each has names of its own, whatever the others are; a whole load test has the usual ones."""
        place = SimpleNamespace(
            reports=tmp_path, load_json=tmp_path / "load.json", records_jsonl=tmp_path / "load_records.jsonl"
        )

        assert [path.name for path in SECOND.files(place)] == [
            "load-shard-2-of-3.json",
            "load-shard-2-of-3_records.jsonl",
        ]
        assert ALONE.files(place) == (place.load_json, place.records_jsonl)

    def test_a_folder_or_its_files(self, tmp_path: Path) -> None:
        """Both name the same shards; what is written is the document that is returned, and all records."""
        paths = [write(tmp_path, number) for number in (1, 2)]
        document = merge_results([tmp_path], tmp_path)

        assert json.loads((tmp_path / "load.json").read_text()) == document
        assert document["records_file"] == "load_records.jsonl"
        assert document["fingerprint"] == take_fingerprint(document)
        assert document["records_sha256"] == sha256_file(tmp_path / "load_records.jsonl")
        assert (tmp_path / "load_records.jsonl").read_text() == records_to_jsonl([record(index=0), record(index=1)])
        assert merge_results(paths, tmp_path / "elsewhere") == document

    def test_nothing_there(self, tmp_path: Path) -> None:
        """An empty folder is nothing measured; a file that is not there is a slip."""
        with pytest.raises(CannotDecide, match="holds no load-shard"):
            merge_results([tmp_path], tmp_path)
        with pytest.raises(ConfigError, match=r"there is no .*absent\.json"):
            merge_results([tmp_path / "absent.json"], tmp_path)

    def test_shards_of_an_earlier_run_in_the_folder(self, tmp_path: Path) -> None:
        """They are not mixed in: the numbers of shards differ."""
        for number in (1, 2):
            write(tmp_path, number)
        write(tmp_path, 1, of=3)

        with pytest.raises(ConfigError, match=r"number of shards \(. and .\)"):
            merge_results([tmp_path], tmp_path)

    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            ("load-shard-1-of-2_records.jsonl", None, "load-shard-1-of-2_records.jsonl cannot be read"),
            (
                "load-shard-1-of-2_records.jsonl",
                '{"arm": ',
                "load-shard-1-of-2_records.jsonl: records line 1 is not JSON",
            ),
            ("load-shard-1-of-2_records.jsonl", "", "is of 1 requests, and the records beside it are 0"),
            ("load-shard-1-of-2.json", "{", "load-shard-1-of-2.json is not JSON"),
            ("load-shard-1-of-2.json", '{"kind": "load"}', "load-shard-1-of-2.json is no result of a shard"),
            ("load-shard-1-of-2.json", '{"records_file": "../x"}', "load-shard-1-of-2.json is no result of a shard"),
        ],
    )
    def test_damaged_files(self, tmp_path: Path, name: str, text: str | None, said: str) -> None:
        """Named, with what is wrong; nothing is written."""
        for number in (1, 2):
            write(tmp_path, number)
        if text is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_text(text)

        with pytest.raises(ConfigError, match=said):
            merge_results([tmp_path], tmp_path)
        assert not (tmp_path / "load.json").exists()
