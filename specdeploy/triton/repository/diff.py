"""How two model repositories differ, by model and field: what a server or a client would notice, not what a text has.

Works on trees (path -> bytes). The order of tensors, parameters and steps does not count, nor does a default that is
written down; tensors are told apart by name, steps by the model they call, other files by their content's hash.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal

import yaml

from specdeploy.errors import RepositoryError
from specdeploy.findings import Finding
from specdeploy.triton.pbtxt import PbtxtError, parse_message
from specdeploy.triton.repository.names import CONFIG, MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.triton.repository import RepoTree

SCHEMA_VERSION: Final = "1.0"
#: Stands for the repository itself, where a change belongs to no model.
REPOSITORY: Final = "(repository)"
# Lists of messages that are told apart by this field of theirs.
_NAMED: Final = {
    "input": "name",
    "output": "name",
    "step": "model_name",
    "model_warmup": "name",
    "batch_input": "kind",
    "batch_output": "kind",
    "instance_group": "name",
    "resources": "name",
}
# Files that only keep a folder alive.
_EMPTY: Final = frozenset({".keep", ".gitkeep", ".tmp"})
# What is shown as one when only one side has it: a tensor, or a document that is compared key by key.
_WHOLE: Final = re.compile(r"((?:input|output)\[[^\]]*\]|[\w/.]+\.(?:json|yaml)(?=: ))(?:\.(.*)|: .*)?$")
# Lists every other file and its hash, so it would repeat every change.
_REPEATS: Final = "files"
# How long a build took: the same engine, built again, is another second and no other engine.
_OF_A_BUILD: Final = ".build_s"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """One field that differs.

    Args:
        model: The model, or ``(repository)``.
        field: Such as ``input[QUERY].dims``, ``parameters[gpt_model_path]`` or ``file 1/model.py``; ``model`` for a
            model that only one side has.
        before: Its value in the first repository; None where it has none.
        after: Its value in the second one.
    """

    model: str
    field: str
    before: str | None
    after: str | None

    @property
    def kind(self) -> Literal["added", "removed", "changed"]:
        """What happened on the way from the first to the second."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return {**dataclasses.asdict(self), "kind": self.kind}


def diff_repositories(before: RepoTree, after: RepoTree, *, names: tuple[str, str] = ("A", "B")) -> tuple[Change, ...]:
    """Return every difference, by model and then in the order of the fields; none when both mean the same.

    Args:
        before: The first tree.
        after: The second one.
        names: What to call the two in errors.

    Raises:
        RepositoryError: A config.pbtxt is not protobuf text; ``findings`` has every one with its line.
    """
    problems: list[Finding] = []
    sides = [_repository(tree, name, problems) for tree, name in zip((before, after), names, strict=True)]
    if problems:
        raise RepositoryError("the repositories cannot be compared", findings=problems)
    return tuple(_changes(*sides))


def changes_document(changes: tuple[Change, ...], *, names: tuple[str, str]) -> dict[str, Any]:
    """Return what ``repo diff --json`` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "repository-diff",
        "a": names[0],
        "b": names[1],
        "same": not changes,
        "changes": [change.as_dict() for change in changes],
    }


def _changes(before: Mapping[str, dict[str, str]], after: Mapping[str, dict[str, str]]) -> Iterator[Change]:
    for model in dict.fromkeys((*before, *after)):
        if model not in after:
            yield Change(model=model, field="model", before="present", after=None)
        elif model not in before:
            yield Change(model=model, field="model", before=None, after="present")
        else:
            old, new = _folded(before[model], after[model]), _folded(after[model], before[model])
            for field in dict.fromkeys((*old, *new)):
                if old.get(field) != new.get(field):
                    yield Change(model=model, field=field, before=old.get(field), after=new.get(field))


def _folded(mine: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Return one side's fields with each tensor or document that the other side lacks as one field."""
    known = {match[1] for field in theirs if (match := _WHOLE.match(field))}
    found: dict[str, str] = {}
    for field, value in mine.items():
        match = _WHOLE.match(field)
        if match is None or match[1] in known:
            found[field] = value
        elif field.startswith(match[1] + ":"):
            found[f"file {match[1]}"] = "present"
        else:
            part = f"{match[2]} {value}" if match[2] else value
            found[match[1]] = f"{found[match[1]]}, {part}" if match[1] in found else part
    return found


