"""The packed table of the LLM API's keys: the original schema's facts, all of them, and the releases' renames."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from specdeploy.engine.llmapi.releases import RELEASES, SCHEMA_RELEASE
from specdeploy.engine.llmapi.table import ROOT, SPECULATION, release_table

SCHEMAS = Path(__file__).parents[3] / "data" / "llmapi_schemas"


def schema(name: str) -> dict[str, Any]:
    """Return TensorRT-LLM's own schema of a class."""
    return json.loads((SCHEMAS / f"trtllm_{name}_jsonschema_1.3.0rc3.json").read_text(encoding="utf-8"))


def pack() -> dict[str, Any]:
    """Return what `arguments.json` has to say: the schema's objects, its named choices put where they are used."""
    whole = schema(ROOT)
    definitions = whole.pop("$defs") | {"Eagle3DecodingConfig": schema("Eagle3DecodingConfig")}
    objects = {ROOT: whole} | {name: value for name, value in definitions.items() if value["type"] == "object"}
    return {name: _pack_object(value, definitions) for name, value in sorted(objects.items())}


def _pack_object(value: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    packed: dict[str, Any] = {} if value.get("additionalProperties") is False else {"open": True}
    if "required" in value:
        packed["required"] = value["required"]
    packed["keys"] = {key: _pack_property(inner, definitions) for key, inner in value["properties"].items()}
    return packed


def _pack_property(value: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    default = {"default": value["default"]} if "default" in value else {}
    return _pack_shape(value, definitions) | default


def _pack_shape(value: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    alternatives = value.get("anyOf", [value])
    packed: dict[str, Any] = {"kinds": [], "choices": [], "objects": []}
    free: set[str] = set()
    for alternative in alternatives:
        name = alternative.get("$ref", "").rpartition("/")[2]
        meant = definitions[name] if name else alternative
        # A few original properties carry a Python annotation as their type.
        kind = meant.get("type") if "enum" not in meant else {int: "integer", str: "string"}[type(meant["enum"][0])]
        if kind not in {"null", "boolean", "integer", "number", "string", "array", "object"}:
            return {}
        packed["kinds"] += [kind] if kind not in packed["kinds"] else []
        packed["choices"] += meant.get("enum", [])
        packed["objects"] += [name] if name and kind == "object" else []
        if "enum" not in meant:
            free.add(kind)
        if meant.get("items"):
            packed["items"] = _pack_shape(meant["items"], definitions)
        if isinstance(meant.get("additionalProperties"), dict):
            packed["values"] = _pack_shape(meant["additionalProperties"], definitions)
        if "exclusiveMinimum" in meant:
            packed["above"] = meant["exclusiveMinimum"]
    kinds = {int: "integer", str: "string"}
    packed["choices"] = [choice for choice in packed["choices"] if kinds[type(choice)] not in free]
    return {key: inner for key, inner in packed.items() if inner not in ([], None)}


def test_the_table_is_the_schemas():
    """Every object, key, type, choice, default and requirement of the release that was read, and nothing else."""
    text = files("specdeploy.engine.llmapi").joinpath("arguments.json").read_text(encoding="utf-8")
    document = json.loads(text)

    assert document["release"] == SCHEMA_RELEASE
    assert document["objects"] == pack()


def _draft_keys(release):
    table = release_table(RELEASES[release], "draft_target")
    (name,) = table.objects[ROOT].keys[SPECULATION].objects
    return {key for key in table.objects[name].keys if key.startswith("speculative_model")}


def test_a_releases_table_has_its_own_names():
    """The draft's folder was renamed; the old name stayed as an alias."""
    assert _draft_keys("1.0") == _draft_keys("1.2") == {"speculative_model_dir"}
    assert _draft_keys("1.3.0rc3") == _draft_keys("1.4") == {"speculative_model", "speculative_model_dir"}
