"""How a plan looks on a terminal: engines, steps as a shell would take them, memory."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from specdeploy.cli._render import size, table
from specdeploy.engine.profile import engine_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specdeploy.pipeline.engines import Planned
    from specdeploy.planning.build import PlannedEngine
    from specdeploy.planning.memory import MemoryPlan


def lines(planned: Planned) -> list[str]:
    """Lay out a plan."""
    plan = planned.checked.plan
    text: list[str] = []
    for engine in plan.engines:
        text += [*_engine(planned, engine), ""]
    if plan.side_by_side:
        text += [_side_by_side(plan.engines), ""]
    if planned.checked.memory is not None:
        text += [*memory(planned.checked.memory), ""]
    return text[:-1]


def _side_by_side(engines: Sequence[PlannedEngine]) -> str:
    if not all(engine.devices for engine in engines):
        return "built side by side, each on the GPUs that the queue gives it"
    devices = "; ".join(f"{engine.spec.role} on {', '.join(engine.devices)}" for engine in engines)
    return f"built side by side, each on its own GPUs: {devices}"


def memory(plan: MemoryPlan) -> list[str]:
    """Lay out what the engines take of the first GPU and of those that differ from it."""
    rows = [
        (
            str(gpu.device),
            engine.role,
            size(engine.weight_bytes),
            size(engine.kv_cache_bytes),
            size(engine.activation_bytes + engine.logits_bytes),
            size(engine.runtime_bytes),
            size(engine.total_bytes),
        )
        for gpu in plan.gpus
        for engine in gpu.engines
    ]
    header = ("GPU", "engine", "weights", "KV cache", "activations*", "runtime*", "in all")
    have = "unknown" if plan.gpu.memory_bytes is None else size(plan.gpu.memory_bytes)
    limits = f"at {plan.max_batch_size} sequences of {plan.max_seq_len} tokens"
    return [
        f"memory of each GPU ({plan.gpu.name or 'unknown'}, {have}) {limits}; * is an estimate",
        *table(header, rows).splitlines(),
    ]


def _engine(planned: Planned, engine: PlannedEngine) -> Iterator[str]:
    spec = engine.spec
    ranks = f", {spec.world_size} ranks" if spec.world_size > 1 else ""
    yield f"{spec.role}: {spec.name} (key {engine.key[:16] or 'none'}, about {size(engine.estimated_bytes)}{ranks})"
    if not engine.steps:
        yield "  cannot be made; the findings say why"
    elif engine.key in planned.hits:
        yield f"  hit: {planned.hits[engine.key]}"
    else:
        yield f"  miss: {_reason(planned, engine)}"
        for number, step in enumerate(engine.steps, start=1):
            kept = number < len(engine.steps) and engine_key(engine.steps[:number]) in planned.kept
            yield f"  {number}. {step.name}" + (" (done by an earlier run)" if kept else "")
            if step.argv:
                yield f"     {shlex.join(step.argv)}"
            yield f"     writes {', '.join(step.outputs)}"
        for text in planned.handed_over.get(engine.key, ()):
            yield from ("  handed over as:", *(f"     {line}" for line in text.splitlines()))


def _reason(planned: Planned, engine: PlannedEngine) -> str:
    miss = planned.misses[engine.key]
    if miss.nearest is None:
        return "the store has no engine like it"
    against = "" if miss.nearest == engine.key else f" (against {miss.nearest[:16]})"
    return f"{', '.join(miss.reasons)}{against}"
