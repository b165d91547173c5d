"""The model templates of a Triton image: what their placeholders, tensors and parameters are, against our table.

Reads NVIDIA's ``inflight_batcher_llm`` files as values (path -> bytes), filled in or not. An image's templates need not
be those of the release's tag, so the image in use is worth a look before anybody fills it in. Does not know where an
image keeps the files, nor what a parameter does.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
import re
from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specdeploy.errors import RepositoryError
from specdeploy.findings import Finding
from specdeploy.triton.pbtxt import PbtxtError, Tensor, parse
from specdeploy.triton.repository.names import CONFIG, TARGET
from specdeploy.triton.tensors import known_releases, release_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Where a placeholder stands: in a string, where protobuf wants a number, a truth value or the name of a type, or in a
#: comment, where it does nothing.
Position: TypeAlias = Literal["string", "number", "flag", "type", "comment"]
Part: TypeAlias = Literal["model", "input", "output", "parameter", "placeholder"]
Kind: TypeAlias = Literal["added", "removed", "renamed", "changed"]

SCHEMA_VERSION: Final = "1.0"
#: The folder of the templates that have engines, inside of an image's ``all_models``.
FAMILY: Final = "inflight_batcher_llm"
_PLACEHOLDER: Final = re.compile(r"\$\{(\w+)\}")
_FIELD: Final = re.compile(r"(\w+)\s*:?\s*\[?\s*$")
_FLAGS: Final = frozenset({"decoupled", "optional", "allow_ragged_batch", "is_shape_tensor"})
_WEIGHT: Final[tuple[Position, ...]] = ("number", "flag", "type", "string", "comment")
# Types that no template uses: a placeholder in the place of a type is read as one of them, and known again by it.
_MARKS: Final = ("TYPE_BF16", "TYPE_UINT16", "TYPE_UINT32", "TYPE_INT8", "TYPE_INT16", "TYPE_FP64")
# Placeholder of a type -> the tensors that have it.
_TYPED: Final = {
    "encoder_input_features_data_type": ("encoder_input_features",),
    "logits_datatype": ("draft_logits", "context_logits", "generation_logits"),
    "prompt_embedding_table_data_type": ("prompt_embedding_table",),
}
_ANY: Final = "${any}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Template:
    """One model's template.

    Args:
        inputs: Inputs, each once; a type that is left open is its placeholder, such as ``${logits_datatype}``.
        outputs: Outputs, likewise.
        parameters: String parameters as they are written.
        placeholders: Placeholder -> where it stands; of several places the one that a server minds most.
        repeated: Tensors that are declared more than once.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: Mapping[str, str]
    placeholders: Mapping[str, Position]
    repeated: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that the image has otherwise than our table.

    Args:
        model: The template.
        part: What differs.
        kind: ``added`` is in the image only, ``removed`` in our table only; ``renamed`` is a guess.
        name: Its name in our table, or in the image when our table has none.
        ours: What our table says; empty for ``added``.
        image: What the image says; empty for ``removed``.
    """

    model: str
    part: Part
    kind: Kind
    name: str
    ours: str = ""
    image: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """An image's templates against one row of our table.

    Args:
        row: The row.
        derived: Whether the row stands for the release without having been read in it.
        templates: What was read, by model.
        differences: How it differs, in the order of the models.
        others: Further folders with models, which our table does not describe.
    """

    row: str
    derived: bool
    templates: Mapping[str, Template]
    differences: tuple[Difference, ...]
    others: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "templates",
            "row": self.row,
            "derived": self.derived,
            "equal": not self.differences,
            "templates": {name: _plain(template) for name, template in self.templates.items()},
            "differences": [dataclasses.asdict(difference) for difference in self.differences],
            "others": list(self.others),
        }


def compare_templates(files: Mapping[str, bytes], release: str | None = None) -> Comparison:
    """Return how templates differ from our table.

    Args:
        files: Path -> bytes below ``all_models`` or below ``inflight_batcher_llm``; only ``config.pbtxt`` is read.
        release: The release whose row it is compared with; None takes the row that differs least.

    Raises:
        RepositoryError: There are no such templates, or one of them is not protobuf text.
        ConfigError: The table has no row for *release*.
    """
    models, others = _family(files)
    templates = _read(models)
    _require_family(templates)
    if release is None:
        rows = [(row, False) for row in reversed(known_releases())]
    else:
        found = release_tensors(release)
        rows = [(found.release, found.derived)]
    compared = [(row, derived, tuple(_differences(templates, row))) for row, derived in rows]
    row, derived, differences = min(compared, key=lambda one: len(one[2]))
    return Comparison(row=row, derived=derived, templates=templates, differences=differences, others=others)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settled:
    """A template's text that protobuf can read, and what its placeholders were.

    Args:
        text: With a value in the place of each placeholder that is not in a string or a comment.
        placeholders: Placeholder -> where it stands; of several places the one that a server minds most.
        open_types: Type that stands for a placeholder -> that placeholder as it is written.
    """

    text: str
    placeholders: Mapping[str, Position]
    open_types: Mapping[str, str]


def settle(text: str) -> Settled:
    """Put values of the right kind in the place of the placeholders that protobuf would stumble over."""
    placeholders: dict[str, Position] = {}
    marks: dict[str, str] = {}

    def value(match: re.Match[str]) -> str:
        position = _position(text, match)
        name = match[1]
        placeholders[name] = min(placeholders.get(name, position), position, key=_WEIGHT.index)
        if position in {"string", "comment"}:
            return match[0]
        if position == "type":
            return marks.setdefault(name, _MARKS[len(marks) % len(_MARKS)])
        return "false" if position == "flag" else "1"

    settled = _PLACEHOLDER.sub(value, text)
    return Settled(
        text=settled,
        placeholders=dict(sorted(placeholders.items())),
        open_types={mark: f"${{{name}}}" for name, mark in marks.items()},
    )


def read_template(text: str) -> Template:
    """Read one template, filled in or not.

    Raises:
        PbtxtError: The text is no model configuration, whatever its placeholders stand for.
    """
    settled = settle(text)
    config = parse(settled.text)
    names = Counter(("input", tensor.name) for tensor in config.inputs)
    names += Counter(("output", tensor.name) for tensor in config.outputs)
    return Template(
        inputs=_once(config.inputs, settled.open_types),
        outputs=_once(config.outputs, settled.open_types),
        parameters=config.parameters,
        placeholders=settled.placeholders,
        repeated=tuple(name for (_, name), count in names.items() if count > 1),
    )


def notation(tensor: Tensor) -> str:
    """Return a tensor as our table writes it, without its name: ``INT32[-1] optional ragged``."""
    parts = [f"{tensor.data_type.removeprefix('TYPE_')}[{','.join(map(str, tensor.dims))}]"]
    if tensor.optional:
        parts.append("optional")
    if tensor.reshape is not None:
        parts.append("scalar" if tensor.reshape == () else f"reshaped to {list(tensor.reshape)}")
    if tensor.allow_ragged_batch:
        parts.append("ragged")
    return " ".join(parts)


def _family(files: Mapping[str, bytes]) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the configurations of the family by model, and the other folders that hold models."""
    configs = {PurePosixPath(path).parts[:-1]: data for path, data in files.items() if path.endswith(f"/{CONFIG}")}
    nested = {parts[1]: data for parts, data in configs.items() if len(parts) == 2 and parts[0] == FAMILY}
    flat = {parts[0]: data for parts, data in configs.items() if len(parts) == 1}
    models = nested or flat
    others = sorted({parts[0] for parts in configs if len(parts) > 1 and parts[0] != FAMILY})
    if not models:
        seen = f"only {', '.join(others)}" if others else "no model"
        raise RepositoryError(
            f"there are no {FAMILY} templates: the folder has {seen}",
            hint="Name an image's /app/all_models, or the inflight_batcher_llm in it; images after 26.07 have none.",
        )
    return dict(sorted(models.items())), tuple(others)


