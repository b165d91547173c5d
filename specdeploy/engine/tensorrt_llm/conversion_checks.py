"""What the converters of a release cannot do of what is wanted, found before any of them runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.engine.tensorrt_llm.convert import is_quantised
from specdeploy.engine.tensorrt_llm.converter_options import check_convert_arguments
from specdeploy.engine.tensorrt_llm.families import (
    MEDUSA_MODEL_TYPES,
    find_family,
    joins_converted,
    nearest_architecture,
)
from specdeploy.engine.tensorrt_llm.flags import split_arguments
from specdeploy.engine.tensorrt_llm.precisions import PRECISIONS
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.config.schema import SpeculationConfig, TensorrtLlmConfig
    from specdeploy.engine.profile import EngineSpec
    from specdeploy.engine.tensorrt_llm.families import Family
    from specdeploy.engine.tensorrt_llm.releases import Release

_UNQUANTISED: Final = ("bf16", "fp16", "fp32")
# ModelOpt quantises with scales or not at all, and writes float32 as float16.
_NOT_BY_MODELOPT: Final = frozenset({"fp32", "int8_wo", "int4_wo"})


def check_conversion(
    spec: EngineSpec, speculation: SpeculationConfig, settings: TensorrtLlmConfig, release: Release
) -> Iterator[Finding]:
    """Yield what the converters of the release cannot do of what is wanted."""
    if settings.converter == "modelopt":
        yield from _check_modelopt(spec, speculation)
    else:
        yield from _check_scripts(spec, release)
        if spec.head is not None and spec.role == "target":
            yield from _check_joined(spec, speculation.method, release)
    yield from _check_experts(spec, settings, find_family(spec.checkpoint.architecture, release))
    yield from _check_arguments(spec)


def _check_scripts(spec: EngineSpec, release: Release) -> Iterator[Finding]:
    architecture = spec.checkpoint.architecture
    family = find_family(architecture, release)
    if family is None:
        message = f"TensorRT-LLM {release.version} has no known converter for {architecture}"
        yield _error("convert.architecture", f"{spec.role}.checkpoint", message, nearest_architecture(architecture))
        return
    if spec.pp_size > 1 and not family.pipeline:
        message = f"the converter of {family.name} has no pipeline parallelism, and pp_size is {spec.pp_size}"
        yield _error("convert.pipeline", f"{spec.role}.pp_size", message, f"Use {spec.role}.tp_size.")
    if PRECISIONS[spec.precision].weight_only and not family.weight_only:
        message = f"the converter of {family.name} does not store weights at {spec.precision}"
        yield _error("convert.weight-only", f"{spec.role}.precision", message, "Take bf16 or fp8.")


def _check_joined(spec: EngineSpec, method: str, release: Release) -> Iterator[Finding]:
    bases = _bases(method, release)
    if spec.checkpoint.architecture not in bases:
        message = (
            f"the converter of {method} takes {' and '.join(bases)}, the target is a {spec.checkpoint.architecture}"
        )
        yield _error("convert.head-base", "target.checkpoint", message, "Take draft_target, or profile llmapi.")
    if method == "medusa":  # whose heads quantize.py knows
        return
    precisions = _head_precisions(method, release)
    if spec.precision not in precisions:
        message = f"the converter of {method} does not make weights of {spec.precision}"
        yield _error("convert.head-precision", "target.precision", message, f"Take {_either(precisions)}.")
    if spec.kv_cache != "auto" and (spec.kv_cache != "fp8" or "fp8" not in precisions):
        message = f"the converter of {method} makes no {spec.kv_cache} KV cache"
        yield _error("convert.head-kv-cache", "target.kv_cache", message, "Leave it at auto.")


def _bases(method: str, release: Release) -> tuple[str, ...]:
    if method == "medusa":
        return tuple(MEDUSA_MODEL_TYPES)
    if method == "eagle":
        return ("LlamaForCausalLM", "MixtralForCausalLM")
    return ("LlamaForCausalLM", "Qwen2ForCausalLM") if joins_converted(release) else ("LlamaForCausalLM",)


def _head_precisions(method: str, release: Release) -> tuple[str, ...]:
    """Return the precisions that a base model can have; of ReDrafter's quantised ones, FP8 is documented."""
    if method == "eagle":
        return (*_UNQUANTISED, "int8_wo", "int4_wo")
    return (*_UNQUANTISED, "fp8") if joins_converted(release) else _UNQUANTISED


def _check_modelopt(spec: EngineSpec, speculation: SpeculationConfig) -> Iterator[Finding]:
    if spec.head is not None and spec.role == "target":
        message = f"nvidia-modelopt does not join a head of the method {speculation.method} to its base model"
        yield _error("convert.modelopt-head", "tensorrt_llm.converter", message, "Use converter: scripts.")
    if spec.precision in _NOT_BY_MODELOPT:
        message = f"nvidia-modelopt does not make weights of {spec.precision}"
        yield _error("convert.modelopt-precision", f"{spec.role}.precision", message, "Use converter: scripts.")


def _check_experts(spec: EngineSpec, settings: TensorrtLlmConfig, family: Family | None) -> Iterator[Finding]:
    if spec.ep_size == 1:
        return
    where, ranks = f"{spec.role}.ep_size", f"ep_size {spec.ep_size}"
    if spec.tp_size % spec.ep_size:
        hint = "Every rank of the tensor parallelism takes the same share of the experts."
        yield _error("convert.experts", where, f"{ranks} does not divide tp_size {spec.tp_size}", hint)
    joined = spec.head is not None and spec.role == "target"
    if joined or is_quantised(spec) or settings.converter == "modelopt" or (family and not family.experts):
        message = f"{ranks} is wanted, and the program that converts this checkpoint has no expert parallelism"
        yield _error(
            "convert.no-expert-parallelism", where, message, f"Leave {where} at 1: tp_size divides experts, too."
        )


def _check_arguments(spec: EngineSpec) -> Iterator[Finding]:
    try:
        split_arguments(spec.extra_convert_args)
    except ValueError as error:
        message = f"{error}: {' '.join(spec.extra_convert_args)}"
        yield _error("flags.syntax", f"{spec.role}.extra_convert_args", message, "Close the quotation.")
        return
    yield from check_convert_arguments(spec)


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _error(code: str, where: str, message: str, hint: str) -> Finding:
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)
