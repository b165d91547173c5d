"""Records as columns: what statistics need of every request, some hundred bytes each, in memory or in files.

Hours of load are millions of requests, and a record in full takes kilobytes: tokens, and a time for each response. A
table keeps one row of numbers for each request, and the times and counts of its responses one after the other; what
only a few requests are asked for, such as the tokens where two answers differ, is looked up in the records themselves.

Numbers that are absent are `MISSING` in columns of integers and NaN in those of times. Knows no metric.
"""

from __future__ import annotations

import hashlib
import io
import math
import struct
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, Protocol, overload

import numpy as np

from specdeploy.bench.contradiction import contradiction
from specdeploy.bench.records import ARMS, Arm, LoadPoint, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    Column = NDArray[Any]

#: A count that nobody told. Counts that no server can mean are cut to what an integer of 64 bits holds.
MISSING: Final = -(2**63)
_LARGEST: Final = 2**62
#: Responses that are looked at at a time, so that what lies between is small.
_SLAB: Final = 1 << 18

#: Names, NumPy types and types of `struct`, in the order in which they lie in a row.
_FIELDS: Final = (
    ("arm", "u1", "B"),
    ("counts", "?", "?"),
    ("ok", "?", "?"),
    ("sound", "?", "?"),
    ("point", "u4", "I"),
    ("error", "u4", "I"),
    ("bypass", "u4", "I"),
    ("category", "u4", "I"),
    ("pair", "i8", "q"),
    ("index", "i8", "q"),
    ("line", "i8", "q"),
    ("intended_s", "f8", "d"),
    ("sent_s", "f8", "d"),
    ("first_s", "f8", "d"),
    ("last_s", "f8", "d"),
    ("ended_s", "f8", "d"),
    ("input_tokens", "i8", "q"),
    ("output_tokens", "i8", "q"),
    ("num_spec_steps", "i8", "q"),
    ("draft_tokens", "i8", "q"),
    ("accepted_tokens", "i8", "q"),
    ("first_tokens", "i8", "q"),
    ("answer", "u8", "Q"),
    ("chunks_at", "i8", "q"),
    ("chunks", "i8", "q"),
    ("histogram_at", "i8", "q"),
    ("histogram", "i8", "q"),
)
_ROW: Final = np.dtype([(name, f"<{kind}") for name, kind, _ in _FIELDS])
_PACK: Final = struct.Struct("<" + "".join(code for _, _, code in _FIELDS))


class Place(NamedTuple):
    """A block of a run: which one it is, and its requests."""

    point: LoadPoint
    pair: int
    arm: Arm
    requests: RecordTable


class _Base(NamedTuple):
    """All rows of a writer, the lists that they point into, and how a record is looked up."""

    rows: Column
    chunk_s: Column
    chunk_tokens: Column
    histograms: Column
    points: list[LoadPoint]
    labels: list[str]
    look_up: Callable[[int, int], RequestRecord]
    writer: TableWriter


