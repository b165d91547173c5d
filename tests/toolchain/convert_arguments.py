"""The command lines of the converters, one parser a family."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.toolchain.release import joins_converted

if TYPE_CHECKING:
    from collections.abc import Callable

_AUTO: Final = ("auto", "float16", "bfloat16", "float32")
_NO_AUTO: Final = ("float32", "bfloat16", "float16")


def converter_parser(family: str, release: str = "0.17.0") -> argparse.ArgumentParser:
    """Return the parser of the converter of ``family``; the families are the keys of ``PARSERS``."""
    parser = argparse.ArgumentParser(prog="convert_checkpoint.py")
    if family == "redrafter" and joins_converted(release):
        _redrafter_join(parser)
    else:
        PARSERS[family](parser)
    return parser


def _llama(parser: argparse.ArgumentParser) -> None:
    _model(parser, dtypes=_AUTO)
    parser.add_argument("--meta_ckpt_dir", type=str)
    _numbers(parser, tp_size=1, pp_size=1, cp_size=1, moe_tp_size=-1, moe_ep_size=-1)
    _numbers(parser, vocab_size=32000, n_positions=2048, n_layer=32, n_head=32, n_kv_head=None, n_embd=4096)
    _numbers(parser, inter_size=11008, multiple_of=None, calib_size=512, calib_max_seq_length=512, group_size=128)
    _numbers(parser, moe_num_experts=0, moe_top_k=0, moe_renorm_mode=1)
    parser.add_argument("--ffn_dim_multiplier", type=float)
    parser.add_argument("--rms_norm_eps", type=float, default=1e-06)
    _weight_only(parser, ("int8", "int4", "int8_gptq", "int4_gptq", "int4_awq"))
    _smooth_quant(parser)
    _switches(parser, "disable_weight_only_quant_plugin", "use_qserve", "fp8_kv_cache", "use_fp8", "use_nvfp4")
    _switches(parser, "use_fp8_rowwise", "use_meta_fp8_rowwise_recipe", "per_group", "load_by_shard")
    _switches(parser, "load_model_on_cpu", "save_config_only", "remove_duplicated_kv_heads")
    parser.add_argument("--quant_ckpt_path", type=str)
    parser.add_argument("--hidden_act", type=str, default="silu")
    parser.add_argument("--rotary_base", type=float, default=10000.0)
    parser.add_argument("--log_level", type=str, default="info")
    _embedding(parser)


def _qwen(parser: argparse.ArgumentParser) -> None:
    _model(parser, dtypes=_AUTO, required=True)
    _numbers(parser, tp_size=1, pp_size=1, cp_size=1, moe_tp_size=-1, moe_ep_size=-1, group_size=128)
    _weight_only(parser, ("int8", "int4", "int4_gptq", "int8_gptq"))
    _smooth_quant(parser)
    _switches(parser, "disable_weight_only_quant_plugin", "per_group", "load_model_on_cpu")
    _embedding(parser)


def _gemma(parser: argparse.ArgumentParser) -> None:
    """Its own spelling: hyphens, a world size instead of tensor parallelism, no pipeline."""
    parser.add_argument("--ckpt-type", choices=("jax", "keras", "torch", "hf"))
    parser.add_argument("--model-dir", "--model_dir", type=Path, required=True)
    parser.add_argument("--output-model-dir", "--output_dir", dest="output_dir", type=Path, required=True)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--use_weight_only", action="store_true")
    parser.add_argument(
        "--weight_only_precision",
        "--use-weight-only-with-precision",
        choices=("int8", "int4", "w4a8_awq", "w4a16_awq"),
    )
    parser.add_argument("--use-int8-weight-only-embedding", action="store_true")
    parser.add_argument("--dtype", type=str, default="auto", choices=_AUTO)
    _switches(parser, "enable_fp8", "fp8_kv_cache", "use_smooth_quant", "per_channel", "per_token", "load_model_on_cpu")
    parser.add_argument("--quant_ckpt_path")
    parser.add_argument("--calib_dataset", type=str, default="ccdv/cnn_dailymail")
    parser.add_argument("--int8_kv_cache", "--calibrate_kv_cache", "-kv", action="store_true")
    parser.add_argument("--smoothquant", "--use_smooth_quant_plugin", "-sq", type=float)
    parser.add_argument("--tokenizer_dir")


def _gpt(parser: argparse.ArgumentParser) -> None:
    _model(parser, dtypes=_AUTO)
    parser.add_argument("--nemo_ckpt_path", type=str)
    variants = ("gpt2", "santacoder", "starcoder", "starcoder2", "persimmon", "kosmos-2", "nemotron")
    parser.add_argument("--gpt_variant", choices=variants)
    _numbers(parser, tp_size=1, pp_size=1)
    _weight_only(parser, ("int8", "int4"))
    _smooth_quant(parser, dataset="lambada")
    _switches(parser, "load_model_on_cpu")
    parser.add_argument("--dataset_cache_dir", type=str)
    parser.add_argument("--log_level", type=str, default="info")
    parser.add_argument("--nemo_rename_key", type=str, nargs="+", default=[])
    _embedding(parser)


def _phi(parser: argparse.ArgumentParser) -> None:
    _model(parser, dtypes=_AUTO)
    _numbers(parser, tp_size=1, pp_size=1, moe_tp_size=-1, moe_ep_size=-1)
    _weight_only(parser, ("int8", "int4"))


def _falcon(parser: argparse.ArgumentParser) -> None:
    _model(parser, dtypes=_AUTO)
    _numbers(parser, tp_size=1, pp_size=1)
    _weight_only(parser, ("int8", "int4"))
    _switches(parser, "load_by_shard")
    parser.add_argument("--log_level", type=str, default="info")
    _embedding(parser)


def _head(parser: argparse.ArgumentParser) -> None:
    """Add what the Medusa and the EAGLE converter share; neither knows the data type ``auto``."""
    _model(parser, dtypes=_NO_AUTO)
    parser.add_argument("--meta_ckpt_dir", type=str)
    _numbers(parser, tp_size=1, pp_size=1, vocab_size=32000, n_positions=2048, n_layer=32, group_size=128)
    _weight_only(parser, ("int8", "int4", "int4_gptq"))
    _smooth_quant(parser)
    _switches(parser, "per_group", "load_by_shard")
    parser.add_argument("--hidden_act", type=str, default="silu")
    parser.add_argument("--rotary_base", type=float, default=10000.0)
    parser.add_argument("--rotary_scaling", nargs=2, type=str)
    parser.add_argument("--storage-type", "-t", type=str, default="fp32", choices=("fp32", "fp16"))
    parser.add_argument("--dataset-cache-dir", type=str)
    parser.add_argument("--load-model-on-cpu", action="store_true")
    parser.add_argument("--convert-model-on-cpu", action="store_true")
    _embedding(parser)


def _medusa(parser: argparse.ArgumentParser) -> None:
    """Add the Medusa flags.

    The length flag is ``--max_medusa_token_len`` in every release that is played: every published version of this
    script that was read has it, up to one written for transformers 4.56 and later (1.1, 1.2). ``--max_draft_len`` is
    the spelling of quantize.py. That there is no border between 0.17 and 1.2 is derived from this.
    """
    _head(parser)
    _numbers(parser, num_medusa_heads=4, num_medusa_layers=1, max_medusa_token_len=63)
    parser.add_argument("--medusa_hidden_act", type=str, default="silu")
    parser.add_argument("--medusa_model_dir", type=str)
    parser.add_argument("--model_type", type=str, default="llama")


def _eagle(parser: argparse.ArgumentParser) -> None:
    _head(parser)
    parser.add_argument("--eagle_model_dir", type=str)
    _numbers(parser, max_draft_len=63, num_eagle_layers=4, max_non_leaves_per_layer=10)


def _redrafter(parser: argparse.ArgumentParser) -> None:
    """Add the ReDrafter flags: tensor parallelism only, both folders required."""
    _model(parser, dtypes=_NO_AUTO, required=True)
    _redrafter_head(parser)
    _embedding(parser)


def _redrafter_join(parser: argparse.ArgumentParser) -> None:
    """Add the flags of 1.0 and later, where a converted base model takes the place of ``--model_dir``."""
    parser.add_argument("--base_model_checkpoint_dir", type=str, required=True)
    parser.add_argument("--output_dir", type=str, default="tllm_checkpoint")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--dtype", type=str, choices=_NO_AUTO, default="float16")
    _redrafter_head(parser)


def _redrafter_head(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--drafter_model_dir", type=str, required=True)
    _numbers(parser, tp_size=1, redrafter_draft_len_per_beam=5, redrafter_num_beams=5)
    parser.add_argument("--storage-type", "-t", type=str, default="fp32", choices=("fp32", "fp16"))
    _switches(parser, "load_model_on_cpu", "dense_context_fmha")
    parser.add_argument("--redrafter_greedy_search", action="store_true", default=True)
    parser.add_argument("--redrafter_no_greedy_search", action="store_false", dest="redrafter_greedy_search")


PARSERS: Final[dict[str, Callable[[argparse.ArgumentParser], None]]] = {
    "llama": _llama,
    "qwen": _qwen,
    "gemma": _gemma,
    "gpt": _gpt,
    "phi": _phi,
    "falcon": _falcon,
    "medusa": _medusa,
    "eagle": _eagle,
    "redrafter": _redrafter,
}


def _model(parser: argparse.ArgumentParser, *, dtypes: tuple[str, ...], required: bool = False) -> None:
    parser.add_argument("--model_dir", type=str, required=required)
    parser.add_argument("--output_dir", type=str, default="tllm_checkpoint")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--dtype", type=str, choices=dtypes, default="auto" if "auto" in dtypes else "float16")


def _weight_only(parser: argparse.ArgumentParser, precisions: tuple[str, ...]) -> None:
    parser.add_argument("--use_weight_only", action="store_true")
    parser.add_argument("--weight_only_precision", const="int8", nargs="?", default="int8", choices=precisions)


def _smooth_quant(parser: argparse.ArgumentParser, dataset: str = "ccdv/cnn_dailymail") -> None:
    parser.add_argument("--calib_dataset", type=str, default=dataset)
    parser.add_argument("--smoothquant", "-sq", type=float)
    _switches(parser, "per_channel", "per_token", "int8_kv_cache")


def _embedding(parser: argparse.ArgumentParser) -> None:
    _switches(parser, "use_parallel_embedding")
    parser.add_argument("--embedding_sharding_dim", type=int, default=0, choices=(0, 1))


def _numbers(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)


def _switches(parser: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        parser.add_argument(f"--{name}", action="store_true")
