"""Lint against engines: what ``trtllm-build`` recorded, what the store's manifest says, and where the ranks are to run.

``tests/broken_repositories.py`` has NVIDIA's repository, its engines' directories, and the ways to break both; what the
real Triton says to them is in ``tests/integration/test_broken_repositories.py``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.pipeline.prepare import lint
from specdeploy.triton.lint import lint_repository
from specdeploy.triton.lint.engine_dir import EngineConfig, EngineDirectory, read_config
from tests import broken_repositories as broken
from tests.unit.triton.repositories import engine_facts, repository_tree
from tests.unit.triton.test_repository_gpu import EVERY, REFUSED, deployment, tree

if TYPE_CHECKING:
    from pathlib import Path

    from specdeploy.findings import Finding

TARGET, DRAFT, BLS = broken.TARGET, broken.DRAFT, broken.BLS
EXTERNAL: dict[str, Any] = {"mode": 2, "max_draft_len": 5}


@pytest.fixture(name="repository")
def _repository(tmp_path: Path) -> Path:
    return broken.templates(tmp_path / "models")


def codes(findings: tuple[Finding, ...]) -> list[str]:
    """Return severity and code of every finding that is more than good to know."""
    return [f"{finding.severity} {finding.code}" for finding in findings if finding.severity != "info"]


def engine(**overrides: Any) -> EngineDirectory:
    """Return the directory of an engine of TensorRT-LLM."""
    config = json.dumps(broken.engine_config(**overrides)).encode()
    ranks = {f"rank{rank}.engine": 6 for rank in range(overrides.get("world_size", 1))}
    return EngineDirectory(sizes={"config.json": len(config), **ranks}, documents={"config.json": config})


@pytest.mark.parametrize(
    "case", [case for case in broken.CASES if case.base != "deployment"], ids=lambda case: case.name
)
def test_every_broken_repository_is_found_without_a_server(case: broken.Case, tmp_path: Path) -> None:
    """Lint's column of the table needs no Triton."""
    recorded = {row["name"]: row["lint"] for row in json.loads(broken.RECORD.read_text())}
    root = {"plain": broken.plain, "templates": broken.templates}[case.base](tmp_path / "models")
    case.apply(root)

    assert set(codes(lint(root))) == set(recorded[case.name])


@pytest.mark.parametrize(
    "good", [good for good in broken.GOOD if good.base != "deployment"], ids=lambda good: good.name
)
def test_good_repositories_have_no_findings(good: broken.Good, tmp_path: Path) -> None:
    """What Triton serves correctly is not complained about."""
    root = {"plain": broken.plain, "templates": broken.templates}[good.base](tmp_path / "models")
    good.apply(root)

    assert codes(lint(root)) == []


@pytest.mark.parametrize(("profile", "method", "release"), [case for case in EVERY if case[1:] not in REFUSED])
def test_our_repositories_have_no_findings(profile: str, method: str, release: str) -> None:
    """Whatever the profile, method and release: lint has nothing to say about what ``specdeploy repo`` writes."""
    modes = {"medusa": 4, "lookahead": 8, "redrafter": 16, "eagle": 32}
    length = {"lookahead": 83}.get(method, 63 if method in modes else 6)
    built = {"version": release, "vocab_size": 32000}
    directories = {
        "../../engines/target": engine(**built, mode=modes.get(method, 2), max_draft_len=length),
        "../../engines/draft": engine(**built),
    }

    files = tree(deployment(method, release, profile=profile))
    assert codes(lint_repository(files, directories.get if profile == "tensorrt_llm" else None)) == []


def test_the_decoder_is_held_to_the_draft_length_of_the_engine() -> None:
    """Our decoder's parameters count as NVIDIA's caller's do, and look-up in the text as much as a draft."""
    for method in ("draft_target", "ngram"):
        files = tree(deployment(method))
        target = engine(version="1.2.1", vocab_size=32000, mode=2, max_draft_len=3)
        draft = engine(version="1.2.1", vocab_size=32000)
        found = codes(lint_repository(files, lambda path: target if path.endswith("target") else draft))  # noqa: B023
        assert found == ["error engine.draft-length"]


def test_an_engine_of_another_release_than_the_repository_is_an_error() -> None:
    """An engine runs on its own release only; a post-release of it is the same runtime."""
    files = tree(deployment("medusa"))
    other, post = (engine(version=version, mode=4, max_draft_len=63) for version in ("1.1.0", "1.2.1.post1"))

    assert codes(lint_repository(files, lambda _: other)) == ["error engine.version"]
    assert codes(lint_repository(files, lambda _: post)) == []


def test_a_mode_is_read_by_number_and_by_name() -> None:
    """Releases record the speculative mode either way."""
    for mode in (2, "DRAFT_TOKENS_EXTERNAL", "SpeculativeDecodingMode.DRAFT_TOKENS_EXTERNAL"):
        found = read_config(engine(mode=mode))
        assert found is not None
        assert found.mode == 2


def test_what_an_engine_does_not_say_is_not_judged(repository: Path) -> None:
    """An engine of a release that records less passes."""
    bare = json.dumps({"version": "0.18.2", "build_config": {}, "pretrained_config": {}})
    for role in ("target", "draft"):
        (repository.parent / "engines" / role / "config.json").write_text(bare)

    assert codes(lint(repository)) == []


