"""One load test from several generators: when each of them begins, what it leaves behind, and how that becomes one."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from specdeploy.bench.driver import INTERRUPTED_BY_USER
from specdeploy.bench.merge import Part, iso, merge
from specdeploy.bench.shards import block_starts
from specdeploy.errors import CannotDecide, ConfigError
from specdeploy.gate.fingerprint import take_fingerprint
from specdeploy.pipeline.record_files import reading_records, record_file
from specdeploy.pipeline.subject import read_document

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from specdeploy.bench.records import LoadRun
    from specdeploy.bench.schedule import LoadPlan
    from specdeploy.bench.shards import Shard
    from specdeploy.findings import Finding
    from specdeploy.pipeline.lockstep import Follower
    from specdeploy.pipeline.workspace import Workspace
    from specdeploy.system.clock import SystemClock

#: A start that is further away is a slip of the time zone or of the date.
MOST_AHEAD_S: Final = 12 * 3600.0
#: So long before the start the connections are opened; a server closes those that are idle for long.
_OPENED_S: Final = 5.0
_NAP_S: Final = 30.0
_EPOCH: Final = re.compile(r"\d{9,11}(\.\d+)?")
_NAME: Final = "load-shard-{shard.number}-of-{shard.of}"
_DOCUMENTS: Final = "load-shard-*-of-*.json"
_TIME_HINT: Final = "Write a date with a time zone, such as 2026-01-31T09:30:00Z, or seconds since 1970."


class Files(NamedTuple):
    """Where a load test writes its document and its records."""

    document: Path
    records: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generator:
    """Which part of a load test is sent from here, and when.

    Args:
        shard: Which part; None is all of it.

        start_s: When the first block begins (seconds since 1970); None begins at once.

        every_s: So many seconds after the beginning of a block the next one begins, or later if the block took
            longer; None begins it at once.

        follower: Begins each block when the process says so that started this one, in place of ``start_s``.
    """

    shard: Shard | None = None
    start_s: float | None = None
    every_s: float | None = None
    follower: Follower | None = None

    def __post_init__(self) -> None:
        """Refuse times that cannot be kept.

        Raises:
            ConfigError: They cannot.
        """
        if self.every_s is not None and self.start_s is None:
            raise ConfigError("--block-every counts from a common start", hint="Give --start-at, too.")
        if self.every_s is not None and not 0 < self.every_s <= MOST_AHEAD_S:
            raise ConfigError(f"--block-every is {self.every_s:g} s", hint="It is more than 0 and at most 12 hours.")

    def __str__(self) -> str:
        """Say for people what it is and what it waits for."""
        what = "the load test" if self.shard is None else f"shard {self.shard}"
        return f"{what} begins {'at once' if self.start_s is None else f'at {iso(self.start_s)}'}"

    def part_of(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan with this generator's part of it."""
        return plan if self.shard is None else dataclasses.replace(plan, shard=self.shard)

    def files(self, place: Workspace) -> Files:
        """Return where its results go; shards may share a report folder."""
        if self.shard is None:
            return Files(place.load_json, place.records_jsonl)
        name = _NAME.format(shard=self.shard)
        return Files(place.reports / f"{name}.json", place.reports / f"{name}_records.jsonl")

    def beginnings(self, clock: SystemClock) -> Callable[[int], Awaitable[float]] | None:
        """Wait until shortly before the start, and return when each block begins (`run_load`'s ``begin``).

        Raises:
            ConfigError: The start has passed.
        """
        if self.follower is not None:
            return self.follower.begin
        if self.start_s is None:
            return None
        while (left_s := self.start_s - time.time()) > _OPENED_S:
            # In short naps, since the date may be set meanwhile.
            time.sleep(min(left_s - _OPENED_S, _NAP_S))
        if left_s <= 0:
            raise ConfigError(
                f"the start {iso(self.start_s)} passed {-left_s:.1f} s ago, while the load was prepared",
                hint="Leave more time: all shards have to be ready by then.",
            )
        first_s, every_s = self.start_s - clock.epoch_offset_s(), self.every_s

        async def begin(number: int) -> float:
            return first_s + number * every_s if every_s is not None else first_s

        return begin

    def about(
        self, plan: LoadPlan, schedule: str, run: LoadRun, findings: Iterable[Finding], clock: SystemClock
    ) -> dict[str, Any]:
        """Return what a shard's document has of its own, or otherwise; nothing for the whole.

        ``shard`` holds ``number``, ``of``, ``schedule`` (the same for all shards of one plan), ``start_at`` (seconds
        since 1970), ``epoch_offset_s`` (added to the times of the records: seconds since 1970), ``records`` (how many),
        ``blocks`` (when each began) and ``findings`` (about the plan).
        """
        if self.shard is None:
            return {}
        offset_s = clock.epoch_offset_s()
        began = iso(run.started_s + offset_s)
        shard = {
            "number": self.shard.number,
            "of": self.shard.of,
            "schedule": schedule,
            "start_at": self.start_s,
            "epoch_offset_s": offset_s,
            "records": len(run.records),
            "blocks": block_starts(plan, run),
            "findings": [finding.as_dict() for finding in findings],
        }
        changed = {"created": began, "started_at": began, "shard": shard}
        if self.follower is not None and self.follower.over and run.stop_reason == INTERRUPTED_BY_USER:
            changed["stop_reason"] = "stopped with the other processes"
        return changed


