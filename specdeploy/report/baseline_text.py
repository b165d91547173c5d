"""A baseline of the gate as text for a terminal: what it was measured with, its runs, and each number's spread."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from specdeploy.report.numbers import TIMES, amount, plain
from specdeploy.report.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping


def baseline_table(baseline: Mapping[str, Any]) -> str:
    """Return the summary of a baseline: a line for each number, and what is still missing.

    Args:
        baseline: As ``specdeploy.pipeline.gating.baseline_document`` has it.
    """
    fields = [f"- {field}: {value}" for field, value in baseline["fingerprint"].items() if value != "-"]
    runs = [f"- {run['created']}  {run['label']}".rstrip() for run in baseline["runs"]]
    numbers = [line for key, one in baseline["series"].items() if (line := _number(key, one))]
    days, needed = baseline["days"], baseline["needed_days"]
    closing = f"{len(runs)} run(s) of {days} day(s); relative rules need {needed} days"
    if days < needed:
        closing += f": {needed - days} more"
    lines = ["measured with", *fields, "runs", *runs, "numbers: median, and the range of all runs", *numbers, closing]
    return "\n".join(map(one_line, lines)).replace(TIMES, "x")


def _number(key: str, one: Mapping[str, Any]) -> str:
    values = [value for value in one["values"] if value is not None]
    if not values:
        return ""
    shown = amount(statistics.median(values), one["unit"])
    low, high = (_end(value, one["unit"]) for value in (min(values), max(values)))
    return f"- {key}: {shown} ({low} to {high})"


def _end(value: float, unit: str) -> str:
    """Write an end of a range in the unit of what stands before it; bytes have one of their own each."""
    return amount(value, unit) if unit == "B" else plain(value * 100 if unit == "ratio" else value)
