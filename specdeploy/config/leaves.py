"""The schema as a flat table: every key path with its type, default and bounds, and values put back together from it.

Knows dataclasses and nothing of YAML. The loader, the template and ``config show`` all work on this table, so that none
of them repeats what the schema says.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specdeploy.config.schema import DeployConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Scalar: TypeAlias = str | int | float | bool
Value: TypeAlias = "Scalar | tuple[Scalar, ...]"
Kind: TypeAlias = Literal["text", "integer", "number", "boolean"]

_KINDS: Final[Mapping[type, Kind]] = {str: "text", int: "integer", float: "number", bool: "boolean"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """One key that holds a value.

    Args:
        path: Dotted key path, such as ``load.max_tokens``.
        kind: What a value (of a list: an item) is.
        is_list: Whether it holds a list of such values.
        choices: The only accepted values; empty when any will do.
        default: None when the key is required.
        minimum: Least accepted number, None without a bound.
        maximum: Greatest accepted number, None without a bound.
        describe: What the key is for, one sentence.
        spell: Makes the text of an item of a mapping; None where a mapping is none.
    """

    path: str
    kind: Kind
    is_list: bool
    choices: tuple[str, ...]
    default: Value | None
    minimum: float | None
    maximum: float | None
    describe: str
    spell: Callable[[Sequence[tuple[str, str]]], str] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """One key that holds further keys; ``path`` is empty for the document itself."""

    path: str
    describe: str
    members: tuple[Section | Leaf, ...]

    def member(self, name: str) -> Section | Leaf | None:
        """Return the member whose last path component is *name*."""
        return next((member for member in self.members if last(member.path) == name), None)

    def leaves(self) -> Iterator[Leaf]:
        """Yield every value below, in the order of the schema."""
        for member in self.members:
            if isinstance(member, Leaf):
                yield member
            else:
                yield from member.leaves()

    def sections(self) -> Iterator[Section]:
        """Yield every section below, outer before inner."""
        for member in self.members:
            if isinstance(member, Section):
                yield member
                yield from member.sections()


def last(path: str) -> str:
    """Return the last component of a dotted key path."""
    return path.rpartition(".")[2]


def join(parent: str, name: str) -> str:
    """Return the key path of *name* below *parent*; an empty parent is the document."""
    return f"{parent}.{name}" if parent else name


def schema() -> Section:
    """Return the whole schema of ``specdeploy.yaml``."""
    return _section(DeployConfig, "", "")


def assemble(values: Mapping[str, Value]) -> DeployConfig:
    """Build the configuration from key path to value; every leaf of the schema must be there, and of its type."""
    config: DeployConfig = _assemble(DeployConfig, "", values)
    return config


def flatten(config: DeployConfig) -> dict[str, Value]:
    """Return key path to value, in the order of the schema; the inverse of :func:`assemble`."""
    return {leaf.path: _lookup(config, leaf.path) for leaf in schema().leaves()}


def _lookup(config: DeployConfig, path: str) -> Any:  # noqa: ANN401  # the schema knows the type, the checker cannot
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _assemble(kind: type, path: str, values: Mapping[str, Value]) -> Any:  # noqa: ANN401  # an instance of *kind*
    hints = typing.get_type_hints(kind)
    members: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        key = join(path, field.name)
        nested = dataclasses.is_dataclass(hints[field.name])
        members[field.name] = _assemble(hints[field.name], key, values) if nested else values[key]
    return kind(**members)


def _section(kind: type, path: str, describe: str) -> Section:
    hints = typing.get_type_hints(kind)
    members = tuple(_member(field, hints[field.name], path) for field in dataclasses.fields(kind))
    return Section(path=path, describe=describe, members=members)


def _member(field: dataclasses.Field[Any], hint: Any, parent: str) -> Section | Leaf:  # noqa: ANN401  # a type form
    path, describe = join(parent, field.name), field.metadata["describe"]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _section(hint, path, describe)
    item, is_list = _item(hint)
    return Leaf(
        path=path,
        kind="text" if typing.get_origin(item) is Literal else _KINDS[item],
        is_list=is_list,
        choices=tuple(typing.get_args(item)),
        default=None if field.default is dataclasses.MISSING else field.default,
        minimum=field.metadata["minimum"],
        maximum=field.metadata["maximum"],
        describe=describe,
        spell=field.metadata["spell"],
    )


def _item(hint: Any) -> tuple[Any, bool]:  # noqa: ANN401  # a type form
    """Return the type of a value, or of a list's items, and whether it is a list."""
    if typing.get_origin(hint) is tuple:
        item, rest = typing.get_args(hint)
        if rest is Ellipsis:
            return item, True
    return hint, False
