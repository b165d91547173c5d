"""One load test out of the results of its shards: all raw records on one clock, and the document that is built of them.

Knows what makes results shards of one run, and how far apart they began. Reads and writes no file. A percentile of
percentiles means nothing, so no number of a shard's document is used for one of the whole; only what no record tells is
taken over: what the generators used, when they began, and what they noticed before they sent anything.

Every machine's monotonic clock begins somewhere else. A shard keeps what is added to its own to have the date; by that
all records are moved onto the clock of the first shard. Two machines agree about the date as well as they are kept in
time (NTP: within milliseconds), and so do their records; a latency is a difference on one clock and is not touched.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from specdeploy.bench.blocks import summarize_blocks
from specdeploy.bench.goodput import parse_objectives
from specdeploy.bench.load_report import RECORDS_FILE, SCHEMA_VERSION, RunContext, build_load_report
from specdeploy.bench.records import WARMUP_PAIR, LoadRun
from specdeploy.bench.shards import Shard
from specdeploy.bench.table import RecordsInMemory, table_of
from specdeploy.errors import CannotDecide, ConfigError
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from specdeploy.bench.records import RequestRecord
    from specdeploy.bench.table import RecordStore

#: The shards of a block may begin so far apart: this share of the time it took, or so many seconds if that is more.
MAX_SKEW_SHARE: Final = 0.02
MAX_SKEW_S: Final = 0.005
#: What has to be the same in all shards, and what to call it.
_SAME: Final = {
    "schema_version": "schema version",
    "deployment": "deployment",
    "plan": "load",
    "objectives": "objectives",
}
_SAME_OF_SHARD: Final = {"of": "number of shards", "schedule": "prompts or schedule", "start_at": "common start"}
#: What of a generator's machine may bend the numbers when it is not the same everywhere.
_OF_MACHINE: Final = ("python", "cpu_model", "cpu_cores", "gpus", "packages")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What one shard left behind.

    Args:
        source: Where it was read; for messages.

        document: Its ``load-shard-i-of-N.json``.

        records: Its raw records.
    """

    source: str
    document: Mapping[str, Any]
    records: Sequence[RequestRecord]

    def __post_init__(self) -> None:
        """Refuse what is not the document of a shard.

        Raises:
            ConfigError: It is not.
        """
        shard = self.document.get("shard")
        if self.document.get("kind") != "load" or not isinstance(shard, dict):
            raise ConfigError(
                f"{self.source} is no result of a shard",
                hint="Those are the files that `specdeploy load --shard` writes.",
            )
        if (version := self.document.get("schema_version")) != SCHEMA_VERSION:
            raise ConfigError(
                f"{self.source} has the schema version {version!r}, and not {SCHEMA_VERSION!r}",
                hint="Merge with the version of specdeploy that measured.",
            )
        try:
            self._read(shard)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
            raise ConfigError(
                f"{self.source} is damaged: {type(error).__name__}: {error}", hint="Measure this shard again."
            ) from error
        if len(self.records) != shard["records"]:
            raise ConfigError(
                f"{self.source} is of {shard['records']} requests, and the records beside it are {len(self.records)}",
                hint="One of the two files is of another run, or was cut; measure this shard again.",
            )

    def _read(self, shard: Mapping[str, Any]) -> None:
        """Look at everything that a merge reads."""
        # Nothing in it may be NaN or infinite, wherever that stands: it would be in the merged document, too.
        json.dumps(self.document, allow_nan=False)
        _require(int, shard, "number", "of", "records")
        Shard(number=shard["number"], of=shard["of"])
        _require((int, float), shard, "epoch_offset_s")
        _require((int, float), self.document, "started_s", "duration_s")
        iso(self.document["started_s"] + self.document["duration_s"] + shard["epoch_offset_s"])
        for block in shard["blocks"]:
            _require((int, float), block, "start_s")
            _require(str, block, "arm")
            hash(_key(block))
        for finding in shard["findings"]:
            _require(str, finding, *finding)
            Finding(**finding)
        _require((int, float), self.document["client"], "cpu_s", "processes")
        _require(dict, self.document, "plan", "deployment", "environment")
        plan = PlanRead(self.document["plan"])
        _ = plan.temperature, plan.block_s, plan.own_control
        _require(list, self.document, "objectives")
        parse_objectives(self.document["objectives"])
        _require(bool, self.document, "partial", "degraded")
        _require(str, self.document, "stop_reason", "started_at")
        _ = shard["schedule"], shard["start_at"]

    @property
    def shard(self) -> Shard:
        """Which one it is."""
        about = self.document["shard"]
        return Shard(number=about["number"], of=about["of"])

    @property
    def epoch_offset_s(self) -> float:
        """What is added to its times to have seconds since 1970."""
        return float(self.document["shard"]["epoch_offset_s"])


