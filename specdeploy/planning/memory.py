"""Do the engines of a deployment fit on its GPUs together, how much do they hold, and how do they share the KV cache?

Both engines hold every running sequence, so what fits is decided by the sum of both on the GPU where least is left.
TensorRT-LLM gives an engine's KV cache a fraction of what is *still free* when it loads: the same fraction means less
for the engine that comes second, and a first one that takes 0.9 leaves nothing to load the second with
(github.com/triton-inference-server/tensorrtllm_backend issues 303 and 462). The plan therefore advises fractions in
load order that let both hold the same sequences. When something does not fit, the cures that are named were tried.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

from specdeploy.findings import Finding, Severity
from specdeploy.planning.cures import cures
from specdeploy.planning.footprint import (
    EngineMemory,
    EngineMemorySpec,
    ModelMemory,
    kv_bytes_per_token,
    sequence_tokens,
)
from specdeploy.planning.gpus import GpuSpec, gpu_spec
from specdeploy.planning.occupancy import GpuPlan, Occupancy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "EngineMemory",
    "EngineMemorySpec",
    "GpuPlan",
    "GpuSpec",
    "KvShare",
    "MemoryPlan",
    "ModelMemory",
    "gpu_spec",
    "plan_memory",
]

# Left alone for fragmentation, the driver and whatever else looks at the GPU.
RESERVE_FRACTION: Final = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class KvShare:
    """What an engine's KV cache gets.

    Args:
        role: Of the engine.
        fraction: ``kv_cache_free_gpu_mem_fraction``: of what is still free when it loads. None when none would do.
        advised: Whether it is our advice and not the configuration's.
        tokens: Tokens that the cache then holds; None when it cannot be told.
    """

    role: str
    fraction: float | None
    advised: bool
    tokens: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The memory of a deployment.

    Args:
        gpu: The GPUs, all of one kind.
        max_batch_size: Sequences that should run at once.
        max_seq_len: Tokens of the longest one.
        mean_seq_len: Tokens of a usual one, None when not given.
        gpus: One for each GPU that is used.
        sequences_at_max_seq_len: Sequences of the longest kind that fit at once; None when it cannot be told.
        sequences_at_mean_seq_len: Of the usual kind.
        kv_shares: One for each engine, in load order.
        findings: Errors first.
    """

    gpu: GpuSpec
    max_batch_size: int
    max_seq_len: int
    mean_seq_len: int | None
    gpus: tuple[GpuPlan, ...]
    sequences_at_max_seq_len: int | None
    sequences_at_mean_seq_len: int | None
    kv_shares: tuple[KvShare, ...]
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool | None:
        """Whether the whole batch fits at full length; None when the GPU's memory is not known."""
        if self.sequences_at_max_seq_len is None:
            return None
        return self.sequences_at_max_seq_len >= self.max_batch_size

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return {
            "gpu": dataclasses.asdict(self.gpu),
            "max_batch_size": self.max_batch_size,
            "max_seq_len": self.max_seq_len,
            "mean_seq_len": self.mean_seq_len,
            "fits": self.fits,
            "sequences_at_max_seq_len": self.sequences_at_max_seq_len,
            "sequences_at_mean_seq_len": self.sequences_at_mean_seq_len,
            "kv_shares": [dataclasses.asdict(share) for share in self.kv_shares],
            "gpus": [plan.as_dict() for plan in self.gpus],
            "findings": [finding.as_dict() for finding in self.findings],
        }


def plan_memory(  # engines and GPU first, limits as keywords
    engines: Sequence[EngineMemorySpec],
    *,
    gpu: GpuSpec,
    max_batch_size: int,
    max_seq_len: int,
    mean_seq_len: int | None = None,
    reserve_fraction: float = RESERVE_FRACTION,
    gpu_count: int | None = None,
) -> MemoryPlan:
    """Return what the engines take of each GPU, what they hold, and what to change when they do not fit.

    Args:
        engines: In the order in which they load; the fractions are advised for that order and hold for no other.
        gpu: The kind of GPU; without a known memory nothing is said to fit or not to fit.
        max_batch_size: Sequences that should run at once.
        max_seq_len: Tokens of the longest one, prompt and answer.
        mean_seq_len: Tokens of a usual one.
        reserve_fraction: Share of each GPU that is left alone.
        gpu_count: GPUs that there are; None when not known.

    Raises:
        ConfigError: A precision or a type of KV cache is unknown.
    """
    case = Occupancy(
        engines=tuple(engines),
        gpu=gpu,
        batch_size=max_batch_size,
        seq_len=max_seq_len,
        reserve_fraction=reserve_fraction,
        gpu_count=gpu_count,
    )
    shares = _kv_shares(case)
    findings = [
        *_check_count(case),
        *_check_fit(case, mean_seq_len),
        *_check_shares(case, shares),
    ]
    order: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}
    return MemoryPlan(
        gpu=gpu,
        max_batch_size=max_batch_size,
        max_seq_len=max_seq_len,
        mean_seq_len=mean_seq_len,
        gpus=case.gpus(),
        sequences_at_max_seq_len=_whole(case.capacity(max_seq_len)),
        sequences_at_mean_seq_len=None if mean_seq_len is None else _whole(case.capacity(mean_seq_len)),
        kv_shares=shares,
        findings=tuple(sorted(findings, key=lambda finding: order[finding.severity])),
    )


def _whole(sequences: float | None) -> int | None:
    return None if sequences is None else max(0, math.floor(sequences))


