"""The command line that turns a checkpoint into a TensorRT-LLM checkpoint, and what of it decides the result.

Three programs do it: the family's ``convert_checkpoint.py``, ``quantize.py`` for calibrated precisions, and the
converters of EAGLE, Medusa and ReDrafter, which join a head to its base model.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.engine.profile import OUTPUT
from specdeploy.engine.tensorrt_llm.families import (
    QUANTIZE_SCRIPT,
    family_script,
    find_family,
    head_script,
    nearest_architecture,
)
from specdeploy.engine.tensorrt_llm.flags import split_arguments
from specdeploy.engine.tensorrt_llm.precisions import PRECISIONS, compute_dtype
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.checkpoint.head import HeadInfo
    from specdeploy.config.schema import SpeculationConfig, TensorrtLlmConfig
    from specdeploy.engine.profile import EngineSpec
    from specdeploy.engine.tensorrt_llm.families import Family
    from specdeploy.engine.tensorrt_llm.releases import Release

_NON_LEAVES_PER_LAYER: Final = 10
# What its exporter writes by itself, without TensorRT-LLM beside it; measured on 0.37.
MODELOPT_ARCHITECTURES: Final = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "GemmaForCausalLM"}
)
# The converters that join a head take these; quantize.py knows Medusa, and nothing is known of the others.
_JOINED_PRECISIONS: Final = frozenset({"fp32", "fp16", "bf16", "int8_wo", "int4_wo"})


@dataclasses.dataclass(frozen=True)
class Conversion:
    """One conversion.

    Args:
        script: Path below the image's examples folder; ``-m`` and a module for ModelOpt.
        options: Option to value, without those that only say where; an empty value is a switch.
        paths: Option to path: what is read and where it is written. Not part of the result.
        extra: The user's own arguments.
        gpus: GPUs that it needs.
    """

    script: str
    options: dict[str, str]
    paths: dict[str, str]
    extra: tuple[str, ...] = ()
    gpus: int = 0

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments after the script."""
        words = {**self.paths, **self.options}
        flat = (word for name, value in words.items() for word in ((name, value) if value else (name,)))
        return (*flat, *self.extra)

    @property
    def parts(self) -> dict[str, Any]:
        """What decides the result; how many workers make it does not."""
        named = {name.lstrip("-").replace("-", "_"): value or True for name, value in self.options.items()}
        named.pop("workers", None)
        return {**named, **({"extra": list(self.extra)} if self.extra else {})}


def convert(
    spec: EngineSpec, speculation: SpeculationConfig, settings: TensorrtLlmConfig, release: Release, calibration: str
) -> Conversion:
    """Return how a checkpoint becomes what ``trtllm-build`` reads.

    Args:
        spec: The engine.
        speculation: The method, whose head (if it has one) is built into the target.
        settings: How upstream's programs are used.
        release: Whose programs.
        calibration: Absolute path of the texts to calibrate on.

    Raises:
        ConfigError: The release has no converter for the model class.
    """
    conversion = _conversion(spec, speculation, settings, release, calibration)
    return dataclasses.replace(conversion, extra=split_arguments(spec.extra_convert_args))


def _conversion(
    spec: EngineSpec, speculation: SpeculationConfig, settings: TensorrtLlmConfig, release: Release, calibration: str
) -> Conversion:
    if settings.converter == "modelopt":
        return _modelopt(spec, settings, calibration)
    if spec.head is not None and spec.role == "target":
        return _joined(spec, spec.head, speculation, settings, calibration)
    if _is_quantised(spec):
        return _quantised(spec, settings, calibration)
    family = find_family(spec.checkpoint.architecture, release)
    if family is None:
        architecture = spec.checkpoint.architecture
        raise ConfigError(
            f"TensorRT-LLM {release.version} has no known converter for {architecture}",
            hint=nearest_architecture(architecture),
        )
    options, paths = _family_options(spec, family)
    return Conversion(family_script(family, release), options, paths)


