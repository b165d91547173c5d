"""HTML and SVG as values that are escaped by construction.

Knows how text and attributes are written so that nothing measured, named or answered by a model can become markup.
Knows no page.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

_VOID: Final = frozenset({"meta", "br", "col"})
# What HTML cannot hold even when it is escaped: control characters, and halves of surrogate pairs.
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


class Markup(str):
    """Text that is markup already; any other string is escaped where it is put into an element."""

    __slots__ = ()


Content: TypeAlias = "str | Markup | None"
Attribute: TypeAlias = "str | float | None"


def escape(text: str) -> Markup:
    """Return a text as markup; what HTML cannot show becomes the replacement character."""
    return text if isinstance(text, Markup) else Markup(html.escape(_UNPRINTABLE.sub("�", text)))


def tag(name: str, /, *children: Content, **attributes: Attribute) -> Markup:
    """Return one element.

    Args:
        name: Of the element.

        children: Its content; texts are escaped, None is left out.

        attributes: Underscores stand for hyphens, a trailing one keeps a name off Python's keywords (``class_``);
            numbers are written with at most two decimals; None is left out.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[Content]) -> Markup:
    """Put parts one after another."""
    return Markup("".join(escape(part) for part in parts if part is not None))


def _attribute(key: str, value: str | float) -> str:
    text = value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
    return f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"'