@pytest.mark.parametrize("content", [b"[]", b"null", b'{"build_config": 7, "pretrained_config": []}', b"[" * 100_000])
def test_a_configuration_of_any_shape_is_survived(content: bytes) -> None:
    """A damaged file is a finding or nothing, and never a crash."""
    directory = EngineDirectory(sizes={"config.json": 1, "rank0.engine": 1}, documents={"config.json": content})

    assert read_config(directory) in {None, EngineConfig(ranks=frozenset({0}))}


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({"gpu_device_ids": "0;1"}, []),
        ({"gpu_device_ids": "0,0"}, ["error engine.ids"]),
        ({"gpu_device_ids": "0,"}, ["error engine.ids"]),
        ({"participant_ids": "1,2"}, ["error engine.world-size"]),
        ({"kv_cache_free_gpu_mem_fraction": "0"}, ["error parameter.fraction"]),
        ({"kv_cache_free_gpu_mem_fraction": "0.6"}, ["warning engine.kv-fractions"]),
        ({"kv_cache_free_gpu_mem_fraction": ""}, ["warning engine.kv-fractions"]),
        ({"kv_cache_free_gpu_mem_fraction": "0.9", "gpu_device_ids": "1"}, []),
        ({"kv_cache_free_gpu_mem_fraction": "0.9", "max_tokens_in_paged_kv_cache": "4096"}, []),
        ({"max_beam_width": "one"}, ["error parameter.number"]),
        ({"batch_scheduler_policy": "max_utilisation"}, ["warning parameter.choice"]),
        ({"gpt_model_type": "inflight"}, ["error parameter.choice"]),
        ({"speculative_decoding_fast_logits": "true"}, ["warning engine.fast-logits"]),
        ({"decoding_mode": "eagle"}, ["error engine.decoding-mode"]),
        ({"medusa_choices": "0,1"}, ["error engine.choices"]),
        ({"medusa_choices": "{0},{1},{2},{3},{4},{5}"}, ["error engine.choices"]),
        ({"specdeploy_max_sequences": "3", "enable_trt_overlap": "true"}, []),
    ],
)
def test_parameters_of_an_engine(repository: Path, parameters: dict[str, str], found: list[str]) -> None:
    """Values are judged by themselves, against the engine, and against the other one on the same GPU."""
    for key, value in parameters.items():
        broken.parameter(TARGET, key, value)(repository)

    assert codes(lint(repository)) == found


def test_a_misspelt_parameter_gets_the_nearest_one(repository: Path) -> None:
    """The cure is in the hint."""
    broken.parameter(TARGET, "kv_cache_free_gpu_mem_fractoin", "0.5")(repository)
    (finding,) = [finding for finding in lint(repository) if finding.severity != "info"]

    assert finding.code == "parameter.unknown"
    assert "kv_cache_free_gpu_mem_fraction" in finding.hint
    assert finding.where.startswith(f"{TARGET}:")


@pytest.mark.parametrize(("draft_logits", "found"), [("true", ["error engine.vocabulary-differs"]), ("false", [])])
def test_widths_of_logits_matter_where_logits_are_compared(
    repository: Path, draft_logits: str, found: list[str]
) -> None:
    """Upstream's issue 2789: rows of the embedding differ, and with them the logits, padded to the ranks."""
    broken.rebuilt("draft", vocab_size=128000)(repository)
    broken.parameter(BLS, "use_draft_logits", draft_logits)(repository)

    assert codes(lint(repository)) == found


def test_engines_of_a_method_on_their_own_need_no_draft(tmp_path: Path) -> None:
    """A target that nobody drafts for may cut the prompt off, stream, and do without KV-cache reuse."""
    root = broken.templates(tmp_path / "models")
    broken.parameter(BLS, "tensorrt_llm_draft_model_name", "")(root)
    broken.parameter(TARGET, "exclude_input_in_output", "true")(root)
    broken.parameter(TARGET, "enable_kv_cache_reuse", "")(root)
    broken.replace(TARGET, "decoupled: false", "decoupled: true")(root)
    (finding,) = [finding for finding in lint(root) if finding.severity != "info"]

    assert finding.code == "ensemble.decoupled"


def stored(manifest: object) -> EngineDirectory:
    """Return a CPU engine of our store with a manifest."""
    documents = {
        "genai_config.json": json.dumps({"model": {"vocab_size": 300, "context_length": 512}}).encode(),
        "manifest.json": manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode(),
    }
    sizes = {name: len(data) for name, data in documents.items()} | {"model.onnx": 9, "model.onnx.data": 90}
    return EngineDirectory(sizes=sizes, documents=documents)


@pytest.mark.parametrize(
    ("manifest", "found"),
    [
        ({"key": "e" * 64, "files": [{"path": "model.onnx", "size": 9}]}, []),
        ({"key": "e" * 64, "files": [{"path": "model.onnx.data", "size": 91}]}, ["error engine.file-differs"]),
        ({"key": "e" * 64, "files": [{"path": "tokenizer.json", "size": 5}]}, ["error engine.file-differs"]),
        ({"key": "f" * 64, "files": []}, ["warning engine.another"]),
        (b'{"key": ', ["error engine.manifest-unreadable"]),
        ({"key": "e" * 64, "files": "none"}, []),
    ],
)
def test_an_engine_is_as_the_store_wrote_it(manifest: object, found: list[str]) -> None:
    """Half-written engines and manifests that no longer match their files are found by names and sizes."""
    both = {"target": engine_facts("target", key="e" * 64), "draft": engine_facts("draft", key="e" * 64)}
    files = repository_tree(**both)

    assert codes(lint_repository(files, lambda _: stored(manifest))) == [f for f in found for _ in both]
