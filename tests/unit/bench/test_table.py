"""Tables of records: the same numbers as in the records themselves, in memory and in files."""

from __future__ import annotations

import contextlib
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench import table as table_module
from specdeploy.bench.load_report import build_load_report
from specdeploy.bench.records import ARMS, LoadPoint, LoadRun
from specdeploy.bench.schedule import LoadSettings
from specdeploy.bench.table import MISSING, RecordTable, TableWriter, table_of
from tests.unit.bench.simulated import CONTEXT, Simulator, failed, record

SIZES = st.lists(st.integers(0, 6), max_size=12)


def answered(index: int, chunks: int, **changes):
    """A request with so many responses, of times and tokens that no other has."""
    times = tuple(100.0 * index + number for number in range(chunks))
    return record(index=index, chunk_s=times, chunk_tokens=tuple(range(index, index + chunks)), **changes)


@contextlib.contextmanager
def on_disk(records):
    """The same table in files."""
    with contextlib.ExitStack() as stack:
        writer = TableWriter(lambda: stack.enter_context(tempfile.TemporaryFile()))
        for item in records:
            writer.add(item)
        yield writer.table(lambda number, _: records[number])


@given(SIZES, st.integers(1, 8))
def test_responses_come_in_parts_that_tear_no_request(sizes: list[int], slab: int) -> None:
    """However small the parts: every response once, with its row, and all those of a request in one part."""
    table, found = table_of([answered(index, size) for index, size in enumerate(sizes)]), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "_SLAB", slab)
        parts = [tuple(map(list, part)) for part in table.responses()]
    for rows, times, tokens in parts:
        found += zip(rows, times, tokens, strict=True)

    assert found == [(i, 100.0 * i + n, i + n) for i, size in enumerate(sizes) for n in range(size)]
    owners = [row for rows, _, _ in parts for row in dict.fromkeys(rows)]
    assert len(owners) == len(set(owners))


@given(SIZES)
def test_a_part_of_a_table_has_the_responses_of_its_own_requests(sizes: list[int]) -> None:
    """In the order of the part."""
    table = table_of([answered(index, size) for index, size in enumerate(sizes)])
    odd = table.where(table["index"] % 2 == 1)[::-1]

    assert [int(i) for _, _, tokens in odd.responses() for i in tokens] == [
        item.chunk_tokens[n] for item in odd for n in range(len(item.chunk_s))
    ]


def test_files_hold_what_memory_holds() -> None:
    """The whole document of a run, to the last bit."""
    run, plan = Simulator().run(LoadSettings(concurrency=(1, 3), pairs=3))
    records = (*run.records, failed("timeout", concurrency=3), failed("model_error", arm="control"))

    def document(of):
        return build_load_report(LoadRun(records=of), plan, CONTEXT)

    with on_disk(records) as table:
        assert document(table) == document(table_of(records)) == document(records)


def test_a_table_is_a_sequence_of_its_records() -> None:
    """In full, also through a part of it and in another order."""
    records = [record(index=2, sent_s=3.0), failed(index=1, sent_s=2.0), record(index=0, sent_s=1.0)]
    table = table_of(records)

    assert (list(table), len(table), table[0], table[-1]) == (records, 3, records[0], records[2])
    assert list(table.ordered_by("sent_s")) == records[::-1]
    assert list(table.good) == [records[0], records[2]]
    assert list(table[1:]) == records[1:]
    assert table_of(table) is table


def test_what_is_absent_is_told_from_what_is_nothing() -> None:
    """No count is not a count of 0, and no time is none."""
    table = table_of([record(output_tokens=None, first_s=None), record(output_tokens=0, num_spec_steps=0)])

    assert table["output_tokens"].tolist() == [MISSING, 0]
    assert np.isnan(table["first_s"]).tolist() == [True, False]


@pytest.mark.parametrize("count", [10**30, -(10**30)])
def test_counts_that_no_server_can_mean_are_no_accident(count: int) -> None:
    """They are cut, where an integer of 64 bits ends; the record keeps what was said."""
    table = table_of([record(output_tokens=count, chunk_tokens=(count,), chunk_s=(0.1,), histogram=(count,))])

    assert np.sign(table["output_tokens"][0]) == np.sign(count)
    assert table["output_tokens"][0] != MISSING
    assert table[0].output_tokens == count


def test_blocks_come_in_order_each_with_its_own_requests() -> None:
    """By load, pair and arm; the warm-up is a block like any other."""
    records = [
        record(arm=arm, pair=pair, concurrency=load, index=index)
        for index in range(2)
        for load in (4, 1)
        for pair in (1, -1, 0)
        for arm in ARMS[::-1]
    ]
    places = list(table_of(records).by_block())

    assert [(place.point, place.pair, place.arm) for place in places] == [
        (LoadPoint(concurrency=load), pair, arm) for load in (1, 4) for pair in (-1, 0, 1) for arm in ARMS
    ]
    for place in places:
        assert [(item.point, item.pair, item.arm, item.index) for item in place.requests] == [
            (place.point, place.pair, place.arm, index) for index in range(2)
        ]


def test_runs_of_one_file_are_joined_without_their_records() -> None:
    """What a search does with its trials; others are joined record by record."""
    records, looked_up, writer = [record(index=index) for index in range(4)], [], TableWriter()

    def look_up(number: int, line: int):
        looked_up.append((number, line))
        return records[number]

    for item in records[:2]:
        writer.add(item, line=10 * item.index)
    first = writer.table(look_up)
    for item in records[2:]:
        writer.add(item, line=10 * item.index)
    joined = RecordTable.joined([first, writer.table(look_up, start=2)])

    assert isinstance(joined, RecordTable)
    assert joined["index"].tolist() == [0, 1, 2, 3]
    assert not looked_up
    assert (joined[3], looked_up) == (records[3], [(3, 30)])
    assert RecordTable.joined([first, table_of(records[2:])]) == tuple(records)
