"""Which converter takes a model class, and where a release keeps it."""

from __future__ import annotations

import pytest

from specdeploy.engine.tensorrt_llm.families import (
    FAMILIES,
    family_script,
    find_family,
    head_script,
    joins_converted,
    nearest_architecture,
)
from specdeploy.engine.tensorrt_llm.releases import find_release
from tests.toolchain import install_toolchain
from tests.unit.engine.tensorrt_llm.trtllm_cases import RELEASES


@pytest.mark.parametrize("version", [*RELEASES, "0.19.0", "0.20.0"])
def test_every_script_lies_where_it_is_looked_for(version, tmp_path):
    """In the examples tree of the release, but for MPT's, which the stand-in does not play."""
    toolchain, release = install_toolchain(tmp_path, version), find_release(version)
    scripts = {family_script(family, release) for family in FAMILIES.values() if family.name != "mpt"}
    scripts |= {head_script(method) for method in ("eagle", "medusa", "redrafter")}

    assert [script for script in sorted(scripts) if not (toolchain.examples / script).is_file()] == []


@pytest.mark.parametrize(
    ("architecture", "first", "last_without"),
    [("Qwen3ForCausalLM", "0.20.0", "0.19.0"), ("Gemma3ForCausalLM", "0.19.0", "0.18.2")],
)
def test_a_younger_class_needs_a_younger_release(architecture, first, last_without):
    """And the hint names the first that has it."""
    assert find_family(architecture, find_release(first)) is not None
    assert find_family(architecture, find_release("1.2.1")) is not None
    assert find_family(architecture, find_release(last_without)) is None
    assert first.rpartition(".")[0] in nearest_architecture(architecture)


def test_an_unknown_class_is_compared_with_the_known_ones():
    """A slip has a near one; for anything else the families are listed."""
    assert find_family("LlamaForCasualLM", find_release("1.2.1")) is None
    assert nearest_architecture("LlamaForCasualLM").startswith("Is it a LlamaForCausalLM? The profile llmapi ")
    assert "falcon, gemma, gpt, llama, mpt, phi, qwen" in nearest_architecture("T5ForConditionalGeneration")


@pytest.mark.parametrize(("version", "joins"), [("0.17.0", False), ("0.21.0", False), ("1.0.0", True), ("1.2.1", True)])
def test_redrafter_joins_a_converted_base_from_1_0_on(version, joins):
    """The converter's base was a Hugging Face folder before (NVIDIA/TensorRT-LLM#4875)."""
    assert joins_converted(find_release(version)) is joins
