"""Engines by TensorRT-LLM's own programs, from the command line to the store: plans, builds, faults, interruptions.

The programs are stand-ins as strict as the real ones; everything else is real: the command line, the processes, files.
"""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

from tests.gpu_deployments import (
    BUILDER,
    CONVERTER,
    DRAFT,
    QUANTIZER,
    TARGET,
    eventually,
    is_running,
    write_gpu_deployment,
    write_medusa,
)
from tests.unit.checkpoint.folders import write_shards

if TYPE_CHECKING:
    from typing import Any

SCHEMA = Path(__file__).parents[2] / "specdeploy" / "engine" / "manifest.schema.json"
TEXTS = "texts"
QUANTISED = {
    "target.precision": "fp8",
    "target.kv_cache": "fp8",
    "tensorrt_llm.calib_dataset": TEXTS,
}


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    """Without the caller's own GPUs and tokens."""
    for name in ("CUDA_VISIBLE_DEVICES", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(name="bare")
def _bare(tmp_path):
    """Variables of a machine without any of NVIDIA's programs."""
    (tmp_path / "nothing").mkdir()
    return {"PATH": str(tmp_path / "nothing")}


def _option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def _recorded(deployment, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what the builder says of an engine."""
    return json.loads((deployment.store / manifest["key"][:16] / "config.json").read_text())


LLAMA = "models/core/llama"


# What the method makes of the tiny target: how its class begins, its mode, its longest draft; and by which converters.
@pytest.mark.parametrize(
    ("method", "release", "expected", "converters"),
    [
        ("ngram", "1.2.1", ("LlamaForCausalLM", 2, 4), [LLAMA]),
        ("lookahead", "1.2.1", ("LlamaForCausalLM", 8, 83), [LLAMA]),
        ("medusa", "1.2.1", ("MedusaForCausalLM", 4, 63), ["medusa"]),
        ("eagle", "1.2.1", ("EagleForCausalLM", 32, 63), ["eagle"]),
        ("redrafter", "0.21.0", ("ReDrafterFor", 16, 25), ["redrafter"]),
        # From 1.0 on the head is joined to a converted checkpoint.
        ("redrafter", "1.2.1", ("ReDrafterFor", 16, 25), [LLAMA, "redrafter"]),
    ],
)
def test_methods_with_one_engine(tmp_path, method, release, expected, converters):
    """The engine that is published does what its method needs, on two ranks, and the plan said how."""
    settings = {"target.tp_size": 2}
    deployment = write_gpu_deployment(tmp_path, method=method, release=release, gpus=2, settings=settings)

    (planned,) = deployment.run_json("plan")["engines"]
    built = deployment.run_json("build")

    recorded = _recorded(deployment, built["target"])
    architecture, mode, draft_len = expected
    assert built["draft"] is None
    assert recorded["pretrained_config"]["architecture"].startswith(architecture)
    assert recorded["pretrained_config"]["mapping"]["tp_size"] == 2
    assert recorded["build_config"]["speculative_decoding_mode"] == mode
    assert recorded["build_config"]["max_draft_len"] == draft_len
    assert recorded["build_config"]["plugin_config"]["use_paged_context_fmha"] is True
    assert (built["target"]["facts"]["method"], built["target"]["facts"]["max_draft_len"]) == (method, draft_len)
    assert {file["path"] for file in built["target"]["files"]} == {"config.json", "rank0.engine", "rank1.engine"}
    assert [step["argv"] for step in planned["steps"]] == built["target"]["argv"]
    examples = deployment.toolchain.examples
    assert [call["program"] for call in deployment.calls()] == [
        *(str(examples / family / CONVERTER) for family in converters),
        str(deployment.toolchain.bin / BUILDER),
    ]


@pytest.mark.parametrize("release", ["0.17.0.post1", "0.21.0", "1.2.1"])
def test_a_pair_on_each_generation_of_releases(tmp_path, release):
    """The target takes draft tokens, the draft is an ordinary engine; scripts are found where the release has them."""
    settings = {"target.tp_size": 2, "speculation.max_draft_tokens": 8}
    deployment = write_gpu_deployment(tmp_path, method="draft_target", release=release, gpus=4, settings=settings)

    built = deployment.run_json("build")

    target, draft = (_recorded(deployment, built[role]) for role in ("target", "draft"))
    assert target["version"] == draft["version"] == release
    modes = [engine["build_config"]["speculative_decoding_mode"] for engine in (target, draft)]
    assert modes == [2, 1]
    assert [engine["build_config"]["max_draft_len"] for engine in (target, draft)] == [8, 0]
    assert [engine["pretrained_config"]["mapping"]["world_size"] for engine in (target, draft)] == [2, 1]
    assert {call["program"] for call in deployment.calls(CONVERTER)} == {str(deployment.toolchain.converter("llama"))}


def test_from_the_check_to_an_engine_that_is_there(tmp_path):
    """The whole road once, and what the manifest says of it; the second time nothing runs."""
    deployment = write_gpu_deployment(tmp_path, method="draft_target", gpus=4, settings={"target.tp_size": 2})
    secret = {"HF_TOKEN": "hf_veryprivate", "NCCL_DEBUG": "WARN"}

    checked, planned = deployment.run("check"), deployment.run("plan")
    assert (checked.returncode, planned.returncode) == (0, 0), checked.stderr + planned.stderr
    assert "the pair belongs together" in checked.stdout
    assert "the store has no engine like it" in planned.stdout
    assert not deployment.store.exists()
    done = deployment.run("build", env=secret)
    assert done.returncode == 0, done.stderr

    manifest = deployment.manifest(TARGET)
    jsonschema.validate(manifest, json.loads(SCHEMA.read_text()))
    root = deployment.store / manifest["key"][:16]
    assert str(root) in done.stdout
    assert manifest["facts"]["release"] == "1.2.1"
    assert manifest["facts"]["method"] == "draft_target"
    assert manifest["facts"]["world_size"] == 2
    assert manifest["parts"]["build"]["max_batch_size"] == "4"
    assert manifest["parts"]["convert"]["checkpoint"] == manifest["checkpoint_fingerprint"]
    convert, build = manifest["argv"]
    assert _option(convert, "--output_dir") == _option(build, "--output_dir") == "{output}"
    assert _option(build, "--checkpoint_dir") == "{previous}"
    assert manifest["environment"]["HF_TOKEN"] == "***"
    assert manifest["environment"]["NCCL_DEBUG"] == "WARN"
    assert manifest["host"]["gpu"] == "NVIDIA H100 80GB HBM3"
    assert manifest["host"]["runner"] == "local"
    assert 0 < sum(manifest["steps"].values()) <= manifest["duration_s"]
    assert set(manifest["steps"]) == {"convert", "build"}
    for file in manifest["files"]:
        content = (root / file["path"]).read_bytes()
        assert (file["size"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert manifest["size_bytes"] == sum(file["size"] for file in manifest["files"])
    kept = [path for path in deployment.store.rglob("*") if path.is_file()]
    assert not [path for path in kept if b"hf_veryprivate" in path.read_bytes()]
    assert not list(tmp_path.glob("model.cache")), "the builder left its timing cache where we stand"

    before = len(deployment.calls())
    again = deployment.run("build")
    assert again.returncode == 0
    assert again.stderr.count("in the store already") == 2
    assert len(deployment.calls()) == before == 4
    assert deployment.leftovers() == []


def test_a_plan_says_why_an_engine_has_to_be_built(tmp_path):
    """What differs from the nearest engine of the store, for people and in the document, and what is there already."""
    deployment = write_gpu_deployment(tmp_path)
    assert deployment.run("build").returncode == 0
    (built,) = deployment.engines()

    (hit,) = deployment.run_json("plan")["engines"]
    text = deployment.run("plan", "--set", "build.max_batch_size=16").stdout
    document = deployment.run_json("plan", "--set", "build.max_batch_size=16", "--set", "gpu.name=L40S")

    assert (hit["cached"], hit["miss"]) == (str(built), None)
    assert "max_batch_size 4 → 16" in text
    assert "trtllm-build --checkpoint_dir '{previous}'" in text
    (engine,) = document["engines"]
    assert engine["cached"] is None
    assert engine["miss"]["nearest"].startswith(built.name)
    assert sorted(engine["miss"]["reasons"]) == ["gpu 9.0 → 8.9", "max_batch_size 4 → 16"]
    assert len(deployment.calls(BUILDER)) == 1


def test_a_plan_needs_no_gpu_and_none_of_nvidias_programs(tmp_path, bare):
    """On a laptop, with the GPU named, the document is complete, and nothing was written."""
    settings = {"gpu.name": "H100-80GB", "target.tp_size": 2}
    deployment = write_gpu_deployment(tmp_path, method="draft_target", settings=settings)

    document = deployment.run_json("plan", env=bare)

    assert (document["schema_version"], document["kind"], document["ok"]) == ("1.0", "plan", True)
    assert document["target"]["name"] == TARGET
    assert document["memory"] is not None
    assert [engine["role"] for engine in document["engines"]] == ["target", "draft"]
    for engine in document["engines"]:
        assert len(engine["key"]) == 64
        assert engine["miss"] == {"nearest": None, "reasons": []}
        assert [step["name"] for step in engine["steps"]] == ["convert", "build"]
        assert all(step["argv"] and step["outputs"] and len(step["key"]) == 64 for step in engine["steps"])
    assert document["engines"][0]["steps"][1]["gpus"] == 2
    assert not deployment.store.exists()


def test_a_gpu_that_is_not_known(tmp_path, bare):
    """A plan does without, a build does not: exit code 2, the cure, and nothing was run."""
    deployment = write_gpu_deployment(tmp_path)

    planned, built = deployment.run("plan", env=bare), deployment.run("build", env=bare)
    odd = deployment.run("build", "--set", "gpu.name=Quadro FX")

    assert planned.returncode == 0, planned.stderr
    assert (built.returncode, odd.returncode) == (2, 2)
    assert "nvidia-smi lists none here" in built.stderr
    assert "give its compute capability" in built.stderr
    assert "Quadro FX" in odd.stderr
    assert deployment.calls() == []
    assert not deployment.store.exists()


@pytest.fixture(name="converted", scope="module")
def _converted(tmp_path_factory):
    """A deployment whose checkpoint was converted by a run that failed afterwards."""
    deployment = write_gpu_deployment(tmp_path_factory.mktemp("failing"), gpus=2, settings={"target.tp_size": 2})
    deployment.fail(builder="fail_once")
    assert deployment.run("build").returncode == 4
    return deployment


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("out_of_memory", ["ended with exit code 1", "CUDA out of memory", "-2-build.log"]),
        ("killed_half_way", ["was ended by SIGKILL", "want of memory", "Serializing engine", "-2-build.log"]),
        ("wrong_exit_code", ["ended with exit code 3", "Engine serialized", "-2-build.log"]),
        ("success_without_file", ["ended with 0 but did not write rank0.engine, rank1.engine", "-2-build.log"]),
        ("no_paged_fmha", ["not what was planned", "paged context attention is off", "engine.no-reuse"]),
        ("other_version:1.1.0", ["not what was planned", "built by TensorRT-LLM 1.1.0", "engine.version"]),
    ],
)
def test_a_build_that_fails(converted, fault, said):
    """Exit code 4 with the cause and the log's last lines; nothing is published; what was done before it is kept."""
    converted.fail(builder=fault)

    failed = converted.run("build")

    assert failed.returncode == 4, failed.stderr
    assert [text for text in said if text not in failed.stderr] == []
    assert (converted.engines(), converted.leftovers()) == ([], [])
    assert len(converted.calls(CONVERTER)) == 1


def test_after_a_failure_only_what_is_left_is_done(tmp_path):
    """The plan says so, the build says so, and the engine is whole; then nothing of the conversion is left."""
    deployment = write_gpu_deployment(tmp_path)
    deployment.fail(builder="killed_half_way")
    assert deployment.run("build").returncode == 4
    deployment.fail()

    planned, healed = deployment.run("plan"), deployment.run("build")

    assert "1. convert (done by an earlier run)" in planned.stdout
    assert healed.returncode == 0, healed.stderr
    assert "convert was done by an earlier run" in healed.stderr
    assert [call["tool"] for call in deployment.calls()] == [CONVERTER, BUILDER, BUILDER]
    (engine,) = deployment.engines()
    manifest = json.loads((engine / "manifest.json").read_text())
    assert set(manifest["steps"]) == {"build"}
    assert len(manifest["argv"]) == 2
    assert list(deployment.store.glob(".steps/*")) == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("out_of_memory", "CUDA out of memory"),
        ("killed_half_way", "was ended by SIGKILL"),
        ("success_without_file", "ended with 0 but did not write rank0.safetensors"),
    ],
)
def test_a_conversion_that_fails(tmp_path, fault, said):
    """Nothing is built from half a checkpoint, and the next run begins with the conversion."""
    deployment = write_gpu_deployment(tmp_path)
    deployment.fail(converter=fault)

    failed = deployment.run("build")

    assert failed.returncode == 4
    assert "step `convert`" in failed.stderr
    assert said in failed.stderr
    assert deployment.calls(BUILDER) == []
    assert (deployment.engines(), deployment.leftovers()) == ([], [])
    deployment.fail()
    assert deployment.run("build").returncode == 0
    assert [call["tool"] for call in deployment.calls()] == [CONVERTER, CONVERTER, BUILDER]