def _kv_shares(case: Occupancy) -> tuple[KvShare, ...]:
    """Load the engines one after the other, on paper: each takes its fraction of what is still free then."""
    memory, capacity = case.gpu.memory_bytes, case.capacity(case.seq_len)
    if memory is None or capacity is None:
        return tuple(_unknown_share(spec) for spec in case.engines)
    plans = {plan.device: plan for plan in case.gpus()}
    used = dict.fromkeys(plans, 0)
    shares = []
    for spec in case.engines:
        fixed = {plan.device: _of(plan, spec).fixed_bytes for plan in plans.values() if plan.device in spec.devices}
        free = {device: memory - used[device] - taken for device, taken in fixed.items()}
        share = _share(case, spec, free, capacity)
        for device, taken in fixed.items():
            used[device] += taken + (share.tokens or 0) * _of(plans[device], spec).kv_bytes_per_token
        shares.append(share)
    return tuple(shares)


def _unknown_share(spec: EngineMemorySpec) -> KvShare:
    return KvShare(role=spec.role, fraction=spec.kv_fraction, advised=False, tokens=None)


def _of(plan: GpuPlan, spec: EngineMemorySpec) -> EngineMemory:
    return next(engine for engine in plan.engines if engine.role == spec.role)


def _share(case: Occupancy, spec: EngineMemorySpec, free: dict[int, int], capacity: float) -> KvShare:
    """Return an engine's fraction (its own, or the one that lets it hold *capacity* sequences) and what that holds."""
    least = min(free.values())
    if least <= 0 or (capacity <= 0 and spec.kv_fraction is None):
        return KvShare(role=spec.role, fraction=spec.kv_fraction, advised=False, tokens=0)
    per_token = {device: kv_bytes_per_token(spec, spec.stage(device)) for device in free}
    fraction = spec.kv_fraction
    if fraction is None:
        wanted = capacity * sequence_tokens(spec, case.seq_len)
        # Rounded down: a little unused is better than an engine that does not load.
        fraction = min(math.floor(1000 * wanted * per_token[device] / free[device]) / 1000 for device in free)
    blocks = min(int(fraction * free[device] / per_token[device]) // spec.tokens_per_block for device in free)
    tokens = blocks * spec.tokens_per_block
    return KvShare(role=spec.role, fraction=fraction, advised=spec.kv_fraction is None, tokens=tokens)


def _check_count(case: Occupancy) -> Iterator[Finding]:
    needed = 1 + max(device for spec in case.engines for device in spec.devices)
    if case.gpu_count is not None and needed > case.gpu_count:
        message = f"the engines lie on {needed} GPUs, there are {case.gpu_count}"
        yield _finding("error", "too-few-gpus", message, "Lower tp_size or pp_size, or set gpu.count.")


def _check_fit(case: Occupancy, mean_seq_len: int | None) -> Iterator[Finding]:
    capacity = _whole(case.capacity(case.seq_len))
    if capacity is None:
        yield _finding(
            "info",
            "not-checked",
            f"the memory of {case.gpu.name or 'the GPU'} is not known: not checked",
            "Set gpu.memory_gb.",
        )
        return
    usual = None if mean_seq_len is None else _whole(case.capacity(mean_seq_len))
    held = f"{capacity} sequences of {case.seq_len} tokens" + (
        "" if usual is None else f", or {usual} of {mean_seq_len},"
    )
    if capacity < 1:
        yield _finding("error", "does-not-fit", _need(case), cures(case))
    elif capacity < case.batch_size:
        message = f"only {held} fit at once beside the buffers for {case.batch_size}: {_need(case)}"
        enough = usual is not None and usual >= case.batch_size
        yield _finding("info" if enough else "warning", "batch-does-not-fit", message, cures(case))
    elif not tuple(_check_count(case)):
        yield _finding("info", "fits", f"{held} fit at once")


def _need(case: Occupancy) -> str:
    """Say what is needed and what there is, of the GPU that is fullest."""
    plans = case.gpus()
    fullest = max(plans, key=lambda plan: plan.total_bytes)
    alike = all(plan.total_bytes == fullest.total_bytes for plan in plans)
    where = f"on each of {len(plans)} GPUs" if alike and len(plans) > 1 else f"on GPU {fullest.device}"
    parts = ", ".join(
        f"{engine.role} {_gb(engine.weight_bytes)} weights + {_gb(engine.kv_cache_bytes)} KV cache"
        for engine in fullest.engines
    )
    return (
        f"needs {_gb(fullest.total_bytes)} GB {where} ({parts}), "
        f"{_gb(fullest.usable_bytes or 0)} of its {_gb(fullest.memory_bytes or 0)} GB can be used"
    )


def _check_shares(case: Occupancy, shares: tuple[KvShare, ...]) -> Iterator[Finding]:
    """Check the fractions that the configuration gives: does every engine load, and hold at least one sequence?"""
    if all(spec.kv_fraction is None for spec in case.engines) or (case.capacity(case.seq_len) or 0) < 1:
        return
    advice = _kv_shares(
        dataclasses.replace(case, engines=tuple(dataclasses.replace(spec, kv_fraction=None) for spec in case.engines))
    )
    hint = "Use " + ", then ".join(f"{share.fraction} for the {share.role}" for share in advice) + "."
    for spec, share in zip(case.engines, shares, strict=True):
        needed = sequence_tokens(spec, case.seq_len)
        if share.tokens is not None and share.tokens < needed:
            held = f"a KV cache of {share.tokens} tokens" if share.tokens else "no room to load"
            message = (
                f"what the engines before it leave gives the {spec.role} {held}; one sequence takes {needed} tokens"
            )
            yield _finding("error", "kv-fraction", message, hint)


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f}"


def _finding(severity: Severity, code: str, message: str, hint: str = "") -> Finding:
    return Finding(severity=severity, code=f"memory.{code}", message=message, hint=hint, where="gpu")
