"""The comparison of repositories: what counts as a difference, what does not, and how it is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from specdeploy.errors import RepositoryError
from specdeploy.triton.pbtxt import parse, render
from specdeploy.triton.repository.diff import REPOSITORY, changes_document, diff_repositories
from specdeploy.triton.sources import read_repository
from tests.nvidia_templates import FILL, draft_copy, refill, write_templates

if TYPE_CHECKING:
    from pathlib import Path

    from specdeploy.triton.repository.diff import Change

    Tree = dict[str, bytes]

CONFIG = "m/config.pbtxt"
MODEL = b"""\
name: "m"
backend: "python"
max_batch_size: 4
input [{ name: "A" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "B" data_type: TYPE_BOOL dims: [ 1 ] optional: true }]
output [{ name: "C" data_type: TYPE_FP32 dims: [ -1, 2 ] }]
instance_group [{ count: 2 kind: KIND_CPU }]
parameters { key: "x" value { string_value: "1" } }
parameters { key: "y" value { string_value: "2" } }
"""


def tree(config: bytes = MODEL) -> Tree:
    """Return a repository of one model."""
    return {CONFIG: config, "m/1/model.py": b"x = 1\n"}


def changed(old: str, new: str) -> Tree:
    """Return the repository with one text of its configuration exchanged."""
    assert old.encode() in MODEL
    return tree(MODEL.replace(old.encode(), new.encode(), 1))


def rows(changes: tuple[Change, ...]) -> list[tuple[str, str, str | None, str | None]]:
    """Return changes as tuples."""
    return [(change.model, change.field, change.before, change.after) for change in changes]


def test_a_repository_is_the_same_as_itself() -> None:
    """No difference, no change."""
    assert diff_repositories(tree(), tree()) == ()


def test_how_long_an_engine_was_built_does_not_count() -> None:
    """The same engine built elsewhere is no change; one of another size is."""

    def with_engine(size: int, build_s: float) -> Tree:
        engine = {"key": "a" * 64, "size_bytes": size, "build_s": build_s}
        return {**tree(), "specdeploy.json": json.dumps({"engines": {"target": engine}}).encode()}

    assert diff_repositories(with_engine(7, 1.5), with_engine(7, 20.0)) == ()
    (size,) = diff_repositories(with_engine(7, 1.5), with_engine(8, 1.5))
    assert (size.before, size.after) == ("7", "8")


def test_order_and_writing_do_not_count() -> None:
    """Tensors and parameters in another order, and defaults that are written out, mean the same."""
    config = b"""\
