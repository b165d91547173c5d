"""YAML text to key paths, values and line numbers, with everything that is wrong in it found at once.

Works on PyYAML's node graph, since its loaded values have lost their lines and silently keep the last of two equal
keys. Knows the schema's table; does not read files and knows no other source of values.

Anchors, aliases, merge keys and explicit tags are refused: one deployment has no use for them, and each is a way for
a value to come from somewhere else than where it seems to stand.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, Protocol

import yaml

from specdeploy.config import values
from specdeploy.config.leaves import Leaf, Section, join, last
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.config.leaves import Scalar, Value

_SPELL_OUT: Final = "Write the value out at each place."
_NAMES: Final = {
    "bool": "a boolean",
    "float": "a number",
    "int": "an integer",
    "null": "nothing",
    "str": "text",
    "timestamp": "a date",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A value and where it came from, such as ``specdeploy.yaml:12``."""

    value: Value
    origin: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """What a YAML text says.

    Args:
        entries: Key path to value, for the keys whose value is good.
        tried: Every key path of the schema that the text gives, good or bad.
        findings: What is wrong with it.
        readable: False when the text was refused as a whole, so that nothing can be said about absent keys.
    """

    entries: Mapping[str, Entry]
    tried: frozenset[str]
    findings: tuple[Finding, ...]
    readable: bool


def read_document(text: str, name: str, schema: Section) -> Document:
    """Read a YAML text against the schema; never raises for what is in it.

    Args:
        text: The YAML document.
        name: File name for the findings' ``where`` and the entries' ``origin``.
        schema: The accepted keys.
    """
    reader = _Reader(name, schema)
    node = None
    try:
        reader.refuse_sharing(text)
        # An alias that was refused may also be undefined, of which one finding is enough.
        node = None if reader.findings else yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        reader.report(error.problem_mark, "config.syntax", f"not valid YAML: {error.problem}", error.note or "")
    except yaml.YAMLError as error:
        reader.report(None, "config.syntax", f"not valid YAML: {error}")
    readable = not reader.findings
    if readable and node is not None:
        reader.section(schema, node)
    return Document(
        entries=reader.entries, tried=frozenset(reader.tried), findings=tuple(reader.findings), readable=readable
    )


class _Mark(Protocol):
    """A position of PyYAML; ``line`` counts from 0."""

    @property
    def line(self) -> int: ...


class _Reader:
    """Walks the node graph beside the schema, collecting entries and findings."""

    def __init__(self, name: str, schema: Section) -> None:
        self.entries: dict[str, Entry] = {}
        self.tried: set[str] = set()
        self.findings: list[Finding] = []
        self._name = name
        self._schema = schema

    def report(self, mark: _Mark | None, code: str, message: str, hint: str = "") -> None:
        where = self._name if mark is None else self._line(mark)
        self.findings.append(Finding(severity="error", code=code, message=message, hint=hint, where=where))

    def refuse_sharing(self, text: str) -> None:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                self.report(event.start_mark, "config.alias", f"the alias *{event.anchor} is not accepted", _SPELL_OUT)
            elif isinstance(event, yaml.NodeEvent) and event.anchor is not None:
                self.report(event.start_mark, "config.alias", f"the anchor &{event.anchor} is not accepted", _SPELL_OUT)
            elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
                self.report(event.start_mark, "config.tag", f"the tag {event.tag} is not accepted", "Remove it.")

    def section(self, section: Section, node: yaml.Node) -> None:
        if _is_null(node):
            return  # every key below it is commented out: the defaults
        if not isinstance(node, yaml.MappingNode):
            what = f"`{section.path}`" if section.path else "the document"
            message = f"{what} must hold keys, got {_describe(node)}"
            self.report(node.start_mark, "config.type", message, "Write `key: value` lines.")
            return
        for key, value, mark in self._pairs(section, node):
            member = section.member(key)
            if member is None:
                hint = unknown_key_hint(self._schema, section, key)
                self.report(mark, "config.unknown-key", f"`{join(section.path, key)}` is not a key", hint)
            elif isinstance(member, Section):
                self.section(member, value)
            else:
                self._leaf(member, value, mark)

    def _pairs(self, section: Section, node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node, _Mark]]:
        """Yield the keys of a mapping that are text and come for the first time."""
        first: dict[str, _Mark] = {}
        for key_node, value in node.value:
            mark, key = key_node.start_mark, key_node.value
            if not isinstance(key_node, yaml.ScalarNode) or _tag(key_node) != "str":
                self.report(mark, "config.key", f"a key must be text, got {_describe(key_node)}")
            elif key in first:
                hint = f"It is already on line {first[key].line + 1}."
                self.report(mark, "config.duplicate-key", f"`{join(section.path, key)}` stands twice", hint)
            else:
                first[key] = mark
                yield key, value, mark

    def _leaf(self, leaf: Leaf, node: yaml.Node, mark: _Mark) -> None:
        self.tried.add(leaf.path)
        try:
            value = self._list(leaf, node) if leaf.is_list else _scalar(leaf, node)
        except values.BadValue as error:
            self.report(node.start_mark, "config.value", f"`{leaf.path}`: {error.message}", error.hint)
            return
        if value is not None:
            self.entries[leaf.path] = Entry(value=value, origin=self._line(mark))

    def _list(self, leaf: Leaf, node: yaml.Node) -> tuple[Scalar, ...] | None:
        """Return the items, or None when some were bad and are reported."""
        if isinstance(node, yaml.MappingNode) and leaf.spell is not None:
            # Each key of a mapping is an item: `{1: 4, 4: 2}`.
            pairs = [yaml.MappingNode(node.tag, [pair], pair[0].start_mark) for pair in node.value]
            node = yaml.SequenceNode(node.tag, pairs, node.start_mark)
        if not isinstance(node, yaml.SequenceNode):
            raise values.BadValue(f"expected a list, got {_describe(node)}", "Write it as [a, b], or one `- a` a line.")
        items: list[Scalar] = []
        for number, item in enumerate(node.value):
            try:
                items.append(_item(leaf, item))
            except values.BadValue as error:
                self.report(item.start_mark, "config.value", f"`{leaf.path}[{number}]`: {error.message}", error.hint)
        return tuple(items) if len(items) == len(node.value) else None

    def _line(self, mark: _Mark) -> str:
        return f"{self._name}:{mark.line + 1}"