def _require_family(templates: Mapping[str, Template]) -> None:
    """Tell the family from others that share a model's name: that of the LLM API has a `tensorrt_llm`, too."""
    known = set(_table()[known_releases()[-1]]) & set(templates)
    engine = templates.get(TARGET)
    if not known or (known == {TARGET} and engine and all(tensor.name != "input_ids" for tensor in engine.inputs)):
        raise RepositoryError(
            f"these are no {FAMILY} templates: {', '.join(templates)}",
            hint="Name an image's /app/all_models, or the inflight_batcher_llm in it.",
        )


def _read(models: Mapping[str, bytes]) -> dict[str, Template]:
    templates: dict[str, Template] = {}
    problems: list[Finding] = []
    for name, data in models.items():
        try:
            templates[name] = read_template(data.decode())
        except PbtxtError as error:
            place = f"{name}/{CONFIG}:{error.line}" if error.line else f"{name}/{CONFIG}"
            problems.append(Finding(severity="error", code="template.unreadable", message=error.message, where=place))
        except UnicodeDecodeError as error:
            message = f"byte {error.start} is not UTF-8"
            where = f"{name}/{CONFIG}"
            problems.append(Finding(severity="error", code="template.unreadable", message=message, where=where))
    if problems:
        raise RepositoryError("the templates cannot be read", findings=problems)
    return templates


def _position(text: str, match: re.Match[str]) -> Position:
    before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", before)
    if "#" in bare.partition('"')[0]:
        return "comment"
    if '"' in bare:
        return "string"
    field = _FIELD.search(bare)
    name = field[1] if field else ""
    if name == "data_type":
        return "type"
    return "flag" if name in _FLAGS else "number"


def _once(tensors: Sequence[Tensor], open_types: Mapping[str, str]) -> tuple[Tensor, ...]:
    found: dict[str, Tensor] = {}
    for tensor in tensors:
        known = open_types.get(tensor.data_type, tensor.data_type)
        found.setdefault(tensor.name, dataclasses.replace(tensor, data_type=known))
    return tuple(found.values())


