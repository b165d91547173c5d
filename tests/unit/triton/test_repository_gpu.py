"""Repositories for GPUs: what NVIDIA's backend is told for each method, release and number of ranks.

``tests/data/repositories`` holds the whole configurations, a file a method and release. The files are compared, never
made in passing: after a change that is meant, write them anew with ``SPECDEPLOY_UPDATE_GOLDENS=1 pytest
tests/unit/triton/test_repository_gpu.py`` and read the difference.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from specdeploy.config.schema import (
    BuildConfig,
    DeployConfig,
    DraftConfig,
    GpuConfig,
    ModelConfig,
    RepositoryConfig,
    SpeculationConfig,
)
from specdeploy.errors import RepositoryError
from specdeploy.planning.placement import place
from specdeploy.triton.pbtxt import ModelConfig as PbModel
from specdeploy.triton.pbtxt import parse, render
from specdeploy.triton.repository import EngineFacts, KvBudget, build_repository, check_repository
from specdeploy.triton.repository.llm_arguments import relocate
from tests.unit.triton.repositories import MODEL, TOKENIZER

if TYPE_CHECKING:
    from collections.abc import Mapping

GOLDENS = Path(__file__).parents[2] / "data" / "repositories"
RELEASES = ("0.17.0", "0.19.0", "1.0.0", "1.2.1")
METHODS = ("draft_target", "medusa", "eagle", "redrafter", "lookahead", "ngram")
LLMAPI_METHODS = ("draft_target", "eagle3", "mtp", "ngram")
HEADS = ("medusa", "eagle", "redrafter", "lookahead")
SOURCES = {
    "preprocessing/1/model.py": MODEL,
    "speculative_decoder/1/model.py": MODEL,
    "speculative_decoder/1/decoder_loop.py": b"",
    "speculative_decoder/1/decoder_text.py": b"",
    "llmapi_decoder/1/model.py": MODEL,
}
MODEL_YAML = "# Written.\nmodel: ../../checkpoints/target\nbackend: pytorch\n"


def deployment(method: str = "draft_target", release: str = "1.2.1", **changes: Any) -> DeployConfig:
    """Return a deployment for two GPUs of NVIDIA's."""
    speculation = changes.pop("speculation", {})
    draft = {"checkpoint": "" if method in {"lookahead", "ngram", "mtp"} else "draft"}
    values: dict[str, Any] = {
        "name": "pair",
        "profile": "tensorrt_llm",
        "release": release,
        "target": ModelConfig(checkpoint="target", **changes.pop("target", {})),
        "draft": DraftConfig(**draft, **changes.pop("draft", {})),
        "speculation": SpeculationConfig(method=method, **speculation),  # type: ignore[arg-type]
        "build": BuildConfig(max_seq_len=2048, max_batch_size=8),
        "gpu": GpuConfig(name="H100-80GB", count=8),
    }
    return DeployConfig(**(values | changes))


def facts(role: str, config: DeployConfig, **changes: Any) -> EngineFacts:
    """Return what is known of a built engine."""
    model = config.target if role == "target" else config.draft
    values: dict[str, Any] = {
        "key": role[0] * 64,
        "name": role,
        "profile": config.profile,
        "precision": "bf16",
        "checkpoint": role,
        "size_bytes": 1,
        "vocab_size": 32000,
        "max_seq_len": 2048,
        "eos_token_ids": (2,),
        "release": config.release,
        "world_size": model.tp_size * model.pp_size,
        "max_draft_len": 6 if role == "target" else 0,
        "max_batch_size": 8,
    }
    return EngineFacts(**(values | changes))


