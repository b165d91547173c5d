"""What to change so that engines fit on their GPUs: every cure that is named was tried.

Each thing is changed alone first (ranks, precision, type of the KV cache, batch, length); ranks and precision together
only when nothing alone is enough.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.planning.precision import precision as format_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.planning.footprint import EngineMemorySpec
    from specdeploy.planning.occupancy import Occupancy

_LARGER_TP: Final = (2, 4, 8)
_LENGTH_STEP: Final = 64
# Precisions that a smaller engine may have, and the compute capabilities that run them (TensorRT-LLM's support matrix:
# weight-only types end before Blackwell).
_SMALLER: Final = (("fp8", 8.9, 99.0), ("int8_wo", 8.0, 10.0), ("int4_awq", 8.0, 10.0), ("nvfp4", 10.0, 99.0))


def cures(case: Occupancy) -> str:
    """Return a sentence that names what would fit, or that nothing tried does."""
    found = [*_single_cures(case)]
    if not found:
        pairs = (
            f"{first} with {second}"
            for first, wider in _wider(case)
            for second, smaller in _smaller(wider)
            if smaller.fits()
        )
        found = [pair] if (pair := next(pairs, None)) else []
    return f"{_or(found)} would fit." if found else "Take a larger GPU, or a smaller target."


def _single_cures(case: Occupancy) -> Iterator[str]:
    for options in (_wider(case), _smaller(case), _narrower_cache(case)):
        cure = next((text for text, changed in options if changed.fits()), None)
        if cure is not None:
            yield cure
    if batch := _most(case.batch_size, lambda size: dataclasses.replace(case, batch_size=size)):
        yield f"max_batch_size {batch}"
    steps = case.seq_len // _LENGTH_STEP
    if length := _most(steps, lambda size: dataclasses.replace(case, seq_len=size * _LENGTH_STEP)):
        yield f"max_seq_len {length * _LENGTH_STEP}"


def _most(limit: int, changed: Callable[[int], Occupancy]) -> int:
    """Return the largest number below *limit* with which it fits, by halving; 0 when none does."""
    fitting, failing = 0, limit
    while failing - fitting > 1:
        middle = (fitting + failing) // 2
        fitting, failing = (middle, failing) if changed(middle).fits() else (fitting, middle)
    return fitting


def _wider(case: Occupancy) -> Iterator[tuple[str, Occupancy]]:
    """Yield the case with more ranks for its largest engine, and with as many for all engines."""
    index = _largest(case)
    largest = case.engines[index]
    for size in _LARGER_TP:
        if size <= largest.tp_size or not _splits(case, largest, size):
            continue
        yield (
            f"{largest.role} tp_size {size}",
            _with(case, index, dataclasses.replace(largest, tp_size=size, device_ids=())),
        )
        if len(case.engines) > 1 and all(_splits(case, spec, size) for spec in case.engines):
            engines = tuple(
                dataclasses.replace(spec, tp_size=max(size, spec.tp_size), device_ids=()) for spec in case.engines
            )
            yield f"tp_size {size} for all engines", dataclasses.replace(case, engines=engines)


def _splits(case: Occupancy, spec: EngineMemorySpec, size: int) -> bool:
    """Say whether an engine can have that many ranks: its heads divide, and there are GPUs for them."""
    heads, shared = spec.model.num_heads, spec.model.num_kv_heads
    enough = case.gpu_count is None or size * spec.pp_size <= case.gpu_count
    return enough and heads % size == 0 and (shared % size == 0 or size % shared == 0)


def _smaller(case: Occupancy) -> Iterator[tuple[str, Occupancy]]:
    """Yield the case with a smaller precision for its largest engine, of those that the GPU runs."""
    index = _largest(case)
    spec = case.engines[index]
    for name, least, below in _SMALLER:
        runs = case.gpu.at_least(least) is not False and case.gpu.at_least(below) is not True
        if runs and format_of(name).bytes_per_weight < format_of(spec.precision).bytes_per_weight:
            yield f"{spec.role} precision {name}", _with(case, index, dataclasses.replace(spec, precision=name))


def _narrower_cache(case: Occupancy) -> Iterator[tuple[str, Occupancy]]:
    if case.gpu.at_least(8.9) is False or any(spec.kv_cache != "auto" for spec in case.engines):
        return
    engines = tuple(dataclasses.replace(spec, kv_cache="fp8") for spec in case.engines)
    yield "kv_cache fp8", dataclasses.replace(case, engines=engines)


def _largest(case: Occupancy) -> int:
    weights = [spec.model.layer_parameters for spec in case.engines]
    return weights.index(max(weights))


def _with(case: Occupancy, index: int, spec: EngineMemorySpec) -> Occupancy:
    engines = list(case.engines)
    engines[index] = spec
    return dataclasses.replace(case, engines=tuple(engines))


def _or(texts: list[str]) -> str:
    return " or ".join((", ".join(texts[:-1]), texts[-1])) if len(texts) > 1 else texts[0]
