"""The commented template and the loader are inverse to each other."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.config.leaves import assemble, flatten, schema
from specdeploy.config.load import load_config
from specdeploy.config.template import as_yaml, render, render_template

LEAVES = tuple(schema().leaves())


def _scalars(leaf):
    """Return the strategy of values that the key accepts."""
    if leaf.choices:
        return st.sampled_from(leaf.choices)
    if leaf.kind == "text":
        return st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)
    if leaf.kind == "boolean":
        return st.booleans()
    low = 0 if leaf.minimum is None else leaf.minimum
    if leaf.kind == "integer":
        return st.integers(int(low), 10**12 if leaf.maximum is None else int(leaf.maximum))
    return st.floats(low, leaf.maximum, allow_nan=False, allow_infinity=False)


def _values(leaf):
    return st.lists(_scalars(leaf), max_size=3).map(tuple) if leaf.is_list else _scalars(leaf)


# What the rules of ``config.rules`` allow together on the profile cpu; each rule has its own tests.
RULED = {
    "name": st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9 .+_-]{0,40}\Z"),
    "profile": st.just("cpu"),
    "speculation.method": st.just("draft_target"),
    "speculation.max_draft_tokens": st.just(0),
    "speculation.draft_len_schedule": st.sampled_from(((), ("1: 1", "4: 0"))),
    "build.runner": st.sampled_from(("local", "slurm")),
    **{f"{role}.precision": st.sampled_from(("auto", "fp32", "int8", "int4")) for role in ("target", "draft")},
    **{f"{role}.kv_cache": st.just("auto") for role in ("target", "draft")},
    **{f"{role}.{key}": st.just(1) for role in ("target", "draft") for key in ("tp_size", "pp_size", "ep_size")},
}
NEEDED = {leaf.path for leaf in LEAVES if leaf.default is None} | {"draft.checkpoint"}
REQUIRED = {leaf.path: RULED.get(leaf.path, _values(leaf)) for leaf in LEAVES if leaf.path in NEEDED}
OPTIONAL = {leaf.path: RULED.get(leaf.path, _values(leaf)) for leaf in LEAVES if leaf.path not in NEEDED}
CONFIGURATIONS = st.fixed_dictionaries(REQUIRED, optional=OPTIONAL)


@given(values=CONFIGURATIONS)
def test_every_configuration_survives_writing_and_loading(tmp_path_factory, values):
    """Given keys come back exactly, with their type, and from the file; the others have their defaults."""
    path = tmp_path_factory.mktemp("t") / "specdeploy.yaml"
    path.write_text(render(values), encoding="utf-8", newline="")

    loaded = load_config(path, {}, {})

    expected = {leaf.path: values.get(leaf.path, leaf.default) for leaf in LEAVES}
    assert flatten(loaded.config) == expected
    assert {key for key, origin in loaded.origin.items() if origin != "default"} == set(values)


@given(value=st.one_of(*(_values(leaf) for leaf in LEAVES)))
def test_a_value_on_one_line_is_yaml_that_every_parser_reads_alike(value):
    """Quoted wherever YAML would make something else of it."""
    text = as_yaml(value)
    read = yaml.safe_load(text)

    assert "\n" not in text
    assert (tuple(read) if isinstance(value, tuple) else read) == value


def test_init_writes_a_valid_configuration(tmp_path):
    """What `specdeploy init` writes loads as it is, with the draft at int8."""
    path = tmp_path / "specdeploy.yaml"
    path.write_text(render_template(name="my deployment", target="big", draft="../small"), encoding="utf-8")

    config = load_config(path, {}, {}).config

    assert (config.name, config.target.checkpoint, config.draft.checkpoint) == ("my deployment", "big", "../small")
    assert (config.target.precision, config.draft.precision) == ("auto", "int8")


@pytest.mark.parametrize("profile", ["tensorrt_llm", "llmapi"])
def test_init_writes_for_every_profile(tmp_path, profile):
    """With nothing in it that the profile refuses."""
    path = tmp_path / "specdeploy.yaml"
    path.write_text(render_template(name="x", target="a", draft="b", profile=profile), encoding="utf-8")

    config = load_config(path, {}, {}).config

    assert (config.profile, config.draft.precision) == (profile, "auto")


def test_every_key_is_in_the_template_with_its_comment():
    """A newcomer sees all there is without opening a manual."""
    text = render_template(name="x", target="a", draft="b")

    for leaf in LEAVES:
        assert f"# {leaf.describe}" in text
    for line in text.splitlines():
        assert len(line) <= 120


def test_uncommenting_every_default_changes_nothing(tmp_path):
    """The lines that show defaults are what they claim to be."""
    path = tmp_path / "specdeploy.yaml"
    text = render_template(name="x", target="a", draft="b")
    path.write_text(re.sub(r"^( *)#(?=[a-z]|  - )", r"\1", text, flags=re.MULTILINE), encoding="utf-8")

    loaded = load_config(path, {}, {})

    assert "default" not in loaded.origin.values()
    defaults = {leaf.path: leaf.default for leaf in LEAVES if leaf.default is not None}
    assert flatten(loaded.config) == flatten(loaded.config) | defaults | {
        "draft.checkpoint": "b",
        "draft.precision": "int8",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain/path", "plain/path"),
        ("no", '"no"'),
        ("1.2", '"1.2"'),
        ("a: b", '"a: b"'),
        (True, "true"),
        (1.0, "1.0"),
        (1e-05, "1.0e-05"),
    ],
)
def test_text_is_quoted_only_where_it_must_be(value, text):
    """So that the file stays pleasant to read."""
    assert as_yaml(value) == text


@given(values=CONFIGURATIONS)
def test_flatten_and_assemble_are_inverse(values):
    """No key of the schema is lost in the flat table."""
    flat = {leaf.path: values.get(leaf.path, leaf.default) for leaf in LEAVES}

    assert flatten(assemble(flat)) == flat
