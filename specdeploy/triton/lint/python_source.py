"""Python source as the checks see it: parsed where it parses, with what it imports and what it mentions.

Knows Python's syntax tree. Judges nothing, and runs nothing.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import sys
import warnings
from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint.unread import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Nobody writes a model by hand that is longer, and parsing takes a second for each megabyte.
MAX_SOURCE: Final = 1024 * 1024
# What a line looks like that an older Python takes for a mistake, and the release that takes it for what it is.
_NEWER: Final = (
    ((3, 11), re.compile(r"\s*except\s*\*")),
    ((3, 12), re.compile(r"\s*type\s+[^\W\d]\w*\s*[\[=]")),
    ((3, 12), re.compile(r"\s*(?:async\s+)?(?:def|class)\s+[^\W\d]\w*\s*\[")),
    ((3, 12), re.compile(r".*\b(?:[rR]?[fF]|[fF][rR])[\"']")),
    ((3, 14), re.compile(r"\s*except\s+[\w.]+\s*,")),
    ((3, 14), re.compile(r".*\b(?:[rR]?[tT]|[tT][rR])[\"']")),
)
_LONGEST_LINE: Final = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """One file.

    Args:
        tree: The module; None when it could not be parsed.
        problem: What is wrong with its syntax; empty when nothing is, or nobody can say.
        line: Where, from 1.
        newer: The release of Python that may take it all the same, as "3.12"; empty when none is known.
        unread: Why nobody can say: too long, or nested too deeply; empty otherwise.
    """

    tree: ast.Module | None = None
    problem: str = ""
    line: int = 1
    newer: str = ""
    unread: str = ""


def parse(data: bytes) -> Source:
    """Parse one file; never raises, whatever it holds."""
    if size_of(data) > MAX_SOURCE:
        return Source(unread=f"it has more than {MAX_SOURCE // 1024} KiB")
    return _parse(data)


@functools.lru_cache(maxsize=256)
def _parse(data: bytes) -> Source:
    try:
        with warnings.catch_warnings(action="ignore"):
            return Source(tree=ast.parse(data))
    except SyntaxError as error:
        line = error.lineno or 1
        return Source(problem=str(error.msg), line=line, newer=_newer(data, line))
    except ValueError as error:  # null bytes, or not the encoding that it declares
        return Source(problem=str(error))
    except (MemoryError, RecursionError):
        return Source(unread="it is nested too deeply")


def mentions(tree: ast.AST, name: str) -> bool:
    """Say whether the code binds, uses or spells *name* anywhere."""
    return any(_mentions(node, name) for node in ast.walk(tree))


def stores(tree: ast.AST, name: str) -> bool:
    """Say whether the code may give something the attribute *name*: by a statement, or by its name as text."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.Constant) and node.value == name)
        for node in ast.walk(tree)
    )


def imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield what the code imports, dots in front for a relative import, and whether that is sure to be done.

    It is sure for a statement of the module itself; what stands in a function or behind a condition may never run.
    """
    certain = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in certain) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module, id(node) in certain
            joint = "" if module.endswith(".") else "."
            yield from ((f"{module}{joint}{alias.name}", id(node) in certain) for alias in node.names)


def _mentions(node: ast.AST, name: str) -> bool:
    match node:
        case ast.ClassDef(name=found) | ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found):
            return found == name
        case ast.Name(id=found) | ast.Attribute(attr=found):
            return found == name
        case ast.alias(name=found, asname=other):
            return name in {found, other} or found == "*"
        case ast.Constant(value=str(text)):
            return name in text
        case _:
            return False


def _newer(data: bytes, line: int) -> str:
    """Return the first release after the one that runs here in which such a line is valid; empty when none is known."""
    lines = data.splitlines()[line - 1 : line]
    text = lines[0][:_LONGEST_LINE].decode("utf-8", errors="replace") if lines else ""
    for release, pattern in _NEWER:
        if sys.version_info < release and pattern.match(text):
            return ".".join(map(str, release))
    return ""
