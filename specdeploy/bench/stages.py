"""Reads the stages of a load that changes: ``5 for 60s``, or ``5..20 for 2m`` for a ramp."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from specdeploy.bench.arrivals import Stage
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBER: Final = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?"
_WRITTEN: Final = re.compile(
    rf"\s*(?P<start>{_NUMBER})\s*(?:\.\.\s*(?P<end>{_NUMBER}))?\s*(?:/s)?\s+for\s+(?P<time>{_NUMBER})\s*(?P<unit>s|m|h)\s*"
)
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_HINT: Final = "Write requests per second and how long: '5 for 60s', or '5..20 for 2m' for a ramp."


def parse_stages(texts: Iterable[str]) -> tuple[Stage, ...]:
    """Return the stages that these texts describe, one after another.

    Raises:
        ConfigError: One cannot be read, or lasts no time.
    """
    return tuple(_stage(text) for text in texts)


def _stage(text: str) -> Stage:
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise ConfigError(f"cannot read the load stage {text!r}", hint=_HINT)
    start, end = match["start"], match["end"] or match["start"]
    return Stage(start=float(start), end=float(end), duration_s=float(match["time"]) * _SECONDS[match["unit"]])