def check_conversion(
    spec: EngineSpec, speculation: SpeculationConfig, settings: TensorrtLlmConfig, release: Release
) -> Iterator[Finding]:
    """Yield what the converters of the release cannot do of what is wanted."""
    architecture, family = spec.checkpoint.architecture, find_family(spec.checkpoint.architecture, release)
    if family is None and settings.converter == "scripts":
        yield _error(
            "convert.architecture",
            f"{spec.role}.checkpoint",
            f"TensorRT-LLM {release.version} has no known converter for {architecture}",
            nearest_architecture(architecture),
        )
    if family is not None and settings.converter == "scripts":
        yield from _check_family(spec, family)
    if settings.converter == "modelopt":
        yield from _check_modelopt(spec)
    if spec.head is not None and spec.role == "target":
        yield from _check_joined(spec, speculation, settings)
    if spec.ep_size > 1 and spec.tp_size % spec.ep_size:
        yield _error(
            "convert.experts",
            f"{spec.role}.ep_size",
            f"ep_size {spec.ep_size} does not divide tp_size {spec.tp_size}",
            "Every rank of the tensor parallelism takes the same share of the experts.",
        )


def _check_family(spec: EngineSpec, family: Family) -> Iterator[Finding]:
    if spec.pp_size > 1 and not family.pipeline:
        message = f"the converter of {family.name} has no pipeline parallelism, and pp_size is {spec.pp_size}"
        yield _error("convert.pipeline", f"{spec.role}.pp_size", message, f"Use {spec.role}.tp_size.")
    if PRECISIONS[spec.precision].weight_only and not family.weight_only:
        message = f"the converter of {family.name} does not store weights at {spec.precision}"
        yield _error("convert.weight-only", f"{spec.role}.precision", message, "Take bf16 or fp8.")


def _check_modelopt(spec: EngineSpec) -> Iterator[Finding]:
    architecture = spec.checkpoint.architecture
    if architecture not in MODELOPT_ARCHITECTURES:
        yield _error(
            "convert.modelopt-architecture",
            f"{spec.role}.checkpoint",
            f"nvidia-modelopt does not write TensorRT-LLM checkpoints of {architecture} that can be relied on",
            f"It does for {', '.join(sorted(MODELOPT_ARCHITECTURES))}; for others use converter: scripts.",
        )
    if PRECISIONS[spec.precision].weight_only or spec.precision == "fp32":
        message = f"nvidia-modelopt does not store weights at {spec.precision}"
        yield _error("convert.modelopt-precision", f"{spec.role}.precision", message, "Use converter: scripts.")


def _check_joined(spec: EngineSpec, speculation: SpeculationConfig, settings: TensorrtLlmConfig) -> Iterator[Finding]:
    method = speculation.method
    if settings.converter == "modelopt":
        message = f"nvidia-modelopt does not join a head of the method {method} to its base model"
        yield _error("convert.modelopt-head", "tensorrt_llm.converter", message, "Use converter: scripts.")
    if spec.precision not in _JOINED_PRECISIONS and method != "medusa":
        message = f"the converter of {method} does not quantise to {spec.precision}"
        yield _error("convert.head-precision", "target.precision", message, "Take bf16, fp16, int8_wo or int4_wo.")
    llama_like = {"LlamaForCausalLM", "MixtralForCausalLM"}
    if method in {"eagle", "redrafter"} and spec.checkpoint.architecture not in llama_like:
        message = f"the converter of {method} takes Llama models only, the target is a {spec.checkpoint.architecture}"
        yield _error("convert.head-base", "target.checkpoint", message, "Take draft_target, or profile llmapi.")


def _is_quantised(spec: EngineSpec) -> bool:
    return bool(PRECISIONS[spec.precision].qformat) or spec.kv_cache != "auto"


def _dtype(spec: EngineSpec) -> str:
    return compute_dtype(spec.precision, spec.checkpoint.dtype)


def _family_options(spec: EngineSpec, family: Family) -> tuple[dict[str, str], dict[str, str]]:
    if family.spelling == "gemma":
        options = {"--ckpt-type": "hf", "--dtype": _dtype(spec), "--world-size": str(spec.tp_size)}
        return options, {"--model-dir": spec.checkpoint.path, "--output-model-dir": OUTPUT}
    options = {"--dtype": _dtype(spec), **_sharding(spec), **_weight_only(spec), **_workers(spec)}
    return options, {"--model_dir": spec.checkpoint.path, "--output_dir": OUTPUT}