def _require(kind: type | tuple[type, ...], values: Mapping[str, Any], *keys: str) -> None:
    """Refuse values of another type; a truth value is no number."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    for key in keys:
        if type(values[key]) not in kinds:
            raise TypeError(f"{key} is {type(values[key]).__name__}")


class _BlockKey(NamedTuple):
    arm: str
    pair: int
    concurrency: int | None
    rate: float | None


@dataclasses.dataclass(frozen=True)
class _Skew:
    """How far apart the shards of a block began, and how long the block took, in seconds."""

    block: _BlockKey
    skew_s: float
    wall_s: float

    @property
    def is_small(self) -> bool:
        return self.skew_s <= max(MAX_SKEW_S, MAX_SKEW_SHARE * self.wall_s)


@dataclasses.dataclass(frozen=True)
class PlanRead:
    """A plan as it stood in a document."""

    data: Mapping[str, Any]

    @property
    def temperature(self) -> float:
        """0 decodes greedily."""
        return float(self.data["temperature"])

    @property
    def block_s(self) -> float | None:
        """How long each block of a closed loop lasts; None where the number of its requests decides."""
        duration_s = self.data.get("duration_s")
        return float(duration_s) if duration_s is not None and self.data.get("shape") == "closed" else None

    @property
    def own_control(self) -> bool:
        """Whether the control is the same server without drafts."""
        return bool(self.data.get("own_control", True))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as it stood there."""
        return dict(self.data)


class Merged(NamedTuple):
    """The document of the whole, and its records on one clock in the order in which they ended."""

    document: dict[str, Any]
    records: Sequence[RequestRecord]


def merge(
    parts: Sequence[Part],
    store: RecordStore | None = None,
    *,
    partial: bool = False,
    records_file: str = RECORDS_FILE,
) -> Merged:
    """Put the results of the shards of one run together.

    Args:
        parts: What the shards left behind, in any order.

        store: Takes the records; None keeps them in memory.

        partial: Whether shards may be missing; the whole is then marked partial.

        records_file: Name of the file of records beside the document.

    Returns:
        The document, as of one generator, with ``shards``: ``of``, ``present``, ``start_skew_s`` of the first block
        that several had a part in, ``largest_skew_s`` of the measured ones (None where there is none), and of each
        shard what it used and how it ended.

    Raises:
        ConfigError: They are not shards of one run.

        CannotDecide: There are none, or one is missing.
    """
    if not parts:
        raise CannotDecide("there are no shards to merge", hint="Run `specdeploy load --shard` first.")
    parts = sorted(parts, key=lambda part: part.shard.number)
    _require_one_run(parts)
    missing = sorted(set(range(1, parts[0].shard.of + 1)) - {part.shard.number for part in parts})
    if missing and not partial:
        raise CannotDecide(
            f"of {parts[0].shard.of} shards {_listed(missing)} missing",
            hint="Run what is missing, or merge what is there with --partial.",
        )
    records = _on_one_clock(parts, RecordsInMemory() if store is None else store)
    _require_once(records)
    skews = _skews(parts, records)
    document = build_load_report(
        _run(parts, records, missing),
        PlanRead(parts[0].document["plan"]),
        _context(parts, records_file),
        (*_noticed(parts), *_degraded(parts, skews), *_machines(parts)),
        objectives=parse_objectives(parts[0].document["objectives"]),
    )
    document["degraded"] = document["degraded"] or bool(_degraded(parts, skews))
    document["shards"] = _about(parts, skews)
    return Merged(document, records)


