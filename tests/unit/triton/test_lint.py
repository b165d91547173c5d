"""The linter: silent about a good repository, and one stable code for each way to break it.

The expectations of the ensemble and tensor cases were compared with what tritonserver 2.51 does with the same trees.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from specdeploy.config.schema import RepositoryConfig, SpeculationConfig
from specdeploy.triton.lint import lint_repository
from specdeploy.triton.lint.engine_dir import EngineDirectory
from tests.unit.triton.repositories import MODEL, deploy_config, engine_facts, repository_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.findings import Finding

    Tree = dict[str, bytes]
    Edit = Callable[[Tree], None]

ENSEMBLE = "ensemble/config.pbtxt"
PREPROCESSING = "preprocessing/config.pbtxt"
DECODER = "speculative_decoder/config.pbtxt"
TARGET = "tensorrt_llm/config.pbtxt"


def replace(path: str, old: str, new: str) -> Edit:
    """Return an edit of one file; the test fails when there is nothing to edit."""

    def edit(tree: Tree) -> None:
        text = tree[path].decode()
        assert old in text
        tree[path] = text.replace(old, new).encode()

    return edit


def parameter(path: str, key: str, value: str) -> Edit:
    """Return an edit that sets one parameter of a configuration."""

    def edit(tree: Tree) -> None:
        lines = tree[path].decode().splitlines()
        at = next(n for n, line in enumerate(lines) if line.startswith(f'parameters {{ key: "{key}"'))
        lines[at] = f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        tree[path] = "\n".join(lines).encode()

    return edit


def write(path: str, data: bytes) -> Edit:
    """Return an edit that writes one file."""
    return lambda tree: tree.update({path: data})


def remove(*paths: str) -> Edit:
    """Return an edit that removes files."""
    return lambda tree: [tree.pop(path) for path in paths] and None


def cpu_engine(**sizes: int) -> EngineDirectory:
    """Return a CPU engine of 300 tokens and 512 positions; *sizes* are of further files."""
    config = json.dumps({"model": {"vocab_size": 300, "context_length": 512}}).encode()
    files = {"genai_config.json": len(config), "model.onnx": 9, "model.onnx.data": 9}
    return EngineDirectory(sizes=files | sizes, documents={"genai_config.json": config})


def complete(_path: str) -> EngineDirectory:
    """Find a complete engine everywhere."""
    return cpu_engine()


def broken(edit: Edit) -> list[Finding]:
    """Return what lint says of a good repository after *edit*, without the remark that a file was edited."""
    tree = repository_tree()
    edit(tree)
    return [f for f in lint_repository(tree, complete) if f.code != "repo.file-changed"]


def test_our_own_repository_has_no_findings() -> None:
    """Lint never complains about what ``specdeploy repo`` writes."""
    assert lint_repository(repository_tree(), complete) == ()


ERRORS = {
    "step of a missing model": (
        replace(ENSEMBLE, 'model_name: "preprocessing"', 'model_name: "tokenizer"'),
        "ensemble.unknown-model",
    ),
    "type differs": (
        replace(ENSEMBLE, 'name: "max_tokens" data_type: TYPE_INT32', 'name: "max_tokens" data_type: TYPE_INT64'),
        "ensemble.type-differs",
    ),
    "shape differs": (
        replace(
            ENSEMBLE, '"max_tokens" data_type: TYPE_INT32 dims: [1]', '"max_tokens" data_type: TYPE_INT32 dims: [3]'
        ),
        "ensemble.shape-differs",
    ),
    "rank differs": (
        replace(
            ENSEMBLE, '"max_tokens" data_type: TYPE_INT32 dims: [1]', '"max_tokens" data_type: TYPE_INT32 dims: [1, 1]'
        ),
        "ensemble.shape-differs",
    ),
    "step input that the model does not have": (
        replace(ENSEMBLE, 'key: "QUERY"', 'key: "PROMPT"'),
        "ensemble.unknown-tensor",
    ),
    "step output that the model does not have": (
        replace(ENSEMBLE, 'key: "INPUT_ID"', 'key: "IDS"'),
        "ensemble.unknown-tensor",
    ),
    "required input not fed": (
        replace(ENSEMBLE, '    input_map { key: "input_lengths" value: "_REQUEST_INPUT_LEN" }\n', ""),
        "decoder.input-missing",
    ),
    "input that goes nowhere": (
        replace(
            ENSEMBLE,
            'output { name: "text_output"',
            'input { name: "extra" data_type: TYPE_BOOL dims: [1] }\noutput { name: "text_output"',
        ),
        "ensemble.input-unused",
    ),
    "output that nothing gives": (
        replace(
            ENSEMBLE,
            'output { name: "text_output"',
            'output { name: "extra" data_type: TYPE_BOOL dims: [1] }\noutput { name: "text_output"',
        ),
        "ensemble.unproduced",
    ),
    "tensor given twice": (
        replace(ENSEMBLE, 'key: "OUT_PAD_ID" value: "_OUT_PAD_ID"', 'key: "OUT_PAD_ID" value: "_OUT_END_ID"'),
        "ensemble.produced-twice",
    ),
    "batches that a step does not take": (
        replace(ENSEMBLE, "max_batch_size: 3", "max_batch_size: 4"),
        "ensemble.batch-size",
    ),
    "ensemble without steps": (
        lambda tree: tree.update({ENSEMBLE: tree[ENSEMBLE].split(b"ensemble_scheduling")[0]}),
        "ensemble.no-steps",
    ),
    "name differs": (replace(PREPROCESSING, 'name: "preprocessing"', 'name: "pre"'), "repo.name-differs"),
    "unknown field": (replace(PREPROCESSING, "max_batch_size: 3", "max_batch_sise: 1"), "repo.pbtxt-parse"),
    "placeholder in a number": (
        replace(PREPROCESSING, "max_batch_size: 3", "max_batch_size: ${size}"),
        "repo.placeholder",
    ),
    "placeholder in a string": (parameter(TARGET, "gpt_model_path", "${engine_dir}"), "repo.placeholder"),
    "negative batch": (replace(PREPROCESSING, "max_batch_size: 3", "max_batch_size: -1"), "repo.batch-size"),
    "no type": (replace(PREPROCESSING, '"END_ID" data_type: TYPE_INT32', '"END_ID"'), "tensor.type-missing"),
    "no dimensions": (
        replace(PREPROCESSING, '"END_ID" data_type: TYPE_INT32 dims: [1]', '"END_ID" data_type: TYPE_INT32'),
        "tensor.dims",
    ),
    "dimension of nothing": (
        replace(PREPROCESSING, '"END_ID" data_type: TYPE_INT32 dims: [1]', '"END_ID" data_type: TYPE_INT32 dims: [0]'),
        "tensor.dims",
    ),
    "no configuration": (remove(PREPROCESSING), "repo.config-missing"),
    "stray directory": (write("notes/read.me", b""), "repo.config-missing"),
    "no version directory": (remove("tensorrt_llm/1/.keep"), "repo.version-missing"),
    "no backend of an engine": (replace(TARGET, 'backend: "tensorrtllm"\n', ""), "repo.backend-missing"),
    "python model that does not compile": (write("preprocessing/1/model.py", b"def f(:\n"), "python.syntax"),
    "helper module that does not compile": (
        lambda tree: tree.update(
            {
                "speculative_decoder/1/model.py": b"from loop import run\n" + MODEL,
                "speculative_decoder/1/loop.py": b"\x00",
            }
        ),
        "python.syntax",
    ),
    "python model without its class": (write("preprocessing/1/model.py", b"class Model: ...\n"), "python.no-class"),
    "python model without its file": (remove("preprocessing/1/model.py"), "python.missing"),
    "no tokenizer": (remove("preprocessing/1/tokenizer/tokenizer.json"), "tokenizer.missing"),
    "empty tokenizer": (write("speculative_decoder/1/tokenizer/tokenizer.json", b""), "tokenizer.missing"),
    "decoder that names a missing draft": (
        parameter(DECODER, "tensorrt_llm_draft_model_name", "draft"),
        "bls.unknown-model",
    ),
    "drafts as text": (parameter(DECODER, "num_draft_tokens", "four"), "decoder.parameter"),
    "negative drafts": (parameter(DECODER, "num_draft_tokens", "-1"), "decoder.parameter"),
    "nothing in flight": (parameter(DECODER, "max_inflight", "0"), "decoder.parameter"),
    "flag that is no flag": (parameter(DECODER, "use_draft_logits", "yes"), "decoder.parameter"),
    "more drafts than fit": (parameter(DECODER, "num_draft_tokens", "127"), "decoder.drafts-too-long"),
    "sequences longer than the engine's": (parameter(DECODER, "max_seq_len", "129"), "decoder.sequence-too-long"),
    "decoder not decoupled": (
        replace(DECODER, "model_transaction_policy { decoupled: true }\n", ""),
        "decoder.not-decoupled",
    ),
    "engine decoupled": (
        replace(TARGET, "max_batch_size: 1", "max_batch_size: 1\nmodel_transaction_policy { decoupled: true }"),
        "engine.decoupled",
    ),
    "no KV reuse": (parameter(TARGET, "enable_kv_cache_reuse", "false"), "engine.kv-reuse"),
    "no engine path": (parameter(TARGET, "gpt_model_path", ""), "engine.path-missing"),
    "token in a parameter": (parameter(DECODER, "tokenizer_dir", "hf_" + "a1B2" * 9), "repo.secret"),
    "key in the code": (
        write("preprocessing/1/model.py", MODEL + b'KEY = "AKIA' + b"ABCD" * 4 + b'"\n'),
        "repo.secret",
    ),
    "manifest cut short": (write("specdeploy.json", b'{"files": '), "repo.manifest-unreadable"),
    "file gone": (remove("speculative_decoder/1/loop.py"), "repo.file-missing"),
}


@pytest.mark.parametrize(("edit", "code"), ERRORS.values(), ids=ERRORS.keys())
def test_what_would_fail_is_an_error(edit: Edit, code: str) -> None:
    """Each breakage that Triton or the first request would fail on has its code, as an error."""
    assert code in {f.code for f in broken(edit) if f.severity == "error"}


WARNINGS = {
    "ensemble that hides that it is decoupled": (
        replace(ENSEMBLE, "model_transaction_policy { decoupled: true }\n", ""),
        {"ensemble.decoupled"},
    ),
    "output declared twice": (
        replace(
            ENSEMBLE,
            "ensemble_scheduling {",
            'output { name: "text_output" data_type: TYPE_STRING dims: [-1] }\nensemble_scheduling {',
        ),
        {"tensor.duplicate"},
    ),
    "optional input that a step requires": (
        replace(
            PREPROCESSING,
            '"REQUEST_OUTPUT_LEN" data_type: TYPE_INT32 dims: [1] optional: true',
            '"REQUEST_OUTPUT_LEN" data_type: TYPE_INT32 dims: [1]',
        ),
        {"ensemble.optional-differs"},
    ),
    "password in a URL": (
        write("preprocessing/1/hub.yaml", b"hub: https://me:hunter2@hub.acme.org/\n"),
        {"repo.secret"},
    ),
    "misspelt backend": (replace(PREPROCESSING, 'backend: "python"', 'backend: "pyhton"'), {"repo.backend-unknown"}),
    "engines that each want most of the memory": (
        parameter(TARGET, "kv_cache_free_gpu_mem_fraction", "0.9"),
        {"engine.kv-fractions"},
    ),
    "more requests than KV caches": (parameter(DECODER, "max_inflight", "8"), {"decoder.inflight"}),
}


@pytest.mark.parametrize(("edit", "codes"), WARNINGS.values(), ids=WARNINGS.keys())
def test_what_triton_lives_with_is_only_a_warning(edit: Edit, codes: set[str]) -> None:
    """What the real server loads and serves is never an error."""
    assert {(f.severity, f.code) for f in broken(edit)} == {("warning", code) for code in codes}


def test_a_deployment_that_does_not_stream_is_sound() -> None:
    """Where no front door is decoupled, the decoder need not be."""
    tree = repository_tree(deploy_config(repo=RepositoryConfig(decoupled=False)))

    assert b"decoupled" not in tree[DECODER] + tree[ENSEMBLE]
    assert lint_repository(tree, complete) == ()


def test_an_edited_file_is_noticed() -> None:
    """A repository changed by hand says so, and still passes."""
    tree = repository_tree()
    tree[PREPROCESSING] += b"# edited\n"

    findings = lint_repository(tree, complete)
    assert [(f.severity, f.code, f.where) for f in findings] == [("warning", "repo.file-changed", PREPROCESSING)]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (None, "engine.missing"),
        (EngineDirectory(sizes={}), "engine.incomplete"),
        (EngineDirectory(sizes={"genai_config.json": 9}), "engine.incomplete"),
        (EngineDirectory(sizes={"genai_config.json": 9, "model.onnx": 0}), "engine.incomplete"),
        (EngineDirectory(sizes={"genai_config.json": 9, "model.onnx": 9}), "engine.config-unreadable"),
        (
            EngineDirectory(sizes={"config.json": 2, "rank0.engine": 9}, documents={"config.json": b"{}"}),
            "engine.config-unreadable",
        ),
    ],
)
def test_engines_that_are_not_there_or_half_there_are_errors(found: EngineDirectory | None, code: str) -> None:
    """Both engines are looked for where their configurations say."""
    asked: list[str] = []

    findings = lint_repository(repository_tree(), lambda path: asked.append(path) or found)

    assert [f.code for f in findings] == [code, code]
    assert asked == ["../engines/aaaa", "../engines/bbbb"]


def test_without_a_listing_engines_are_not_looked_at() -> None:
    """A repository can be linted on a machine that does not have the engines."""
    assert lint_repository(repository_tree()) == ()


def test_vocabularies_of_two_sizes_are_an_error_where_logits_are_compared() -> None:
    """Rejection sampling compares whole distributions; token match compares ids, and widths may differ."""
    wide = engine_facts("draft", vocab_size=320)
    tree = repository_tree(deploy_config(speculation=SpeculationConfig(use_draft_logits=True)), draft=wide)

    (finding,) = lint_repository(tree)
    assert finding.code == "engine.vocabulary-differs"
    assert "300" in finding.message
    assert "320" in finding.message
    by_token = deploy_config(speculation=SpeculationConfig(use_draft_logits=False))
    assert lint_repository(repository_tree(by_token, draft=wide)) == ()


def test_an_engine_built_for_shorter_sequences_is_an_error() -> None:
    """Requests may not be longer than what an engine was built for."""
    tree = repository_tree(target=engine_facts("target", max_seq_len=64))

    assert [f.code for f in lint_repository(tree, complete)] == ["engine.too-short"]


def test_findings_say_where() -> None:
    """A parse error names file and line, a placeholder the same and what it was."""
    (parse_error,) = [
        f for f in broken(replace(PREPROCESSING, "max_batch_size: 3", "max_sise: 1")) if f.code == "repo.pbtxt-parse"
    ]
    (placeholder,) = [
        f for f in broken(replace(PREPROCESSING, "max_batch_size: 3", "max_batch_size: ${n}")) if "${n}" in f.message
    ]

    assert parse_error.where == f"{PREPROCESSING}:3"
    assert placeholder.where == f"{PREPROCESSING}:3"


def test_a_placeholder_in_a_comment_is_none() -> None:
    """What Triton does not read is not complained about."""
    assert broken(write("preprocessing/1/notes.yaml", b"a: 1  # was ${a}\n")) == []


def test_a_vocabulary_is_not_searched_for_secrets() -> None:
    """A token of the vocabulary can look like anything."""
    vocabulary = json.dumps({"model": {"vocab": {"hf_" + "a" * 34: 1}}}).encode()

    assert broken(write("preprocessing/1/tokenizer/tokenizer.json", vocabulary)) == []


def test_a_model_class_may_be_imported() -> None:
    """A model.py that only re-exports its class is as good as one that defines it."""
    for code in (b"from loop import TritonPythonModel\n", b"from loop import *\n", b"TritonPythonModel = object\n"):
        assert broken(write("preprocessing/1/model.py", code)) == []


def test_a_call_of_a_model_that_is_elsewhere_is_a_warning() -> None:
    """Code can name a model of another repository of the same server, and a name that is computed cannot be seen."""
    call = "import utils as pb\npb.InferenceRequest(model_name={name}, inputs=[])\n"

    for name, found in (("'draft'", ["bls.unknown-call"]), ("'tensorrt_llm'", []), ("NAME", [])):
        code = MODEL + call.format(name=name).encode()
        assert [f.code for f in broken(write("preprocessing/1/model.py", code))] == found


def test_an_empty_repository_is_an_error() -> None:
    """Triton starts on it and serves nothing."""
    assert [f.code for f in lint_repository({})] == ["repo.no-models"]


def test_all_findings_come_at_once() -> None:
    """Several breakages are reported in one run."""
    tree = repository_tree()
    for edit, _code in (ERRORS["name differs"], ERRORS["no KV reuse"], ERRORS["no tokenizer"]):
        edit(tree)

    assert {"repo.name-differs", "engine.kv-reuse"} <= {f.code for f in lint_repository(tree, complete)}
