"""Goodput: how many of the requests kept every promise (service-level objective, SLO) about their latency.

An objective is one metric that each request has, and the most it may be. A request that failed kept nothing. Goodput
counts good requests over all time, so that a server which answers half of its requests in time, and fails the rest
quickly, does not look fast (DistServe 2024; AIPerf's ``goodput``, vLLM's ``request_goodput``).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdeploy.bench.intervals import as_fields, share_interval
from specdeploy.bench.metrics import ALIASES, METRICS
from specdeploy.bench.per_request import OF_REQUEST
from specdeploy.bench.table import table_of
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from specdeploy.bench.records import RequestRecord
    from specdeploy.bench.table import RecordTable

_LIMITABLE: Final = tuple(key for key in OF_REQUEST if METRICS[key].unit == "ms")
_IN_MS: Final = {"": 1.0, "ms": 1.0, "s": 1000.0}
_WRITTEN: Final = re.compile(r"\s*(?P<key>[a-z0-9_]+)\s*(?::|<=)\s*(?P<number>[0-9.eE+-]+)\s*(?P<unit>[a-z]*)\s*")
_EXAMPLE: Final = "time_to_first_token <= 300ms"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """The most that a latency of a request may be.

    Args:
        key: Key of the metric.

        limit_ms: Inclusive.
    """

    key: str
    limit_ms: float

    def kept(self, table: RecordTable) -> NDArray[np.bool_]:
        """Say which requests kept it, if they succeeded; without such a value (one token only) no promise is broken."""
        values = OF_REQUEST[self.key](table)
        return np.isnan(values) | (values <= self.limit_ms)

    def __str__(self) -> str:
        """Return it as it may be written."""
        return f"{self.key} <= {self.limit_ms:g}ms"


def parse_objectives(texts: Iterable[str]) -> tuple[Objective, ...]:
    """Read objectives such as ``time_to_first_token <= 300ms``, ``ttft:0.3s`` or, in milliseconds, ``itl:20``.

    Raises:
        ConfigError: One is malformed, of an unknown metric, or comes twice.
    """
    objectives = tuple(_parse(text) for text in texts)
    keys = [objective.key for objective in objectives]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"two objectives for {key}", hint="Keep the stricter one.")
    return objectives


def count_good(table: RecordTable, objectives: Sequence[Objective]) -> int:
    """Return how many requests succeeded and kept every objective."""
    good = table["ok"]
    for objective in objectives:
        good = good & objective.kept(table)
    return int(good.sum())


def goodput(
    records: Iterable[RequestRecord], objectives: Sequence[Objective], wall_s: float
) -> dict[str, dict[str, Any]]:
    """Return the metrics of goodput; nothing without objectives or requests.

    Args:
        records: Requests that count, of one arm at one load.

        objectives: What was promised.

        wall_s: How long these requests took.
    """
    table = table_of(records)
    if not objectives or not table:
        return {}
    good = count_good(table, objectives)
    bounds = share_interval(good, len(table)) or (None, None)
    values: dict[str, dict[str, Any]] = {
        "good_request_count": {"unit": "requests", "avg": float(good)},
        "good_request_fraction": {"unit": "ratio", "avg": good / len(table), **as_fields(bounds)},
    }
    if wall_s > 0:
        values["goodput"] = {"unit": "requests/sec", "avg": good / wall_s}
    return values


def _parse(text: str) -> Objective:
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise ConfigError(f"cannot read the objective {text!r}", hint=f"Write it as in {_EXAMPLE!r}.")
    key = ALIASES.get(match["key"], match["key"])
    if key not in _LIMITABLE:
        near = difflib.get_close_matches(key, (*_LIMITABLE, *ALIASES), n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Those are {', '.join(_LIMITABLE)}."
        raise ConfigError(f"{match['key']!r} is not a latency that every request has", hint=hint)
    return Objective(key=key, limit_ms=_limit_ms(match["number"], match["unit"], text))


def _limit_ms(number: str, unit: str, text: str) -> float:
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if unit not in _IN_MS:
        raise ConfigError(f"the objective {text!r} has the unit {unit!r}", hint="Latencies are in ms or s.")
    if not (math.isfinite(limit) and limit > 0):
        raise ConfigError(f"the objective {text!r} has the limit {number}", hint="It is a finite number above 0.")
    return limit * _IN_MS[unit]
