"""The command lines that turn a checkpoint into a TensorRT-LLM checkpoint, and what of them decides the result.

Four programs do it: the family's ``convert_checkpoint.py``, ``quantize.py`` for calibrated precisions, the converters
of EAGLE, Medusa and ReDrafter, which join a head to its base model, and nvidia-modelopt by ``specdeploy.modelopt``.
What of it cannot be done is for ``conversion_checks``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.engine.profile import OUTPUT, PREVIOUS
from specdeploy.engine.tensorrt_llm.families import (
    MEDUSA_MODEL_TYPES,
    QUANTIZE_SCRIPT,
    family_script,
    find_family,
    head_script,
    joins_converted,
    nearest_architecture,
)
from specdeploy.engine.tensorrt_llm.flags import named_values, split_arguments
from specdeploy.engine.tensorrt_llm.precisions import PRECISIONS, compute_dtype
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from specdeploy.checkpoint.head import HeadInfo
    from specdeploy.config.schema import SpeculationConfig, TensorrtLlmConfig
    from specdeploy.engine.profile import EngineSpec
    from specdeploy.engine.tensorrt_llm.families import Family
    from specdeploy.engine.tensorrt_llm.releases import Release

# How much is said, not what is made.
_SILENT: Final = frozenset({"--log_level"})
_NON_LEAVES_PER_LAYER: Final = 10


@dataclasses.dataclass(frozen=True)
class Conversion:
    """One conversion.

    Args:
        name: What it does: convert, quantise or join.
        script: Path below the image's examples folder; a module for ModelOpt.
        options: Option to value, without those that only say where; an empty value is a switch.
        paths: Option to path: what is read and where it is written. Not part of the result.
        extra: The user's own arguments.
        gpus: GPUs that it needs.
    """

    name: str
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
        extra = {name.lstrip("-"): values for name, values in sorted(named_values(self.extra)) if name not in _SILENT}
        return {**named, **({"extra": extra} if extra else {})}


def convert(
    spec: EngineSpec, speculation: SpeculationConfig, settings: TensorrtLlmConfig, release: Release, calibration: str
) -> tuple[Conversion, ...]:
    """Return how a checkpoint becomes what ``trtllm-build`` reads; the second of two reads what the first wrote.

    Args:
        spec: The engine. Its own arguments go to the last conversion.
        speculation: The method, whose head (if it has one) is built into the target.
        settings: How upstream's programs are used.
        release: Whose programs.
        calibration: Absolute path of the texts to calibrate on.

    Raises:
        ConfigError: The release has no converter for the model class.
    """
    *before, last = _conversions(spec, speculation, settings, release, calibration)
    return (*before, dataclasses.replace(last, extra=split_arguments(spec.extra_convert_args)))


def is_quantised(spec: EngineSpec) -> bool:
    """Say whether the model has to run over texts, or at least through the program that lets it."""
    return bool(PRECISIONS[spec.precision].qformat) or spec.kv_cache != "auto"


def _conversions(
    spec: EngineSpec, speculation: SpeculationConfig, settings: TensorrtLlmConfig, release: Release, calibration: str
) -> tuple[Conversion, ...]:
    if settings.converter == "modelopt":
        return (_modelopt(spec, settings, calibration),)
    if spec.head is None or spec.role == "draft":
        return (_alone(spec, settings, release, calibration),)
    if speculation.method == "eagle":
        return (_eagle(spec, spec.head, speculation),)
    if speculation.method == "medusa":
        return (_medusa(spec, spec.head, speculation, settings, calibration),)
    if joins_converted(release):
        return (_alone(spec, settings, release, calibration), _redrafter(spec, spec.head, speculation, PREVIOUS))
    return (_redrafter(spec, spec.head, speculation, ""),)


def _alone(spec: EngineSpec, settings: TensorrtLlmConfig, release: Release, calibration: str) -> Conversion:
    if is_quantised(spec):
        return _quantised(spec, settings, calibration)
    family = find_family(spec.checkpoint.architecture, release)
    if family is None:
        architecture = spec.checkpoint.architecture
        raise ConfigError(
            f"TensorRT-LLM {release.version} has no known converter for {architecture}",
            hint=nearest_architecture(architecture),
        )
    options, paths = _family_options(spec, family)
    return Conversion("convert", family_script(family, release), options, paths)


def _family_options(spec: EngineSpec, family: Family) -> tuple[dict[str, str], dict[str, str]]:
    if family.spelling == "gemma":
        options = {"--ckpt-type": "hf", "--dtype": _dtype(spec), "--world-size": str(spec.tp_size)}
        return options, {"--model-dir": spec.checkpoint.path, "--output-model-dir": OUTPUT}
    options = {"--dtype": _dtype(spec), **_sharding(spec), **_weight_only(spec), **_workers(spec)}
    return options, _model_paths(spec)


def _quantised(spec: EngineSpec, settings: TensorrtLlmConfig, calibration: str) -> Conversion:
    options = {"--dtype": _dtype(spec), "--qformat": _qformat(spec)}
    if spec.kv_cache != "auto":
        options["--kv_cache_dtype"] = spec.kv_cache
    options |= {"--calib_size": str(settings.calib_size), "--tp_size": str(spec.tp_size), **_stages(spec)}
    paths = {**_model_paths(spec), "--calib_dataset": calibration}
    # The unquantised model runs, and accelerate lays it over the GPUs that it is given.
    return Conversion("quantise", QUANTIZE_SCRIPT, options, paths, gpus=spec.world_size)


def _eagle(spec: EngineSpec, head: HeadInfo, speculation: SpeculationConfig) -> Conversion:
    options = {
        **_joined_options(spec),
        "--max_draft_len": str(speculation.tree_tokens),
        "--num_eagle_layers": str(speculation.tree_depth),
        "--max_non_leaves_per_layer": str(_NON_LEAVES_PER_LAYER),
        **_weight_only(spec),
    }
    return Conversion("convert", head_script("eagle"), options, {**_model_paths(spec), "--eagle_model_dir": head.path})


def _medusa(
    spec: EngineSpec, head: HeadInfo, speculation: SpeculationConfig, settings: TensorrtLlmConfig, calibration: str
) -> Conversion:
    heads = {"--num_medusa_heads": str(speculation.num_heads), "--num_medusa_layers": str(head.num_layers or 1)}
    longest = str(speculation.tree_tokens)
    if is_quantised(spec):
        quantised = _quantised(spec, settings, calibration)
        return dataclasses.replace(
            quantised,
            options={**quantised.options, **heads, "--max_draft_len": longest},
            paths={**quantised.paths, "--medusa_model_dir": head.path},
        )
    model_type = MEDUSA_MODEL_TYPES.get(spec.checkpoint.architecture, "llama")
    options = {
        **_joined_options(spec),
        **_stages(spec),
        **heads,
        "--max_medusa_token_len": longest,
        **({"--model_type": model_type} if model_type != "llama" else {}),
        **_weight_only(spec),
    }
    paths = {**_model_paths(spec), "--medusa_model_dir": head.path}
    return Conversion("convert", head_script("medusa"), options, paths)


def _redrafter(spec: EngineSpec, head: HeadInfo, speculation: SpeculationConfig, converted: str) -> Conversion:
    """Return how the head is joined to the checkpoint, or to the *converted* one."""
    options = {
        **_joined_options(spec),
        "--redrafter_num_beams": str(speculation.num_beams),
        "--redrafter_draft_len_per_beam": str(speculation.beam_tokens),
    }
    base = {"--base_model_checkpoint_dir": converted} if converted else {"--model_dir": spec.checkpoint.path}
    paths = {**base, "--output_dir": OUTPUT, "--drafter_model_dir": head.path}
    return Conversion("join" if converted else "convert", head_script("redrafter"), options, paths)


def _modelopt(spec: EngineSpec, settings: TensorrtLlmConfig, calibration: str) -> Conversion:
    options = {"--dtype": _dtype(spec), "--qformat": PRECISIONS[spec.precision].qformat or "full_prec"}
    options |= {"--kv-cache": spec.kv_cache} if spec.kv_cache != "auto" else {}
    options |= {"--tp-size": str(spec.tp_size), "--pp-size": str(spec.pp_size)}
    paths = {"--checkpoint": spec.checkpoint.path, "--output": OUTPUT}
    if is_quantised(spec):
        options["--calib-size"] = str(settings.calib_size)
        paths["--calib-dataset"] = calibration
    on_gpus = spec.precision == "nvfp4"  # whose weights are packed there
    options |= {"--device": "cuda"} if on_gpus else {}
    name = "quantise" if is_quantised(spec) else "convert"
    return Conversion(name, "specdeploy.modelopt", options, paths, gpus=spec.world_size if on_gpus else 0)


def _dtype(spec: EngineSpec) -> str:
    return compute_dtype(spec.precision, spec.checkpoint.dtype)


def _qformat(spec: EngineSpec) -> str:
    """Return quantize.py's name of the weights; it knows weight-only ones, too, for a quantised KV cache."""
    precision = PRECISIONS[spec.precision]
    return precision.qformat or (spec.precision if precision.weight_only else "full_prec")


def _model_paths(spec: EngineSpec) -> dict[str, str]:
    return {"--model_dir": spec.checkpoint.path, "--output_dir": OUTPUT}


def _joined_options(spec: EngineSpec) -> dict[str, str]:
    return {"--dtype": _dtype(spec), "--tp_size": str(spec.tp_size)}


def _stages(spec: EngineSpec) -> dict[str, str]:
    return {"--pp_size": str(spec.pp_size)} if spec.pp_size > 1 else {}


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
