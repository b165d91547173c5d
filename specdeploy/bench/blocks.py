"""The raw counts of each block of a run, from which throughput and speed-up are made.

Knows how long a block took and what it yielded; compares nothing. Records that do not count are ignored.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdeploy.bench.table import MISSING, table_of, total

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from specdeploy.bench.records import Arm, LoadPoint, RequestRecord
    from specdeploy.bench.table import Place, RecordTable


#: Times that are less apart are one, so that a clock with another beginning rounds nothing over a border.
_SAME_S: Final = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSummary:
    """Raw counts of one block, from which throughput and speed-up are made.

    Args:
        start_s: First send, on the clock of the records.

        wall_s: From the first send to the last response (or failure).

        output_tokens: Of the requests that succeeded.

        answered: A digest of which requests succeeded.
    """

    arm: Arm
    point: LoadPoint
    pair: int
    start_s: float
    wall_s: float
    requests: int
    errors: int
    output_tokens: int
    answered: str

    @property
    def throughput(self) -> float | None:
        """Output tokens per second; None when there were none or no time passed."""
        return self.output_tokens / self.wall_s if self.output_tokens and self.wall_s > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Return the block as an entry of ``blocks`` in ``load.json``; which requests it had, the records tell."""
        data = {key: value for key, value in dataclasses.asdict(self).items() if key not in {"answered", "point"}}
        return {**self.point.to_dict(), **data, "output_token_throughput": self.throughput}


def summarize_blocks(records: Iterable[RequestRecord]) -> tuple[BlockSummary, ...]:
    """Return the raw counts of every block, in the order in which they were run."""
    blocks = (_block(place) for place in table_of(records).measured.by_block())
    return tuple(sorted(blocks, key=lambda block: block.start_s))


def steady_throughput(records: Iterable[RequestRecord]) -> float | None:
    """Return the tokens per second while blocks were neither ramping up nor draining.

    A block has the load that was asked for from about its first response until its last send; what is before waits for
    prefills, and behind it slots stay empty.

    Args:
        records: Of one arm at one load.

    Returns:
        None where there is no such time, or no response that says how many tokens it has.
    """
    tokens, time_s = 0, 0.0
    for place in table_of(records).measured.by_block():
        good = place.requests.good
        first_s = good["first_s"][~np.isnan(good["first_s"])]
        end_s = float(place.requests["sent_s"].max())
        begin_s = float(first_s.min(initial=end_s))
        if end_s <= begin_s:
            continue
        time_s += end_s - begin_s
        for _, at_s, counts in good.responses():
            tokens += total(counts[(begin_s + _SAME_S < at_s) & (at_s <= end_s + _SAME_S)])
    return tokens / time_s if tokens and time_s > 0 else None


def finished_s(table: RecordTable) -> NDArray[np.float64]:
    """Return when each request was over: with its last response, or when it failed."""
    return np.where(table["ok"] & ~np.isnan(table["last_s"]), table["last_s"], table["ended_s"])


def _block(place: Place) -> BlockSummary:
    table, good = place.requests, place.requests.good
    start_s = float(table["sent_s"].min())
    tokens = good["output_tokens"]
    return BlockSummary(
        arm=place.arm,
        point=place.point,
        pair=place.pair,
        start_s=start_s,
        wall_s=float(finished_s(table).max()) - start_s,
        requests=len(table),
        errors=len(table) - len(good),
        output_tokens=total(tokens[tokens != MISSING]),
        answered=hashlib.sha256(np.sort(good["index"]).tobytes()).hexdigest(),
    )