@pytest.mark.parametrize(
    ("gpus", "fault", "said"),
    [(0, {}, "Torch not compiled with CUDA enabled"), (1, {"builder": "no_driver"}, "Found no NVIDIA driver")],
    ids=["no gpu", "no driver"],
)
def test_a_machine_without_a_gpu(tmp_path, gpus, fault, said):
    """The GPU is named, but not to be had here: the builder's own words, exit code 4."""
    deployment = write_gpu_deployment(tmp_path, gpus=gpus, settings={"gpu.name": "9.0"})
    deployment.fail(**fault)

    failed = deployment.run("build")

    assert failed.returncode == 4
    assert said in failed.stderr
    assert deployment.engines() == []


@pytest.mark.parametrize("missing", ["builder", "converter"])
def test_a_toolchain_that_is_not_here(tmp_path, bare, missing):
    """The program or the script that is missing is named before anything runs: exit code 4."""
    deployment = write_gpu_deployment(tmp_path, settings={"gpu.name": "9.0"})
    elsewhere = ["--set", f"tensorrt_llm.examples_dir={tmp_path / 'elsewhere'}"] if missing == "converter" else []

    failed = deployment.run("build", *elsewhere, env=bare if missing == "builder" else None)

    assert failed.returncode == 4
    assert (BUILDER if missing == "builder" else f"{tmp_path}/elsewhere/models/core/llama/{CONVERTER}") in failed.stderr
    assert "specdeploy doctor" in failed.stderr
    assert deployment.calls() == []
    assert deployment.engines() == []