class RecordTable(Sequence[RequestRecord]):
    """Some of the rows of a table; as a sequence, their records.

    Args:
        base: All rows.

        rows: Which of them.
    """

    def __init__(self, base: _Base, rows: Column) -> None:
        self.base = base
        self.rows = rows

    def __len__(self) -> int:
        """Return how many requests there are."""
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> RequestRecord: ...
    @overload
    def __getitem__(self, at: slice) -> RecordTable: ...
    @overload
    def __getitem__(self, at: str) -> Column: ...
    def __getitem__(self, at: int | slice | str) -> RequestRecord | RecordTable | Column:
        """Return a record in full, a part of the table, or a column by its name: one of `_FIELDS`."""
        if isinstance(at, str):
            column: Column = self.base.rows[at][self.rows]
            return column
        if isinstance(at, slice):
            return RecordTable(self.base, self.rows[at])
        row = int(self.rows[at])
        return self.base.look_up(row, int(self.base.rows["line"][row]))

    def where(self, mask: Column) -> RecordTable:
        """Return the rows where a column of truth values, shape [rows], says so."""
        return RecordTable(self.base, self.rows[mask])

    def ordered_by(self, name: str) -> RecordTable:
        """Return the rows in the order of a column; those that are alike keep theirs."""
        return RecordTable(self.base, self.rows[np.argsort(self[name], kind="stable")])

    @classmethod
    def joined(cls, parts: Sequence[Sequence[RequestRecord]]) -> Sequence[RequestRecord]:
        """Return several runs' records as one; tables of one writer are joined without a look at the records."""
        tables = [part for part in parts if isinstance(part, cls)]
        if len(tables) < len(parts) or len({id(table.base.writer) for table in tables}) != 1:
            return tuple(record for part in parts for record in part)
        # The last one knows all rows.
        return cls(tables[-1].base, np.concatenate([table.rows for table in tables]))

    @property
    def measured(self) -> RecordTable:
        """The requests that statistics use."""
        return self.where(self["counts"])

    @property
    def good(self) -> RecordTable:
        """The requests that ended without an error."""
        return self.where(self["ok"])

    def of(self, arm: Arm) -> RecordTable:
        """Return the requests of an arm."""
        return self.where(self["arm"] == ARMS.index(arm))

    def labels(self, name: str) -> dict[str, int]:
        """Return the texts of ``error``, ``bypass`` or ``category`` and how often each is there, in alphabetical order.

        Where there is none the text is empty.
        """
        numbers, counts = np.unique(self[name], return_counts=True)
        found = {self.base.labels[number]: int(count) for number, count in zip(numbers, counts, strict=True)}
        return dict(sorted(found.items()))

    def labelled(self, name: str, text: str) -> RecordTable:
        """Return the rows whose ``error``, ``bypass`` or ``category`` is a text."""
        labels = self.base.labels
        return self.where(self[name] == (labels.index(text) if text in labels else len(labels)))

    def by_point(self) -> dict[LoadPoint, RecordTable]:
        """Return the requests under each load, lowest first."""
        numbers = self["point"]
        found = {self.base.points[number]: self.where(numbers == number) for number in np.unique(numbers)}
        return dict(sorted(found.items(), key=lambda item: item[0].order))

    def by_block(self) -> Iterator[Place]:
        """Yield the blocks and their requests, in the order of load, pair and arm."""
        for point, under in self.by_point().items():
            keys = 2 * under["pair"] + under["arm"]
            order = np.argsort(keys, kind="stable")
            distinct, begins = np.unique(keys[order], return_index=True)
            for key, rows in zip(distinct, np.split(under.rows[order], begins[1:]), strict=True):
                yield Place(point, int(key) // 2, ARMS[int(key) % 2], RecordTable(self.base, rows))

    def responses(self) -> Iterator[tuple[Column, Column, Column]]:
        """Yield the responses with tokens, some at a time: which row of the table, when, and how many tokens.

        Those of one request are never torn apart.
        """
        for rows, flat in self._entries("chunks_at", "chunks"):
            yield rows, self.base.chunk_s[flat], self.base.chunk_tokens[flat]

    def steps_by_accepted(self) -> Iterator[tuple[Column, Column]]:
        """Yield the entries of the acceptance histograms, some at a time: accepted drafts, and in how many steps."""
        for rows, flat in self._entries("histogram_at", "histogram"):
            yield flat - self["histogram_at"][rows], self.base.histograms[flat]

    def _entries(self, at: str, count: str) -> Iterator[tuple[Column, Column]]:
        """Yield, for rows that have not too much together, a row once for each entry, and where the entries lie."""
        begins, counts = self[at], self[count]
        ends = np.cumsum(counts)
        first = 0
        while first < len(counts):
            before = int(ends[first] - counts[first])
            last = max(int(np.searchsorted(ends, before + _SLAB, side="right")), first + 1)
            each = counts[first:last]
            rows = np.repeat(np.arange(first, last), each)
            within = np.arange(len(rows)) - np.repeat(ends[first:last] - each - before, each)
            yield rows, np.repeat(begins[first:last], each) + within
            first = last


class TableWriter:
    """Takes records one by one, and gives tables of them.

    Args:
        new_file: Makes a file, empty and open for reading and writing; by default in memory.
    """

    def __init__(self, new_file: Callable[[], IO[bytes]] = io.BytesIO) -> None:
        self._rows, self._chunk_s, self._chunk_tokens, self._histograms = (new_file() for _ in range(4))
        self._count = self._chunks = self._entries = 0
        self._points: dict[LoadPoint, int] = {}
        self._labels: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        """Return how many records it took."""
        return self._count

    def add(self, record: RequestRecord, line: int = 0) -> None:
        """Take a record.

        Args:
            record: The record.

            line: Where the look-up finds it again.
        """
        chunks, entries = len(record.chunk_s), len(record.histogram)
        self._rows.write(
            _PACK.pack(
                ARMS.index(record.arm),
                record.counts,
                record.ok,
                contradiction(record) is None,
                self._points.setdefault(record.point, len(self._points)),
                *map(self._label, (record.error or "", record.bypass_reason, record.category)),
                record.pair,
                record.index,
                line,
                record.intended_s,
                record.sent_s,
                *map(_moment, (record.first_s, record.last_s)),
                record.ended_s,
                *map(_count, (record.input_tokens, record.output_tokens)),
                *map(_count, (record.num_spec_steps, record.draft_tokens, record.accepted_tokens)),
                _count(record.chunk_tokens[0] if record.chunk_tokens else None),
                _digest(record.output_ids),
                self._chunks,
                chunks,
                self._entries,
                entries,
            )
        )
        # A record that was read from a file may have more of one than of the other.
        tokens = (*record.chunk_tokens[:chunks], *(0,) * (chunks - len(record.chunk_tokens)))
        self._chunk_s.write(struct.pack(f"<{chunks}d", *record.chunk_s))
        self._chunk_tokens.write(struct.pack(f"<{chunks}q", *map(_count, tokens)))
        self._histograms.write(struct.pack(f"<{entries}q", *map(_count, record.histogram)))
        self._chunks += chunks
        self._entries += entries
        self._count += 1

    def table(self, look_up: Callable[[int, int], RequestRecord], *, start: int = 0) -> RecordTable:
        """Return what was taken since record ``start``.

        Args:
            look_up: Returns a record in full: its number among all, and its ``line``.

            start: How many records are left out.
        """
        base = _Base(
            rows=_column(self._rows, _ROW),
            chunk_s=_column(self._chunk_s, np.dtype("<f8")),
            chunk_tokens=_column(self._chunk_tokens, np.dtype("<i8")),
            histograms=_column(self._histograms, np.dtype("<i8")),
            points=list(self._points),
            labels=list(self._labels),
            look_up=look_up,
            writer=self,
        )
        return RecordTable(base, np.arange(start, self._count))

    def _label(self, text: str) -> int:
        return self._labels.setdefault(text, len(self._labels))


class RecordStore(Protocol):
    """Where a run leaves its records."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def add(self, record: RequestRecord) -> None:
        """Take a record."""
        ...

    def since(self, start: int) -> Sequence[RequestRecord]:
        """Return the records that came after the first ``start``."""
        ...


class RecordsInMemory:
    """A `RecordStore` that keeps the records as they are."""

    def __init__(self) -> None:
        self._records: list[RequestRecord] = []

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._records)

    def add(self, record: RequestRecord) -> None:
        """Take a record."""
        self._records.append(record)

    def since(self, start: int) -> Sequence[RequestRecord]:
        """Return the records that came after the first ``start``."""
        return tuple(self._records[start:])


def table_of(records: Iterable[RequestRecord]) -> RecordTable:
    """Return records as a table, if they are none."""
    if isinstance(records, RecordTable):
        return records
    kept, writer = list(records), TableWriter()
    for record in kept:
        writer.add(record)
    return writer.table(lambda number, _: kept[number])


def total(counts: Column) -> int:
    """Add counts, shape [n], however large they are: those of a file may be more together than 64 bits hold."""
    if abs(float(counts.sum(dtype=np.float64))) < _LARGEST:
        return int(counts.sum())
    return sum(counts.tolist())


def _column(file: IO[bytes], kind: np.dtype[Any]) -> Column:
    """Return what a file holds: a copy of one in memory, and one on the disk mapped into it."""
    if isinstance(file, io.BytesIO):
        return np.frombuffer(file.getvalue(), kind)
    file.flush()
    return np.memmap(file, kind, mode="r") if file.tell() else np.empty(0, kind)


def _moment(at_s: float | None) -> float:
    return math.nan if at_s is None else at_s


def _count(number: int | None) -> int:
    return MISSING if number is None else max(min(number, _LARGEST), -_LARGEST)


def _digest(ids: tuple[int, ...]) -> int:
    """Return a number that tells answers apart; 0 for an answer without tokens."""
    if not ids:
        return 0
    data = ",".join(map(str, ids)).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest()) or 1
