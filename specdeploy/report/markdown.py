"""Markdown as GitHub and GitLab read it, in which a text stays text.

Names, rules and reasons come from anybody: a bar would end a cell, a line end the table, and a bracket begin a link.
What could be markup is written as a character reference, which no reader of Markdown takes for its structure
(CommonMark 0.31, section 6.2). An underscore between letters begins nothing, so the names of metrics stay readable.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from specdeploy.report.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: What begins or ends markup, a link, a reference (``#1``, ``@name``), or a formula of GitHub or GitLab.
_MARKUP: Final = re.compile(r"[&<>|`*~\[\]\\$#@\"']|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.")


def escape(text: str) -> str:
    """Return a text, in one line, that reads in a table's cell as it is."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", one_line(text))


def code(text: str) -> str:
    """Return a text in the letters of code; a code span could not hold every character in a table."""
    return f"<code>{escape(text)}</code>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> str:
    """Return a table of cells that are Markdown already.

    Args:
        header: Names of the columns.

        rows: Their cells.

        right: Names of the columns that are flush right.
    """
    flush = set(right)
    rule = ["---:" if name in flush else "---" for name in header]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))
