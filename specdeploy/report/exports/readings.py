"""The numbers of a load document one after another, in an order that stays: by arm and load, by metric.

Knows where they stand in the document, what a load is called, and which direction is better. Fields that a document
has not are taken as not measured, and fields that it has beyond those known here are passed on.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.bench.metrics import Better

#: Where an arm is named: of ratios, which compare the two.
BOTH_ARMS: Final = "both arms"
_ORDER: Final = {key: number for number, key in enumerate(METRICS)}
#: Ratios below the speed-up in a document -> how they are computed. Less is faster.
_RATIOS: Final = {
    "request_latency_ratio": "mean request latency speculation arm / control, per interleaved pair; geometric mean",
    "time_to_first_token_ratio": (
        "mean time to first token speculation arm / control, per interleaved pair; geometric mean"
    ),
    "inter_token_latency_ratio": (
        "mean inter-token latency speculation arm / control, per interleaved pair; geometric mean"
    ),
}
#: Number of the first value of a list; draft positions begin with 1.
_FIRST_POSITION: Final = {"spec_decode_acceptance_histogram": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """One metric of one arm under one load, or of both arms.

    Args:
        arm: The arm, or `BOTH_ARMS`.

        load: What the load is called.

        category: Kind of the prompts, if the metric is of one kind alone; empty for all.

        concurrency: Requests in flight; None in an open loop.

        rate: Requests per second; None in a closed loop.

        key: Key of the metric.

        value: Its entry in the document: unit, and statistics or ``values``.
    """

    arm: str
    load: str
    category: str
    concurrency: int | None
    rate: float | None
    key: str
    value: Mapping[str, Any]

    @property
    def unit(self) -> str:
        """Unit of the stored values; empty when the document names none."""
        return str(self.value.get("unit", ""))

    @property
    def better(self) -> Better:
        """Direction of improvement; ``none`` too for a metric that nobody defined."""
        if self.key in _RATIOS:
            return "lower"
        return METRICS[self.key].better if self.key in METRICS else "none"

    @property
    def formula(self) -> str:
        """How it is computed; empty for a metric that nobody defined."""
        return METRICS[self.key].formula if self.key in METRICS else _RATIOS.get(self.key, "")

    def statistics(self) -> dict[str, int | float]:
        """Return the single numbers of the metric by name; bounds of the interval of ``p99`` are ``p99_ci_low``, ..."""
        named = {**self.value}
        for stat, bounds in (self.value.get("percentile_cis") or {}).items():
            named |= dict(zip((f"{stat}_ci_low", f"{stat}_ci_high"), bounds, strict=False))
        numbers = {name: finite(value) for name, value in named.items()}
        return {name: value for name, value in numbers.items() if value is not None}

    def positions(self) -> dict[int, int | float]:
        """Return the values of a list, by position; empty for any other metric."""
        first = _FIRST_POSITION.get(self.key, 1)
        numbers = {first + number: finite(value) for number, value in enumerate(self.value.get("values") or ())}
        return {position: value for position, value in numbers.items() if value is not None}


def load_label(entry: Mapping[str, Any]) -> str:
    """Return what a load is called: its own label, ``concurrency 4``, or ``5 requests/s``.

    Args:
        entry: Anything that belongs to a load: an entry of ``arms``, ``blocks`` or ``open_loop``.
    """
    if entry.get("level") is not None:
        return str(entry["level"])
    if entry.get("rate") is not None:
        return f"{entry['rate']:g} requests/s"
    return f"concurrency {entry.get('concurrency')}"


def readings(document: Mapping[str, Any]) -> Iterator[Reading]:
    """Return every metric of every arm under every load, then the ratios of the two arms.

    Args:
        document: Content of ``load.json``.
    """
    for entry in document.get("arms") or ():
        parts = {"": entry.get("metrics") or {}, **(entry.get("categories") or {})}
        for category, metrics in sorted(parts.items()):
            for key in sorted(metrics, key=lambda key: (_ORDER.get(key, len(_ORDER)), key)):
                yield _reading(str(entry.get("arm")), entry, key, metrics[key], category)
    for load, ratios in _compared(document):
        for key in ("speedup", *_RATIOS):
            value = ratios if key == "speedup" else ratios.get(key)
            if value and value.get("avg") is not None:
                yield _reading(BOTH_ARMS, load, key, value)


def finite(value: object) -> int | float | None:
    """Return a number as it is; None for anything that is none, such as a word, a truth value or NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None


def _reading(arm: str, load: Mapping[str, Any], key: str, value: Mapping[str, Any], category: str = "") -> Reading:
    return Reading(
        arm=arm,
        load=load_label(load),
        category=category,
        concurrency=load.get("concurrency"),
        rate=load.get("rate"),
        key=key,
        value=value,
    )


def _compared(document: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the loads at which the arms were compared, each with its ratios; an open loop has no speed-up."""
    loads = {_key(entry): entry for entry in document.get("arms") or ()}
    speedups = document.get("speedup") or {}
    for key in dict.fromkeys((*loads, *sorted(speedups))):
        if key in speedups:
            yield loads.get(key, {"level": key}), speedups[key]
    for ratios in document.get("open_loop") or ():
        yield ratios, ratios


def _key(entry: Mapping[str, Any]) -> str:
    """Return the key under which ``speedup`` has an entry's load."""
    rate = entry.get("rate")
    return str(entry.get("concurrency")) if rate is None else f"{rate:g}/s"
