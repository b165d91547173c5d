"""Which engines lie on which GPU, and how many sequences they hold there together.

An ``Occupancy`` is everything that decides whether a deployment fits. It is a value, so a cure is tried by replacing
one thing in it and asking again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.planning.footprint import engine_memory, kv_bytes_per_token, sequence_tokens

if TYPE_CHECKING:
    from specdeploy.planning.footprint import EngineMemory, EngineMemorySpec
    from specdeploy.planning.gpus import GpuSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuPlan:
    """What lies on one GPU.

    Args:
        device: Its number.
        engines: What each engine takes of it, in load order.
        memory_bytes: All of its memory, None when not known; so is ``usable_bytes``.
        usable_bytes: What is left of that for engines after the reserve.
    """

    device: int
    engines: tuple[EngineMemory, ...]
    memory_bytes: int | None
    usable_bytes: int | None

    @property
    def total_bytes(self) -> int:
        """What the engines take together, with their KV caches."""
        return sum(engine.total_bytes for engine in self.engines)

    @property
    def fits(self) -> bool | None:
        """Whether they fit together; None when the GPU's memory is not known."""
        return None if self.usable_bytes is None else self.total_bytes <= self.usable_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return {
            "device": self.device,
            "memory_bytes": self.memory_bytes,
            "usable_bytes": self.usable_bytes,
            "total_bytes": self.total_bytes,
            "fits": self.fits,
            "engines": [engine.as_dict() for engine in self.engines],
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Occupancy:
    """Engines, GPUs and what they should hold.

    Args:
        engines: In load order.
        gpu: The kind of GPU.
        batch_size: Sequences that should run at once.
        seq_len: Tokens of each.
        reserve_fraction: Share of each GPU that is left alone.
        gpu_count: GPUs that there are; None when not known.
    """

    engines: tuple[EngineMemorySpec, ...]
    gpu: GpuSpec
    batch_size: int
    seq_len: int
    reserve_fraction: float
    gpu_count: int | None

    @property
    def usable_bytes(self) -> int | None:
        """What engines may take of one GPU; None when its memory is not known."""
        memory = self.gpu.memory_bytes
        return None if memory is None else int(memory * (1 - self.reserve_fraction))

    def gpus(self) -> tuple[GpuPlan, ...]:
        """Return what lies on each GPU that is used, by its number."""
        devices = sorted({device for spec in self.engines for device in spec.devices})
        return tuple(
            GpuPlan(
                device=device,
                engines=tuple(
                    engine_memory(spec, device, batch_size=self.batch_size, seq_len=self.seq_len)
                    for spec in self.engines
                    if device in spec.devices
                ),
                memory_bytes=self.gpu.memory_bytes,
                usable_bytes=self.usable_bytes,
            )
            for device in devices
        )

    def sequence_bytes(self, device: int, seq_len: int) -> int:
        """Return what one sequence takes of a GPU, in all engines that lie there."""
        return sum(
            sequence_tokens(spec, seq_len) * kv_bytes_per_token(spec, spec.stage(device))
            for spec in self.engines
            if device in spec.devices
        )

    def capacity(self, seq_len: int) -> float | None:
        """Return how many sequences fit at once, below 0 when not even the weights do; None when unknown."""
        usable = self.usable_bytes
        if usable is None:
            return None
        return min(
            (usable - sum(engine.fixed_bytes for engine in plan.engines)) / self.sequence_bytes(plan.device, seq_len)
            for plan in self.gpus()
        )

    def fits(self) -> bool:
        """Say whether the whole batch fits at full length; False when that cannot be told."""
        capacity = self.capacity(self.seq_len)
        return capacity is not None and capacity >= self.batch_size
