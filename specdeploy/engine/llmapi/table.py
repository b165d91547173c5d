"""The keys of the LLM API's configuration with their types, as a packed table; release differences applied.

The table is TensorRT-LLM's own JSON Schema of one release, reduced to facts. Knows nothing of values.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.engine.llmapi.releases import LlmApiRelease

ROOT: Final = "TorchLlmArgs"
SPECULATION: Final = "speculative_config"
TRITON: Final = "triton_config"
# Keys that name the class to read a mapping with; the schema describes what is left when they are taken away.
_DISCRIMINATORS: Final = {SPECULATION: "decoding_type", "sparse_attention_config": "algorithm"}
_CLASSES: Final = {
    "draft_target": "DraftTargetDecodingConfig",
    "eagle3": "Eagle3DecodingConfig",
    "mtp": "MTPDecodingConfig",
    "ngram": "NGramDecodingConfig",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What a value may be.

    Args:
        kinds: JSON's names of its types; empty when anything will do.
        choices: The only accepted values, for each kind that has any here.
        objects: Names of the objects that a mapping may be.
        items: What each item of a list is.
        values: What each value of a free-form mapping is.
        above: A number must be greater.
    """

    kinds: frozenset[str] = frozenset()
    choices: tuple[Any, ...] = ()
    objects: tuple[str, ...] = ()
    items: Shape | None = None
    values: Shape | None = None
    above: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectShape:
    """A mapping with known keys.

    Args:
        keys: Key to what its value may be.
        required: Keys that must be there.
        is_open: Whether other keys are accepted.
    """

    keys: Mapping[str, Shape]
    required: tuple[str, ...] = ()
    is_open: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Every object of the configuration by name; the document itself is ``ROOT``."""

    objects: Mapping[str, ObjectShape]

    def paths_of(self, name: str) -> Iterator[str]:
        """Yield where a key stands: at the top, or one level down."""
        for key, shape in self.objects[ROOT].keys.items():
            if key == name:
                yield key
            yield from (f"{key}.{name}" for known in shape.objects if name in self.objects[known].keys)


def release_table(release: LlmApiRelease, method: str) -> Table:
    """Return what a release's ``model.yaml`` may say when it speculates by *method*.

    Args:
        release: The row; its own names for renamed keys are taken, the others are not.
        method: A method that the release has.
    """
    objects = dict(_packed())
    root = dict(objects[ROOT].keys)
    # One class, as the decoding type of the method says, where the schema has a union of all of them.
    root[SPECULATION] = Shape(kinds=frozenset({"object"}), objects=(_CLASSES[method],))
    # Triton's model takes this key out before the LLM API reads the rest.
    root[TRITON] = Shape(kinds=frozenset({"object"}), objects=(TRITON,))
    objects[TRITON] = ObjectShape(keys=_TRITON_KEYS)
    objects[ROOT] = dataclasses.replace(objects[ROOT], keys=root)
    for name in _CLASSES.values():
        objects[name] = dataclasses.replace(objects[name], keys=_renamed(objects[name].keys, release))
    return Table(objects=_with_discriminators(objects))


_TRITON_KEYS: Final = {
    "max_batch_size": Shape(kinds=frozenset({"integer"}), choices=(0,)),
    "decoupled": Shape(kinds=frozenset({"boolean"})),
    "cancellation_check_period_ms": Shape(kinds=frozenset({"integer"}), above=0),
}


def _renamed(keys: Mapping[str, Shape], release: LlmApiRelease) -> dict[str, Shape]:
    renamed = dict(keys)
    draft = renamed.pop("speculative_model")
    return renamed | dict.fromkeys((release.draft_key, *release.draft_aliases), draft)


def _with_discriminators(objects: Mapping[str, ObjectShape]) -> dict[str, ObjectShape]:
    known = dict(objects)
    text = Shape(kinds=frozenset({"string"}))
    for key, discriminator in _DISCRIMINATORS.items():
        for name in known[ROOT].keys[key].objects:
            known[name] = dataclasses.replace(known[name], keys={discriminator: text, **known[name].keys})
    return known


@functools.cache
def _packed() -> Mapping[str, ObjectShape]:
    folder = importlib.resources.files("specdeploy.engine.llmapi")
    document: dict[str, Any] = json.loads(folder.joinpath("arguments.json").read_text(encoding="utf-8"))
    return {
        name: ObjectShape(
            keys={key: _shape(shape) for key, shape in entry["keys"].items()},
            required=tuple(entry.get("required", ())),
            is_open=entry.get("open", False),
        )
        for name, entry in document["objects"].items()
    }


def _shape(packed: Mapping[str, Any]) -> Shape:
    return Shape(
        kinds=frozenset(packed.get("kinds", ())),
        choices=tuple(packed.get("choices", ())),
        objects=tuple(packed.get("objects", ())),
        items=_shape(packed["items"]) if "items" in packed else None,
        values=_shape(packed["values"]) if "values" in packed else None,
        above=packed.get("above"),
    )
