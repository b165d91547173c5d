"""The search for the highest load that keeps its objectives: which load to try next, and what was found.

Doubles the load until it is too much, or halves it until it is not, and then narrows the gap. Sends nothing itself.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.goodput import count_good
from specdeploy.bench.intervals import share_interval
from specdeploy.bench.records import LoadRun
from specdeploy.bench.table import RecordTable, table_of
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from specdeploy.bench.goodput import Objective
    from specdeploy.bench.records import Arm, RequestRecord

#: The gap between a load that is kept and one that is not, as a share of the first, which is small enough.
TOLERANCE: Final = 0.1
#: However far the first load is from the answer, no more are tried: a factor of a thousand, and the narrowing.
MOST_TRIALS: Final = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One load that was tried.

    Args:
        load: Requests in flight, or requests per second.

        requests: How many were sent.

        good: How many of them succeeded and kept every objective.

        least: The share that has to.
    """

    load: float
    requests: int
    good: int
    least: float

    @property
    def share(self) -> float:
        """The share of good requests."""
        return self.good / self.requests if self.requests else 0.0

    @property
    def kept(self) -> bool:
        """Whether it is enough."""
        return self.share >= self.least

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with the 95 % interval of the share and whether ``least`` lies within it."""
        low, high = share_interval(self.good, self.requests) or (0.0, 1.0)
        return {
            **dataclasses.asdict(self),
            "share": self.share,
            "ci_low": low,
            "ci_high": high,
            "kept": self.kept,
            "near": low <= self.least <= high,
        }


class Search:
    """Which load to try next.

    Args:
        first: The load to begin with.

        whole: Whether a load is a whole number, as requests in flight are.

        most: No higher load is tried.
    """

    def __init__(self, first: float, *, whole: bool, most: float = math.inf) -> None:
        if not (math.isfinite(first) and first > 0):
            raise ConfigError(f"the search would begin at a load of {first}", hint="It is a number above 0.")
        self._first = float(round(first)) if whole else first
        self._whole = whole
        self._most = max(most, self._first)
        self.trials: list[Trial] = []

    @property
    def highest_kept(self) -> float | None:
        """The highest load that was kept below every load that was not; None when there is none."""
        limit = min((trial.load for trial in self.trials if not trial.kept), default=math.inf)
        return max((trial.load for trial in self.trials if trial.kept and trial.load < limit), default=None)

    @property
    def lowest_broken(self) -> float | None:
        """The lowest load that was too much; None when none was."""
        return min((trial.load for trial in self.trials if not trial.kept), default=None)

    @property
    def next_load(self) -> float | None:
        """What to try next; None when the answer is near enough, or too much was tried."""
        if not self.trials:
            return self._first
        if len(self.trials) >= MOST_TRIALS:
            return None
        low, high = self.highest_kept, self.lowest_broken
        if high is None:
            return None if low is None or low >= self._most else min(2 * low, self._most)
        if low is None:
            return self._halved(high)
        return self._between(low, high)

    def tell(self, trial: Trial) -> None:
        """Take what came of a load."""
        self.trials.append(trial)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: every trial in order, and the two loads between which the answer lies."""
        return {
            "highest_kept": self.highest_kept,
            "lowest_broken": self.lowest_broken,
            "trials": [trial.to_dict() for trial in self.trials],
        }

    def _halved(self, high: float) -> float | None:
        if self._whole:
            return float(int(high) // 2) if high > 1 else None
        return high / 2

    def _between(self, low: float, high: float) -> float | None:
        if self._whole:
            middle = float((int(low) + int(high)) // 2)
            return middle if middle > low and high > low * (1 + TOLERANCE) else None
        return math.sqrt(low * high) if high > low * (1 + TOLERANCE) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aim:
    """What a search looks for.

    Args:
        objectives: What a good request keeps.

        least: The share of good requests that is enough.

        whole: Whether loads are requests in flight; else they are requests per second.

        most: No higher load is tried.

        tell: Hears of each load that was tried.
    """

    objectives: Sequence[Objective]
    least: float
    whole: bool
    most: float
    tell: Callable[[Arm, Trial], object]


def trial_of(
    records: Iterable[RequestRecord], load: float, arm: Arm, objectives: Sequence[Objective], least: float
) -> Trial:
    """Count what came of a load.

    Args:
        records: Of the requests; those of other arms and of the warm-up are left out.

        load: What was tried.

        arm: Whose requests count.

        objectives: What a good request keeps.

        least: The share of good requests that is enough.
    """
    counted = table_of(records).measured.of(arm)
    good = count_good(counted, objectives)
    return Trial(load=load, requests=len(counted), good=good, least=least)


def search_loads(
    send: Callable[[Arm, float, int], LoadRun], arms: Iterable[Arm], first: float, aim: Aim
) -> tuple[LoadRun, dict[str, Any]]:
    """Search for each arm, one after the other, and return all that was measured as one run, and what was found.

    Args:
        send: Sends a load to an arm, and measures it; the number says how many loads came before.

        arms: Whose limit is looked for.

        first: The load to begin with.

        aim: What is looked for.

    Raises:
        ConfigError: The first load is none.
    """
    runs: list[LoadRun] = []
    found: dict[str, Any] = {}
    for arm in arms:
        search = Search(first, whole=aim.whole, most=aim.most)
        while (load := search.next_load) is not None and not (runs and runs[-1].partial):
            run = send(arm, load, len(runs))
            runs.append(run)
            if not run.partial:
                trial = trial_of(run.records, load, arm, aim.objectives, aim.least)
                search.tell(trial)
                aim.tell(arm, trial)
        found[arm] = search.to_dict()
    last = runs[-1]
    whole = LoadRun(
        records=RecordTable.joined([run.records for run in runs]),
        windows=tuple(window for run in runs for window in run.windows),
        started_s=runs[0].started_s,
        stop_reason=last.stop_reason,
        duration_s=last.started_s + last.duration_s - runs[0].started_s,
        block_starts_s=tuple(start_s for run in runs for start_s in run.block_starts_s),
    )
    return whole, {"least_good": aim.least, "arms": found}
