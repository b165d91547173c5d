"""Which of the image's converters takes a model class, where the release keeps it, and how it spells its options.

The layout of 0.20 and later, the scripts of llama, gemma and the heads, and their options were read upstream; that the
other families follow llama's spelling, and which classes and releases go together, is as their users report it.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.engine.tensorrt_llm.releases import Release

Spelling: TypeAlias = Literal["llama", "gemma"]


@dataclasses.dataclass(frozen=True)
class Family:
    """One converter.

    Args:
        name: Its folder.
        group: ``core`` or ``contrib``, its parent from 0.20 on.
        spelling: Whose options it has.
        pipeline: Whether it divides layers among stages.
        weight_only: Whether it can store weights at int8 or int4.
        experts: Whether it divides the experts of a mixture among GPUs.
    """

    name: str
    group: str = "core"
    spelling: Spelling = "llama"
    pipeline: bool = True
    weight_only: bool = True
    experts: bool = False


_LLAMA: Final = Family("llama", experts=True)
_QWEN: Final = Family("qwen", experts=True)
_GEMMA: Final = Family("gemma", spelling="gemma", pipeline=False, weight_only=False)
_GPT: Final = Family("gpt")
_PHI: Final = Family("phi", pipeline=False)
_FALCON: Final = Family("falcon", group="contrib")
_MPT: Final = Family("mpt", group="contrib")

FAMILIES: Final[Mapping[str, Family]] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _QWEN,
    "Qwen2MoeForCausalLM": _QWEN,
    "Qwen3ForCausalLM": _QWEN,
    "Qwen3MoeForCausalLM": _QWEN,
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": _GEMMA,
    "Gemma3ForCausalLM": _GEMMA,
    "GPT2LMHeadModel": _GPT,
    "GPTBigCodeForCausalLM": _GPT,
    "Starcoder2ForCausalLM": _GPT,
    "PhiForCausalLM": _PHI,
    "Phi3ForCausalLM": _PHI,
    "FalconForCausalLM": _FALCON,
    "MPTForCausalLM": _MPT,
}
#: Model classes that Medusa's converter takes as a base, and its names of them.
MEDUSA_MODEL_TYPES: Final[Mapping[str, str]] = {
    "LlamaForCausalLM": "llama",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
}
# Releases before these cannot convert the class.
_SINCE: Final = {"Qwen3ForCausalLM": "0.20", "Qwen3MoeForCausalLM": "0.20", "Gemma3ForCausalLM": "0.19"}


def find_family(architecture: str, release: Release) -> Family | None:
    """Return the converter of a model class, or None when the release has none for it."""
    since = _SINCE.get(architecture)
    if since is not None and _numbers(release.row) < _numbers(since):
        return None
    return FAMILIES.get(architecture)


def nearest_architecture(architecture: str) -> str:
    """Return a hint: the known class whose name is nearest, and how to learn of all."""
    near = difflib.get_close_matches(architecture, FAMILIES, n=1, cutoff=0.8)
    known = ", ".join(sorted({family.name for family in FAMILIES.values()}))
    since = _SINCE.get(architecture)
    if since is not None:
        return f"Take release {since} or later."
    kin = f"Is it a {near[0]}? " if near else f"Converters are known for the families {known}. "
    return f"{kin}The profile llmapi (release 1.0 and later) serves what PyTorch can load."


def family_script(family: Family, release: Release) -> str:
    """Return the converter's path below the image's examples folder."""
    folder = f"models/{family.group}/{family.name}" if release.split_families else family.name
    return f"{folder}/convert_checkpoint.py"


def head_script(method: str) -> str:
    """Return the path of the converter that joins a head to its base model, the same in every release."""
    return f"{method}/convert_checkpoint.py"


def joins_converted(release: Release) -> bool:
    """Say whether ReDrafter's converter joins the head to a converted checkpoint, and no longer to a Hugging Face one.

    Source: github.com/NVIDIA/TensorRT-LLM/pull/4875, which the release notes of 1.0 list.
    """
    return _numbers(release.row) >= (1, 0)


QUANTIZE_SCRIPT: Final = "quantization/quantize.py"


def _numbers(row: str) -> tuple[int, ...]:
    return tuple(int(number) for number in row.split("."))