def test_a_step_that_takes_too_long(tmp_path):
    """It is ended with all that it started; what was finished before it is kept."""
    deployment = write_gpu_deployment(tmp_path, settings={"build.timeout_s": 2})

    with deployment.held():
        failed = deployment.run("build")

    assert failed.returncode == 4
    assert "trtllm-build ran longer than 2 s" in failed.stderr
    assert not is_running(deployment.calls(BUILDER)[0]["pid"])
    assert (deployment.engines(), deployment.leftovers()) == ([], [])
    deployment.fail()
    assert deployment.run("build").returncode == 0
    assert len(deployment.calls(CONVERTER)) == 1


@pytest.mark.parametrize(
    ("method", "number", "code"),
    [
        ("ngram", signal.SIGINT, 130),
        ("ngram", signal.SIGTERM, 143),
        ("draft_target", signal.SIGINT, 130),
        ("draft_target", signal.SIGHUP, 129),
    ],
)
def test_a_build_that_is_interrupted(tmp_path, method, number, code):
    """Ctrl-C, SIGTERM and a closed terminal end the builders, one or two; what was finished is not done again."""
    deployment = write_gpu_deployment(tmp_path, method=method, gpus=2)
    engines = 1 if method == "ngram" else 2
    with deployment.held(), deployment.start("build") as started:
        eventually(lambda: len(deployment.calls(BUILDER)) == engines, "the builders")

        started.process.send_signal(number)

        assert started.ends() == code
        assert "Traceback" not in started.text
        assert not [call for call in deployment.calls() if is_running(call["pid"])]
        assert (deployment.engines(), deployment.leftovers()) == ([], [])
    deployment.fail()
    again = deployment.run("build")
    assert again.returncode == 0, again.stderr
    assert len(deployment.calls(CONVERTER)) == len(deployment.engines()) == engines