def _quantised(spec: EngineSpec, settings: TensorrtLlmConfig, calibration: str) -> Conversion:
    options = {"--dtype": _dtype(spec), "--qformat": PRECISIONS[spec.precision].qformat or "full_prec"}
    if spec.kv_cache != "auto":
        options["--kv_cache_dtype"] = spec.kv_cache
    options |= {"--calib_size": str(settings.calib_size), "--tp_size": str(spec.tp_size)}
    options |= {"--pp_size": str(spec.pp_size)} if spec.pp_size > 1 else {}
    paths = {"--model_dir": spec.checkpoint.path, "--output_dir": OUTPUT, "--calib_dataset": calibration}
    return Conversion(QUANTIZE_SCRIPT, options, paths, gpus=1)


def _joined(
    spec: EngineSpec, head: HeadInfo, speculation: SpeculationConfig, settings: TensorrtLlmConfig, calibration: str
) -> Conversion:
    method = speculation.method
    base = {"--model_dir": spec.checkpoint.path, "--output_dir": OUTPUT}
    options = {"--dtype": _dtype(spec), "--tp_size": str(spec.tp_size)}
    if method == "eagle":
        options |= {
            "--max_draft_len": str(speculation.tree_tokens),
            "--num_eagle_layers": str(speculation.tree_depth),
            "--max_non_leaves_per_layer": str(_NON_LEAVES_PER_LAYER),
        }
        paths = {**base, "--eagle_model_dir": head.path}
        return Conversion(head_script(method), {**options, **_weight_only(spec)}, paths)
    if method == "redrafter":
        options |= {
            "--redrafter_num_beams": str(speculation.num_beams),
            "--redrafter_draft_len_per_beam": str(speculation.beam_tokens),
        }
        paths = {**base, "--drafter_model_dir": head.path}
        return Conversion(head_script(method), options, paths)
    heads = {"--num_medusa_heads": str(speculation.num_heads), "--num_medusa_layers": str(head.num_layers or 1)}
    if _is_quantised(spec):
        quantised = _quantised(spec, settings, calibration)
        longest = {"--max_draft_len": str(speculation.tree_tokens)}
        return dataclasses.replace(
            quantised,
            options={**quantised.options, **heads, **longest},
            paths={**quantised.paths, "--medusa_model_dir": head.path},
        )
    options |= {"--pp_size": str(spec.pp_size)} if spec.pp_size > 1 else {}
    options |= {**heads, "--max_medusa_token_len": str(speculation.tree_tokens)}
    paths = {**base, "--medusa_model_dir": head.path}
    return Conversion(head_script(method), {**options, **_weight_only(spec)}, paths)


def _modelopt(spec: EngineSpec, settings: TensorrtLlmConfig, calibration: str) -> Conversion:
    options = {"--dtype": _dtype(spec), "--qformat": PRECISIONS[spec.precision].qformat or "full_prec"}
    # Calibrating is a few hundred passes; on a processor it would take the day.
    options |= {"--device": "cuda"} if _is_quantised(spec) else {}
    options |= {"--kv-cache": spec.kv_cache} if spec.kv_cache != "auto" else {}
    options |= {"--tp-size": str(spec.tp_size), "--pp-size": str(spec.pp_size)}
    paths = {"--checkpoint": spec.checkpoint.path, "--output": OUTPUT}
    if _is_quantised(spec):
        options["--calib-size"] = str(settings.calib_size)
        paths["--calib-dataset"] = calibration
    return Conversion("specdeploy.modelopt", options, paths, gpus=1 if _is_quantised(spec) else 0)


def _sharding(spec: EngineSpec) -> dict[str, str]:
    sizes = {"--tp_size": str(spec.tp_size), "--pp_size": str(spec.pp_size)}
    if spec.ep_size > 1:
        sizes |= {"--moe_tp_size": str(spec.tp_size // spec.ep_size), "--moe_ep_size": str(spec.ep_size)}
    return sizes


def _weight_only(spec: EngineSpec) -> dict[str, str]:
    precision = PRECISIONS[spec.precision].weight_only
    return {"--use_weight_only": "", "--weight_only_precision": precision} if precision else {}


def _workers(spec: EngineSpec) -> dict[str, str]:
    return {"--workers": str(spec.world_size)} if spec.world_size > 1 else {}


def _error(code: str, where: str, message: str, hint: str) -> Finding:
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)
