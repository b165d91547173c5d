"""The `cpu` profile: command lines and keys, as data."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from specdeploy.config.rules import METHODS
from specdeploy.config.schema import DeployConfig, ModelConfig
from specdeploy.engine import PROFILES, Machine
from specdeploy.engine.cpu import BUILDER, COMPILED_ARCHITECTURES, COMPILER, CpuProfile
from specdeploy.engine.profile import EngineSpec
from tests.unit.checkpoint.folders import info

ROOT = Path(__file__).parents[3]
PROFILE = CpuProfile(python="/usr/bin/python3")


def _spec(precision="int8", **changes):
    limits = {"role": "draft", "name": "small-int8", "max_seq_len": 128, "max_batch_size": 2}
    checkpoint = info(**{key: changes.pop(key) for key in list(changes) if key not in limits})
    return EngineSpec(precision=precision, checkpoint=checkpoint, **(limits | changes))


def _compilers_constant(name: str):
    """Return a constant of the compiler, whose modules need packages that this test does not."""
    for path in sorted((ROOT / "specdeploy" / "cpu").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            target = node.target if isinstance(node, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and target.id == name:
                return ast.literal_eval(node.value)
    raise LookupError(name)


def test_a_llama_checkpoint_goes_through_our_compiler():
    """The whole command line, and the files that must be there afterwards."""
    (step,) = PROFILE.steps(_spec())

    assert step.argv == (
        *("/usr/bin/python3", "-m", "specdeploy.cpu.compile"),
        *("--checkpoint", "/checkpoints/big", "--precision", "int8", "--output", "{output}"),
    )
    assert step.outputs == ("genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "compile.json")
    assert step.inputs == ("/checkpoints/big",)
    assert "torch" not in step.requires


def test_another_architecture_goes_through_the_model_builder():
    """It needs torch, and what it downloads or caches is thrown away."""
    (step,) = PROFILE.steps(_spec(architecture="Qwen2ForCausalLM"))

    assert step.argv == (
        *("/usr/bin/python3", "-m", "onnxruntime_genai.models.builder"),
        *("-i", "/checkpoints/big", "-o", "{output}", "-p", "int8", "-e", "cpu", "-c", "{scratch}"),
    )
    assert {"torch", "transformers"} <= set(step.requires)
    assert step.env == {"HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "/elsewhere", "name": "copy"},
        {"max_seq_len": 4096},
        {"max_batch_size": 64},
        {"role": "target"},
        {"stat_fingerprint": "0" * 64},
    ],
)
def test_what_does_not_change_the_engine_does_not_change_its_key(changes):
    """Paths, names, roles, times, and limits that are set when it is loaded."""
    assert PROFILE.steps(_spec(**changes))[0].key == PROFILE.steps(_spec())[0].key


@pytest.mark.parametrize(
    "changes", [{"precision": "int4"}, {"fingerprint": "0" * 64}, {"architecture": "Qwen2ForCausalLM"}]
)
def test_what_changes_the_engine_changes_its_key(changes):
    """Precision, content of the checkpoint, compiler."""
    assert PROFILE.steps(_spec(**changes))[0].key != PROFILE.steps(_spec())[0].key


def test_the_limit_is_the_checkpoints_own():
    """The KV cache grows to what the network was made for."""
    assert PROFILE.limit(_spec(max_seq_len=128)) == 2048


def test_the_estimate_is_near_the_engines_that_were_measured():
    """SmolLM2-135M, the files that our compiler wrote and those of the model builder."""
    size = {"parameters": 134_515_008, "vocab_size": 49152, "hidden_size": 576, "tie_word_embeddings": True}
    size |= {"num_layers": 30, "intermediate_size": 1536}

    for precision, measured in (("fp32", 540.2e6), ("int8", 210.2e6), ("int4", 170.3e6)):
        assert PROFILE.estimated_bytes(_spec(precision=precision, **size)) == pytest.approx(measured, rel=0.02)
    size["architecture"] = "Qwen2ForCausalLM"
    for precision, measured in (("fp32", 655e6), ("int8", 188e6), ("int4", 121e6)):
        assert PROFILE.estimated_bytes(_spec(precision=precision, **size)) == pytest.approx(measured, rel=0.1)


def test_an_untied_head_is_counted_once():
    """Its weights are among the parameters already; the model builder stores those of a tied one twice."""
    for architecture, tied_weights in (("LlamaForCausalLM", 1000), ("Qwen2ForCausalLM", 1000 + 6 * 8)):
        tied, untied = (
            PROFILE.estimated_bytes(
                _spec("fp32", architecture=architecture, parameters=parameters, tie_word_embeddings=is_tied)
            )
            for parameters, is_tied in ((1000, True), (1000 + 6 * 8, False))
        )

        assert (tied, untied) == (4 * tied_weights, 4 * (1000 + 6 * 8))


def test_the_compiler_is_the_one_that_is_run():
    """The key names the compiler's own version and covers the architectures that it takes."""
    assert _compilers_constant("COMPILER") == COMPILER
    assert set(_compilers_constant("ARCHITECTURES")) == COMPILED_ARCHITECTURES


def test_the_builder_is_the_release_that_the_extra_pins():
    """The version in the key is the version that is installed."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    assert f"onnxruntime-genai=={BUILDER.rpartition('/')[2]}" in extras["cpu"]


def test_the_profile_is_registered_under_its_name():
    """The registry is a dict, and its keys are what the configuration says."""
    config = DeployConfig(name="x", target=ModelConfig(checkpoint="a"))

    assert {name: make(config, Machine()).name for name, make in PROFILES.items()} == {name: name for name in METHODS}