ALONE: Final = Generator()


def parse_start(text: str, *, now_s: float) -> float:
    """Read when a run starts, and return it in seconds since 1970.

    Args:
        text: ISO 8601 with a time zone, or seconds since 1970.

        now_s: The present, in seconds since 1970.

    Raises:
        ConfigError: It cannot be read, has passed, or is more than 12 hours ahead.
    """
    text = text.strip()
    start_s = float(text) if _EPOCH.fullmatch(text) else _epoch_s(text)
    if start_s <= now_s:
        raise ConfigError(
            f"--start-at {text} has passed, {now_s - start_s:.0f} s ago ({iso(start_s)})",
            hint="Choose a time at which all shards are ready, such as $(($(date +%s) + 120)).",
        )
    if start_s > now_s + MOST_AHEAD_S:
        raise ConfigError(
            f"--start-at {text} is {(start_s - now_s) / 3600:.1f} hours ahead ({iso(start_s)})",
            hint="It may be 12 hours ahead; is the time zone right?",
        )
    return start_s


def _epoch_s(text: str) -> float:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"cannot read --start-at {text!r}", hint=_TIME_HINT) from None
    if moment.tzinfo is None:
        raise ConfigError(f"--start-at {text!r} has no time zone", hint=_TIME_HINT)
    return moment.timestamp()


def merge_results(
    sources: Sequence[Path], output: Path, *, partial: bool = False, stop_reason: str = ""
) -> dict[str, Any]:
    """Merge the results of shards into ``load.json`` and its records.

    Args:
        sources: Documents of shards, or folders that hold them.

        output: The folder to write into.

        partial: Whether shards may be missing.

        stop_reason: Why all of them ended early, in place of what each says.

    Returns:
        The document.

    Raises:
        ConfigError: Something cannot be read or written, or these are not shards of one run.

        CannotDecide: A shard is missing.
    """
    paths = [path for source in sources for path in _documents(source)]
    files = Files(output / "load.json", output / "load_records.jsonl")
    with contextlib.ExitStack() as stack:
        parts = [_part(path, stack) for path in paths]
        store = stack.enter_context(record_file(files.records, files.document))
        document = merge(parts, store, partial=partial, records_file=files.records.name).document
        if stop_reason and document["partial"]:
            document["stop_reason"] = stop_reason
        document |= {"fingerprint": take_fingerprint(document), "records_sha256": store.sha256}
        store.document = document
    return document


def _documents(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    found = sorted(source.glob(_DOCUMENTS))
    if not found:
        raise CannotDecide(f"{source} holds no {_DOCUMENTS}", hint="Run `specdeploy load --shard` first.")
    return found


def _part(path: Path, stack: contextlib.ExitStack) -> Part:
    document = read_document(path)
    if document is None:
        raise ConfigError(f"there is no {path}", hint="Name the document of a shard, or the folder that holds them.")
    name = document.get("records_file")
    if not isinstance(name, str) or Path(name).name != name:
        raise ConfigError(
            f"{path} is no result of a shard", hint="Name the files that `specdeploy load --shard` wrote."
        )
    records = stack.enter_context(reading_records(path.with_name(name), document))
    return Part(source=str(path), document=document, records=records)
