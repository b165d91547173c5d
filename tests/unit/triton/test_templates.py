"""An image's templates against our table: what is read of them, and which differences are found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from specdeploy.errors import ConfigError, RepositoryError
from specdeploy.triton.repository.templates import FAMILY, Difference, compare_templates, read_template
from specdeploy.triton.sources import read_repository
from specdeploy.triton.tensors import known_releases, release_tensors
from tests.nvidia_templates import FILL, MODELS, facts, write_templates

if TYPE_CHECKING:
    from pathlib import Path

    Files = dict[str, bytes]

RELEASES = ("0.16.0", "0.17.0", "0.18.2", "0.19.0", "1.2.1")


def templates(tmp_path: Path, release: str = "1.2.1", **arguments: object) -> Files:
    """Return the files of a release's templates by path, as an image has them below ``inflight_batcher_llm``."""
    return dict(read_repository(write_templates(tmp_path / release, release, **arguments)))  # type: ignore[arg-type]


def edited(files: Files, model: str, old: str, new: str) -> Files:
    """Return the files with one text of a template exchanged; the test fails when it is not there."""
    path = f"{model}/config.pbtxt"
    text = files[path].decode()
    assert old in text
    return {**files, path: text.replace(old, new, 1).encode()}


def found(files: Files, release: str = "1.2.1") -> list[tuple[str, str, str, str]]:
    """Return (model, part, kind, name) of every difference."""
    return [(one.model, one.part, one.kind, one.name) for one in compare_templates(files, release).differences]


@pytest.mark.parametrize("release", RELEASES)
def test_the_templates_of_a_release_are_those_of_its_row(tmp_path: Path, release: str) -> None:
    """Templates that were read to make the table do not differ from it."""
    compared = compare_templates(templates(tmp_path, release), release)

    assert compared.differences == ()
    assert compared.row == release_tensors(release).release
    assert set(compared.templates) == set(MODELS)


@pytest.mark.parametrize("release", RELEASES)
def test_every_placeholder_is_found(tmp_path: Path, release: str) -> None:
    """The placeholders of each template are read, whatever stands around them."""
    compared = compare_templates(templates(tmp_path, release))

    assert {name: set(template.placeholders) for name, template in compared.templates.items()} == {
        name: set(template["placeholders"]) for name, template in facts(release).items()
    }


def test_without_a_release_the_nearest_row_is_taken(tmp_path: Path) -> None:
    """An image whose release nobody names is compared with the row that differs least."""
    assert compare_templates(templates(tmp_path, "0.19.0")).row == "0.19.0"
    assert compare_templates(templates(tmp_path, "1.2.1")).row == "1.x"


def test_a_placeholder_has_a_position(tmp_path: Path) -> None:
    """It is told where a placeholder stands: outside of strings a server does not start with it."""
    placeholders = compare_templates(templates(tmp_path)).templates["tensorrt_llm"].placeholders

    assert placeholders["triton_max_batch_size"] == "number"
    assert placeholders["decoupled_mode"] == "flag"
    assert placeholders["logits_datatype"] == "type"
    assert placeholders["engine_dir"] == "string"
    assert placeholders["enable_trt_overlap"] == "comment"


def test_open_types_are_shown_as_they_are_written(tmp_path: Path) -> None:
    """A tensor whose type is left open carries the placeholder, and that is no difference from a table with a type."""
    template = compare_templates(templates(tmp_path)).templates["tensorrt_llm"]
    types = {tensor.name: tensor.data_type for tensor in (*template.inputs, *template.outputs)}

    assert types["draft_logits"] == types["context_logits"] == "${logits_datatype}"
    assert types["prompt_embedding_table"] == "${prompt_embedding_table_data_type}"
    assert types["input_ids"] == "TYPE_INT32"


def test_filled_templates_are_compared_likewise(tmp_path: Path) -> None:
    """Values in the place of placeholders are no difference: any value can stand there."""
    assert found(templates(tmp_path, fill=FILL)) == []


def test_renames_are_guessed(tmp_path: Path) -> None:
    """A tensor that went and one of its kind that came are shown as one rename."""
    differences = compare_templates(templates(tmp_path, "1.2.1"), "0.19.0").differences
    renamed = {(one.model, one.ours.split()[0], one.image.split()[0]) for one in differences if one.kind == "renamed"}

    models = ("ensemble", "tensorrt_llm", "tensorrt_llm_bls")
    assert renamed == {
        (model, old, new) for model in models for old, new in (("min_length", "min_tokens"), ("random_seed", "seed"))
    }
    assert ("ensemble", "input", "added", "return_num_input_tokens") in found(templates(tmp_path / "again"), "0.19.0")


def test_a_branch_that_is_not_its_tag_shows(tmp_path: Path) -> None:
    """An image's templates may have tensors and placeholders that the tag of their release has not."""
    files = edited(
        templates(tmp_path, "0.17.0"),
        "preprocessing",
        "instance_group [",
        "dynamic_batching { max_queue_delay_microseconds: ${max_queue_delay_microseconds} }\ninstance_group [",
    )

    assert found(files, "0.17.0") == [("preprocessing", "placeholder", "added", "max_queue_delay_microseconds")]