def tree(config: DeployConfig, **changes: Any) -> Mapping[str, bytes]:
    """Return the repository of a deployment."""
    roles = ("target", "draft") if config.speculation.method == "draft_target" else ("target",)
    roles = ("target",) if config.profile == "llmapi" else roles
    return build_repository(
        config,
        {role: facts(role, config, **changes) for role in roles},
        engine_paths={role: f"../../engines/{role}" for role in roles},
        tokenizer_files=TOKENIZER,
        sources=SOURCES,
        kv={"target": KvBudget(fraction=0.6, tokens=65536), "draft": KvBudget(fraction=0.5, tokens=65536)},
        model_yaml=MODEL_YAML if config.profile == "llmapi" else "",
    )


def model(config: DeployConfig, name: str = "tensorrt_llm") -> PbModel:
    """Return one model's configuration as Triton reads it."""
    return parse(tree(config)[f"{name}/config.pbtxt"].decode())


def golden(config: DeployConfig) -> str:
    """Return everything that a person would read of a repository."""
    try:
        files = tree(config)
    except RepositoryError as error:
        return f"refused: {error.message}\nhint: {error.hint}\n"
    document = json.loads(files["specdeploy.json"])
    document["files"] = sorted(document["files"])
    parts = [f"== specdeploy.json\n{json.dumps(document, indent=2)}\n"]
    parts += [f"== {path}\n{data.decode()}" for path, data in files.items() if path.endswith((".pbtxt", ".yaml"))]
    return "\n".join(parts)


EVERY = [("tensorrt_llm", method, release) for method in METHODS for release in RELEASES]
EVERY += [("llmapi", method, release) for method in LLMAPI_METHODS for release in ("1.0.0", "1.2.1")]
REFUSED = {("lookahead", "0.17.0")}
EVERY += [("cpu", "draft_target", release) for release in RELEASES]


