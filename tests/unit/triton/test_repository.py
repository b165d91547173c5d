"""The generated repository: six models, wired, complete, and the same bytes for the same deployment."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath

import pytest

from specdeploy.config.schema import RepositoryConfig, ServeConfig, SpeculationConfig
from specdeploy.errors import ConfigError, RepositoryError
from specdeploy.triton.pbtxt import ModelConfig, parse
from specdeploy.triton.repository import check_repository, engine_path, names
from specdeploy.triton.tensors import release_tensors
from tests.unit.triton.repositories import SOURCES, TOKENIZER, deploy_config, engine_facts, repository_tree

TRACE = "--trace-config=mode=opentelemetry"


def config_of(model: str, tree: dict[str, bytes] | None = None) -> ModelConfig:
    """Return one model's configuration as Triton would read it."""
    return parse((tree or repository_tree())[f"{model}/config.pbtxt"].decode())


def test_the_tree_holds_six_models_and_nothing_else() -> None:
    """Every model has its configuration and a kept version directory; code and tokenizers lie where they are used."""
    tree = repository_tree()

    folders = {path.split("/")[0] for path in tree if "/" in path}
    assert folders == set(names.MODELS)
    for model in names.MODELS:
        assert config_of(model, tree).name == model
        assert any(path.startswith(f"{model}/1/") for path in tree)
    for path, data in SOURCES.items():
        assert tree[path] == data
    for model in ("preprocessing", "speculative_decoder"):
        for name, data in TOKENIZER.items():
            assert tree[f"{model}/1/tokenizer/{name}"] == data


def test_the_same_deployment_gives_the_same_bytes() -> None:
    """A repository can be rebuilt and compared."""
    assert repository_tree() == repository_tree()


def test_every_input_of_a_text_client_is_at_both_front_doors() -> None:
    """The front doors take what NVIDIA's templates take, but for pictures and films, under the same names and types.

    They take ``return_decode_trace`` beside it, which is ours.

    None is required of Triton, which only counts inputs; `preprocessing` names the one that is missing.
    """
    templates = release_tensors("1.2.1").models
    expected = {
        t.name: (t.data_type, t.dims, True) for m in ("tensorrt_llm_bls", "ensemble") for t in templates[m].inputs
    }
    expected = {
        name: facts for name, facts in expected.items() if not name.startswith(("image_", "video_", "decoder_"))
    }
    expected["return_decode_trace"] = ("TYPE_BOOL", (1,), True)

    for model in ("ensemble", "tensorrt_llm_bls"):
        assert {t.name: (t.data_type, t.dims, t.optional) for t in config_of(model).inputs} == expected
    assert {"num_draft_tokens", "use_draft_logits", "stream", "seed"} <= expected.keys()


def test_every_input_of_the_front_door_goes_somewhere() -> None:
    """No input is accepted and dropped."""
    ensemble = config_of("ensemble")
    used = {outer for step in ensemble.steps for outer in step.input_map.values()}

    assert {tensor.name for tensor in ensemble.inputs} <= used


@pytest.mark.parametrize("release", ["0.17.0", "0.19.0"])
def test_clients_of_an_older_release_keep_their_names(release: str) -> None:
    """Older names at the front door reach the decoder under the one name that it knows."""
    ensemble = config_of("ensemble", repository_tree(deploy_config(release=release)))
    decoder = next(step for step in ensemble.steps if step.model_name == "speculative_decoder")

    assert {"min_length", "random_seed"} <= {tensor.name for tensor in ensemble.inputs}
    assert (decoder.input_map["min_tokens"], decoder.input_map["seed"]) == ("min_length", "random_seed")


def test_the_engines_have_the_tensors_of_nvidias_backend() -> None:
    """NVIDIA's own clients and decoder run against our engines, and our decoder against theirs."""
    template = release_tensors("1.2.1").models["tensorrt_llm"]

    for model in ("tensorrt_llm", "tensorrt_llm_draft"):
        engine = config_of(model)
        assert engine.backend == "tensorrtllm"
        assert not engine.decoupled
        assert (engine.inputs, engine.outputs) == (template.inputs, template.outputs)


def test_what_speculation_needs_is_set() -> None:
    """KV reuse on, the prompt not cut off, one memory budget for both engines, and each engine's own path."""
    tree = repository_tree()
    target, draft = (config_of(m, tree).parameters for m in ("tensorrt_llm", "tensorrt_llm_draft"))

    for parameters in (target, draft):
        assert parameters["enable_kv_cache_reuse"] == "true"
        assert parameters["exclude_input_in_output"] == "false"
        assert (parameters["specdeploy_max_sequences"], parameters["specdeploy_max_seq_len"]) == ("3", "128")
    assert (target["gpt_model_path"], draft["gpt_model_path"]) == ("../engines/aaaa", "../engines/bbbb")
    assert sum(float(p["kv_cache_free_gpu_mem_fraction"]) for p in (target, draft)) < 1


