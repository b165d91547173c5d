"""The TensorRT-LLM checkpoint: ``config.json`` and one ``rank{N}.safetensors`` a rank."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tests.toolchain.safetensors_file import read_header, zeros

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.toolchain.console import Console
    from tests.toolchain.faults import Faults

# Feed-forward parts with a gate.
_GATED: Final = ("Llama", "Mistral", "Mixtral", "Qwen", "Gemma", "Medusa", "Eagle", "ReDrafter", "Phi3")
ARCHITECTURES: Final = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen2MoeForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "GPTForCausalLM",
    "PhiForCausalLM",
    "Phi3ForCausalLM",
    "FalconForCausalLM",
    "MedusaForCausalLM",
    "EagleForCausalLM",
    "ReDrafterForCausalLM",
)
_REQUIRED: Final = ("dtype", "hidden_size", "num_hidden_layers", "num_attention_heads")
_KNOWN: Final = (
    *_REQUIRED,
    "architecture",
    "vocab_size",
    "hidden_act",
    "logits_dtype",
    "norm_epsilon",
    "position_embedding_type",
    "max_position_embeddings",
    "rotary_embedding_dim",
    "num_key_value_heads",
    "intermediate_size",
    "mapping",
    "quantization",
    "use_parallel_embedding",
    "embedding_sharding_dim",
    "head_size",
    "qk_layernorm",
    "runtime_defaults",
    "rotary_base",
    "rotary_scaling",
)
QUANTIZATION_DEFAULTS: Final = {
    "quant_algo": None,
    "kv_cache_quant_algo": None,
    "group_size": 128,
    "smoothquant_val": 0.5,
    "clamp_val": None,
    "use_meta_recipe": False,
    "has_zero_point": False,
    "pre_quant_scale": False,
    "exclude_modules": None,
}
_MAPPING_DEFAULTS: Final = {
    "world_size": 1,
    "gpus_per_node": 8,
    "cp_size": 1,
    "tp_size": 1,
    "pp_size": 1,
    "moe_tp_size": -1,
    "moe_ep_size": -1,
}


def check_parallel(sizes: Mapping[str, Any], tp_size: int) -> None:
    """Fail as building the attention layers does when the heads do not divide.

    Raises:
        AssertionError: The query heads are not a multiple of ``tp_size``, or the key and value heads can be neither
            divided nor duplicated.
    """
    if sizes["num_attention_heads"] % tp_size:
        raise AssertionError("num_attention_heads must be divisible by tp_size")
    kv_heads = sizes["num_key_value_heads"]
    if (tp_size % kv_heads) if kv_heads < tp_size else (kv_heads % tp_size):
        raise AssertionError


def rank_names(config: Mapping[str, Any], rank: int) -> list[str]:
    """Return the tensors of rank ``rank`` (among the weight files: context-parallel ranks share one)."""
    mapping = config["mapping"]
    stage, stages = rank // mapping["tp_size"], mapping["pp_size"]
    names = ["transformer.vocab_embedding.weight"] if stage == 0 else []
    for layer in range(_stage_layers(config["num_hidden_layers"], stage, stages)):
        names += _layer_names(f"transformer.layers.{layer}", config["architecture"])
    if stage == stages - 1:
        names += ["transformer.ln_f.weight", "lm_head.weight"]
    return [*names, *_head_names(config)]


def write_checkpoint(output: Path, config: Mapping[str, Any], faults: Faults, *, config_first: bool = False) -> None:
    """Write a checkpoint.

    Args:
        output: An existing folder.
        config: Its configuration.
        faults: What goes wrong.
        config_first: Whether the configuration is written before the weights, as the converters for heads do; the
            others write it after the first rank.
    """
    ranks = weight_files(config["mapping"])
    text = json.dumps(config, indent=4)
    if config_first:
        (output / "config.json").write_text(text, encoding="utf-8")
    for rank in range(ranks):
        data = zeros(rank_names(config, rank), config["dtype"])
        faults.write_rank(output / f"rank{rank}.safetensors", data, rank=rank, ranks=ranks)
        if rank == 0 and not config_first:
            (output / "config.json").write_text(text, encoding="utf-8")


def weight_files(mapping: Mapping[str, Any]) -> int:
    """Return how many rank files a checkpoint has."""
    return int(mapping["tp_size"]) * int(mapping["pp_size"])


def read_config(path: Path, console: Console) -> dict[str, Any]:
    """Return a checkpoint's configuration with the defaults filled in.

    A key that is not known is taken over with a warning, as the real one does: that is all that happens to a
    ``version``, which the real converters do not write, and to ModelOpt's ``producer``.

    Raises:
        KeyError: No architecture, or one that there is not.
        TypeError: Another key that must be there is missing, or ``quantization`` has one that there is not.
    """
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if config["architecture"] not in ARCHITECTURES:
        raise KeyError(config["architecture"])
    for name in _REQUIRED:
        if name not in config:
            raise TypeError(f"PretrainedConfig.__init__() missing 1 required keyword-only argument: '{name}'")
    for name, value in config.items():
        if name not in _KNOWN:
            console.warning(f"Implicitly setting PretrainedConfig.{name} = {value}")
    quantization = config.get("quantization") or {}
    for name in quantization:
        if name not in QUANTIZATION_DEFAULTS:
            raise TypeError(f"QuantConfig.__init__() got an unexpected keyword argument '{name}'")
    head_size = config["hidden_size"] // config["num_attention_heads"]
    defaults = {
        "logits_dtype": "float32",
        "hidden_act": "gelu",
        "num_key_value_heads": config["num_attention_heads"],
        "intermediate_size": 4 * config["hidden_size"],
        "max_position_embeddings": None,
        "head_size": head_size,
        "rotary_embedding_dim": head_size,
        "qk_layernorm": False,
        "runtime_defaults": None,
    }
    filled = {
        "mapping": _MAPPING_DEFAULTS | (config.get("mapping") or {}),
        "quantization": QUANTIZATION_DEFAULTS | quantization,
    }
    return defaults | config | filled


def read_rank(folder: Path, config: Mapping[str, Any], rank: int) -> bytes:
    """Return the weight file of engine rank ``rank``, checked as loading it does.

    Raises:
        AssertionError: The file is missing.
        SafetensorError: It is cut short.
        RuntimeError: It lacks tensors.
    """
    mapping = config["mapping"]
    # Tensor-, then context-, then pipeline-parallel; the context-parallel ranks share a file.
    tp_size, cp_size = mapping["tp_size"], mapping["cp_size"]
    rank = rank % tp_size + rank // (tp_size * cp_size) * tp_size
    path = folder / f"rank{rank}.safetensors"
    if not path.is_file():
        raise AssertionError
    missing = set(rank_names(config, rank)) - set(read_header(path))
    if missing:
        raise RuntimeError(f"Required but not provided tensors:{missing}")
    return path.read_bytes()


def _stage_layers(layers: int, stage: int, stages: int) -> int:
    """Return the layers of a pipeline stage; the first stages take what does not divide."""
    return layers // stages + (stage < layers % stages)


def _layer_names(prefix: str, architecture: str) -> Iterator[str]:
    gate = ("mlp.gate",) if architecture.startswith(_GATED) else ()
    for part in ("input_layernorm", "attention.qkv", "attention.dense", "post_layernorm", "mlp.fc", *gate, "mlp.proj"):
        yield f"{prefix}.{part}.weight"


def _head_names(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tensors of the heads that draft."""
    architecture = config["architecture"]
    if architecture == "MedusaForCausalLM":
        for head in range(config["num_medusa_heads"]):
            for layer in range(config["num_medusa_layers"]):
                yield f"medusa_heads.{head}.medusa_layers.{layer}.linear.weight"
            yield f"medusa_heads.{head}.lm_head.weight"
    if architecture == "EagleForCausalLM":
        for net in range(config["num_eagle_layers"]):
            yield f"eagle_nets.{net}.drafter.fc.weight"
            yield f"eagle_nets.{net}.drafter.vocab_embedding.weight"
            for layer in range(config["eagle_net_config"]["num_hidden_layers"]):
                yield from _layer_names(f"eagle_nets.{net}.drafter.layers.{layer}", architecture)
            yield f"eagle_nets.{net}.lm_head.weight"
    if architecture == "ReDrafterForCausalLM":
        for layer in range(config["redrafter_num_layers"]):
            yield f"drafter.layers.{layer}.linear.weight"
        yield "drafter.lm_head.weight"
        if config["redrafter_is_rnn"]:
            yield from ("drafter.rnn_u.weight", "drafter.rnn_w.weight")
