"""Text to values: what a scalar in the YAML, in ``--set`` or in the environment means for a key of a given type.

Knows the types of the schema. Does not know where the text stood. The type of the key decides how its text is read, and
not YAML's guessing rules: there ``no`` is a boolean, ``010`` is eight and ``1e3`` is text.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdeploy.config.leaves import Leaf, Scalar

_LONGEST_INTEGER: Final = 18
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)")
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_BOOLEANS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class BadValue(Exception):
    """A text is no value for the key; ``hint`` is the cure. Callers make a finding of it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def parse(leaf: Leaf, text: str) -> Scalar:
    """Read *text* as one value (of a list: one item) of *leaf*.

    Raises:
        BadValue: It is not of the type, not among the choices, or out of bounds.
    """
    if leaf.kind == "text":
        return _text(leaf, text)
    if leaf.kind == "boolean":
        return _boolean(text)
    value = _integer(text) if leaf.kind == "integer" else _number(text)
    _check_bounds(leaf, value)
    return value


def items(leaf: Leaf, text: str) -> tuple[str, ...]:
    """Split the text of a list: ``[a, "b, c"]``, or without brackets numbers with commas, or one text as it is.

    Raises:
        BadValue: A quotation is open.
    """
    bracketed = text.startswith("[") and text.endswith("]")
    if leaf.kind == "text" and not bracketed:
        # Many texts have commas of their own: options of programs, parts of an API.
        return (text,) if text.strip() else ()
    inner = text[1:-1] if bracketed else text
    try:
        found = next(csv.reader([inner], skipinitialspace=True, strict=True), [])
    except csv.Error as error:
        raise BadValue(f"{text!r} is no list: {error}", 'Write [a, "b, c"]: quotes around what has a comma.') from None
    return tuple(item.strip() for item in found) if inner.strip() else ()


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return ``did you mean ...?`` for the candidate nearest to *word*, or an empty text when none is near."""
    close = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def _text(leaf: Leaf, text: str) -> str:
    if not text.strip() and leaf.default != "":
        raise BadValue("the text is empty", "Give a value, or leave the key out for its default.")
    if leaf.choices and text not in leaf.choices:
        raise BadValue(f"{text!r} is not one of {', '.join(leaf.choices)}", nearest(text, leaf.choices))
    return text


def _boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise BadValue(f"expected true or false, got {text!r}")
    return _BOOLEANS[text]


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        whole = bool(_NUMBER.fullmatch(text)) and float(text).is_integer()
        raise BadValue(f"expected an integer, got {text!r}", f"Write {int(float(text))}." if whole else "")
    if len(text) > _LONGEST_INTEGER:
        raise BadValue(f"the integer has {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise BadValue(f"expected a finite number, got {text!r}")
    return float(text)


def _check_bounds(leaf: Leaf, value: float) -> None:
    if leaf.minimum is not None and value < leaf.minimum:
        raise BadValue(f"{value} is below the least accepted value, {leaf.minimum:g}")
    if leaf.maximum is not None and value > leaf.maximum:
        raise BadValue(f"{value} is above the greatest accepted value, {leaf.maximum:g}")