def test_the_decoder_gets_the_deployments_defaults() -> None:
    """What the configuration says is what a request gets that says nothing."""
    config = deploy_config(speculation=SpeculationConfig(num_draft_tokens=6, use_draft_logits=False))
    decoder = config_of("speculative_decoder", repository_tree(config))

    assert decoder.decoupled
    expected = {
        "tensorrt_llm_model_name": "tensorrt_llm",
        "tensorrt_llm_draft_model_name": "tensorrt_llm_draft",
        "num_draft_tokens": "6",
        "use_draft_logits": "false",
        "max_inflight": "3",
        "max_seq_len": "128",
        "exclude_input_in_output": "true",
        "tokenizer_dir": "tokenizer",
        "engine_stand_in": "true",
    }
    assert expected.items() <= decoder.parameters.items()


@pytest.mark.parametrize(("eos", "end_id"), [((2, 7), "2"), ((), "-1")])
def test_the_end_token_comes_from_the_engine(eos: tuple[int, ...], end_id: str) -> None:
    """The first end token is the default; an engine without one has none."""
    tree = repository_tree(target=engine_facts("target", eos_token_ids=eos, vocab_size=320))
    parameters = config_of("preprocessing", tree).parameters

    assert (parameters["end_id"], parameters["vocab_size"]) == (end_id, "320")


def test_the_manifest_describes_the_tree() -> None:
    """``specdeploy.json`` names engines, defaults and models, and the hash of every other file."""
    tree = repository_tree()
    manifest = json.loads(tree.pop("specdeploy.json"))

    assert (manifest["deployment"], manifest["release"], manifest["profile"]) == ("tiny", "1.2.1", "cpu")
    assert manifest["models"] == list(names.MODELS)
    assert manifest["engines"]["draft"]["key"] == "d" * 64
    assert manifest["defaults"]["num_draft_tokens"] == 4
    assert {path: facts["sha256"] for path, facts in manifest["files"].items()} == {
        path: hashlib.sha256(data).hexdigest() for path, data in tree.items()
    }


def test_the_tree_names_no_folder_of_the_machine_that_wrote_it() -> None:
    """With relative engine paths, the repository can be copied with its engines to another place."""
    for path, data in repository_tree().items():
        if path.endswith((".pbtxt", ".json")):
            assert b'"/' not in data, path


def test_an_unknown_release_is_an_error() -> None:
    """The front door is not guessed."""
    with pytest.raises(ConfigError, match=r"0\.15"):
        repository_tree(deploy_config(release="0.15.0"))


def test_a_release_that_was_not_read_says_so() -> None:
    """Its tensors are those of a release next to it, and both the check and the manifest call that derived."""
    config = deploy_config(release="0.21.0", profile="tensorrt_llm")
    (finding,) = check_repository(config)

    assert (finding.severity, finding.code) == ("warning", "repo.derived-tensors")
    assert json.loads(repository_tree(config)["specdeploy.json"])["tensors"]["derived"] is True


@pytest.mark.parametrize("tokenizer", [{}, {"tokenizer.json": b""}])
def test_a_missing_tokenizer_is_an_error(tokenizer: dict[str, bytes]) -> None:
    """A repository that could not tokenize is not written."""
    with pytest.raises(RepositoryError, match=r"tokenizer\.json"):
        repository_tree(tokenizer=tokenizer)


def test_missing_sources_are_an_error() -> None:
    """A repository whose models have no code is not written."""
    with pytest.raises(RepositoryError, match=r"speculative_decoder/1/model\.py"):
        repository_tree(sources={"preprocessing/1/model.py": SOURCES["preprocessing/1/model.py"]})


@pytest.mark.parametrize(
    ("engine", "repository", "written"),
    [
        ("/d/engines/aa", "/d/triton_repo/models", "../../engines/aa"),
        ("/d/repo/engines/aa", "/d/repo", "engines/aa"),
        ("/d", "/d/repo/models", "../.."),
    ],
)
def test_engine_paths_are_relative(engine: str, repository: str, written: str) -> None:
    """Engines and repository can be copied together to another place."""
    assert engine_path(PurePath(engine), PurePath(repository)) == written


def test_without_a_common_folder_the_place_of_the_engines_is_asked_for() -> None:
    """No path of the machine that writes is put into the repository unless it is asked for."""
    engine, repository = PurePath("/mnt/engines/aa"), PurePath("/home/me/repo")

    with pytest.raises(RepositoryError, match="no common folder") as caught:
        engine_path(engine, repository)
    assert "--engine-root" in caught.value.hint
    assert engine_path(engine, repository, root="/opt/engines/") == "/opt/engines/aa"


@pytest.mark.parametrize(("arguments", "most", "found"), [((TRACE,), -1, True), ((TRACE,), 0, False), ((), -1, False)])
def test_a_traced_server_that_may_refuse_requests_is_warned_of(arguments, most, found) -> None:
    """It dies of that, so the queue in front of the decoder has to be without a limit."""
    config = deploy_config(serve=ServeConfig(extra_args=arguments), repo=RepositoryConfig(max_queue_size=most))

    assert ("repo.traced-queue" in {finding.code for finding in check_repository(config)}) is found
