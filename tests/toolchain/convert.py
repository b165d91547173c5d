"""``convert_checkpoint.py`` of every family: a Hugging Face folder becomes a TensorRT-LLM checkpoint, without a GPU."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.toolchain.checkpoint import check_parallel, write_checkpoint
from tests.toolchain.console import Console, took
from tests.toolchain.convert_arguments import converter_parser
from tests.toolchain.faults import Faults
from tests.toolchain.huggingface import Source, read_source
from tests.toolchain.machine import Machine
from tests.toolchain.quantization import calibrates, converter_quantization, load_calibration
from tests.toolchain.release import HEAD_FAMILIES, joins_converted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

TOOL: Final = "convert_checkpoint.py"
# Model types that a family converts. Qwen and Phi are known to refuse others, the rest is derived.
_MODEL_TYPES: Final = {
    "llama": ("llama", "mistral", "mixtral"),
    "qwen": ("qwen", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    "gemma": ("gemma", "gemma2", "gemma3_text", "gemma3"),
    "gpt": ("gpt2", "gpt_bigcode", "starcoder2", "persimmon", "nemotron"),
    "phi": ("phi", "phi3", "phimoe"),
    "falcon": ("falcon", "RefinedWeb", "RefinedWebModel"),
    "medusa": ("llama", "mixtral", "qwen2"),
    "eagle": ("llama", "mixtral"),
    "redrafter": ("llama",),
}
_PARALLEL: Final = ("tp_size", "pp_size", "cp_size")
# Families whose checkpoints are named after the family, not after the source.
_OWN_ARCHITECTURE: Final = {"gpt": "GPTForCausalLM", "falcon": "FalconForCausalLM"}


def main(argv: Sequence[str], root: Path, family: str) -> int:
    """Run the converter of ``family`` of the toolchain in ``root``; return its exit code."""
    machine, faults = Machine.load(root), Faults(root, TOOL)
    machine.record_call(TOOL, argv)
    print(f"[TensorRT-LLM] TensorRT-LLM version: {machine.release}\n{machine.release}", flush=True)
    args = converter_parser(family, machine.release).parse_args(argv)
    start = time.monotonic()
    faults.start()
    _normalize(args, family)
    output = Path(args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    if family == "llama" and args.model_dir is None and args.meta_ckpt_dir is None:
        # Not an error upstream: a configuration of made-up sizes, and no weights.
        (output / "config.json").write_text(json.dumps(_made_up(args), indent=4), encoding="utf-8")
    elif family == "redrafter" and joins_converted(machine.release):
        _join(args, output, faults)
    else:
        _convert(args, family, output, machine, faults)
    print(f"Total time of converting checkpoints: {took(start)}", flush=True)
    return faults.exit_code


def _normalize(args: argparse.Namespace, family: str) -> None:
    """Check what can be checked before a file is read, and bring the families to one spelling."""
    if family == "gemma":
        if args.use_weight_only and args.weight_only_precision is None:
            raise AssertionError
        if args.ckpt_type is None:
            raise KeyError(None)
        args.tp_size = args.world_size
    for name in _PARALLEL:
        vars(args).setdefault(name, 1)
    if family == "phi" and args.pp_size != 1:
        raise AssertionError("Pipeline parallelism is not supported.")
    if family == "eagle" and args.pp_size != 1:
        raise AssertionError("Pipeline parallelism is not supported in EAGLE yet.")
    if family == "gpt" and args.model_dir is None and args.nemo_ckpt_path is None:
        raise NotImplementedError("No source model path specified!")
    if family == "eagle" and args.model_dir is None and args.meta_ckpt_dir is not None:
        raise AssertionError("meta ckpt is not supported yet")
    _split_experts(args)


def _split_experts(args: argparse.Namespace) -> None:
    """Fill in what was left out of the split of the experts: by default only tensor parallel."""
    tensor, expert = getattr(args, "moe_tp_size", -1), getattr(args, "moe_ep_size", -1)
    if expert == -1:
        expert = 1 if tensor == -1 else args.tp_size // tensor
    if tensor == -1:
        tensor = args.tp_size // expert
    if tensor * expert != args.tp_size:
        raise AssertionError("moe_tp_size * moe_ep_size must equal to tp_size")
    args.moe_tp_size, args.moe_ep_size = tensor, expert


def _convert(args: argparse.Namespace, family: str, output: Path, machine: Machine, faults: Faults) -> None:
    console = Console(getattr(args, "log_level", "info"))
    source = _read_model(args, family)
    sizes = source.sizes()
    check_parallel(sizes, args.tp_size)
    if calibrates(args):
        if not args.load_model_on_cpu:
            machine.require_cuda(driver=faults.driver)
        load_calibration(args.calib_dataset, console)
    config = _base(args, source.dtype(args.dtype, console), sizes)
    config["architecture"] = _OWN_ARCHITECTURE.get(family, source.architecture)
    if family == "qwen":
        config["qwen_type"] = source.model_type
    if family in _HEADS:
        config = _HEADS[family](args, config)
    faults.allocate()
    if getattr(args, "save_config_only", False):
        (output / "config.json").write_text(json.dumps(config, indent=4), encoding="utf-8")
    else:
        source.check_weights()
        write_checkpoint(output, config, faults, config_first=family in HEAD_FAMILIES)


def _join(args: argparse.Namespace, output: Path, faults: Faults) -> None:
    """Add the ReDrafter head to a converted base model, whose ranks are kept."""
    path = Path(args.base_model_checkpoint_dir) / "config.json"
    base = json.loads(path.read_text(encoding="utf-8"))
    if base["mapping"]["tp_size"] != args.tp_size:
        raise AssertionError(f"tp_size {args.tp_size} is not that of the base model, {base['mapping']['tp_size']}")
    faults.allocate()
    write_checkpoint(output, _redrafter(args, base), faults, config_first=True)


def _read_model(args: argparse.Namespace, family: str) -> Source:
    source = read_source(args.model_dir)
    if source.model_type not in _MODEL_TYPES[family]:
        if family == "phi":
            raise AssertionError("Invalid model type")
        raise AssertionError(
            f"Unsupported model type: {source.model_type}, only {_MODEL_TYPES[family]} are acceptable."
        )
    return source


def _base(args: argparse.Namespace, dtype: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that every family writes; the architecture is a placeholder."""
    world = args.tp_size * args.pp_size * args.cp_size
    mapping = {"world_size": world} | {name: getattr(args, name) for name in (*_PARALLEL, "moe_tp_size", "moe_ep_size")}
    return {
        "architecture": "",
        "dtype": dtype,
        "logits_dtype": "float32",
        **sizes,
        "position_embedding_type": "rope_gpt_neox",
        "quantization": converter_quantization(args),
        "mapping": mapping,
        "use_parallel_embedding": getattr(args, "use_parallel_embedding", False),
        "embedding_sharding_dim": getattr(args, "embedding_sharding_dim", 0),
    }