def _require_one_run(parts: Sequence[Part]) -> None:
    for part in parts[1:]:
        _require_same(parts[0], part, parts[0].document["shard"], part.document["shard"], _SAME_OF_SHARD)
        _require_same(parts[0], part, parts[0].document, part.document, _SAME)
    for one, other in itertools.pairwise(parts):
        if one.shard == other.shard:
            raise ConfigError(
                f"shard {one.shard} is there twice: {one.source} and {other.source}", hint="Name each shard once."
            )


def _require_same(
    one: Part, other: Part, ours: Mapping[str, Any], theirs: Mapping[str, Any], keys: Mapping[str, str]
) -> None:
    for key, name in keys.items():
        if ours[key] != theirs[key]:
            raise ConfigError(
                f"{one.source} and {other.source} are no shards of one run: they differ in the {name}"
                f"{_difference(ours[key], theirs[key])}",
                hint="Merge the files of one run: remove those of another, or name the files.",
            )


def _difference(ours: object, theirs: object) -> str:
    """Say what differs: the first key of two mappings, or the two values."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        return f" ({keys[0]}: {ours.get(keys[0])!r} and {theirs.get(keys[0])!r})"
    return f" ({ours!r} and {theirs!r})"


def _on_one_clock(parts: Sequence[Part], store: RecordStore) -> Sequence[RequestRecord]:
    """Store all records in the order in which they ended."""
    tables = [table_of(part.records) for part in parts]
    by_s = [_shift_s(parts, part) for part in parts]
    ended_s = np.concatenate([table["ended_s"] + shift_s for table, shift_s in zip(tables, by_s, strict=True)])
    owners = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    rows = np.concatenate([np.arange(len(table)) for table in tables])
    for at in np.argsort(ended_s, kind="stable"):
        owner = int(owners[at])
        store.add(moved(tables[owner][int(rows[at])], by_s[owner]))
    return store.since(0)


def moved(record: RequestRecord, by_s: float) -> RequestRecord:
    """Return a record on another clock, whose times are so many seconds more."""
    if not by_s:
        return record
    return dataclasses.replace(
        record,
        intended_s=record.intended_s + by_s,
        sent_s=record.sent_s + by_s,
        first_s=None if record.first_s is None else record.first_s + by_s,
        last_s=None if record.last_s is None else record.last_s + by_s,
        ended_s=record.ended_s + by_s,
        chunk_s=tuple(moment_s + by_s for moment_s in record.chunk_s),
    )


def _require_once(records: Iterable[RequestRecord]) -> None:
    for place in table_of(records).by_block():
        indices = np.sort(place.requests["index"])
        twice = indices[1:][indices[1:] == indices[:-1]]
        if len(twice):
            raise ConfigError(
                f"request {twice[0]} of pair {place.pair} ({place.arm}, {place.point}) was sent by two shards",
                hint="These are no shards of one run; measure again.",
            )


def _run(parts: Sequence[Part], records: Sequence[RequestRecord], missing: Sequence[int]) -> LoadRun:
    starts = [part.document["started_s"] + _shift_s(parts, part) for part in parts]
    ends = [start_s + part.document["duration_s"] for start_s, part in zip(starts, parts, strict=True)]
    reasons = [
        f"shard {part.shard}: {part.document['stop_reason'] or 'partial'}" for part in parts if part.document["partial"]
    ]
    reasons += [f"of {parts[0].shard.of} shards {_listed(missing)} missing"] if missing else []
    return LoadRun(
        records=records,
        started_s=min(starts),
        stop_reason="; ".join(reasons),
        duration_s=max(ends) - min(starts),
    )


def _shift_s(parts: Sequence[Part], part: Part) -> float:
    return part.epoch_offset_s - parts[0].epoch_offset_s


def _context(parts: Sequence[Part], records_file: str) -> RunContext:
    began_s = min(part.document["started_s"] + part.epoch_offset_s for part in parts)
    clients = [part.document["client"] for part in parts]
    return RunContext(
        created=iso(began_s),
        deployment=parts[0].document["deployment"],
        environment=parts[0].document["environment"],
        client={key: sum(client[key] for client in clients) for key in ("cpu_s", "processes")},
        records_file=records_file,
    )


def iso(epoch_s: float) -> str:
    """Return seconds since 1970 as ISO 8601 in UTC, to the microsecond."""
    return dt.datetime.fromtimestamp(epoch_s, dt.UTC).isoformat(timespec="microseconds")


def _skews(parts: Sequence[Part], records: Iterable[RequestRecord]) -> list[_Skew]:
    """Return the skew of every measured block that several shards had a part in, in the order of the blocks."""
    starts = _starts(parts)
    blocks = summarize_blocks(records)
    keys = [_BlockKey(block.arm, block.pair, block.point.concurrency, block.point.rate) for block in blocks]
    return [
        _Skew(key, max(starts[key]) - min(starts[key]), block.wall_s)
        for key, block in zip(keys, blocks, strict=True)
        if len(starts[key]) > 1
    ]


def _starts(parts: Sequence[Part]) -> dict[_BlockKey, list[float]]:
    starts: dict[_BlockKey, list[float]] = defaultdict(list)
    for part in parts:
        for block in part.document["shard"]["blocks"]:
            starts[_key(block)].append(block["start_s"] + _shift_s(parts, part))
    return starts


def _key(block: Mapping[str, Any]) -> _BlockKey:
    return _BlockKey(block["arm"], block["pair"], block["concurrency"], block["rate"])


def _degraded(parts: Sequence[Part], skews: Sequence[_Skew]) -> tuple[Finding, ...]:
    return (*_skewed(skews), *_degraded_shards(parts))


def _skewed(skews: Sequence[_Skew]) -> Iterator[Finding]:
    apart = [skew for skew in skews if not skew.is_small]
    if apart:
        worst = max(apart, key=lambda skew: skew.skew_s)
        yield Finding(
            severity="warning",
            code="load.shards-apart",
            message=(
                f"in {len(apart)} of {len(skews)} blocks the shards began further apart than {MAX_SKEW_SHARE:.0%} of "
                f"its time, at most {worst.skew_s:.3f} s of {worst.wall_s:.3f} s: the server had less load, or that of "
                "another block, for that long"
            ),
            hint="Give all shards the same --start-at and a --block-every that their longest block fits in.",
        )


def _degraded_shards(parts: Sequence[Part]) -> Iterator[Finding]:
    late = [str(part.shard) for part in parts if part.document["degraded"]]
    if late:
        yield Finding(
            severity="warning",
            code="load.shard-degraded",
            message=f"the load generator itself was late in shard {', '.join(late)}",
            hint="Free these machines, or use more shards.",
        )


def _machines(parts: Sequence[Part]) -> Iterator[Finding]:
    first = parts[0].document["environment"]
    for key in _OF_MACHINE:
        others = [part for part in parts if part.document["environment"].get(key) != first.get(key)]
        if others:
            yield Finding(
                severity="warning",
                code="load.shards-differ",
                message=f"the machines of shards {parts[0].shard} and {others[0].shard} differ in {key}"
                f"{_difference(first.get(key), others[0].document['environment'].get(key))}",
                hint="The numbers are comparable with those of the same machines only.",
            )


def _noticed(parts: Iterable[Part]) -> tuple[Finding, ...]:
    """Return what the shards noticed about the plan, each once."""
    found = (Finding(**finding) for part in parts for finding in part.document["shard"]["findings"])
    return tuple(dict.fromkeys(found))


def _about(parts: Sequence[Part], skews: Iterable[_Skew]) -> dict[str, Any]:
    together = [starts for starts in _starts(parts).values() if len(starts) > 1]
    first = min(together, key=min, default=None)
    return {
        "of": parts[0].shard.of,
        "present": [part.shard.number for part in parts],
        "start_skew_s": max(first) - min(first) if first else None,
        "largest_skew_s": max((skew.skew_s for skew in skews), default=None),
        "shards": [
            {
                "number": part.shard.number,
                "started_at": part.document["started_at"],
                "requests": sum(record.pair != WARMUP_PAIR for record in part.records),
                "partial": part.document["partial"],
                "degraded": part.document["degraded"],
                "cpu_s": part.document["client"]["cpu_s"],
                "cpu_model": part.document["environment"].get("cpu_model"),
            }
            for part in parts
        ],
    }


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers))} {'is' if len(numbers) == 1 else 'are'}"