# A comment.
parameters: { key: "y", value: { string_value: "2" } }
parameters: { key: "x", value: { string_value: "1" } }
instance_group { kind: KIND_CPU count: 2 }
model_transaction_policy { }
output { name: "C" dims: -1 dims: 2 data_type: TYPE_FP32 }
input { name: "B" optional: true data_type: TYPE_BOOL dims: 1 }
input { name: "A" optional: false data_type: TYPE_INT32 dims: 1 }
max_batch_size: 4 backend: "python" name: "m"
"""
    assert diff_repositories(tree(), tree(config)) == ()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("max_batch_size: 4", "max_batch_size: 8", ("max_batch_size", "4", "8")),
        ("max_batch_size: 4", "", ("max_batch_size", "4", None)),
        ("dims: [ -1, 2 ]", "dims: [ -1 ]", ("output[C].dims", "[-1, 2]", "[-1]")),
        ("dims: [ 1 ] optional: true", "dims: [ 1 ]", ("input[B].optional", "true", None)),
        ("count: 2", "count: 3", ("instance_group[0].count", "2", "3")),
        ('string_value: "1"', 'string_value: "one"', ("parameters[x]", "1", "one")),
        ('parameters { key: "y" value { string_value: "2" } }', "", ("parameters[y]", "2", None)),
        (
            'output [{ name: "C" data_type: TYPE_FP32 dims: [ -1, 2 ] }]',
            "",
            ("output[C]", "data_type TYPE_FP32, dims [-1, 2]", None),
        ),
        ('backend: "python"', 'backend: "python" version_policy { all { } }', ("version_policy.all", None, "{}")),
    ],
)
def test_a_field_is_named_with_both_values(old: str, new: str, expected: tuple[str, str | None, str | None]) -> None:
    """One field that differs is one change, named by model and field."""
    assert rows(diff_repositories(tree(), changed(old, new))) == [("m", *expected)]


def test_an_empty_parameter_is_not_an_absent_one() -> None:
    """A backend can tell them apart."""
    changes = diff_repositories(tree(), changed('string_value: "1"', ""))

    assert rows(changes) == [("m", "parameters[x]", "1", "")]


def test_steps_are_told_apart_by_the_model_they_call() -> None:
    """Two ensembles with their steps in another order are the same; a map that differs is named."""
    first = 'step { model_name: "a" input_map { key: "X" value: "in" } output_map { key: "Y" value: "mid" } }'
    second = 'step { model_name: "b" input_map { key: "X" value: "mid" } }'
    other = second.replace("mid", "in")

    def ensemble(*steps: str) -> Tree:
        text = f'name: "e" platform: "ensemble" ensemble_scheduling {{ {" ".join(steps)} }}'
        return {"e/config.pbtxt": text.encode()}

    assert diff_repositories(ensemble(first, second), ensemble(second, first)) == ()
    assert rows(diff_repositories(ensemble(first, second), ensemble(first, other))) == [
        ("e", "ensemble_scheduling.step[b].input_map[X]", "mid", "in")
    ]


def test_a_model_that_is_called_twice_has_two_steps() -> None:
    """The second call of a model is not taken for the first one."""
    step = 'step { model_name: "a" input_map { key: "X" value: "VALUE" } }'
    text = 'name: "e" platform: "ensemble" ensemble_scheduling { ONE TWO }'

    def ensemble(one: str, two: str) -> Tree:
        steps = (step.replace("VALUE", one), step.replace("VALUE", two))
        return {"e/config.pbtxt": text.replace("ONE", steps[0]).replace("TWO", steps[1]).encode()}

    changes = diff_repositories(ensemble("p", "q"), ensemble("p", "r"))

    assert rows(changes) == [("e", "ensemble_scheduling.step[a#2].input_map[X]", "q", "r")]


def test_a_tensor_that_is_declared_twice_is_no_longer_one_that_is_not() -> None:
    """NVIDIA's ensemble declares an output twice; taking one of them out is a difference."""
    twice = MODEL + b'output { name: "C" data_type: TYPE_FP32 dims: [ -1, 2 ] }\n'

    assert [change.field for change in diff_repositories(tree(twice), tree())] == ["output[C#2]"]


def test_models_are_added_and_removed_as_a_whole() -> None:
    """A model that only one side has is one change, not one for each of its fields."""
    more = {**tree(), "n/config.pbtxt": b'name: "n"', "n/1/model.py": b""}

    assert rows(diff_repositories(tree(), more)) == [("n", "model", None, "present")]
    assert rows(diff_repositories(more, tree())) == [("n", "model", "present", None)]
    assert [change.kind for change in diff_repositories(more, tree())] == ["removed"]


def test_other_files_are_compared_by_content() -> None:
    """Code and tokenizers differ by hash; what only keeps a folder alive does not count."""
    other = {**tree(), "m/1/model.py": b"x = 2\n", "m/1/.keep": b"", "m/2/.gitkeep": b""}
    (change,) = diff_repositories(tree(), other)

    assert change.field == "file 1/model.py"
    assert change.before is not None
    assert change.before.startswith("6 bytes, sha256 ")
    assert change.before != change.after


