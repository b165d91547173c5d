"""The building blocks of the page: sections, figures, tables, notes.

Knows how they are written and not what they say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.bench.records import ARMS
from specdeploy.report.markup import Markup, join, tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specdeploy.report.markup import Content

#: Status in a document -> word, and class that colours it.
STATUS: Final = {
    "pass": ("Pass", "pass"),
    "fail": ("Fail", "fail"),
    "undecided": ("Undecided", "open"),
    "not_measured": ("Not measured", "open"),
    "not_comparable": ("Not comparable", "open"),
    "skip": ("Skipped", "open"),
    "error": ("Error", "open"),
}


def status(name: str) -> tuple[str, str]:
    """Return the word and the class of a status."""
    return STATUS.get(name, (name, "none"))


def section(title: str, *content: Content) -> Markup:
    """Return a section; its heading's id is made of the title, for links."""
    name = "-".join(title.lower().split())
    return tag("section", tag("h2", title, id=name), *content, aria_labelledby=name)


def figure(caption: str, more: str, *content: Content, class_: str | None = None) -> Markup:
    """Return a picture with what it shows in bold and a second line in plain."""
    words = tag("figcaption", caption, tag("span", more) if more else None)
    return tag("figure", words, *content, class_=class_)


def grid(*content: Content) -> Markup:
    """Put cards side by side, as many as fit."""
    return tag("div", *content, class_="grid3")


def scrolling(label: str, *content: Content, class_: str = "scroll") -> Markup:
    """Let wide content scroll within the page, by keyboard too."""
    return tag("div", *content, class_=class_, role="region", aria_label=label, tabindex="0")


def table(
    caption: str, heads: Sequence[Sequence[Content]], rows: Iterable[Markup], class_: str | None = None
) -> Markup:
    """Return a table that scrolls sideways where it does not fit; its head may have several rows.

    Args:
        caption: Read to those who do not see the heading above it.

        heads: Rows of the head; texts become plain columns.

        rows: Of the body.

        class_: ``stack`` puts the cells of a row below each other on a narrow screen.
    """
    lines = [tag("tr", *(cell if isinstance(cell, Markup) else column(cell) for cell in head)) for head in heads]
    words = tag("caption", caption, class_="unseen")
    return scrolling(caption, tag("table", words, tag("thead", *lines), tag("tbody", *rows), class_=class_))


def column(title: Content, class_: str | None = None, span: int | None = None) -> Markup:
    """Return the head of a column."""
    return tag("th", title, scope="col" if span is None else "colgroup", class_=class_, colspan=span)


def row(head: Content, *cells: Content) -> Markup:
    """Return a table row; cells that are not elements already become plain ones."""
    return tag("tr", tag("th", head, scope="row"), *(cell if _is_cell(cell) else tag("td", cell) for cell in cells))


def number(text: str, class_: str = "n", *, more: str = "") -> Markup:
    """Return a cell that holds a number, and below it what else there is to say of it."""
    return tag("td", text, tag("span", more, class_="between") if more else None, class_=class_)


def status_cell(name: str) -> Markup:
    """Return a cell that holds a status."""
    word, colour = status(name)
    return tag("td", word, class_=f"status {colour}")


def facts(caption: str, rows: Iterable[tuple[str, str]], class_: str = "facts") -> Markup:
    """Return names and values as a narrow table."""
    words = tag("caption", caption, class_="unseen")
    return tag("table", words, tag("tbody", *(row(name, value) for name, value in rows)), class_=class_)


def note(severity: str, message: str, hint: str = "") -> Markup:
    """Return something that a reader has to know before believing a number."""
    word = tag("b", f"{severity.capitalize()}: ")
    return tag("li", word, message, tag("span", hint) if hint else None, class_=f"note {severity}")


def notes(items: Sequence[Markup]) -> Markup | None:
    """Return notes as a list; nothing when there are none."""
    return tag("ul", *items, class_="notes") if items else None


def folded(items: Sequence[tuple[str, Markup]]) -> Markup:
    """Show the first of several things of a kind below its title; the others open on demand."""
    (title, first), *others = items
    hidden = (tag("details", tag("summary", other), content) for other, content in others)
    return join((tag("h3", title), first, *hidden))


def legend(arms: Iterable[str] = ARMS, *, control: str = "") -> Markup:
    """Return which line and colour stands for which arm.

    Args:
        arms: Who was measured.

        control: The server that answered for the control, where it was another one.
    """
    words = _ARM_WORDS if not control else {"control": f"control: {control}", "speculation": "speculation: this one"}
    return tag("div", *(_sample(arm, words[arm]) for arm in arms), class_="legend")


_ARM_WORDS: Final = {"control": "control: the target alone", "speculation": "speculation: with the draft"}


def _sample(arm: str, words: str) -> Markup:
    path = tag("path", class_=f"line {arm}", d="M1 5H25")
    return tag("span", tag("svg", path, viewBox="0 0 26 10", aria_hidden="true"), words)


def _is_cell(cell: Content) -> bool:
    return isinstance(cell, Markup) and cell.startswith("<td")


def paragraphs(sentences: Iterable[Content]) -> Markup:
    """Return one paragraph for each."""
    return join(tag("p", sentence) for sentence in sentences)
