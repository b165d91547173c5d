"""The raw counts of each block of a run, from which throughput and speed-up are made.

Knows how long a block took and what it yielded; compares nothing. Records that do not count are ignored.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdeploy.bench.records import Arm, RequestRecord


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
    concurrency: int
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
        data = {key: value for key, value in dataclasses.asdict(self).items() if key != "indices"}
        return {**data, "output_token_throughput": self.throughput}


def summarize_blocks(records: Iterable[RequestRecord]) -> tuple[BlockSummary, ...]:
    """Return the raw counts of every block, in the order in which they were run."""
    groups: dict[tuple[int, int, Arm], list[RequestRecord]] = defaultdict(list)
    for record in measured(records):
        groups[record.concurrency, record.pair, record.arm].append(record)
    return tuple(sorted((_block(group) for group in groups.values()), key=lambda block: block.start_s))


def measured(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Return the records that count, in order."""
    return [record for record in records if record.counts]


def _block(records: list[RequestRecord]) -> BlockSummary:
    first, good = records[0], [record for record in records if record.ok]
    start_s = min(record.sent_s for record in records)
    return BlockSummary(
        arm=first.arm,
        concurrency=first.concurrency,
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