def test_our_manifest_is_compared_by_key() -> None:
    """A default that changed is named; the hashes in it say what the files themselves say, and are left out."""
    before = {**tree(), "specdeploy.json": b'{"defaults": {"num_draft_tokens": 4}, "files": {"a": {"sha256": "1"}}}'}
    after = {**tree(), "specdeploy.json": b'{"defaults": {"num_draft_tokens": 5}, "files": {"a": {"sha256": "2"}}}'}

    assert rows(diff_repositories(before, after)) == [
        (REPOSITORY, "specdeploy.json: defaults.num_draft_tokens", "4", "5")
    ]
    assert rows(diff_repositories(before, tree())) == [(REPOSITORY, "file specdeploy.json", "present", None)]


def test_arguments_of_the_llm_api_are_compared_by_key() -> None:
    """``model.yaml`` is data: its comments and the order of its keys do not count."""
    text = b"# first\nbackend: pytorch\nkv_cache_config:\n  free_gpu_memory_fraction: 0.8\n"
    before = {**tree(), "m/1/model.yaml": text}
    after = {**before, "m/1/model.yaml": b"kv_cache_config: {free_gpu_memory_fraction: 0.7}\nbackend: pytorch\n"}

    assert rows(diff_repositories(before, after)) == [
        ("m", "1/model.yaml: kv_cache_config.free_gpu_memory_fraction", "0.8", "0.7")
    ]


def test_filled_templates_of_two_releases(tmp_path: Path) -> None:
    """Real repositories: what the newer release renamed, the engine that somebody moved, and the draft that came."""
    old = write_templates(tmp_path / "old", "0.19.0", fill=FILL)
    new = write_templates(tmp_path / "new", "1.2.1", fill=FILL)
    draft_copy(new)
    refill(new, "tensorrt_llm", {"gpt_model_path": "/elsewhere"})

    changes = rows(diff_repositories(read_repository(old), read_repository(new)))

    assert ("tensorrt_llm", "parameters[gpt_model_path]", "/engines/target", "/elsewhere") in changes
    assert ("tensorrt_llm_draft", "model", None, "present") in changes
    removed = {(model, field) for model, field, _, after in changes if after is None}
    assert {("ensemble", "input[min_length]"), ("tensorrt_llm", "input[random_seed]")} <= removed
    assert not any(model == "postprocessing" for model, *_ in changes)


def test_every_file_that_cannot_be_read_is_named_with_its_line() -> None:
    """Both sides are read before anything is said, and the error names side, file, line and column."""
    broken = changed("max_batch_size: 4", "max_batch_size: ${triton_max_batch_size}")
    unknown = changed("backend:", "bakcend:")

    with pytest.raises(RepositoryError) as caught:
        diff_repositories(broken, unknown, names=("here", "there"))

    assert [finding.where for finding in caught.value.findings] == [
        "here/m/config.pbtxt:3:17",
        "there/m/config.pbtxt:2:1",
    ]
    assert "placeholder" in caught.value.findings[0].hint
    with pytest.raises(RepositoryError) as caught:
        diff_repositories(tree(b"\xff"), tree())
    assert caught.value.findings[0].where == "A/m/config.pbtxt"


def test_the_document_says_what_the_changes_say() -> None:
    """``--json`` has the two names, whether they are the same, and each change with its kind."""
    document = changes_document(diff_repositories(tree(), changed("count: 2", "count: 3")), names=("one", "two"))

    assert document == {
        "schema_version": "1.0",
        "kind": "repository-diff",
        "a": "one",
        "b": "two",
        "same": False,
        "changes": [{"model": "m", "field": "instance_group[0].count", "before": "2", "after": "3", "kind": "changed"}],
    }
    assert changes_document((), names=("one", "two"))["same"]


def test_what_we_render_reads_back_without_a_difference(tmp_path: Path) -> None:
    """NVIDIA's text and ours for the same value mean the same to the comparison, as they do to a server."""
    folder = write_templates(tmp_path / "one", "1.2.1", fill=FILL, models=("postprocessing", "ensemble"))
    before = {path: data for path, data in read_repository(folder).items() if path.endswith(".pbtxt")}
    after = {path: render(parse(data.decode())).encode() for path, data in before.items()}

    assert diff_repositories(before, after) == ()
