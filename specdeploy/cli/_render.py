"""How the command line shows things: findings, tables, progress. Rendered from values, never the values themselves."""

from __future__ import annotations

import json
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from specdeploy.cli._streams import say, tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specdeploy.findings import Finding
    from specdeploy.pipeline.engines import Built
    from specdeploy.pipeline.up import Outcome

_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_COLOURS: Final = {"error": "red", "warning": "yellow", "info": "blue"}


def findings(items: Iterable[Finding], *, err: bool = False) -> None:
    """Print findings, the ones that stop the stage first."""
    order, show = list(_COLOURS), tell if err else say
    for item in sorted(items, key=lambda finding: order.index(finding.severity)):
        where = f" ({item.where})" if item.where else ""
        text = visible(f"{item.code}: {item.message}{where}")
        show(f"  {click.style(item.severity, fg=_COLOURS[item.severity])} {text}")
        if item.hint:
            show(f"    -> {visible(item.hint)}")


def visible(text: str) -> str:
    """Return *text* in one line of printable characters, all others escaped as Python does.

    Names of files come from anybody: one may hold a line end and a workflow command, or what moves a terminal's cursor.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def visible_lines(text: str) -> str:
    """Return *text* with nothing that acts on a terminal but its line ends and tabs, which the end of a log has.

    What an error says may be the words of a server.
    """
    # A line that begins with two colons is a command to GitHub's runner, whoever wrote it.
    return re.sub(r"(?m)^(\s*):(?=:)", r"\1\\x3a", re.sub(r"[^\n\t]+", lambda part: visible(part[0]), text))


def github_annotations(items: Iterable[Finding], root: str) -> None:
    """Print findings as workflow commands that GitHub shows beside the files of a change.

    Args:
        items: The findings; those of a place such as ``model/config.pbtxt:3`` are shown at that line.
        root: Prefix of their files, as the repository that is checked out has them.
    """
    kinds = {"error": "error", "warning": "warning", "info": "notice"}
    for item in items:
        path, line = _place(item.where)
        properties = {"file": f"{root}/{path}" if path else root, "line": line, "title": item.code}
        listed = ",".join(f"{name}={_escaped(value, _IN_PROPERTIES)}" for name, value in properties.items() if value)
        message = f"{item.message}\n{item.hint}" if item.hint else item.message
        say(f"::{kinds[item.severity]} {listed}::{_escaped(message, _IN_MESSAGES)}")


# Source: github.com/actions/toolkit, packages/core/src/command.ts.
_IN_MESSAGES: Final = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTIES: Final = {**_IN_MESSAGES, ":": "%3A", ",": "%2C"}


def _escaped(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(character) or visible(character) for character in text)


def _place(where: str) -> tuple[str, str]:
    """Return file and line of a finding; a finding about several places is shown at the first."""
    first = where.split(", ", maxsplit=1)[0]
    path, colon, line = first.rpartition(":")
    if not (colon and line.isdecimal()):
        path, line = first, ""
    return ("" if path == "." else path), line


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a plain table; columns are as wide as their widest cell."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([text[0], "  ".join("-" * width for width in widths), *text[1:]])


def document(value: Any) -> None:
    """Print a JSON document on standard output; logs and progress go to standard error."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    # A name that is not UTF-8 holds halves of characters, which no stream takes; JSON can spell them.
    text = _SURROGATES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        # An escape of Python's would be no JSON.
        text = json.dumps(value, indent=2, allow_nan=False)
    say(text)


class Progress:
    """Headlines of the stages on standard error, with the seconds each took."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def stage(self, text: str) -> None:
        """Announce a stage."""
        tell(f"{click.style('==>', fg='green', bold=True)} [{self._elapsed()}] {text}")

    def note(self, text: str) -> None:
        """Say something inside a stage."""
        tell(f"    {text}")

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._started:5.1f} s"


def size(count: float) -> str:
    """Return bytes for people, in decimal units as disks are sold."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def built_document(built: Built) -> dict[str, Any]:
    """Return the manifests by role, None for a role that the method does not have."""
    draft = built.draft
    return {"target": built.target.to_dict(), "draft": None if draft is None else draft.to_dict()}


def engines(built: Built) -> str:
    """Lay out the two engines."""
    rows = [
        (role, manifest.name, manifest.precision, size(manifest.size_bytes), str(path))
        for role, manifest, path in built.rows()
    ]
    return table(("role", "engine", "precision", "size", "where"), rows)


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """Return what ``up --json`` prints."""
    return {
        "schema_version": "1.0",
        "kind": "up",
        "exit_code": outcome.exit_code,
        "stopped_at": outcome.stopped_at,
        "engines": built_document(outcome.built),
        "repository": str(outcome.repository),
        **outcome.documents,
        "report": outcome.report and str(outcome.report),
        "duration_s": outcome.duration_s,
    }