@pytest.mark.parametrize(("profile", "method", "release"), EVERY)
def test_the_repository_is_the_one_that_is_written_down(profile: str, method: str, release: str) -> None:
    """Every configuration of every profile, method and release, to the letter."""
    text = golden(deployment(method, release, profile=profile))
    file = GOLDENS / f"{profile}-{method}-{release}.txt"
    if os.environ.get("SPECDEPLOY_UPDATE_GOLDENS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text


def test_every_golden_is_one_that_is_compared() -> None:
    """None is left over from a release or method that is gone."""
    assert {file.stem for file in GOLDENS.iterdir()} == {"-".join(names) for names in EVERY}


@pytest.mark.parametrize(("profile", "method", "release"), [case for case in EVERY if case[1:] not in REFUSED])
def test_no_placeholder_and_no_unknown_parameter_is_left(profile: str, method: str, release: str) -> None:
    """Each configuration parses, renders to itself, and holds nothing to be filled in."""
    config = deployment(method, release, profile=profile)
    for path, data in tree(config).items():
        assert b"${" not in data, path
        if path.endswith(".pbtxt"):
            read = parse(data.decode())
            assert parse(render(read)) == read


def test_both_engines_are_sized_in_load_order_and_bounded_in_any() -> None:
    """A share of what is free for each, and a number of tokens that holds whoever loads first."""
    for name, fraction in (("tensorrt_llm", "0.6"), ("tensorrt_llm_draft", "0.5")):
        parameters = model(deployment(), name).parameters
        assert parameters["kv_cache_free_gpu_mem_fraction"] == fraction
        assert parameters["max_tokens_in_paged_kv_cache"] == "65536"


@pytest.mark.parametrize(("dtype", "kind"), [("float32", "TYPE_FP32"), ("float16", "TYPE_FP16")])
def test_logits_have_the_type_of_the_engines(dtype: str, kind: str) -> None:
    """Wherever logits go in or come out of an engine."""
    files = tree(deployment(), logits_dtype=dtype)
    for name in ("tensorrt_llm", "tensorrt_llm_draft"):
        config = parse(files[f"{name}/config.pbtxt"].decode())
        types = {
            tensor.data_type
            for tensor in (*config.inputs, *config.outputs)
            if tensor.name.endswith("_logits") and not tensor.name.startswith("return_")
        }
        assert types == {kind}


@pytest.mark.parametrize("method", HEADS)
def test_an_engine_that_drafts_on_its_own_is_told_how(method: str) -> None:
    """The backend's decoding mode, and a decoder that passes requests through and reads what the engine reports."""
    config = deployment(method, speculation={"tree_choices": "{0},{0,0}"} if method in {"medusa", "eagle"} else {})
    files = tree(config)
    engine, decoder = (
        parse(files[f"{name}/config.pbtxt"].decode()) for name in ("tensorrt_llm", "speculative_decoder")
    )

    assert "tensorrt_llm_draft/config.pbtxt" not in files
    assert engine.parameters["decoding_mode"] == method
    assert decoder.parameters["engine_speculates"] == method
    assert decoder.parameters["engine_reports"] == "true"
    assert "tensorrt_llm_draft_model_name" not in decoder.parameters
    assert engine.parameters.get(f"{method}_choices") == ("{0},{0,0}" if method in {"medusa", "eagle"} else None)


def test_lookahead_windows_come_to_the_length_that_was_built() -> None:
    """All three are given; the backend would throw without one."""
    parameters = model(deployment("lookahead", speculation={"window_size": 5, "ngram_size": 4})).parameters

    names = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
    assert [parameters[name] for name in names] == ["5", "4", "7"]


def test_lookahead_is_refused_where_the_backend_cannot_be_told() -> None:
    """Before 0.19 the backend takes no window."""
    with pytest.raises(RepositoryError, match=r"0\.17\.0 has no lookahead_ngram_size") as caught:
        tree(deployment("lookahead", "0.17.0"))
    assert "0.19" in caught.value.hint


def test_older_engines_get_their_own_names() -> None:
    """The decoder knows what the engines of the release call its inputs."""
    old, new = (model(deployment(release=release), "speculative_decoder").parameters for release in ("0.19.0", "1.0.0"))

    assert old["engine_input_names"] == "min_tokens=min_length,seed=random_seed"
    assert "engine_input_names" not in new


def test_equal_numbers_of_ranks_are_led_by_one() -> None:
    """One server a rank, started by mpirun, and each engine is told its GPUs."""
    config = deployment(target={"tp_size": 2}, draft={"tp_size": 2})

    assert (place(config).mode, place(config).processes) == ("leader", 2)
    for name in ("tensorrt_llm", "tensorrt_llm_draft"):
        parameters = model(config, name).parameters
        assert parameters["gpu_device_ids"] == "0,1"
        assert "participant_ids" not in parameters


def test_unequal_numbers_of_ranks_are_orchestrated() -> None:
    """One server whose backend starts the ranks' processes."""
    config = deployment(target={"tp_size": 4}, draft={"gpu_ids": (4,)})
    target, draft = (model(config, name).parameters for name in ("tensorrt_llm", "tensorrt_llm_draft"))

    assert (place(config).mode, place(config).spawn, place(config).processes) == ("orchestrator", True, 1)
    assert (target["gpu_device_ids"], draft["gpu_device_ids"]) == ("0,1,2,3", "4")
    assert target["executor_worker_path"] == draft["executor_worker_path"]


def test_fast_logits_get_all_that_they_demand() -> None:
    """The orchestrator without spawning, a process for each rank, the draft's numbered first, and the flag on both."""
    config = deployment(target={"tp_size": 2}, draft={"gpu_ids": (2,)}, speculation={"fast_logits": True})
    target, draft = (model(config, name).parameters for name in ("tensorrt_llm", "tensorrt_llm_draft"))

    assert (place(config).mode, place(config).spawn, place(config).processes) == ("orchestrator", False, 4)
    assert (draft["participant_ids"], target["participant_ids"]) == ("1", "2,3")
    assert {p["speculative_decoding_fast_logits"] for p in (target, draft)} == {"true"}
    assert model(config, "speculative_decoder").parameters["fast_logits"] == "true"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"target": {"tp_size": 2, "gpu_ids": (0,)}}, "placement.gpu-ids"),
        ({"target": {"tp_size": 2, "gpu_ids": (1, 1)}}, "placement.gpu-twice"),
        ({"target": {"gpu_ids": (8,)}}, "placement.no-such-gpu"),
        ({"target": {"tp_size": 2}, "repo": RepositoryConfig(serving_mode="single")}, "placement.mode"),
        ({"target": {"tp_size": 2}, "repo": RepositoryConfig(serving_mode="leader")}, "placement.mode"),
        ({"speculation": {"fast_logits": True, "use_draft_logits": False}}, "placement.fast-logits"),
        (
            {"speculation": {"fast_logits": True}, "repo": RepositoryConfig(serving_mode="leader")},
            "placement.fast-logits",
        ),
        ({"repo": RepositoryConfig(layout="object_store")}, "repo.layout"),
        ({"repo": RepositoryConfig(parameters=("tensorrt_llm",))}, "repo.line"),
        ({"repo": RepositoryConfig(parameters=("ensemble a=b",))}, "repo.unknown-model"),
        (
            {"repo": RepositoryConfig(parameters=("tensorrt_llm kv_cache_hst_memory_bytes=1",))},
            "repo.unknown-parameter",
        ),
        (
            {"repo": RepositoryConfig(parameters=("tensorrt_llm enable_kv_cache_reuse=false",))},
            "repo.parameter-decided",
        ),
        ({"repo": RepositoryConfig(parameters=("preprocessing colour=red",))}, "repo.unknown-parameter"),
        ({"repo": RepositoryConfig(rate_limits=("tensorrt_llm slots=none",))}, "repo.rate-limit"),
        ({"repo": RepositoryConfig(rate_limits=("ensemble slots=1",))}, "repo.unknown-model"),
    ],
)
def test_what_contradicts_itself_is_refused_before_a_file_is_written(changes: dict[str, Any], code: str) -> None:
    """Each with its own code, and with what to do."""
    config = deployment(**changes)
    findings = [finding for finding in check_repository(config) if finding.severity == "error"]

    assert code in {finding.code for finding in findings}
    assert all(finding.hint for finding in findings)
    with pytest.raises(RepositoryError) as caught:
        tree(config)
    assert caught.value.findings


