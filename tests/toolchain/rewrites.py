"""What the builder changes without being asked, and what it refuses: the engine's record is not the request.

Read from the builder of about 1.0; that 0.16 to 1.2 do the same is derived.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from tests.toolchain.build_config import EAGLE, EXPLICIT_DRAFT_TOKENS, NONE
from tests.toolchain.flags import KVCacheType

if TYPE_CHECKING:
    from tests.toolchain.console import Console

_FP8_CONTEXT: Final = ("FP8", "W4A8_AWQ", "NVFP4")
_REDUCE_FUSION: Final = ("LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM")
_UNSCALED_FACTORS: Final = ("su", "longrope", "llama3")
_DISABLED_ON_100: Final = (
    "gemm_swiglu_plugin",
    "fp8_rowwise_gemm_plugin",
    "low_latency_gemm_plugin",
    "low_latency_gemm_swiglu_plugin",
    "bert_context_fmha_fp32_acc",
)


def check_plugins(plugins: dict[str, Any], sm: int) -> None:
    """Refuse plugins that the GPU has no kernels for.

    Raises:
        NotImplementedError: As said.
    """
    for name in _DISABLED_ON_100 if sm == 100 else ():
        if plugins.get(name):
            raise NotImplementedError(f"{name}={plugins[name]} is not supported on SM {sm}.")


def rewrite(build: dict[str, Any], model: dict[str, Any], sm: int, console: Console) -> None:
    """Change ``build`` as the builder does for the checkpoint configuration ``model``.

    Raises:
        AssertionError: What EAGLE demands is not there, or the two ways to choose the KV cache disagree.
        RuntimeError: The GPU generation does not take the quantization.
    """
    plugins = build["plugin_config"]
    plugins["dtype"] = model["dtype"]
    _kv_cache(build, console)
    _lengths(build, model, console)
    _fusions(plugins, model, console)
    _draft_length(build, model, console)
    _speculative_sizes(build, model, console)
    _context_attention(plugins, model["quantization"], sm, console)
    _refuse_on_blackwell(model["quantization"], sm)
    _quantization_plugins(plugins, model, console)
    _eagle(build, console)


def _kv_cache(build: dict[str, Any], console: Console) -> None:
    plugins, wanted = build["plugin_config"], build["kv_cache_type"]
    flag = plugins["paged_kv_cache"]
    if wanted is not None and flag is not None and flag != (wanted is KVCacheType.PAGED):
        raise AssertionError
    if wanted is None:
        wanted = KVCacheType.CONTINUOUS if flag is False else KVCacheType.PAGED
    build["kv_cache_type"] = wanted.name
    plugins["paged_kv_cache"] = wanted is KVCacheType.PAGED
    if plugins["paged_state"]:
        console.warning("Overriding paged_state to False")
    plugins["paged_state"] = False


def _lengths(build: dict[str, Any], model: dict[str, Any], console: Console) -> None:
    factor, positions = _rotary_factor(model), model["max_position_embeddings"]
    if build["max_seq_len"] is None:
        build["max_seq_len"] = math.ceil(positions * factor) if positions else 2048
        console.info(f"max_seq_len is not specified, using deduced value {build['max_seq_len']}")
    elif positions and build["max_seq_len"] > positions * factor:
        console.warning(
            f"max_seq_len {build['max_seq_len']} is larger than max_position_embeddings {positions} * rotary scaling "
            f"{factor}, the model accuracy might be affected"
        )
    if build["max_input_len"] > build["max_seq_len"]:
        console.warning(
            f"max_input_len is {build['max_input_len']} is larger than max_seq_len, clipping it to max_seq_len"
        )
        build["max_input_len"] = build["max_seq_len"]
    _token_counts(build, console)
    plugins = build["plugin_config"]
    if plugins["remove_input_padding"] and plugins["context_fmha"]:
        console.warning("padding removal and fMHA are both enabled, max_input_len is not required and will be ignored")


def _rotary_factor(model: dict[str, Any]) -> float:
    scaling = model.get("rotary_scaling") or {}
    kind = scaling.get("type", scaling.get("rope_type"))
    return 1 if kind in _UNSCALED_FACTORS else scaling.get("factor", 1)


def _token_counts(build: dict[str, Any], console: Console) -> None:
    """Bring the token counts between what the batch can use and what a KV block holds."""
    plugins, whole = build["plugin_config"], build["max_batch_size"] * build["max_seq_len"]
    if not plugins["remove_input_padding"]:
        console.warning(
            "remove_input_padding is not enabled, the specified max_num_tokens/opt_num_tokens will be ignored."
        )
        build["max_num_tokens"] = whole
        return
    tokens = min(whole if build["max_num_tokens"] is None else build["max_num_tokens"], whole)
    if not plugins["context_fmha"]:
        tokens = max(tokens, build["max_input_len"])
    else:
        tokens = max(tokens, plugins["tokens_per_block"])
    if tokens != build["max_num_tokens"]:
        console.warning(f"max_num_tokens ({build['max_num_tokens']}) does not fit, specifying to {tokens}.")
    build["max_num_tokens"] = tokens
    if build["opt_num_tokens"] is None and not plugins["multiple_profiles"]:
        build["opt_num_tokens"] = build["max_batch_size"] * build["max_beam_width"]
    if build["opt_num_tokens"] is not None:
        build["opt_num_tokens"] = min(build["opt_num_tokens"], tokens)


def _fusions(plugins: dict[str, Any], model: dict[str, Any], console: Console) -> None:
    if plugins["streamingllm"]:
        plugins["use_paged_context_fmha"] = False
        console.warning("Paged Context FMHA is disabled because StreamingLLM is not supported with it.")
    fits = model["mapping"]["tp_size"] > 1 and model["architecture"] in _REDUCE_FUSION
    _force_off(plugins, "reduce_fusion", fits, console)
    _force_off(plugins, "user_buffer", plugins["reduce_fusion"], console)
    nvfp4_llama = model["architecture"] == "LlamaForCausalLM" and model["quantization"]["quant_algo"] == "NVFP4"
    _force_off(plugins, "norm_quant_fusion", nvfp4_llama and not plugins["reduce_fusion"], console)


def _force_off(plugins: dict[str, Any], name: str, allowed: bool, console: Console) -> None:
    if plugins.get(name) and not allowed:
        console.warning(f"Overriding {name} to False")
        plugins[name] = False


def _draft_length(build: dict[str, Any], model: dict[str, Any], console: Console) -> None:
    if build["max_draft_len"] == 0:
        build["max_draft_len"] = model.get("max_draft_len", 0)
    if "redrafter_num_beams" in model:
        build["max_draft_len"] = model["redrafter_num_beams"] * model["redrafter_draft_len_per_beam"]
        if build["speculative_decoding_mode"] != EXPLICIT_DRAFT_TOKENS:
            console.warning(
                "speculative_decoding_mode is not EXPLICIT_DRAFT_TOKENS for ReDrafter model. Overwriting "
                "speculative_decoding_mode"
            )
        build["speculative_decoding_mode"] = EXPLICIT_DRAFT_TOKENS


def _speculative_sizes(build: dict[str, Any], model: dict[str, Any], console: Console) -> None:
    if build["speculative_decoding_mode"] == NONE:
        return
    _lengthen(build, "max_draft_len", build["max_draft_len"], console)
    if build["speculative_decoding_mode"] == EAGLE:
        if "num_eagle_layers" not in model:
            raise AssertionError
        _lengthen(build, "num_eagle_layers", model["num_eagle_layers"], console)
    tokens = build["max_batch_size"] * (build["max_draft_len"] + 1)
    if build["max_num_tokens"] < tokens:
        console.info(
            f"max_num_tokens ({build['max_num_tokens']}) is smaller than max_batch_size * (max_draft_len + 1). "
            f"New max_num_tokens is set to {tokens}."
        )
        build["max_num_tokens"] = tokens


def _lengthen(build: dict[str, Any], name: str, tokens: int, console: Console) -> None:
    longer = build["max_seq_len"] + tokens
    console.info(
        f"Increasing max_seq_len ({build['max_seq_len']}) by {name} ({tokens}) to account for speculative decoding "
        f"implementation specifics. New max_seq_len is set to {longer}"
    )
    build["max_seq_len"] = longer


def _context_attention(plugins: dict[str, Any], quantization: dict[str, Any], sm: int, console: Console) -> None:
    """Decide on paged and FP8 context FMHA; without the paged one, KV reuse is off."""
    fp8_cache = quantization["kv_cache_quant_algo"] == "FP8"
    paged, fp8 = plugins["use_paged_context_fmha"], plugins["use_fp8_context_fmha"]
    if not plugins["context_fmha"]:
        paged = fp8 = False
    elif quantization["quant_algo"] not in _FP8_CONTEXT or sm < 89:
        paged, fp8 = paged and not fp8_cache, False
    elif paged:
        fp8 = fp8_cache
    if quantization["kv_cache_quant_algo"] == "INT8":
        paged = False
    for name, value in (("use_paged_context_fmha", paged), ("use_fp8_context_fmha", fp8)):
        if plugins[name] != value:
            label = name.removeprefix("use_").replace("_", " ")
            console.warning(f"{label} is {'enabled' if value else 'disabled'} to fit the quantization and the GPU.")
            plugins[name] = value


def _refuse_on_blackwell(quantization: dict[str, Any], sm: int) -> None:
    algorithm = quantization["quant_algo"] or ""
    if not 100 <= sm < 120:
        return
    if algorithm.startswith(("W8A16", "W4A16")) or quantization["kv_cache_quant_algo"] == "INT8":
        raise RuntimeError("INT8/INT4 quantization is not supported on SM>=100.")
    if algorithm.startswith("W8A8_SQ"):
        raise RuntimeError("SmoothQuant is not supported on SM>=100.")
    if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
        raise RuntimeError("Per-channel or per-token scaling is not supported on SM>=100.")


def _quantization_plugins(plugins: dict[str, Any], model: dict[str, Any], console: Console) -> None:
    algorithm, dtype = model["quantization"]["quant_algo"] or "", model["dtype"]
    if algorithm == "NVFP4" and plugins["gemm_plugin"] is None:
        console.info("NVFP4 quantization detected, by default enabling NVFP4 GEMM plugin.")
        plugins["gemm_plugin"] = "nvfp4"
    if algorithm.endswith(("_AWQ", "_GPTQ")):
        plugins["weight_only_groupwise_quant_matmul_plugin"] = dtype
    elif algorithm in {"W8A16", "W4A16"}:
        plugins["weight_only_quant_matmul_plugin"] = dtype
    elif algorithm.endswith("_PLUGIN"):
        for name in ("smooth_quant_gemm_plugin", "rmsnorm_quantization_plugin", "layernorm_quantization_plugin"):
            plugins[name] = dtype
        plugins["quantize_per_token_plugin"] = plugins["quantize_tensor_plugin"] = True
    plugins["nccl_plugin"] = dtype if model["mapping"]["world_size"] > 1 else None


def _eagle(build: dict[str, Any], console: Console) -> None:
    if build["speculative_decoding_mode"] != EAGLE:
        return
    if build["max_batch_size"] > 512:
        raise AssertionError("Max batch size > 512 is not supported for EAGLE")
    if build["max_draft_len"] > 256:
        raise AssertionError("Max draft len > 256 is not supported for EAGLE")
    if not build["plugin_config"]["use_paged_context_fmha"]:
        console.warning("Paged Context FMHA is required for EAGLE. Turning it on")
        build["plugin_config"]["use_paged_context_fmha"] = True
