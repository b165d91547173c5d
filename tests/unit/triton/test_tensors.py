"""The tensor table: which release is which row, and what the rows hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdeploy.errors import ConfigError
from specdeploy.triton.pbtxt import Tensor
from specdeploy.triton.tensors import known_releases, release_parameters, release_tensors

FACTS = Path(__file__).parents[2] / "data" / "triton_templates.json"


@pytest.mark.parametrize(
    ("release", "row"),
    [
        ("0.16.0", "0.16.0"),
        ("0.17.0", "0.17.0"),
        ("0.18.1", "0.18.2"),
        ("0.19", "0.19.0"),
        ("1.0.0", "1.x"),
        ("1.2.1", "1.x"),
    ],
)
def test_a_release_finds_its_row(release: str, row: str) -> None:
    """Patch releases share the row of their minor release, and all of 1.x is one row."""
    assert release_tensors(release).release == row


@pytest.mark.parametrize("release", ["0.15.0", "0.22.0", "2.0.0", "10.1", "latest", ""])
def test_an_unknown_release_is_an_error_that_names_the_known_ones(release: str) -> None:
    """A release that was never read is not guessed."""
    with pytest.raises(ConfigError, match="not known") as caught:
        release_tensors(release)

    assert "0.16, 0.17, 0.18, 0.19, 1.x, 0.20, 0.21" in caught.value.hint


def test_every_row_has_the_five_templates() -> None:
    """Each release lists all templates, each with inputs and outputs."""
    for release in known_releases():
        models = release_tensors(release).models
        assert set(models) == {"ensemble", "preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls"}
        assert all(model.inputs and model.outputs for model in models.values())


def test_shapes_and_flags_are_read() -> None:
    """A scalar is reshaped to nothing, a list may be ragged, and what is required is not optional."""
    inputs = {tensor.name: tensor for tensor in release_tensors("1.2.1").models["tensorrt_llm"].inputs}

    assert inputs["input_lengths"] == Tensor(name="input_lengths", data_type="TYPE_INT32", dims=(1,), reshape=())
    assert inputs["draft_logits"] == Tensor(
        name="draft_logits", data_type="TYPE_FP32", dims=(-1, -1), optional=True, allow_ragged_batch=True
    )


def test_renames_between_releases_are_in_the_table() -> None:
    """``min_length`` and ``random_seed`` became ``min_tokens`` and ``seed`` after 0.19."""
    older, newer = ({t.name for t in release_tensors(r).models["ensemble"].inputs} for r in ("0.19.0", "1.0"))

    assert {"min_length", "random_seed"} <= older - newer
    assert {"min_tokens", "seed"} <= newer - older


@pytest.mark.parametrize(("release", "row"), [("0.20.0", "0.19.0"), ("0.21.0", "1.0.0")])
def test_a_release_between_two_rows_is_derived(release: str, row: str) -> None:
    """What was not read is taken from the row that it is most like, and says so."""
    derived, read = release_tensors(release), release_tensors(row)

    assert (derived.derived, read.derived) == (True, False)
    assert (derived.release, derived.models) == (read.release, read.models)
    assert derived.provenance.startswith("not read")


def test_the_parameters_of_a_backend_grow_with_its_releases() -> None:
    """The lookahead window can be set as from 0.19."""
    older, newer = release_parameters("0.18.2"), release_parameters("1.2.1")

    assert "kv_cache_free_gpu_mem_fraction" in older < newer
    assert "lookahead_window_size" in newer - older


@pytest.mark.parametrize("release", ["0.16.0", "0.17.0", "0.18.2", "0.19.0", "1.x"])
def test_the_table_says_what_the_templates_say(release: str) -> None:
    """Tensors and parameters are those of the facts that were taken from NVIDIA's templates."""
    facts = json.loads(FACTS.read_text())["releases"][release if release == "1.x" else f"v{release}"]
    table = release_tensors("1" if release == "1.x" else release)

    for model, template in facts.items():
        for kind, tensors in (("inputs", table.models[model].inputs), ("outputs", table.models[model].outputs)):
            seen = {t.name: (t.data_type, t.dims, t.optional) for t in tensors}
            said = {t["name"]: (t["dtype"], tuple(t["dims"]), t["optional"]) for t in template[kind]}
            assert seen == said, (model, kind)
    assert table.parameters == set(facts["tensorrt_llm"]["parameters"])