def test_two_builders_of_one_engine_make_one(tmp_path):
    """The second says that it waits, and takes what the first has made."""
    deployment = write_gpu_deployment(tmp_path)
    with deployment.held() as release, deployment.start("build", name="first") as first:
        eventually(lambda: deployment.calls(BUILDER), "the builder")
        with deployment.start("build", name="second") as second:
            second.says("another build is at work on it; waiting")
            release()

            assert (first.ends(), second.ends()) == (0, 0), first.text + second.text
    assert "in the store already" in second.text
    assert len(deployment.calls(CONVERTER)) == len(deployment.calls(BUILDER)) == len(deployment.engines()) == 1


def test_waiting_for_another_builder_can_be_interrupted(tmp_path):
    """Also while two engines are waited for side by side; the other builder is not disturbed."""
    deployment = write_gpu_deployment(tmp_path, method="draft_target", gpus=2)
    with deployment.held() as release, deployment.start("build", name="first") as first:
        eventually(lambda: len(deployment.calls(BUILDER)) == 2, "the builders")
        with deployment.start("build", name="second") as second:
            eventually(lambda: second.text.count("waiting") == 2, "both to wait")

            second.process.send_signal(signal.SIGTERM)

            assert second.ends() == 143
        release()
        assert first.ends() == 0, first.text


