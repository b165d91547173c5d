"""Is a document one that the table describes? Every place where it is not, with the value seen and the nearest key."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specdeploy.config.values import nearest
from specdeploy.engine.llmapi.table import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.engine.llmapi.table import ObjectShape, Shape, Table

Fault: TypeAlias = Literal["unknown-key", "missing-key", "bad-value"]

_NAMES: Final = {
    "null": "nothing",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "string": "text",
    "array": "a list",
    "object": "a mapping",
}
_KINDS: Final = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One place where a document leaves the table.

    Args:
        path: Dotted key path.
        fault: What is wrong there.
        message: The same in words, with the value seen.
        hint: The nearest key or choice, or what may stand there.
    """

    path: str
    fault: Fault
    message: str
    hint: str = ""


def mismatches(document: Mapping[str, Any], table: Table) -> tuple[Mismatch, ...]:
    """Return every place where *document* is not what *table* describes, in the document's order."""
    return tuple(_object("", document, ROOT, table))


def kind_of(value: object) -> str:
    """Return JSON's name of a value's type."""
    if isinstance(value, dict):
        return "object"
    return _KINDS.get(type(value), "array")


def _object(path: str, value: Mapping[str, Any], name: str, table: Table) -> Iterator[Mismatch]:
    known = table.objects[name]
    for key, inner in value.items():
        where = _below(path, key)
        if key in known.keys:
            yield from _value(where, inner, known.keys[key], table)
        elif not known.is_open:
            yield _unknown(where, str(key), known, table)
    for key in known.required:
        if key not in value:
            yield Mismatch(path=_below(path, key), fault="missing-key", message=f"{_below(path, key)} is missing")


def _unknown(path: str, key: str, known: ObjectShape, table: Table) -> Mismatch:
    elsewhere = [place for place in table.paths_of(key) if place != path]
    hint = f"did you mean {elsewhere[0]}?" if elsewhere else nearest(key, known.keys)
    return Mismatch(path=path, fault="unknown-key", message=f"the LLM API has no key {path}", hint=hint)


def _value(path: str, value: object, shape: Shape, table: Table) -> Iterator[Mismatch]:
    kind = kind_of(value)
    if shape.kinds and not _fits(value, kind, shape):
        yield _bad(path, f"expected {_expected(shape)}, got {value!r}", _number_hint(value, shape))
    elif (choices := [choice for choice in shape.choices if kind_of(choice) == kind]) and value not in choices:
        known = [str(choice) for choice in choices]
        near = nearest(str(value), known)
        yield _bad(path, f"expected one of {', '.join(known)}, got {value!r}", near)
    elif shape.above is not None and isinstance(value, int | float) and value <= shape.above:
        yield _bad(path, f"expected more than {shape.above:g}, got {value!r}", "")
    elif isinstance(value, list) and shape.items:
        for number, item in enumerate(value):
            yield from _value(f"{path}[{number}]", item, shape.items, table)
    elif isinstance(value, dict):
        yield from _mapping(path, value, shape, table)


def _mapping(path: str, value: Mapping[str, Any], shape: Shape, table: Table) -> Iterator[Mismatch]:
    if shape.objects:
        # Of several objects that it may be, the one that it is nearest to.
        yield from min((tuple(_object(path, value, name, table)) for name in shape.objects), key=len)
    elif shape.values:
        for key, inner in value.items():
            yield from _value(_below(path, key), inner, shape.values, table)


def _fits(value: object, kind: str, shape: Shape) -> bool:
    if kind == "integer":
        return bool(shape.kinds & {"integer", "number"})
    # As JSON Schema has it, 2.0 is an integer.
    whole = isinstance(value, float) and value.is_integer() and "integer" in shape.kinds
    return kind in shape.kinds or whole


def _expected(shape: Shape) -> str:
    return " or ".join(name for kind, name in _NAMES.items() if kind in shape.kinds)


def _number_hint(value: object, shape: Shape) -> str:
    """Explain YAML's reading of `1e-3` as text, which nobody expects."""
    if not isinstance(value, str) or not shape.kinds & {"integer", "number"}:
        return ""
    try:
        number = float(value)
    except ValueError:
        return ""
    return f"To YAML this is text; write {number!r}."


def _bad(path: str, message: str, hint: str) -> Mismatch:
    return Mismatch(path=path, fault="bad-value", message=f"{path}: {message}", hint=hint)


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