def _medusa(args: argparse.Namespace, base: dict[str, Any]) -> dict[str, Any]:
    head = read_source(args.medusa_model_dir).config
    if not any(
        (Path(args.medusa_model_dir) / f"medusa_lm_head.{suffix}").is_file() for suffix in ("pt", "safetensors")
    ):
        raise FileNotFoundError(f'No such file or directory: "{args.medusa_model_dir}/medusa_lm_head.safetensors"')
    if args.max_medusa_token_len <= 0:
        raise AssertionError("should have max_medusa_token_len > 0")
    return base | {
        "architecture": "MedusaForCausalLM",
        "hidden_act": args.hidden_act,
        "max_draft_len": args.max_medusa_token_len,
        # The flag wins over the head's own count, which is known to be wrong in published heads.
        "num_medusa_heads": args.num_medusa_heads,
        "num_medusa_layers": head.get("medusa_num_layers", args.num_medusa_layers),
        "model_type": args.model_type,
    }


def _eagle(args: argparse.Namespace, base: dict[str, Any]) -> dict[str, Any]:
    head = read_source(args.eagle_model_dir)
    if args.max_draft_len > 256:
        raise AssertionError("args.max_draft_len > 256 is not supported")
    net = base | head.sizes() | {"architecture": "LlamaForCausalLM", "vocab_size": base["vocab_size"]}
    return base | {
        "architecture": "EagleForCausalLM",
        "max_draft_len": args.max_draft_len,
        "num_eagle_layers": args.num_eagle_layers,
        "max_non_leaves_per_layer": args.max_non_leaves_per_layer,
        "eagle_net_config": net,
    }


def _redrafter(args: argparse.Namespace, base: dict[str, Any]) -> dict[str, Any]:
    folder = Path(args.drafter_model_dir)
    head = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.pt")):
        raise FileNotFoundError(2, "No such file or directory", str(folder / "model.pt"))
    return base | {
        "architecture": "ReDrafterForCausalLM",
        "base_model_architecture": base["architecture"],
        "redrafter_num_layers": head["num_draft_layers"],
        "redrafter_hidden_size": head["hidden_size"],
        "redrafter_exit_dim": head["exit_dim"],
        "redrafter_is_rnn": head["rnn"],
        "redrafter_num_beams": args.redrafter_num_beams,
        "redrafter_draft_len_per_beam": args.redrafter_draft_len_per_beam,
        "redrafter_greedy_search": args.redrafter_greedy_search,
    }


_HEADS: Final[dict[str, Callable[[argparse.Namespace, dict[str, Any]], dict[str, Any]]]] = {
    "medusa": _medusa,
    "eagle": _eagle,
    "redrafter": _redrafter,
}


def _made_up(args: argparse.Namespace) -> dict[str, Any]:
    """Return the configuration that the llama converter writes when it is given no model."""
    sizes = {
        "num_hidden_layers": args.n_layer,
        "num_attention_heads": args.n_head,
        "hidden_size": args.n_embd,
        "intermediate_size": args.inter_size,
        "num_key_value_heads": args.n_kv_head or args.n_head,
        "vocab_size": args.vocab_size,
        "max_position_embeddings": args.n_positions,
        "hidden_act": args.hidden_act,
        "norm_epsilon": args.rms_norm_eps,
        "rotary_base": args.rotary_base,
    }
    dtype = "float16" if args.dtype == "auto" else args.dtype
    return _base(args, dtype, sizes) | {"architecture": "LlamaForCausalLM"}
