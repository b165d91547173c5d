"""What can be asked for, and what ModelOpt and TensorRT-LLM call it.

The names on the left are those of TensorRT-LLM's own ``quantize.py``; the algorithms are those of its ``QuantAlgo``.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# ModelOpt takes float32, too, warns, and writes float16.
DTYPES: Final = ("float16", "bfloat16")
AWQ_BLOCK_SIZE: Final = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantFormat:
    """One way to store the weights.

    Args:
        preset: ModelOpt's configuration, an attribute of ``modelopt.torch.quantization``; None leaves them as they are.
        quant_algo: What ``config.json`` calls it, None for weights as they are.
        block_size: Weights along the input dimension that share one scale; None when whole rows or matrices do.
        block_is_free: Whether another block size may be asked for.
        per_channel: Whether every output channel has one scale of its own, which ModelOpt cannot repeat for ranks that
            share a head.
        needs_cuda: Whether packing the weights needs a GPU.
    """

    preset: str | None
    quant_algo: str | None
    block_size: int | None = None
    block_is_free: bool = False
    per_channel: bool = False
    needs_cuda: bool = False


FORMATS: Final[Mapping[str, QuantFormat]] = {
    "full_prec": QuantFormat(preset=None, quant_algo=None),
    "fp8": QuantFormat(preset="FP8_DEFAULT_CFG", quant_algo="FP8"),
    "int8_sq": QuantFormat(preset="INT8_SMOOTHQUANT_CFG", quant_algo="W8A8_SQ_PER_CHANNEL", per_channel=True),
    "int4_awq": QuantFormat(
        preset="INT4_AWQ_CFG", quant_algo="W4A16_AWQ", block_size=AWQ_BLOCK_SIZE, block_is_free=True
    ),
    "w4a8_awq": QuantFormat(
        preset="W4A8_AWQ_BETA_CFG",
        quant_algo="W4A8_AWQ",
        block_size=AWQ_BLOCK_SIZE,
        block_is_free=True,
    ),
    "nvfp4": QuantFormat(preset="NVFP4_DEFAULT_CFG", quant_algo="NVFP4", block_size=16, needs_cuda=True),
}
# What is asked for to what ``kv_cache_quant_algo`` says; ``auto`` is as the model computes.
KV_CACHES: Final[Mapping[str, str | None]] = {"auto": None, "fp8": "FP8", "int8": "INT8"}
# A float of 4 exponent and 3 mantissa bits, or an integer of 8 bits.
_KV_BITS: Final[Mapping[str, Any]] = {"fp8": (4, 3), "int8": 8}
_KV_QUANTIZERS: Final = "*[kv]_bmm_quantizer"


def quantization_config(
    qformat: str, kv_cache: str, block_size: int | None, preset: Callable[[str], Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the configuration for ``modelopt.torch.quantization.quantize``, or None when nothing is quantised.

    Args:
        qformat: A key of ``FORMATS``.
        kv_cache: A key of ``KV_CACHES``.
        block_size: The block size asked for, where the format leaves it free.
        preset: Looks up one of ModelOpt's configurations by name; what it returns is copied.
    """
    form = FORMATS[qformat]
    if form.preset is None and kv_cache == "auto":
        return None
    nothing = {"quant_cfg": {"default": {"enable": False}}, "algorithm": "max"}
    config: dict[str, Any] = copy.deepcopy(dict(preset(form.preset) if form.preset else nothing))
    if form.block_is_free and block_size is not None:
        weights = config["quant_cfg"]["*weight_quantizer"]
        first = weights[0] if isinstance(weights, list) else weights
        first["block_sizes"][-1] = block_size
    if kv_cache != "auto":
        config["quant_cfg"][_KV_QUANTIZERS] = {"num_bits": _KV_BITS[kv_cache], "axis": None, "enable": True}
    return config
