"""Which requests of a load plan each of several generators sends: a shard has some of each block, at their own times.

Every shard lays out the same plan from the same seed and leaves out what is not its own, so that the shards together
send exactly what one generator would, each request once, at its place in the schedule. An open loop is dealt out in
turn. A closed loop's requests are dealt out over its slots and the slots over the shards, so that a shard with more
slots has more requests: ``concurrency 5`` on two shards is 3 and 2. A load of fewer slots than shards leaves some idle.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.bench.records import LoadRun
    from specdeploy.bench.schedule import Block, LoadPlan

_WRITTEN: Final = re.compile(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One of several generators.

    Args:
        number: From 1.

        of: How many there are.
    """

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        """Refuse a shard that is not there.

        Raises:
            ConfigError: It is not.
        """
        if not 1 <= self.number <= self.of:
            raise ConfigError(f"there is no shard {self}", hint=f"Shards are 1/{max(self.of, 1)} to N/N, from 1 on.")

    def __str__(self) -> str:
        """Return it as it is written: ``2/8``."""
        return f"{self.number}/{self.of}"

    def indices(self, block: Block) -> Iterator[int]:
        """Yield which requests of a block are this shard's, in order; without an end where the time decides."""
        lanes = self._lanes(block)
        own = range(self.number - 1, lanes, self.of)
        for first in itertools.count(0, lanes) if own else ():
            for lane in own:
                if block.size is not None and first + lane >= block.size:
                    return
                yield first + lane

    def count(self, block: Block) -> int | None:
        """Return how many requests of a block are this shard's; None where the time decides."""
        if block.size is None:
            return None
        rounds, left = divmod(block.size, self._lanes(block))
        return rounds * self._share(self._lanes(block)) + self._share(left)

    def in_flight(self, block: Block) -> int:
        """Return how many requests of a closed loop this shard keeps in flight; 0 leaves it idle."""
        return self._share(block.in_flight)

    def takes_part(self, block: Block) -> bool:
        """Say whether a request of a block is this shard's."""
        return next(self.indices(block), None) is not None

    def _lanes(self, block: Block) -> int:
        return self.of if block.is_open else block.in_flight

    def _share(self, count: int) -> int:
        return len(range(self.number - 1, count, self.of))


#: A generator that is alone.
WHOLE: Final = Shard()


def parse_shard(text: str) -> Shard:
    """Read a shard such as ``2/8``: the second of eight.

    Raises:
        ConfigError: It cannot be read, or is not there.
    """
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise ConfigError(f"cannot read the shard {text!r}", hint="Write its number and how many there are: 1/2.")
    return Shard(number=int(match[1]), of=int(match[2]))


def fingerprint(plan: LoadPlan) -> str:
    """Return the SHA-256 of everything that a plan sends and when, in hexadecimal; its shards have the same one.

    Times count to the microsecond: their last digits differ between machines.
    """
    digest = hashlib.sha256()
    for block in plan.blocks:
        times = ",".join(f"{offset_s:.6f}" for offset_s in block.offsets_s)
        digest.update(f"{block.arm} {block.pair} {block.point} {block.in_flight} {block.duration_s} {times}\n".encode())
        for prompt in block.prompts:
            digest.update(f"{prompt!r}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def block_starts(plan: LoadPlan, run: LoadRun) -> list[dict[str, Any]]:
    """Return when each block began that the plan's shard had a part in: what it was, and ``start_s`` of its clock."""
    return [
        {"arm": block.arm, "pair": block.pair, **block.point.to_dict(), "start_s": start_s}
        for block, start_s in zip(plan.blocks, run.block_starts_s, strict=False)
        if plan.shard.takes_part(block)
    ]