def _differences(templates: Mapping[str, Template], row: str) -> Iterator[Difference]:
    tensors, written = release_tensors(row).models, _table()[row]
    for model in dict.fromkeys((*tensors, *templates)):
        if model not in templates:
            yield Difference(model=model, part="model", kind="removed", name=model, ours="a template")
        elif model not in tensors:
            yield Difference(model=model, part="model", kind="added", name=model, image="a template")
        else:
            template = templates[model]
            free = {name for key in written[model]["other_placeholders"] for name in _TYPED.get(key, ())}
            yield from _tensors(model, "input", tensors[model].inputs, _freed(template.inputs, free))
            yield from _tensors(model, "output", tensors[model].outputs, _freed(template.outputs, free))
            yield from _values(model, "parameter", written[model]["parameters"], template.parameters)
            yield from _placeholders(model, written[model], template)


def _freed(tensors: Sequence[Tensor], free: set[str]) -> list[Tensor]:
    """Return the tensors with the types open that somebody filled in."""
    return [dataclasses.replace(tensor, data_type=_ANY) if tensor.name in free else tensor for tensor in tensors]


def _tensors(model: str, part: Part, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Iterator[Difference]:
    table, image = ({tensor.name: tensor for tensor in tensors} for tensors in (ours, theirs))
    renamed = _renamed(table, image)
    for name, tensor in table.items():
        other = image.get(name)
        if name in renamed:
            old, new = f"{name} {notation(tensor)}", f"{renamed[name]} {notation(image[renamed[name]])}"
            yield Difference(model=model, part=part, kind="renamed", name=name, ours=old, image=new)
        elif other is None:
            yield Difference(model=model, part=part, kind="removed", name=name, ours=notation(tensor))
        elif not _alike(tensor, other):
            pair = notation(tensor), notation(other)
            yield Difference(model=model, part=part, kind="changed", name=name, ours=pair[0], image=pair[1])
    for name, tensor in image.items():
        if name not in table and name not in renamed.values():
            yield Difference(model=model, part=part, kind="added", name=name, image=notation(tensor))


def _renamed(table: Mapping[str, Tensor], image: Mapping[str, Tensor]) -> dict[str, str]:
    """Guess which tensor of the image is which one of ours under another name: one of its kind on both sides.

    Among several of one kind, those that share a word of their name with just one other are taken for each other.
    """
    gone = [tensor for name, tensor in table.items() if name not in image]
    new = [tensor for name, tensor in image.items() if name not in table]
    pairs: dict[str, str] = {}
    for tensor in gone:
        alike = [other for other in new if _alike(tensor, other)]
        rivals = [other for other in gone if any(_alike(other, one) for one in alike)]
        if len(alike) > 1 or len(rivals) > 1:
            alike = [other for other in alike if _words(other) & _words(tensor)]
            rivals = [other for other in rivals if any(_words(other) & _words(one) for one in alike)]
        if len(alike) == 1 and len(rivals) == 1:
            pairs[tensor.name] = alike[0].name
    return pairs


def _words(tensor: Tensor) -> set[str]:
    return set(tensor.name.split("_"))


def _alike(ours: Tensor, theirs: Tensor) -> bool:
    """Say whether two tensors are the same but for their names; a type that the image leaves open can be ours."""
    data_type = ours.data_type if theirs.data_type.startswith(_ANY[0]) else theirs.data_type
    return ours == dataclasses.replace(theirs, name=ours.name, data_type=data_type)


def _values(model: str, part: Part, ours: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[Difference]:
    for name in dict.fromkeys((*ours, *theirs)):
        old, new = ours.get(name), theirs.get(name)
        # A template that is filled in already says nothing about what stood there.
        filled = old is not None and new is not None and _PLACEHOLDER.search(old) and not _PLACEHOLDER.search(new)
        if old == new or filled:
            continue
        kind: Kind = "added" if old is None else "removed" if new is None else "changed"
        yield Difference(model=model, part=part, kind=kind, name=name, ours=old or "", image=new or "")


def _placeholders(model: str, written: Mapping[str, Any], template: Template) -> Iterator[Difference]:
    """Yield the placeholders outside of parameters; those in parameters are the parameters' values."""
    inside = {name for value in template.parameters.values() for name in _PLACEHOLDER.findall(value)}
    theirs = set(template.placeholders) - inside
    ours = set(written["other_placeholders"])
    for name in sorted(theirs - ours):
        position = template.placeholders[name]
        yield Difference(model=model, part="placeholder", kind="added", name=name, image=position)
    filled = not any(template.placeholders[name] != "comment" for name in theirs)
    for name in sorted(ours - theirs) if not filled else ():
        yield Difference(model=model, part="placeholder", kind="removed", name=name, ours="open")


def _plain(template: Template) -> dict[str, Any]:
    return {
        "inputs": {tensor.name: notation(tensor) for tensor in template.inputs},
        "outputs": {tensor.name: notation(tensor) for tensor in template.outputs},
        "parameters": dict(template.parameters),
        "placeholders": dict(template.placeholders),
        "repeated": list(template.repeated),
    }


@functools.cache
def _table() -> dict[str, Any]:
    place = importlib.resources.files("specdeploy.triton.repository").joinpath("templates.json")
    document: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    rows: dict[str, Any] = document["releases"]
    return rows
