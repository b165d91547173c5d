"""A checkpoint that was converted before: what it is already, and how that contradicts what is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.config.rules import HEADS
from specdeploy.engine.tensorrt_llm.precisions import PRECISIONS, resolve_precision
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.checkpoint.trtllm import TrtllmCheckpoint
    from specdeploy.engine.profile import EngineSpec

_WITH_HEADS: Final = ("Medusa", "Eagle", "ReDrafter")
_KV_CACHES: Final = {None: "auto", "FP8": "fp8", "INT8": "int8"}


def converted_precision(converted: TrtllmCheckpoint) -> str:
    """Return the precision that a conversion gave the weights.

    Raises:
        ConfigError: It is one that specdeploy does not know, such as a mixture.
    """
    algorithm = converted.quantization.quant_algo
    if algorithm is None:
        return resolve_precision("auto", converted.dtype) if converted.dtype != "float32" else "fp32"
    found = [name for name, precision in PRECISIONS.items() if precision.algorithm == algorithm]
    # SmoothQuant has a name for each way of taking the scales.
    found += ["int8_sq"] if algorithm.startswith("W8A8_SQ") else []
    if not found:
        raise ConfigError(
            f"{converted.path} is quantised by {algorithm}, which is not known here",
            hint=f"Known are {', '.join(PRECISIONS)}.",
        )
    return found[0]


def converted_kv_cache(converted: TrtllmCheckpoint) -> str:
    """Return the type of KV cache that a conversion chose, in the words of the configuration."""
    algorithm = converted.quantization.kv_cache_quant_algo
    return _KV_CACHES.get(algorithm, str(algorithm))


def check_converted(spec: EngineSpec, converted: TrtllmCheckpoint, method: str) -> Iterator[Finding]:
    """Yield where the configuration wants something else than what was converted."""
    mapping, role = converted.mapping, spec.role
    wanted = (
        ("tp_size", mapping.tp_size, spec.tp_size),
        ("pp_size", mapping.pp_size, spec.pp_size),
        ("ep_size", mapping.moe_ep_size or 1, spec.ep_size),
        ("precision", converted_precision(converted), spec.precision),
        ("kv_cache", converted_kv_cache(converted), spec.kv_cache),
    )
    for key, is_, asked in wanted:
        # A kv_cache of auto is whatever the checkpoint has.
        if is_ != asked and not (key == "kv_cache" and asked == "auto"):
            yield _error(
                f"converted.{key.replace('_', '-')}",
                f"{role}.{key}",
                f"{spec.checkpoint.name} was converted with {key} {is_}, wanted is {asked}",
                f"Set {role}.{key} to {is_}, or name the checkpoint that it was converted from.",
            )
    if converted.architecture.startswith(_WITH_HEADS):
        yield _error(
            "converted.architecture",
            f"{role}.checkpoint",
            f"{spec.checkpoint.name} is a {converted.architecture}: {method} has no use for the head in it",
            "Convert the base model alone.",
        )
    if method in HEADS and role == "target":
        yield _error(
            "converted.head",
            "target.checkpoint",
            f"{spec.checkpoint.name} is converted already; the head of the method {method} joins it while converting",
            "Name the Hugging Face checkpoint as target.checkpoint, and the head as draft.checkpoint.",
        )
    if spec.extra_convert_args:
        message = f"{spec.checkpoint.name} is converted already, and extra_convert_args are given"
        yield _error("converted.arguments", f"{role}.extra_convert_args", message, "Leave them out.")


def _error(code: str, where: str, message: str, hint: str) -> Finding:
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)
