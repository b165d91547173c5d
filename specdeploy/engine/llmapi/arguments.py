"""The user's ``key.path=value`` texts: read, and laid over what specdeploy writes.

Does not know what the keys mean; ``own`` says which of them follow from another key of ``specdeploy.yaml``.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import yaml

from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

KeyPath: TypeAlias = tuple[str, ...]

WHERE: Final = "llmapi.args"
_FORM: Final = "Write key.path=value, such as kv_cache_config.free_gpu_memory_fraction=0.8."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own:
    """A key that specdeploy sets.

    Args:
        key: What sets it, as a key of ``specdeploy.yaml``; empty when nothing can.
        accepted: Values that say the same.
    """

    key: str
    accepted: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """What the user's texts say.

    Args:
        leaves: Key path to value, in the order of the paths, so that the order of the texts means nothing.
        findings: Texts that are malformed or contradict each other; they have no leaf.
    """

    leaves: Mapping[KeyPath, Any]
    findings: tuple[Finding, ...]


def read_arguments(texts: Iterable[str]) -> Arguments:
    """Read ``key.path=value`` texts, the values as YAML; never raises for what is in them."""
    leaves: dict[KeyPath, Any] = {}
    findings: list[Finding] = []
    for text in texts:
        path, value, problem = _read(text)
        if problem:
            findings.append(error("argument", f"{text!r}: {problem}", _FORM))
            continue
        for leaf, inner in _leaves(path, value):
            if leaves.setdefault(leaf, inner) != inner:
                findings.append(error("argument", f"{_dotted(leaf)} is given twice, as {leaves[leaf]!r} and {inner!r}"))
    findings += _overlaps(leaves)
    return Arguments(leaves=dict(sorted(leaves.items())), findings=tuple(findings))


def lay_over(document: Mapping[str, Any], arguments: Arguments, own: Mapping[KeyPath, Own]) -> dict[str, Any]:
    """Return *document* with the user's values on top, keys of our own left as they are."""
    result: dict[str, Any] = _copy(document)
    for path, value in arguments.leaves.items():
        if _owner(path, own) is None:
            _set(result, path, value)
    return result


def contradictions(arguments: Arguments, own: Mapping[KeyPath, Own]) -> Iterator[Finding]:
    """Yield the user's values that say something else than the key of ``specdeploy.yaml`` that they follow from."""
    for path, value in arguments.leaves.items():
        owner = _owner(path, own)
        if owner is None or (owner == path and value in own[owner].accepted):
            continue
        key, accepted = own[owner].key, own[owner].accepted
        stands = f"is {accepted[0]!r}" if accepted else "is not set"
        message = f"{_dotted(path)}={value!r} contradicts specdeploy.yaml, by which {_dotted(owner)} {stands}"
        yield error("own-key", message, f"Set {key} instead." if key else "Leave it out.")


def error(code: str, message: str, hint: str = "") -> Finding:
    """Return an error at the user's arguments."""
    return Finding(severity="error", code=f"llmapi.{code}", message=message, hint=hint, where=WHERE)


def _read(text: str) -> tuple[KeyPath, Any, str]:
    """Return key path, value and, when it cannot be read, what is wrong."""
    key, separator, raw = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not separator or not all(path):
        return path, None, "expected key.path=value"
    try:
        value = yaml.safe_load(raw)
        # Dates and infinities are YAML, and nothing that the LLM API takes.
        json.dumps(value, allow_nan=False, sort_keys=True)
    except yaml.YAMLError:
        return path, None, f"the value {raw!r} is not YAML"
    except (TypeError, ValueError):
        return path, None, f"the value {raw!r} is neither text, number, boolean, list nor mapping of these"
    return path, value, ""


def _leaves(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, dict) and value and all(isinstance(key, str) for key in value):
        for key, inner in value.items():
            yield from _leaves((*path, key), inner)
    else:
        yield path, value


def _overlaps(leaves: Mapping[KeyPath, Any]) -> Iterator[Finding]:
    for path in leaves:
        for short in range(1, len(path)):
            if path[:short] in leaves:
                above = _dotted(path[:short])
                yield error("argument", f"{_dotted(path)} is below {above}, which is given a value, too")


def _owner(path: KeyPath, own: Mapping[KeyPath, Own]) -> KeyPath | None:
    """Return the key of ours that *path* is, is below of, or would replace as a whole."""
    return next((key for key in own if key[: len(path)] == path or path[: len(key)] == key), None)


def _copy(value: Any) -> Any:  # noqa: ANN401  # plain data
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _set(document: dict[str, Any], path: KeyPath, value: Any) -> None:  # noqa: ANN401  # plain data
    for key in path[:-1]:
        inner = document.get(key)
        if not isinstance(inner, dict):
            inner = document[key] = {}
        document = inner
    document[path[-1]] = value


def _dotted(path: KeyPath) -> str:
    return ".".join(path)