def test_two_engines_of_one_checkpoint_at_once(tmp_path):
    """The second waits for the conversion that the first works with, and neither takes it from the other."""
    deployment = write_gpu_deployment(tmp_path)
    other = ("build", "--set", "build.max_batch_size=8")
    with deployment.held() as release, deployment.start("build", name="first") as first:
        eventually(lambda: deployment.calls(BUILDER), "the builder")
        with deployment.start(*other, name="second") as second:
            second.says("another build is at work on it; waiting")
            release()

            assert (first.ends(), second.ends()) == (0, 0), first.text + second.text
    assert len(deployment.engines()) == 2
    assert (deployment.leftovers(), list(deployment.store.glob(".steps/*"))) == ([], [])


def test_engines_are_built_side_by_side_on_gpus_of_their_own(tmp_path):
    """With a GPU for every rank, target and draft are in the builder at the same time."""
    deployment = write_gpu_deployment(tmp_path, method="draft_target", gpus=4, settings={"target.tp_size": 2})
    planned = deployment.run("plan")
    with deployment.held() as release, deployment.start("build") as started:
        eventually(lambda: len(deployment.calls(BUILDER)) == 2, "both builders")
        release()
        assert started.ends() == 0, started.text

    assert "target on 0, 1; draft on 2" in planned.stdout
    given = {len(_outputs(call)): call["env"]["CUDA_VISIBLE_DEVICES"] for call in deployment.calls(BUILDER)}
    assert given == {2: "0,1", 1: "2"}


@pytest.mark.parametrize(("granted", "together"), [("6,7", True), ("7", False)])
def test_only_the_gpus_that_were_granted_are_used(tmp_path, granted, together):
    """On a shared machine CUDA_VISIBLE_DEVICES says which are ours; two engines share one when there is no second."""
    deployment = write_gpu_deployment(tmp_path, method="draft_target", gpus=8)

    assert deployment.run("build", env={"CUDA_VISIBLE_DEVICES": granted}).returncode == 0

    used = sorted(call["env"]["CUDA_VISIBLE_DEVICES"] for call in deployment.calls(BUILDER))
    assert used == (["6", "7"] if together else ["7", "7"])


