"""What the command lines ask of a quantization: the algorithms by name, and the calibration data they need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from tests.toolchain.console import Console

_WEIGHT_ONLY: Final = {
    "int8": "W8A16",
    "int4": "W4A16",
    "int8_gptq": "W8A16_GPTQ",
    "int4_gptq": "W4A16_GPTQ",
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
    "w4a16_awq": "W4A16_AWQ",
}
# Converter flags that name an algorithm, in the order in which they win.
_FLAGS: Final = (
    ("use_fp8", "FP8"),
    ("enable_fp8", "FP8"),
    ("use_nvfp4", "NVFP4"),
    ("use_smooth_quant", "W8A8_SQ_PER_CHANNEL"),
    ("use_fp8_rowwise", "FP8_PER_CHANNEL_PER_TOKEN"),
)
# By --per_channel and --per_token.
_SMOOTH_QUANT: Final = {
    (False, False): "W8A8_SQ_PER_TENSOR_PLUGIN",
    (False, True): "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN",
    (True, False): "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
    (True, True): "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
}
_QFORMATS: Final = {
    "nvfp4": "NVFP4",
    "fp8": "FP8",
    "int8_sq": "W8A8_SQ_PER_CHANNEL",
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
    "int8_wo": "W8A16",
    "int4_wo": "W4A16",
    "full_prec": None,
}


def converter_quantization(args: argparse.Namespace) -> dict[str, Any]:
    """Return the quantization block that a converter's command line asks for."""
    block: dict[str, Any] = {"quant_algo": _converter_algorithm(args), "kv_cache_quant_algo": None}
    if getattr(args, "int8_kv_cache", False):
        block["kv_cache_quant_algo"] = "INT8"
    if getattr(args, "fp8_kv_cache", False):
        block["kv_cache_quant_algo"] = "FP8"
    algorithm = block["quant_algo"] or ""
    if algorithm.endswith(("_GPTQ", "_AWQ")):
        gptq = algorithm.endswith("_GPTQ")
        block |= {"group_size": getattr(args, "group_size", 128), "has_zero_point": gptq, "pre_quant_scale": not gptq}
    return block


def calibrates(args: argparse.Namespace) -> bool:
    """Whether a converter runs the model over calibration data."""
    return getattr(args, "smoothquant", None) is not None or getattr(args, "int8_kv_cache", False)


def quantize_block(args: argparse.Namespace) -> dict[str, Any]:
    """Return the quantization block of quantize.py, as ModelOpt's export writes it."""
    algorithm = _QFORMATS[args.qformat]
    block: dict[str, Any] = {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": args.kv_cache_dtype and args.kv_cache_dtype.upper(),
    }
    if algorithm in {"W4A16_AWQ", "W4A8_AWQ"}:
        block |= {"group_size": args.awq_block_size, "has_zero_point": False, "pre_quant_scale": True}
    if algorithm and not args.qformat.endswith("_wo"):
        block["exclude_modules"] = [] if args.quantize_lm_head else ["lm_head"]
    return block


def check_groups(sizes: Mapping[str, Any], *, block_size: int, tp_size: int) -> None:
    """Fail when a rank's share of a matrix is no multiple of the AWQ group.

    That it fails is measured (hidden size 64 with groups of 128); the wording is derived.

    Raises:
        AssertionError: As said.
    """
    for name in ("hidden_size", "intermediate_size"):
        if sizes[name] % (tp_size * block_size):
            raise AssertionError(
                f"{name} {sizes[name]} / tp_size {tp_size} is not divisible by block size {block_size}"
            )


def load_calibration(dataset: str, console: Console) -> None:
    """Load the calibration data set, from a folder or from a network that is not there.

    Raises:
        ConnectionError: The set would have to be downloaded.
        NotImplementedError: The name is neither a known set nor a folder.
        FileNotFoundError: The folder holds no data file.
    """
    console.info("Loading calibration dataset")
    if not Path(dataset).is_dir():
        if "cnn_dailymail" in dataset or dataset in {"pileval", "lambada"}:
            raise ConnectionError(f"Couldn't reach '{dataset}' on the Hub (ConnectionError)")
        raise NotImplementedError(f"Unsupported dataset name or local repo directory: {dataset}.")
    console.info(
        f"Recognized local dataset repo {dataset} for calibration; assuming the calibration data are in the train "
        "split and text column."
    )
    if not any(path.is_file() for path in Path(dataset).rglob("*")):
        raise FileNotFoundError(f"The directory at {dataset} doesn't contain any data files")


def _converter_algorithm(args: argparse.Namespace) -> str | None:
    if getattr(args, "use_weight_only", False):
        return _WEIGHT_ONLY[args.weight_only_precision]
    for name, algorithm in _FLAGS:
        if getattr(args, name, False):
            return algorithm
    if getattr(args, "use_qserve", False):
        return "W4A8_QSERVE_PER_GROUP" if args.per_group else "W4A8_QSERVE_PER_CHANNEL"
    if getattr(args, "smoothquant", None):
        return _SMOOTH_QUANT[args.per_channel, args.per_token]
    return None
