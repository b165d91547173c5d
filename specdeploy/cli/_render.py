"""How the command line shows things: findings, tables, progress. Rendered from values, never the values themselves."""

from __future__ import annotations

import json
import shlex
import time
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdeploy.findings import Finding
    from specdeploy.pipeline.prepare import Built
    from specdeploy.pipeline.up import Outcome
    from specdeploy.planning.build import BuildPlan

_COLOURS: Final = {"error": "red", "warning": "yellow", "info": "blue"}


def findings(items: Iterable[Finding], *, err: bool = False) -> None:
    """Print findings, the ones that stop the stage first."""
    order = list(_COLOURS)
    for item in sorted(items, key=lambda finding: order.index(finding.severity)):
        where = f" ({item.where})" if item.where else ""
        click.echo(
            f"  {click.style(item.severity, fg=_COLOURS[item.severity])} {item.code}: {item.message}{where}", err=err
        )
        if item.hint:
            click.echo(f"    -> {item.hint}", err=err)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a plain table; columns are as wide as their widest cell."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([text[0], "  ".join("-" * width for width in widths), *text[1:]])


def document(value: Any) -> None:
    """Print a JSON document on standard output; logs and progress go to standard error."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


class Progress:
    """Headlines of the stages on standard error, with the seconds each took."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def stage(self, text: str) -> None:
        """Announce a stage."""
        click.echo(f"{click.style('==>', fg='green', bold=True)} [{self._elapsed()}] {text}", err=True)

    def note(self, text: str) -> None:
        """Say something inside a stage."""
        click.echo(f"    {text}", err=True)

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._started:5.1f} s"


def plan_lines(plan: BuildPlan) -> list[str]:
    """Lay out the steps of a plan, with the command lines as a shell would take them."""
    lines: list[str] = []
    for engine in plan.engines:
        lines.append(f"{engine.spec.role}: {engine.spec.name} ({engine.key[:16]})")
        lines += [f"    {shlex.join(step.argv)}" for step in engine.steps]
    return lines


def engines(built: Built) -> str:
    """Lay out the two engines."""
    rows = [
        (role, manifest.name, manifest.precision, f"{manifest.size_bytes / 1e6:.1f} MB", str(path))
        for role, manifest, path in (
            ("target", built.target, built.target_path),
            ("draft", built.draft, built.draft_path),
        )
    ]
    return table(("role", "engine", "precision", "size", "where"), rows)


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """Return what ``up --json`` prints."""
    return {
        "schema_version": "1.0",
        "kind": "up",
        "exit_code": outcome.exit_code,
        "stopped_at": outcome.stopped_at,
        "engines": {"target": outcome.built.target.to_dict(), "draft": outcome.built.draft.to_dict()},
        "repository": str(outcome.repository),
        **outcome.documents,
        "report": outcome.report and str(outcome.report),
        "duration_s": outcome.duration_s,
    }