def _outputs(call: dict[str, Any]) -> range:
    """Return the ranks that a call of the builder makes."""
    return range(int(_option(call["argv"], "--workers")))


def test_one_gpu_is_used_by_one_engine_after_the_other(tmp_path):
    """The draft begins when the target is done, and no GPU is chosen for either."""
    deployment = write_gpu_deployment(tmp_path, method="draft_target", gpus=1)

    assert deployment.run("build").returncode == 0

    assert [call["tool"] for call in deployment.calls()] == [CONVERTER, BUILDER] * 2
    sources = [_option(call["argv"], "--model_dir") for call in deployment.calls(CONVERTER)]
    assert sources == [str(tmp_path / TARGET), str(tmp_path / DRAFT)]
    assert not [call for call in deployment.calls() if "CUDA_VISIBLE_DEVICES" in call["env"]]


def test_one_of_two_builds_fails(tmp_path):
    """The one that works is ended with it, and the error is that of the one that failed."""
    deployment = write_gpu_deployment(tmp_path, method="draft_target", gpus=2)

    with deployment.held():
        failed = deployment.run("build", "--set", "draft.extra_convert_args=[--no_such_option]")

    assert failed.returncode == 4
    assert "unrecognized arguments: --no_such_option" in failed.stderr
    assert not [call for call in deployment.calls() if is_running(call["pid"])]
    assert (deployment.engines(), deployment.leftovers()) == ([], [])


def test_arguments_of_the_users_own(tmp_path):
    """One that the release lacks is refused with the nearest before anything runs; one that it has arrives."""
    deployment = write_gpu_deployment(tmp_path)
    unknown = ["--set", "target.extra_build_args=[--gemm_plugn float16]"]
    owned = ["--set", "target.extra_build_args=[--max_batch_size 9]"]

    refused, decided = deployment.run("build", *unknown), deployment.run("build", *owned)

    assert (refused.returncode, decided.returncode) == (2, 2)
    assert "did you mean --gemm_plugin?" in refused.stderr
    assert "build.max_batch_size" in decided.stderr
    assert deployment.calls() == []

    good = ["--set", "target.extra_build_args=[--multiple_profiles enable]"]
    built = deployment.run_json("build", *good)

    (call,) = deployment.calls(BUILDER)
    assert _option(call["argv"], "--multiple_profiles") == "enable"
    assert _recorded(deployment, built["target"])["build_config"]["plugin_config"]["multiple_profiles"] is True


def test_a_quantised_engine(tmp_path):
    """FP8 weights and cache, calibrated on a local folder of texts, whose content is part of the key."""
    deployment = write_gpu_deployment(tmp_path, settings=QUANTISED)
    (tmp_path / TEXTS).mkdir()
    (tmp_path / TEXTS / "train.jsonl").write_text('{"text": "one"}\n')

    built = deployment.run_json("build")["target"]

    recorded = _recorded(deployment, built)["pretrained_config"]
    quantization = recorded["quantization"]
    assert (quantization["quant_algo"], quantization["kv_cache_quant_algo"]) == ("FP8", "FP8")
    assert recorded["logits_dtype"] == "float32"
    (call,) = deployment.calls(QUANTIZER)
    assert _option(call["argv"], "--calib_dataset") == str(tmp_path / TEXTS)
    assert deployment.calls(CONVERTER) == []
    assert built["precision"] == "fp8"
    assert set(built["steps"]) == {"quantise", "build"}

    (tmp_path / TEXTS / "train.jsonl").write_text('{"text": "two"}\n')
    (engine,) = deployment.run_json("plan")["engines"]
    assert [reason.split()[0] for reason in engine["miss"]["reasons"]] == ["calibration"]


