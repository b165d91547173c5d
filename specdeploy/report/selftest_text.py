"""The gate's selftest as text for a terminal: both runs with their verdicts, and what they say of the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from specdeploy.report.numbers import DASH, TIMES, amount
from specdeploy.report.text import STATUS, aligned, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEAD: Final = ("run", "verdict", "measured", "limit", "answers took")


def selftest_table(selftest: Mapping[str, Any]) -> str:
    """Return ``gate-selftest.json`` as a table, what each run showed, and a closing line."""
    runs = selftest["runs"]
    table = aligned(_HEAD, [_row(run) for run in runs])
    reasons = [f"  - {one_line(run['name'])}: {one_line(run['verdict']['reason'])}" for run in runs]
    hint = [f"  -> {one_line(selftest['hint'])}"] if selftest["hint"] else []
    status = f"{STATUS[selftest['status']]} (exit code {selftest['exit_code']})"
    closing = f"selftest of {selftest['rule']!r}: {status}: {selftest['reason']}"
    return "\n".join((table, *reasons, one_line(closing), *hint)).replace(TIMES, "x").replace(DASH, "-")


def _row(run: Mapping[str, Any]) -> tuple[str, ...]:
    verdict = run["verdict"]
    limit = DASH if verdict["limit"] is None else f"{verdict['comparison']} {amount(verdict['limit'], verdict['unit'])}"
    grew = DASH if run["grew"] is None else f"{100 * run['grew']:+.1f} %"
    return (run["name"], STATUS[verdict["status"]], amount(verdict["value"], verdict["unit"]), limit, grew)