def test_a_typing_error_gets_the_nearest_parameter() -> None:
    """The backend would take no notice of it."""
    (finding,) = check_repository(deployment(repo=RepositoryConfig(parameters=("tensorrt_llm lora_prefetch_dr=/x",))))
    assert finding.hint == "Did you mean lora_prefetch_dir?"


def test_the_users_parameters_are_laid_over_ours() -> None:
    """Those of the release's backend that we have no opinion of."""
    lines = ("tensorrt_llm kv_cache_host_memory_bytes=1000", "preprocessing add_special_tokens = false")
    files = tree(deployment(repo=RepositoryConfig(parameters=lines)))

    engine, front = (parse(files[f"{name}/config.pbtxt"].decode()) for name in ("tensorrt_llm", "preprocessing"))
    assert engine.parameters["kv_cache_host_memory_bytes"] == "1000"
    assert front.parameters["add_special_tokens"] == "false"


def test_queues_and_rates_have_the_limits_that_are_asked_for() -> None:
    """Requests wait in front of the decoder, with levels, a limit and a time; instances hold resources."""
    repo = RepositoryConfig(
        max_queue_size=32, queue_timeout_ms=1500, priority_levels=3, rate_limits=("preprocessing cpu=2",)
    )
    files = tree(deployment(repo=repo))
    decoder, front = (
        parse(files[f"{name}/config.pbtxt"].decode()) for name in ("speculative_decoder", "preprocessing")
    )

    assert decoder.queue is not None
    assert (decoder.queue.max_size, decoder.queue.timeout_us, decoder.queue.default_priority) == (32, 1_500_000, 2)
    assert front.instance_group[0].resources == {"cpu": 2}


