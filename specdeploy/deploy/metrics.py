"""Prometheus' text format, as much of it as servers write: samples with labels, comments left out.

Knows the format. Does not know what the samples mean; :mod:`specdeploy.deploy.status` does.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """One number of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str) -> tuple[Sample, ...]:
    """Return the samples of a metrics page; lines that are none, and values that are no numbers, are left out."""
    return tuple(_samples(text))


def _samples(text: str) -> Iterator[Sample]:
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line.strip())
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        if math.isfinite(value):
            yield Sample(name=found[1], labels=dict(_LABEL.findall(found[2] or "")), value=value)
