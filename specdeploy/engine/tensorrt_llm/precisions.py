"""What each precision means to TensorRT-LLM: which program makes it, under which name, and which GPUs run it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.engine.profile import EngineSpec

Capability = tuple[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """One precision of weights.

    Args:
        algorithm: ``quant_algo`` in the checkpoint and the engine; None for unquantised weights.
        qformat: Its name for quantize.py and ModelOpt; empty when the converter makes it itself.
        weight_only: Its name for ``--weight_only_precision``; empty for the others.
        calibrated: Whether texts are needed to find its scales.
        least: The first compute capability that runs it.
    """

    algorithm: str | None = None
    qformat: str = ""
    weight_only: str = ""
    calibrated: bool = False
    least: Capability = (8, 0)


PRECISIONS: Final[Mapping[str, Precision]] = {
    "fp32": Precision(),
    "fp16": Precision(),
    "bf16": Precision(),
    "fp8": Precision(algorithm="FP8", qformat="fp8", calibrated=True, least=(8, 9)),
    "nvfp4": Precision(algorithm="NVFP4", qformat="nvfp4", calibrated=True, least=(10, 0)),
    "int8_sq": Precision(algorithm="W8A8_SQ_PER_CHANNEL", qformat="int8_sq", calibrated=True),
    "int8_wo": Precision(algorithm="W8A16", weight_only="int8"),
    "int4_wo": Precision(algorithm="W4A16", weight_only="int4"),
    "int4_awq": Precision(algorithm="W4A16_AWQ", qformat="int4_awq", calibrated=True),
    "w4a8_awq": Precision(algorithm="W4A8_AWQ", qformat="w4a8_awq", calibrated=True, least=(8, 9)),
}
#: Spelling of the type that everything but quantised weights is computed in.
DTYPES: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_FROM_TORCH: Final = {"float32": "fp16", "float16": "fp16", "bfloat16": "bf16"}
# Blackwell's data-centre chips lost the integer paths of the engine flow; to the builder AWQ is one of them.
_NO_INTEGER: Final = ((10, 0), (12, 0))
_INTEGER: Final = frozenset({"int8_sq", "int8_wo", "int4_wo", "int4_awq", "w4a8_awq"})


def resolve_precision(wanted: str, stored: str) -> str:
    """Return what ``auto`` means for weights stored as *stored*: as they are, but float32 becomes fp16, as upstream."""
    return _FROM_TORCH.get(stored, "fp16") if wanted == "auto" else wanted


def compute_dtype(precision: str, stored: str) -> str:
    """Return the type that an engine computes in, as TensorRT-LLM spells it."""
    return DTYPES.get(precision) or DTYPES[_FROM_TORCH.get(stored, "fp16")]


def check_precision(
    spec: EngineSpec, *, capability: Capability | None, calibration: str, reuses: bool
) -> Iterator[Finding]:
    """Yield what speaks against an engine's precision.

    Args:
        spec: The engine.
        capability: Of the GPU, None when it is not known.
        calibration: The texts to calibrate on; empty when there are none.
        reuses: Whether the method needs blocks of the KV cache to be used again.
    """
    precision = PRECISIONS[spec.precision]
    quantised_cache = spec.kv_cache != "auto"
    if (precision.calibrated or quantised_cache) and not calibration:
        what = f"precision {spec.precision}" if precision.calibrated else f"kv_cache {spec.kv_cache}"
        yield _error(
            "precision.no-calibration",
            "tensorrt_llm.calib_dataset",
            f"the {spec.role}'s {what} is calibrated on texts, and none are given",
            "Name a local folder or file of texts; the default of upstream's script is downloaded while it runs.",
        )
    if spec.kv_cache == "fp8" and precision.algorithm not in {"FP8", "NVFP4", "W4A8_AWQ"}:
        yield _no_paged_fmha(spec, "an FP8 KV cache under weights that are not", reuses=reuses)
    if spec.kv_cache == "int8":
        yield _no_paged_fmha(spec, "an INT8 KV cache", reuses=reuses)
    if capability is not None:
        yield from _check_capability(spec, precision, capability)


def _no_paged_fmha(spec: EngineSpec, cause: str, *, reuses: bool) -> Finding:
    return Finding(
        severity="error" if reuses else "warning",
        code="precision.no-reuse",
        message=f"{spec.role}: {cause} makes the builder turn paged context attention off, and with it the reuse of "
        "KV-cache blocks" + (", which every round needs" if reuses else ""),
        hint="Leave kv_cache at auto, or take fp8 for both weights and cache.",
        where=f"{spec.role}.kv_cache",
    )


def _check_capability(spec: EngineSpec, precision: Precision, capability: Capability) -> Iterator[Finding]:
    shown = f"{capability[0]}.{capability[1]}"
    if capability < precision.least:
        least = f"{precision.least[0]}.{precision.least[1]}"
        yield _error(
            "precision.gpu-too-old",
            f"{spec.role}.precision",
            f"{spec.precision} needs a GPU of compute capability {least} or higher, this one has {shown}",
            "Take bf16 or fp16, or another GPU.",
        )
    if spec.kv_cache == "fp8" and capability < PRECISIONS["fp8"].least:
        yield _error(
            "precision.gpu-too-old",
            f"{spec.role}.kv_cache",
            f"an FP8 KV cache needs a GPU of compute capability 8.9 or higher, this one has {shown}",
            "Leave kv_cache at auto.",
        )
    if not _NO_INTEGER[0] <= capability < _NO_INTEGER[1]:
        return
    if spec.precision in _INTEGER:
        yield _without_integers(f"{spec.role}.precision", f"{shown} do not run {spec.precision} engines")
    if spec.kv_cache == "int8":
        yield _without_integers(f"{spec.role}.kv_cache", f"{shown} do not run engines with an INT8 KV cache")


def _without_integers(where: str, what: str) -> Finding:
    return _error("precision.gpu-without-integers", where, f"GPUs of compute capability {what}", "Take fp8 or nvfp4.")


def _error(code: str, where: str, message: str, hint: str) -> Finding:
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)