def unknown_key_hint(schema: Section, section: Section, key: str) -> str:
    """Return the best guess at what was meant: the nearest key here, the same one elsewhere, or what there is."""
    names = [last(member.path) for member in section.members]
    elsewhere = [leaf.path for leaf in schema.leaves() if last(leaf.path) == key]
    if near := values.nearest(key, names):
        return near
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"The keys here are {', '.join(names)}."


def _item(leaf: Leaf, node: yaml.Node) -> Scalar:
    """Return an item of a list; a text with a colon is a mapping to YAML, and some lists know what it means."""
    if leaf.spell is None or not isinstance(node, yaml.MappingNode):
        return _scalar(leaf, node)
    for part in (part for pair in node.value for part in pair):
        if not isinstance(part, yaml.ScalarNode) or _is_null(part):
            raise values.BadValue(f"expected text, got {_describe(part)}", "Put the whole item in quotes.")
    try:
        return values.parse(leaf, leaf.spell([(key.value, value.value) for key, value in node.value]))
    except ConfigError as error:
        raise values.BadValue(error.message, error.hint) from error


def _scalar(leaf: Leaf, node: yaml.Node) -> Scalar:
    if not isinstance(node, yaml.ScalarNode):
        raise values.BadValue(f"expected {_expected(leaf)}, got {_describe(node)}")
    quoted = node.style is not None
    if leaf.kind == "text" and _tag(node) != "str":
        hint = "" if _is_null(node) else f'Put it in quotes: "{node.value}".'
        raise values.BadValue(f"expected {_expected(leaf)}, got {_describe(node)}", hint)
    if leaf.kind != "text" and (quoted or _is_null(node)):
        raise values.BadValue(
            f"expected {_expected(leaf)}, got {_describe(node)}", "Remove the quotes." if quoted else ""
        )
    return values.parse(leaf, node.value)


def _expected(leaf: Leaf) -> str:
    if leaf.choices:
        return f"one of {', '.join(leaf.choices)}"
    return {"text": "text", "integer": "an integer", "number": "a number", "boolean": "true or false"}[leaf.kind]


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and _tag(node) == "null"


def _tag(node: yaml.Node) -> str:
    return str(node.tag).rpartition(":")[2]


def _describe(node: yaml.Node) -> str:
    """Say what stands there, with its text, such as ``the integer 4``."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    name = _NAMES.get(_tag(node), _tag(node))
    return name if _is_null(node) else f"{name} ({node.value!r})"
