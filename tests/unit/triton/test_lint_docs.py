"""``docs/lint.md`` says what lint says: every code, no others, and the table of broken repositories as recorded.

The table is written anew with ``SPECDEPLOY_UPDATE_GOLDENS=1 pytest tests/unit/triton/test_lint_docs.py``.
"""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.broken_repositories import RECORD

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "lint.md"
SOURCE = ROOT / "specdeploy" / "triton" / "lint"
CODE = re.compile(r"[a-z]+\.[a-z]+(?:-[a-z]+)*")
MARK = re.compile(r"(<!-- the table: .* -->\n)(.*)", re.DOTALL)
LONGEST = 160


def codes_in_source() -> set[str]:
    """Return every code that the source gives to a finding: the first argument of some call."""
    calls = (node for file in SOURCE.glob("*.py") for node in ast.walk(ast.parse(file.read_text())))
    firsts = (node.args[0] for node in calls if isinstance(node, ast.Call) and node.args)
    values = {first.value for first in firsts if isinstance(first, ast.Constant) and isinstance(first.value, str)}
    return {value for value in values if CODE.fullmatch(value)}


def codes_in_page() -> list[str]:
    """Return the codes that the page explains, in its order."""
    return re.findall(r"^\| `([a-z]+\.[a-z-]+)` \|", PAGE.read_text(), flags=re.MULTILINE)


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "\n| repository | broken how | Triton 2.51 | lint |"
    yield "|---|---|---|---|"
    for row in rows:
        lint = ", ".join(f"`{finding.split()[1]}`" for finding in row["lint"])
        severity = row["lint"][0].split()[0]
        said = f"{severity}: {lint}<br>{_cell(row['message'])}"
        yield f"| {row['base']} | {row['what']} | {_cell(row['triton'])} | {said} |"


def _cell(text: str) -> str:
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return short.replace("|", "\\|").replace("<", "&lt;").replace("$", "&#36;")


def test_every_code_is_explained_once_and_no_other() -> None:
    """A new finding needs its line in the page, and one that is gone leaves none."""
    explained = codes_in_page()

    assert sorted(explained) == sorted(codes_in_source())


def test_every_recorded_code_exists() -> None:
    """The record is of this lint."""
    recorded = {finding.split()[1] for row in json.loads(RECORD.read_text()) for finding in row["lint"]}

    assert recorded <= codes_in_source()


def test_the_table_is_the_record() -> None:
    """What the page says of broken repositories is what was measured."""
    text = PAGE.read_text()
    expected = MARK.sub(lambda found: found[1] + "\n".join(table(json.loads(RECORD.read_text()))) + "\n", text)
    if os.environ.get("SPECDEPLOY_UPDATE_GOLDENS") == "1":
        PAGE.write_text(expected)

    assert PAGE.read_text() == expected
    assert MARK.search(text)
