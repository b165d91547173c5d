"""From a command line, or a ``--build_config`` file, to the build configuration before the builder rewrites it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.toolchain.flags import PLUGIN_GROUP, KVCacheType
from tests.toolchain.release import has_auto_parallel

if TYPE_CHECKING:
    import argparse

    from tests.toolchain.machine import Machine

# Bit flags, in step with the C++ runtime.
NONE: Final = 1
MODES: Final = {
    None: NONE,
    "draft_tokens_external": 2,
    "medusa": 4,
    "lookahead_decoding": 8,
    "explicit_draft_tokens": 16,
    "eagle": 32,
}
EXPLICIT_DRAFT_TOKENS: Final = MODES["explicit_draft_tokens"]
EAGLE: Final = MODES["eagle"]
_SIZES: Final = (
    "max_input_len",
    "max_seq_len",
    "max_batch_size",
    "max_beam_width",
    "max_num_tokens",
    "opt_num_tokens",
)
_TAKEN_OVER: Final = (
    *_SIZES,
    "max_prompt_embedding_table_size",
    "gather_context_logits",
    "gather_generation_logits",
    "weight_sparsity",
    "weight_streaming",
    "profiling_verbosity",
    "enable_debug_output",
    "max_draft_len",
    "input_timing_cache",
    "output_timing_cache",
    "max_encoder_input_len",
    "monitor_memory",
)
_DEFAULTS: Final[dict[str, Any]] = {
    "max_input_len": 1024,
    "max_seq_len": None,
    "opt_batch_size": 8,
    "max_batch_size": 2048,
    "max_beam_width": 1,
    "max_num_tokens": 8192,
    "opt_num_tokens": None,
    "max_prompt_embedding_table_size": 0,
    "kv_cache_type": None,
    "gather_context_logits": False,
    "gather_generation_logits": False,
    "strongly_typed": True,
    "force_num_profiles": None,
    "profiling_verbosity": "layer_names_only",
    "enable_debug_output": False,
    "max_draft_len": 0,
    "speculative_decoding_mode": NONE,
    "use_refit": False,
    "input_timing_cache": None,
    "output_timing_cache": "model.cache",
    "lora_config": {"lora_dir": [], "lora_ckpt_source": "hf", "max_lora_rank": 64, "lora_target_modules": []},
    "weight_sparsity": False,
    "weight_streaming": False,
    "use_strip_plan": False,
    "max_encoder_input_len": 1024,
    "monitor_memory": False,
    "use_mrope": False,
}
# Plugin settings without a flag.
_HIDDEN_PLUGINS: Final = {
    "dtype": "float16",
    "identity_plugin": None,
    "weight_only_groupwise_quant_matmul_plugin": None,
    "weight_only_quant_matmul_plugin": None,
    "smooth_quant_plugins": True,
    "smooth_quant_gemm_plugin": None,
    "layernorm_quantization_plugin": None,
    "rmsnorm_quantization_plugin": None,
    "quantize_per_token_plugin": False,
    "quantize_tensor_plugin": False,
    "paged_kv_cache": None,
    "manage_weights": False,
}


def plugin_config(args: argparse.Namespace, flags: list[dict[str, Any]]) -> dict[str, Any]:
    """Return every plugin setting: ``enable`` and ``disable`` as booleans, or None for a plugin that takes a type.

    ``auto`` stays ``auto``, in the recorded configuration, too: it means the ``dtype`` beside it.
    """
    config = dict(_HIDDEN_PLUGINS)
    for flag in flags:
        if flag["group"] == PLUGIN_GROUP:
            config[flag["dest"]] = _setting(getattr(args, flag["dest"]), flag["choices"])
    if hasattr(args, "paged_kv_cache"):
        config["paged_kv_cache"] = args.paged_kv_cache == "enable"
    config["manage_weights"] = args.fast_build
    return config


def from_arguments(args: argparse.Namespace, plugins: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """Return the build configuration that the command line asks for.

    Raises:
        RuntimeError: ``--multiple_profiles`` together with ``--opt_num_tokens``.
    """
    if args.multiple_profiles == "enable" and args.opt_num_tokens is not None:
        raise RuntimeError(
            "multiple_profiles is enabled, while opt_num_tokens is set. They are not supposed to be working in the "
            "same time for now."
        )
    config = _DEFAULTS | {name: getattr(args, name) for name in _TAKEN_OVER}
    config["speculative_decoding_mode"] = MODES[args.speculative_decoding_mode]
    config["force_num_profiles"] = os.environ.get("BUILDER_FORCE_NUM_PROFILES")
    config["kv_cache_type"] = getattr(args, "kv_cache_type", None)
    config["use_strip_plan"] = args.strip_plan
    if has_auto_parallel(machine.release):
        config["auto_parallel_config"] = {
            "world_size": args.auto_parallel,
            "gpus_per_node": args.gpus_per_node,
            "cluster_key": args.cluster_key or _cluster(machine.gpu_name),
        }
    return config | {"plugin_config": plugins}


def from_keyed_file(path: str, plugins: dict[str, Any]) -> dict[str, Any]:
    """Return the build configuration in a file, as releases until 1.1 read it: key by key.

    The six sizes are required, and ``kv_cache_type`` when there is a ``plugin_config``, which is laid over ``plugins``,
    the command line's. Other keys are ignored. That 0.17 to 1.1 do as 0.16 does is derived.

    Raises:
        KeyError: A required key is missing.
    """
    document = _read(path)
    for name in _SIZES:
        _ = document[name]
    kv_cache = document["kv_cache_type"] if "plugin_config" in document else None
    return _laid_over(document, kv_cache, plugins) | {"output_timing_cache": document.get("output_timing_cache")}


def from_pydantic_file(path: str, plugins: dict[str, Any]) -> dict[str, Any]:
    """Return the build configuration in a file, as 1.2 validates it.

    Everything is optional and unknown keys are ignored. The command line's plugin flags do not count: ``plugins`` are
    the defaults.

    Raises:
        ValueError: The mode is no number.
    """
    document = _read(path)
    if not isinstance(document.get("speculative_decoding_mode", NONE), int):
        raise ValueError(  # noqa: TRY004 - pydantic's error is one
            "1 validation error for BuildConfig\nspeculative_decoding_mode\n"
            "  Input should be 1, 2, 4, 8, 16, 32, 64, 128, 256 or 512"
        )
    return _laid_over(document, document.get("kv_cache_type"), plugins)


def _read(path: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return document


def _laid_over(document: dict[str, Any], kv_cache: str | None, plugins: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults with what a document sets laid over them."""
    config = _DEFAULTS | {name: value for name, value in document.items() if name in _DEFAULTS}
    config["kv_cache_type"] = KVCacheType(kv_cache.lower()) if kv_cache else None
    own = {name: _setting(value, None) for name, value in document.get("plugin_config", {}).items() if name in plugins}
    return config | {"plugin_config": plugins | own}


def _setting(value: Any, choices: Any) -> Any:
    """Return the value behind ``enable`` and ``disable``."""
    if value == "enable":
        return True
    if value == "disable":
        return False if choices == ["enable", "disable"] else None
    return value


def _cluster(gpu_name: str) -> str:
    """Return the name of the cluster that is recorded for a GPU."""
    name = gpu_name.removeprefix("NVIDIA ")
    return "H100-SXM" if name.startswith("H100") and "PCIe" not in name else gpu_name.replace(" ", "-")