def test_a_changed_tensor_is_shown_with_both_sides(tmp_path: Path) -> None:
    """Type, shape and whether a tensor can be left out are compared."""
    files = edited(
        templates(tmp_path),
        "postprocessing",
        'name: "SEQUENCE_LENGTH"\n    data_type: TYPE_INT32\n    dims: [ -1 ]',
        'name: "SEQUENCE_LENGTH"\n    data_type: TYPE_INT64\n    dims: [ -1 ]\n    optional: true',
    )

    assert compare_templates(files, "1.2.1").differences == (
        Difference(
            model="postprocessing",
            part="input",
            kind="changed",
            name="SEQUENCE_LENGTH",
            ours="INT32[-1]",
            image="INT64[-1] optional",
        ),
    )


def test_parameters_that_come_and_go_are_shown(tmp_path: Path) -> None:
    """A parameter of another name is one that went and one that came, with what each is filled from."""
    files = edited(templates(tmp_path), "tensorrt_llm_bls", 'key: "accumulate_tokens"', 'key: "accumulate"')

    assert found(files) == [
        ("tensorrt_llm_bls", "parameter", "removed", "accumulate_tokens"),
        ("tensorrt_llm_bls", "parameter", "added", "accumulate"),
    ]


def test_missing_and_further_templates_are_shown(tmp_path: Path) -> None:
    """A template that the image lacks, and one that our table lacks, are differences of their own."""
    files = templates(tmp_path)
    moved = {
        path.replace("postprocessing/", "detokenizer/"): data.replace(b'"postprocessing"', b'"detokenizer"')
        for path, data in files.items()
    }

    assert found(moved) == [
        ("postprocessing", "model", "removed", "postprocessing"),
        ("detokenizer", "model", "added", "detokenizer"),
    ]


def test_all_models_is_taken_as_well(tmp_path: Path) -> None:
    """The folder above the templates does, too; other families in it are named and not compared."""
    files = {f"{FAMILY}/{path}": data for path, data in templates(tmp_path).items()}
    files["llmapi/tensorrt_llm/config.pbtxt"] = b'name: "tensorrt_llm" backend: "python"'

    compared = compare_templates(files, "1.2.1")

    assert compared.differences == ()
    assert compared.others == ("llmapi",)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no model"),
        ({"llmapi/tensorrt_llm/config.pbtxt": b'name: "tensorrt_llm"'}, "only llmapi"),
        ({"tensorrt_llm/config.pbtxt": b'name: "tensorrt_llm" backend: "python"'}, "no inflight_batcher_llm"),
        ({"resnet/config.pbtxt": b'name: "resnet"'}, "resnet"),
    ],
)
def test_a_folder_without_such_templates_is_refused(files: Files, message: str) -> None:
    """What is there instead is named, and what to name."""
    with pytest.raises(RepositoryError, match=message) as caught:
        compare_templates(files)

    assert "all_models" in caught.value.hint


def test_text_that_is_no_template_is_refused_with_its_line(tmp_path: Path) -> None:
    """Every file that cannot be read is named, with the line."""
    files = edited(templates(tmp_path), "ensemble", 'platform: "ensemble"', 'platfrom: "ensemble"')
    files["preprocessing/config.pbtxt"] = b"\xff"

    with pytest.raises(RepositoryError) as caught:
        compare_templates(files)

    assert [finding.where for finding in caught.value.findings] == [
        "ensemble/config.pbtxt:2",
        "preprocessing/config.pbtxt",
    ]


def test_an_unknown_release_is_refused(tmp_path: Path) -> None:
    """A release that was never read is not guessed."""
    with pytest.raises(ConfigError, match="not known"):
        compare_templates(templates(tmp_path), "0.9.0")


def test_the_document_has_it_all(tmp_path: Path) -> None:
    """``--json`` has the templates as they were read, and the differences."""
    document = json.loads(json.dumps(compare_templates(templates(tmp_path), "0.19.0").as_dict()))

    assert document["kind"] == "templates"
    assert document["row"] == "0.19.0"
    assert not document["equal"]
    assert (
        document["templates"]["tensorrt_llm"]["inputs"]["draft_logits"] == "${logits_datatype}[-1,-1] optional ragged"
    )
    assert document["templates"]["ensemble"]["repeated"] == ["kv_cache_alloc_total_blocks"]
    assert {"model", "part", "kind", "name", "ours", "image"} == set(document["differences"][0])


def test_hashes_and_quotes_do_not_mislead() -> None:
    """A # in a string begins no comment, and a placeholder after an escaped quote is in the string."""
    text = 'name: "a # b ${inside}" max_batch_size: ${bare} # ${outside}\nplatform: "\\"${quoted}"'

    assert read_template(text).placeholders == {
        "inside": "string",
        "bare": "number",
        "outside": "comment",
        "quoted": "string",
    }


def test_the_table_of_parameters_is_what_was_read() -> None:
    """The packed table is derived from the facts: parameters as the templates write them, and the rest of the holes."""
    from specdeploy.triton.repository.templates import _table

    for row in known_releases():
        for name, template in facts(row.replace("x", "0")).items():
            holes = set(template["placeholders"])
            assert _table()[row][name] == {
                "parameters": {
                    key: f"${{{value}}}" if value in holes else value for key, value in template["parameters"].items()
                },
                "other_placeholders": sorted(holes - set(template["parameters"].values())),
            }