@pytest.mark.parametrize(("batch", "asked", "size"), [(4, -1, 128), (16, -1, 256), (16, 5, 5), (16, 0, None)], ids=str)
def test_queues_do_not_grow_without_bounds(batch: int, asked: int, size: int | None) -> None:
    """Unless it is asked for, with 0."""
    wanted = deployment(repo=RepositoryConfig(max_queue_size=asked), build=BuildConfig(max_batch_size=batch))
    queue = parse(tree(wanted)["speculative_decoder/config.pbtxt"].decode()).queue

    assert (queue and queue.max_size) == size


def test_a_warm_up_request_is_complete() -> None:
    """A few ids of the vocabulary, how many they are, and one token to answer, in the files that Triton reads."""
    files = tree(deployment(repo=RepositoryConfig(warmup=True)))
    (warmup,) = parse(files["tensorrt_llm/config.pbtxt"].decode()).warmups
    data = {item.name: files[f"tensorrt_llm/warmup/{item.file}"] for item in warmup.inputs}

    assert struct.unpack("<8i", data["input_ids"]) == (16000,) * 8
    assert (data["input_lengths"], data["request_output_len"]) == (struct.pack("<i", 8), struct.pack("<i", 1))


def test_the_object_store_layout_has_no_empty_file_and_absolute_engines() -> None:
    """Some tools leave empty files out, and Triton copies each model away from its neighbours."""
    files = tree(deployment(repo=RepositoryConfig(layout="object_store", engine_root="/engines")))

    kept = [data for path, data in files.items() if path.endswith("/.keep")]
    assert kept
    assert all(kept)


def test_the_llm_api_has_one_model_behind_the_same_front_door() -> None:
    """No engine models; the decoder around the LLM API, with its arguments and its own code beside it."""
    config = deployment(profile="llmapi")
    files = tree(config)

    folders = {path.partition("/")[0] for path in files if "/" in path}
    assert folders == {"ensemble", "tensorrt_llm_bls", "preprocessing", "speculative_decoder"}
    assert files["speculative_decoder/1/model.yaml"].decode() == MODEL_YAML
    assert files["speculative_decoder/1/model.py"] == SOURCES["llmapi_decoder/1/model.py"]
    assert "speculative_decoder/1/decoder_text.py" in files
    pair = parse(tree(deployment())["ensemble/config.pbtxt"].decode())
    # What TensorRT-LLM has in flight is its own affair: a request is one text.
    door = parse(files["ensemble/config.pbtxt"].decode())
    assert (door.inputs, door.max_batch_size) == (pair.inputs, 1)
    # Nor does it answer what NVIDIA's backend does of its engine.
    outputs = {tensor.name for tensor in door.outputs}
    assert {tensor.name for tensor in pair.outputs} - outputs == {
        *("context_logits", "generation_logits"),
        *("kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks"),
        *("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns"),
    }


def test_logits_have_the_engines_type_at_the_front_door_too() -> None:
    """What the target answers passes through unread, so the decoder and the ensembles declare it as the engine does."""
    files = tree(deployment(), logits_dtype="float16")

    for name in ("ensemble", "tensorrt_llm_bls", "speculative_decoder", "tensorrt_llm"):
        types = {tensor.name: tensor.data_type for tensor in parse(files[f"{name}/config.pbtxt"].decode()).outputs}
        assert (types["context_logits"], types["generation_logits"]) == ("TYPE_FP16", "TYPE_FP16")


def test_the_llm_apis_arguments_name_checkpoints_as_they_will_be_found() -> None:
    """Only the folders change, also deep inside; the head of the file stays."""
    text = "# A head.\nmodel: /a/target\nspeculative_config:\n  speculative_model_dir: /a/draft\nargs:\n- /a/target2\n"
    moved = relocate(text, {"/a/target": "../target", "/a/draft": "../draft"})

    assert moved.startswith("# A head.\n")
    assert yaml.safe_load(moved) == {
        "model": "../target",
        "speculative_config": {"speculative_model_dir": "../draft"},
        "args": ["/a/target2"],
    }