def _repository(tree: RepoTree, name: str, problems: list[Finding]) -> dict[str, dict[str, str]]:
    """Return model -> field -> value, the repository itself first."""
    models: dict[str, dict[str, str]] = {REPOSITORY: {}}
    for path in sorted(tree):
        parts = PurePosixPath(path).parts
        model = parts[0] if len(parts) > 1 else REPOSITORY
        inner = "/".join(parts[1:]) or path
        if parts[-1] in _EMPTY and not tree[path]:
            continue
        found = models.setdefault(model, {})
        try:
            found |= _file(inner, tree[path], in_model=len(parts) > 1)
        except PbtxtError as error:
            place = f"{name}/{path}" if error.line is None else f"{name}/{path}:{error.line}:{error.column}"
            hint = "An unfilled ${placeholder} is no value." if b"${" in tree[path] else error.hint
            problems.append(
                Finding(severity="error", code="diff.unreadable", message=error.message, hint=hint, where=place)
            )
    return models


def _file(path: str, data: bytes, *, in_model: bool) -> dict[str, str]:
    if path == CONFIG and in_model:
        return flat_config(data)
    if path == MANIFEST and not in_model:
        return _document(path, data, json.loads)
    if path.endswith("/model.yaml"):
        return _document(path, data, yaml.safe_load)
    return {f"file {path}": f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}"}


def _document(path: str, data: bytes, read: Any) -> dict[str, str]:  # noqa: ANN401 - json.loads, or YAML's
    """Return a document's keys; one that cannot be read is compared as a whole."""
    try:
        document = read(data.decode())
    except (ValueError, yaml.YAMLError):
        document = None
    if not isinstance(document, dict):
        return {f"file {path}": hashlib.sha256(data).hexdigest()}
    shown = {key: value for key, value in document.items() if key != _REPEATS}
    flat = {field: value for field, value in _flat(shown, "").items() if not field.endswith(_OF_A_BUILD)}
    return {f"{path}: {field}": value for field, value in flat.items()}


def flat_config(data: bytes) -> dict[str, str]:
    """Return what a config.pbtxt says, as field -> text; fields at protobuf's defaults are left out.

    Raises:
        PbtxtError: It is not the protobuf text of a model configuration.
    """
    # Imported here: protobuf is heavy, and only those who parse need it.
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - see above

    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PbtxtError(f"byte {error.start} is not UTF-8") from error
    message = MessageToDict(parse_message(text), preserving_proto_field_name=True)
    # Other empty messages say something by being there, as `dynamic_batching { }` does; this one does not.
    if not message.get("model_transaction_policy"):
        message.pop("model_transaction_policy", None)
    return _flat(message, "")


def _flat(value: Any, path: str) -> dict[str, str]:  # noqa: ANN401 - plain data
    """Return dotted path -> text of every value below *value*."""
    if isinstance(value, dict) and value:
        return _mapping(value, path)
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return _messages(value, path)
    if isinstance(value, list):
        return {path: f"[{', '.join(map(str, value))}]"}
    return {path: value if isinstance(value, str) else json.dumps(value)}


def _mapping(value: Mapping[str, Any], path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    field = path.rpartition(".")[2]
    is_map = field in _MAPS
    # Protobuf gives a message's fields in their order, and a map's keys in any.
    for key, item in sorted(value.items()) if is_map else value.items():
        # A map's keys are the user's words; a message's are fields.
        inner = f"{path}[{key}]" if is_map else f"{path}.{key}" if path else key
        if field == "parameters" and isinstance(item, dict) and set(item) <= {"string_value"}:
            found[inner] = item.get("string_value", "")
        else:
            found |= _flat(item, inner)
    return found


_MAPS: Final = frozenset({"parameters", "input_map", "output_map", "cc_model_filenames", "metric_tags", "inputs"})


def _messages(items: list[Any], path: str) -> dict[str, str]:
    key = _NAMED.get(path.rpartition(".")[2], "")
    seen: Counter[str] = Counter()
    found: dict[str, str] = {}
    for index, item in enumerate(items):
        name = str(item.get(key, "")) if key else ""
        name = name or str(index)
        seen[name] += 1
        label = name if seen[name] == 1 else f"{name}#{seen[name]}"
        rest = {field: value for field, value in item.items() if field != key}
        found |= _flat(rest, f"{path}[{label}]") if rest else {f"{path}[{label}]": "{}"}
    return found
