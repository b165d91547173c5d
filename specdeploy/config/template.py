"""The commented YAML that ``specdeploy init`` writes, made from the schema so that it can never disagree with it.

Knows how to write the few kinds of values the schema has, in YAML that every reader takes alike. Does not write files.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from specdeploy.config.leaves import Leaf, Section, last, schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.config.leaves import Scalar, Value

# Begins with a letter, and nothing in it that YAML gives a meaning to, so that only words remain to be looked out for.
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_/-]*(?:\.[A-Za-z0-9_/-]+)*")
_WORDS_OF_YAML: Final = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}
_HEAD: Final = """\
# One speculative-decoding deployment on Triton. Each `specdeploy` command reads this file and does one stage of it.
# A line such as `#profile: cpu` shows a default; remove the # to change it. Paths are relative to this file. Any key
# can be given for one run as `--set load.max_tokens=32` or as the variable SPECDEPLOY__LOAD__MAX_TOKENS.
"""


def render_template(*, name: str, target: str, draft: str, profile: str = "cpu") -> str:
    """Return the commented YAML of a new deployment; on a CPU with the draft at int8, else as it is stored.

    Args:
        name: Name of the deployment.
        target: Checkpoint folder of the target, relative to the file.
        draft: Checkpoint folder of the draft.
        profile: The engine profile.
    """
    values = {"name": name, "target.checkpoint": target, "draft.checkpoint": draft}
    special = {"draft.precision": "int8"} if profile == "cpu" else {"profile": profile}
    return render(values | special)


def render(values: Mapping[str, Value]) -> str:
    """Return the commented YAML: the keys in *values* given, every other one commented out with its default.

    Args:
        values: Key path to value, such as ``{"draft.precision": "int8"}``. A required key that is not in it is given
            as ``""``, which the loader refuses.
    """
    return "\n".join([_HEAD, *_members(schema(), values)])


def as_yaml(value: Value) -> str:
    """Return a value as YAML on one line, which reads back as the same value of the same type."""
    if isinstance(value, tuple):
        return f"[{', '.join(_scalar(item) for item in value)}]"
    return _scalar(value)


def _members(section: Section, values: Mapping[str, Value]) -> Iterator[str]:
    for member in section.members:
        indent = "  " * member.path.count(".")
        yield f"{indent}# {member.describe}"
        if isinstance(member, Section):
            yield f"{indent}{last(member.path)}:"
            yield from _members(member, values)
        else:
            yield from _leaf(member, values, indent)
        if not section.path:
            yield ""


def _leaf(leaf: Leaf, values: Mapping[str, Value], indent: str) -> Iterator[str]:
    value = values.get(leaf.path, leaf.default)
    mark = "" if leaf.path in values or leaf.default is None else "#"
    name = last(leaf.path)
    if isinstance(value, tuple) and leaf.kind == "text" and value:
        yield f"{indent}{mark}{name}:"
        for item in value:
            yield f"{indent}{mark}  - {_scalar(item)}"
    else:
        yield f"{indent}{mark}{name}: {as_yaml('' if value is None else value)}"


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS_OF_YAML else _quoted(value)
    mantissa, exponent, power = repr(value).partition("e")
    # YAML 1.1 takes 1e-05 for text; a number has a point.
    return f"{mantissa}.0e{power}" if exponent and "." not in mantissa else repr(value)


def _quoted(text: str) -> str:
    """Return *text* in double quotes, with everything escaped that YAML would not take as it is."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    return '"' + "".join(c if c.isprintable() else _escape(c) for c in escaped) + '"'


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
