"""The raw counts of each block of a run, from which throughput and speed-up are made.

Knows how long a block took and what it yielded; compares nothing. Records that do not count are ignored.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdeploy.bench.records import Arm, LoadPoint, RequestRecord


#: Times that are less apart are one, so that a clock with another beginning rounds nothing over a border.
_SAME_S: Final = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSummary:
    """Raw counts of one block, from which throughput and speed-up are made.

    Args:
        start_s: First send, on the clock of the records.

        wall_s: From the first send to the last response (or failure).

        output_tokens: Of the requests that succeeded.

        indices: Which requests succeeded.
    """

    arm: Arm
    point: LoadPoint
    pair: int
    start_s: float
    wall_s: float
    requests: int
    errors: int
    output_tokens: int
    indices: tuple[int, ...]

    @property
    def throughput(self) -> float | None:
        """Output tokens per second; None when there were none or no time passed."""
        return self.output_tokens / self.wall_s if self.output_tokens and self.wall_s > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return the block as an entry of ``blocks`` in ``load.json``; ``indices`` is left to the records file."""
        data = {key: value for key, value in dataclasses.asdict(self).items() if key not in {"indices", "point"}}
        return {**self.point.to_dict(), **data, "output_token_throughput": self.throughput}


def summarize_blocks(records: Iterable[RequestRecord]) -> tuple[BlockSummary, ...]:
    """Return the raw counts of every block, in the order in which they were run."""
    groups: dict[tuple[LoadPoint, int, Arm], list[RequestRecord]] = defaultdict(list)
    for record in measured(records):
        groups[record.point, record.pair, record.arm].append(record)
    return tuple(sorted((_block(group) for group in groups.values()), key=lambda block: block.start_s))


def steady_throughput(records: Iterable[RequestRecord]) -> float | None:
    """Return the tokens per second while blocks were neither ramping up nor draining.

    A block has the load that was asked for from about its first response until its last send; what is before waits for
    prefills, and behind it slots stay empty.

    Args:
        records: Of one arm at one load.

    Returns:
        None where there is no such time, or no response that says how many tokens it has.
    """
    groups: dict[int, list[RequestRecord]] = defaultdict(list)
    for record in measured(records):
        groups[record.pair].append(record)
    tokens, time_s = 0, 0.0
    for group in groups.values():
        begin_s = min((record.first_s for record in group if record.ok and record.first_s is not None), default=None)
        end_s = max(record.sent_s for record in group)
        if begin_s is None or end_s <= begin_s:
            continue
        time_s += end_s - begin_s
        arrivals = (
            (at_s, count)
            for record in group
            if record.ok
            for at_s, count in zip(record.chunk_s, record.chunk_tokens, strict=False)
        )
        tokens += sum(count for at_s, count in arrivals if begin_s + _SAME_S < at_s <= end_s + _SAME_S)
    return tokens / time_s if tokens and time_s > 0 else None


def measured(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Return the records that count, in order."""
    return [record for record in records if record.counts]


def _block(records: list[RequestRecord]) -> BlockSummary:
    first, good = records[0], [record for record in records if record.ok]
    start_s = min(record.sent_s for record in records)
    return BlockSummary(
        arm=first.arm,
        point=first.point,
        pair=first.pair,
        start_s=start_s,
        wall_s=max(map(_finished_s, records)) - start_s,
        requests=len(records),
        errors=len(records) - len(good),
        output_tokens=sum(record.output_tokens or 0 for record in good),
        indices=tuple(sorted(record.index for record in good)),
    )


def _finished_s(record: RequestRecord) -> float:
    return record.last_s if record.ok and record.last_s is not None else record.ended_s
