"""Keys and manifests."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.engine import profile
from specdeploy.engine.profile import EngineFile, EngineManifest, content_key, engine_key
from specdeploy.errors import ConfigError
from tests.unit.engine.fakes import manifest, step

FILES = st.lists(
    st.builds(EngineFile, path=st.text(min_size=1), size=st.integers(0, 2**50), sha256=st.text()), max_size=3
)


@given(
    files=FILES.map(tuple),
    argv=st.lists(st.lists(st.text(), max_size=3).map(tuple), max_size=3).map(tuple),
    ids=st.lists(st.integers(0, 2**31), max_size=3).map(tuple),
    tools=st.dictionaries(st.text(), st.text(), max_size=3),
    duration=st.floats(0, 1e6),
)
def test_a_manifest_survives_json(files, argv, ids, tools, duration):
    """What is written beside an engine is what is read back, types included."""
    original = manifest(files=files, argv=argv, eos_token_ids=ids, tool_versions=tools, duration_s=duration)

    assert EngineManifest.from_dict(json.loads(json.dumps(original.to_dict()))) == original


def test_the_schema_version_comes_first():
    """A reader of any version finds it."""
    assert next(iter(manifest().to_dict().items())) == ("schema_version", 2)


SCHEMA = json.loads((Path(profile.__file__).parent / "manifest.schema.json").read_text())


def test_the_published_schema_describes_every_field():
    """Who reads manifests elsewhere need not read our code."""
    fields = {field.name for field in dataclasses.fields(EngineManifest)}

    assert set(SCHEMA["properties"]) == set(SCHEMA["required"]) == fields
    assert SCHEMA["properties"]["schema_version"]["const"] == profile.SCHEMA_VERSION


def test_a_manifest_is_valid_by_the_schema():
    """And one with a wrong field is not."""
    digest = "a" * 64
    good = manifest(files=(EngineFile(path="x", size=1, sha256=digest),), steps={"convert": 1.5}).to_dict()

    jsonschema.validate(good, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good | {"duration_s": "long"}, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good | {"colour": "red"}, SCHEMA)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": 1}, "schema version 2: 1"),
        ({"files": [{"path": "x"}]}, "damaged"),
        ({"files": 3}, "damaged"),
        ({"vocab_size": "many"}, "damaged"),
        ({"tool_versions": []}, "damaged"),
        ({"key": None}, "damaged"),
    ],
)
def test_a_damaged_manifest_is_refused(change, said):
    """Never half-read."""
    with pytest.raises(ConfigError, match=said):
        EngineManifest.from_dict(manifest().to_dict() | change)


@pytest.mark.parametrize("data", [None, [], "text", {}])
def test_what_is_no_manifest_is_refused(data):
    """Any JSON may stand in the file."""
    with pytest.raises(ConfigError, match="not an engine manifest"):
        EngineManifest.from_dict(data)


def test_a_missing_field_is_refused():
    """A truncated rewrite of the file."""
    data = manifest().to_dict()
    del data["head_dim"]

    with pytest.raises(ConfigError, match="head_dim"):
        EngineManifest.from_dict(data)


@given(parts=st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.lists(st.text())), max_size=4))
def test_a_key_does_not_depend_on_the_order_of_its_parts(parts):
    """Equal parts, equal key: 64 hexadecimal digits."""
    key = content_key(**parts)

    assert key == content_key(**dict(reversed(parts.items())))
    assert len(key) == 64
    assert set(key) <= set("0123456789abcdef")


def test_parts_do_not_run_into_each_other():
    """("ab", "c") is not ("a", "bc")."""
    assert content_key(a="ab", b="c") != content_key(a="a", b="bc")
    assert content_key(a="1") != content_key(a=1)


def test_the_key_of_a_chain_covers_every_step_in_order():
    """A conversion and a build in one engine."""
    first, second = step("1" * 64), step("2" * 64)

    assert engine_key((first,)) == first.key
    assert engine_key((first, second)) != engine_key((second, first))
    assert engine_key((first, second)) not in {first.key, second.key}
