"""``quantize.py``: calibrates a Hugging Face model on a GPU and exports it as a quantized TensorRT-LLM checkpoint."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.toolchain.checkpoint import check_parallel, write_checkpoint
from tests.toolchain.console import Console, took
from tests.toolchain.faults import Faults
from tests.toolchain.huggingface import read_source
from tests.toolchain.machine import Machine
from tests.toolchain.quantization import check_groups, load_calibration, quantize_block
from tests.toolchain.release import modelopt_version

if TYPE_CHECKING:
    from collections.abc import Sequence

TOOL: Final = "quantize.py"
_UNCALIBRATED: Final = ("full_prec", "int8_wo", "int4_wo")
_QFORMATS: Final = ("nvfp4", "fp8", "int8_sq", "int4_awq", "w4a8_awq", "int8_wo", "int4_wo", "full_prec")


def quantize_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(prog=TOOL)
    parser.add_argument("--model_dir")
    parser.add_argument("--nemo_ckpt_path")
    parser.add_argument("--decoder_type", type=str, default="gptnext", choices=("gptnext", "llama"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--device_map", default="auto", choices=("auto", "sequential", "cpu", "gpu"))
    parser.add_argument("--calib_dataset", type=str, default="cnn_dailymail")
    parser.add_argument("--dtype", type=str, default="auto", choices=("auto", "float16", "bfloat16", "float32"))
    parser.add_argument("--qformat", default="full_prec", choices=_QFORMATS)
    parser.add_argument("--kv_cache_dtype", choices=("int8", "fp8"))
    parser.add_argument("--output_dir", default="exported_model")
    numbers = {"calib_tp_size": 1, "calib_pp_size": 1, "seed": 1234, "tokenizer_max_seq_length": 2048}
    numbers |= {"batch_size": 1, "calib_size": 512, "calib_max_seq_length": 512, "awq_block_size": 128}
    numbers |= {"tp_size": 1, "pp_size": 1, "cp_size": 1}
    numbers |= {"num_medusa_heads": 4, "num_medusa_layers": 1, "max_draft_len": 63}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--quantize_lm_head", action="store_true")
    parser.add_argument("--medusa_hidden_act", type=str, default="silu")
    parser.add_argument("--medusa_model_dir", type=str)
    parser.add_argument("--quant_medusa_head", action="store_true")
    parser.add_argument("--autoq_format", type=str)
    parser.add_argument("--auto_quantize_bits", type=float)
    parser.add_argument("--export_format", type=str, default="tensorrt_llm", choices=("tensorrt_llm", "hf"))
    return parser


def main(argv: Sequence[str], root: Path) -> int:
    """Run the tool of the toolchain in ``root``; return its exit code."""
    machine, faults, console = Machine.load(root), Faults(root, TOOL), Console()
    machine.record_call(TOOL, argv)
    print(f"[TensorRT-LLM] TensorRT-LLM version: {machine.release}", flush=True)
    args = quantize_parser().parse_args(argv)
    start = time.monotonic()
    faults.start()
    _check_asked(args)
    if machine.visible_gpus() == 0 or not faults.driver:
        raise OSError("GPU is required for inference.")
    config = _config(args, machine.release, console)
    _calibrate(args, config, console)
    faults.allocate()
    output = Path(args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    write_checkpoint(output, config, faults)
    console.info(f"Quantized model exported to {output} \nTotal time used {took(start)}.")
    return faults.exit_code


def _check_asked(args: argparse.Namespace) -> None:
    if args.model_dir is None and args.nemo_ckpt_path is None:
        raise ValueError("One of source checkpoint (model_dir, nemo_ckpt_path) must be specified")
    if args.model_dir is None or args.autoq_format or args.export_format == "hf":
        raise NotImplementedError("the stand-in plays neither NeMo sources, automatic quantization nor the hf export")


def _config(args: argparse.Namespace, release: str, console: Console) -> dict[str, Any]:
    source = read_source(args.model_dir)
    source.check_weights()
    sizes = source.sizes()
    check_parallel(sizes, args.tp_size)
    config = {
        "producer": {"name": "modelopt", "version": modelopt_version(release)},
        "architecture": source.architecture,
        "model_type": source.model_type,
        "dtype": source.dtype(args.dtype, console),
        "logits_dtype": "float16",
        **sizes,
        "mapping": {
            "world_size": args.tp_size * args.pp_size * args.cp_size,
            "tp_size": args.tp_size,
            "pp_size": args.pp_size,
            "cp_size": args.cp_size,
        },
        "quantization": quantize_block(args),
        "use_parallel_embedding": True,
        "embedding_sharding_dim": 0,
    }
    return _with_medusa(args, config) if args.medusa_model_dir else config


def _calibrate(args: argparse.Namespace, config: dict[str, Any], console: Console) -> None:
    if args.qformat in _UNCALIBRATED and args.kv_cache_dtype is None:
        console.info(f"No quantization applied, export {config['dtype']} model")
        return
    if "awq" in args.qformat:
        check_groups(config, block_size=args.awq_block_size, tp_size=args.tp_size)
    load_calibration(args.calib_dataset, console)
    console.info("Starting quantization...")


def _with_medusa(args: argparse.Namespace, config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the heads of ``--medusa_model_dir`` added."""
    head = read_source(args.medusa_model_dir).config
    if args.max_draft_len <= 0:
        raise AssertionError("should have max_draft_len > 0")
    excluded = ["lm_head", "*router", "*vocab_embedding", "*position_embedding", "*block_embedding"]
    if not args.quant_medusa_head:
        excluded.append("*medusa_heads*")
    return config | {
        "architecture": "MedusaForCausalLM",
        "quantization": config["quantization"] | {"exclude_modules": excluded},
        "max_draft_len": args.max_draft_len,
        "num_medusa_heads": args.num_medusa_heads,
        "num_medusa_layers": head.get("medusa_num_layers", args.num_medusa_layers),
    }