@pytest.mark.parametrize(
    ("method", "changes", "said"),
    [
        ("ngram", ["tensorrt_llm.calib_dataset="], ["precision.no-calibration", "Name a local folder or file"]),
        ("ngram", ["tensorrt_llm.calib_dataset=nowhere"], ["there is no", "nowhere"]),
        ("draft_target", ["target.kv_cache=int8"], ["precision.no-reuse", "Leave kv_cache at auto"]),
        ("ngram", ["gpu.name=A100-80GB"], ["precision.gpu-too-old", "8.9"]),
    ],
    ids=["no texts", "absent texts", "int8 cache", "old gpu"],
)
def test_quantisation_that_cannot_be(tmp_path, method, changes, said):
    """Each is refused with its cure before anything runs: exit code 2."""
    deployment = write_gpu_deployment(tmp_path, method=method, settings=QUANTISED)
    (tmp_path / TEXTS).mkdir()
    (tmp_path / TEXTS / "train.jsonl").write_text('{"text": "one"}\n')

    refused = deployment.run("build", *(word for change in changes for word in ("--set", change)))

    assert refused.returncode == 2
    assert [text for text in said if text not in refused.stderr] == []
    assert deployment.calls() == []
    assert not deployment.store.exists()


def test_a_head_of_another_model(tmp_path):
    """Names that contradict each other are an error, with both in it."""
    deployment = write_gpu_deployment(tmp_path, method="medusa")
    write_medusa(tmp_path / "medusa", base_model="lmsys/vicuna-7b-v1.3")

    refused = deployment.run("build")

    assert refused.returncode == 2
    assert "lmsys/vicuna-7b-v1.3" in refused.stderr
    assert TARGET in refused.stderr
    assert deployment.calls() == []


def test_a_shard_that_is_missing(tmp_path):
    """The file that the index names and the folder lacks is named."""
    deployment = write_gpu_deployment(tmp_path)
    write_shards(tmp_path / "sharded", 3)
    (tmp_path / "sharded" / "model-00002-of-00003.safetensors").unlink()

    refused = deployment.run("build", "--set", "target.checkpoint=sharded")

    assert refused.returncode == 2
    assert "model-00002-of-00003.safetensors" in refused.stderr
    assert deployment.calls() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("release=1.3.0", ["has no engine builder any more", "llmapi"]),
        ("release=0.9.0", ["0.9.0", "Known releases"]),
        ("speculation.method=eagle3", ["does not speculate by eagle3", "llmapi"]),
        ("target.tp_size=3", ["tp_size"]),
        ("build.max_seq_len=100000", ["100000", "512"]),
    ],
)
def test_a_configuration_that_no_engine_can_be_made_of(tmp_path, change, said):
    """Exit code 2 with the cure, and nothing is run."""
    deployment = write_gpu_deployment(tmp_path)

    refused = deployment.run("build", "--set", change)

    assert refused.returncode == 2
    assert [text for text in said if text not in refused.stderr] == []
    assert deployment.calls() == []
    assert not deployment.store.exists()


def test_the_llm_apis_configuration_is_built_like_an_engine(tmp_path, bare):
    """A file and a manifest, found again the next time, and no process is started."""
    deployment = write_gpu_deployment(tmp_path, method="draft_target", settings={"profile": "llmapi"})

    built = deployment.run_json("build", env=bare)
    again = deployment.run("build", env=bare)

    (engine,) = deployment.engines()
    document = (engine / "model.yaml").read_text()
    assert str(tmp_path / TARGET) in document
    assert str(tmp_path / DRAFT) in document
    assert built["draft"] is None
    assert [file["path"] for file in built["target"]["files"]] == ["model.yaml"]
    assert (built["target"]["profile"], built["target"]["argv"]) == ("llmapi", [])
    assert "in the store already" in again.stderr
    assert deployment.calls() == []

    wrong = "llmapi.args=[kv_cache_config.free_gpu_memory_fractoin=0.8]"
    refused = deployment.run("build", "--set", wrong, env=bare)

    assert refused.returncode == 2
    assert "did you mean" in refused.stderr
    assert "free_gpu_memory_fraction" in refused.stderr
    assert len(deployment.engines()) == 1
