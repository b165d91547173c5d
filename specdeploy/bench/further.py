"""A load test that goes on: further pairs are added to what was measured, and both are one run.

Every part sends what its own seed says, so that it does not live off the KV cache that the one before has left.
``plan`` stays that of the first part: the load of a block is the same, and only how many there are has grown, so the
run compares with those that did not go on. What the others sent is under ``repeats``. Touches no file, sends nothing.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.merge import PlanRead, moved
from specdeploy.bench.table import table_of
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specdeploy.bench.records import LoadRun, RequestRecord
    from specdeploy.bench.schedule import LoadSettings
    from specdeploy.bench.table import RecordStore

#: Clocks that are less apart are one: between ``created`` and the first block servers are asked what they are.
_SAME_CLOCK_S: Final = 60.0
_HINT: Final = "Measure again with `specdeploy load` of this version."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Earlier:
    """What was measured so far.

    Args:
        document: The ``load.json`` of it.

        records: All raw records.

        epoch_offset_s: Of the clock of what is measured from now on: added to its times gives seconds since 1970.
    """

    document: Mapping[str, Any]
    records: Sequence[RequestRecord]
    epoch_offset_s: float

    def __post_init__(self) -> None:
        """Refuse what cannot go on.

        Raises:
            ConfigError: The document is damaged, or the records are those of another run.
        """
        try:
            _ = self.shift_s, self.plan.block_s, self.plan.temperature
            _ = float(self.document["duration_s"]), float(self.document["client"]["cpu_s"])
            requests = sum(block["requests"] for block in self.document["blocks"])
            json.dumps([self.document["started_at"], self.document.get("repeats")], allow_nan=False)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ConfigError(f"load report: it is damaged: {type(error).__name__}: {error}", hint=_HINT) from error
        if (found := len(table_of(self.records).measured)) != requests:
            raise ConfigError(
                f"load report: it is of {requests} requests, and the records beside it are {found}", hint=_HINT
            )

    @property
    def pairs(self) -> int:
        """How many pairs were measured at each load."""
        return pairs_of(self.document)

    @property
    def shift_s(self) -> float:
        """What is added to its times to have them on the clock of what follows."""
        began_s = dt.datetime.fromisoformat(self.document["created"]).timestamp()
        by_s = began_s - self.epoch_offset_s - float(self.document["started_s"])
        return 0.0 if abs(by_s) < _SAME_CLOCK_S else by_s

    def copy(self, store: RecordStore) -> None:
        """Put its records into a store, on the clock of what follows."""
        by_s = self.shift_s
        for record in self.records:
            store.add(moved(record, by_s))

    def with_run(self, run: LoadRun, store: RecordStore) -> LoadRun:
        """Return it and what was measured since as one run.

        Args:
            run: What was measured since.

            store: Has the records of both.
        """
        return dataclasses.replace(
            run,
            records=store.since(0),
            started_s=float(self.document["started_s"]) + self.shift_s,
            duration_s=float(self.document["duration_s"]) + run.duration_s,
        )

    @property
    def plan(self) -> PlanRead:
        """What its first part was to send."""
        return PlanRead(self.document["plan"])

    def continued(self, document: Mapping[str, Any], settings: LoadSettings, schedule: str) -> dict[str, Any]:
        """Return what a document of both has otherwise than one of a single part.

        Args:
            document: That of both, as of a single part that began with what was measured since.

            settings: What that was to send.

            schedule: SHA-256 of it.
        """
        cpu_s = float(self.document["client"]["cpu_s"]) + float(document["client"]["cpu_s"])
        part = {
            "created": document["created"],
            "pairs": settings.pairs,
            "seed": settings.seed,
            "schedule": schedule,
        }
        return {
            "created": self.document["created"],
            "started_at": self.document["started_at"],
            "client": {**document["client"], "cpu_s": cpu_s},
            "repeats": [*(self.document.get("repeats") or ()), part],
        }


def pairs_of(document: Mapping[str, Any]) -> int:
    """Return how many pairs a load test has at each load, in all its parts.

    Raises:
        ConfigError: The document does not say.
    """
    try:
        return int(document["plan"]["pairs"]) + sum(int(part["pairs"]) for part in document.get("repeats") or ())
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"load report: its plan does not say how many pairs there are: {type(error).__name__}: {error}",
            hint=_HINT,
        ) from error
