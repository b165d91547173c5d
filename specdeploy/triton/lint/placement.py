"""Checks of where engines run: ranks against GPUs, and engines that share a GPU's memory.

A server of NVIDIA's backend puts rank N on GPU N unless ``gpu_device_ids`` says otherwise; ``;`` separates instances.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint.callers import callers
from specdeploy.triton.lint.loaded import Engine, Repository, error, warning, whole_number
from specdeploy.triton.lint.parameters import is_fraction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.findings import Finding

_GPUS: Final = "gpu_device_ids"
_PARTICIPANTS: Final = "participant_ids"
_FAST_LOGITS: Final = "speculative_decoding_fast_logits"
_KV_FRACTION: Final = "kv_cache_free_gpu_mem_fraction"
# No machine has more; what an engine says of itself may be any number.
_MOST_GPUS: Final = 4096
# TensorRT-LLM takes this fraction of the free memory when nothing is said.
_DEFAULT_KV_FRACTION: Final = 0.9


def ranks(repository: Repository) -> Iterator[Finding]:
    """As many GPUs and processes as the engine has ranks, each named once."""
    for engine in repository.engines.values():
        for key in (_GPUS, _PARTICIPANTS):
            if key in engine.parameters:
                yield from _ids(engine, key)
    yield from _shared_participants(repository)


def worlds(repository: Repository) -> Iterator[Finding]:
    """Two engines of different world sizes need to be told where to run: a server in leader mode has one size."""
    for caller in callers(repository):
        pair = [repository.engines[name] for name in (caller.target, caller.draft) if name in repository.engines]
        sizes = [size for engine in pair if (size := engine.said().world_size) is not None]
        placed = all(_GPUS in engine.parameters or _PARTICIPANTS in engine.parameters for engine in pair)
        if len(set(sizes)) > 1 and not placed:
            yield warning(
                "engine.world-sizes",
                f"the engines of {' and '.join(engine.name for engine in pair)} have {sizes[0]} and {sizes[1]} ranks",
                where=", ".join(engine.name for engine in pair),
                hint="give both gpu_device_ids or participant_ids, and start the server in orchestrator mode",
            )


def fast_logits(repository: Repository) -> Iterator[Finding]:
    """Logits that go from engine to engine over MPI need it said in both, and ranks that both know.

    The backend turns it off otherwise, and says so in its log only.
    """
    for caller in callers(repository):
        pair = [repository.engines[name] for name in (caller.target, caller.draft) if name in repository.engines]
        wanted = [engine for engine in pair if engine.parameters.get(_FAST_LOGITS, "").lower() in {"1", "true"}]
        placed = all(_PARTICIPANTS in engine.parameters for engine in pair)
        if wanted and not (len(wanted) == len(pair) and placed):
            yield warning(
                "engine.fast-logits",
                f"{_FAST_LOGITS} is on in {' and '.join(engine.name for engine in wanted)}, and will be turned off",
                where=wanted[0].at(_FAST_LOGITS),
                hint="set it in both engines, give both participant_ids, and start an orchestrator that spawns nothing",
            )


def memory(repository: Repository) -> Iterator[Finding]:
    """Two engines on one GPU that each want most of the memory: which one starves depends on who loads first.

    The fraction is of what is free when the engine loads, so halves (upstream's advice) leave the second a quarter.
    """
    for one, other in itertools.combinations(repository.engines.values(), 2):
        shares = [share for engine in (one, other) if (share := _share(engine)) is not None]
        if not _gpus(one).isdisjoint(_gpus(other)) and len(shares) == 2 and sum(shares) > 1:
            yield warning(
                "engine.kv-fractions",
                f"{one.name} and {other.name} share a GPU, and take {shares[0]:g} and {shares[1]:g} of the memory "
                "that is free when each of them loads",
                where=", ".join(engine.at(_KV_FRACTION) for engine in (one, other)),
                hint=f"{_KV_FRACTION}: together at most 1; left out it is {_DEFAULT_KV_FRACTION}",
            )


def _ids(engine: Engine, key: str) -> Iterator[Finding]:
    text = engine.parameters[key]
    groups = _groups(text)
    if groups is None:
        yield error(
            "engine.ids",
            f"{key} is {text!r}",
            where=engine.at(key),
            hint='numbers, each once, "," between ranks and ";" between instances: "0,1;2,3"',
        )
        return
    size = engine.said().world_size
    for group in groups:
        if size is not None and len(group) != size:
            yield error(
                "engine.world-size",
                f"{key} is {text!r}: an instance has {len(group)} of them, and the engine {size} ranks",
                where=engine.at(key),
                hint=f"{size} for each instance",
            )
            return


def _shared_participants(repository: Repository) -> Iterator[Finding]:
    """A process is a rank of one engine; GPUs may be shared."""
    owners: dict[int, Engine] = {}
    for engine in repository.engines.values():
        numbers = set(itertools.chain.from_iterable(_groups(engine.parameters.get(_PARTICIPANTS, "")) or ()))
        twice = sorted(number for number in numbers if number in owners)
        if twice:
            yield error(
                "engine.participants",
                f"process {twice[0]} is a rank of {owners[twice[0]].name} and of {engine.name}",
                where=engine.at(_PARTICIPANTS),
                hint="number the ranks of all engines from 1 on; 0 is the orchestrator",
            )
        owners |= dict.fromkeys(numbers, engine)


def _groups(text: str) -> list[list[int]] | None:
    """Return the numbers of each instance; None when it is not written so, or names one twice."""
    words = [[word.strip() for word in group.split(",")] for group in text.split(";")]
    groups = [[number for word in group if (number := whole_number(word)) is not None] for group in words]
    if any(len(group) < len(written) for group, written in zip(groups, words, strict=True)):
        return None
    return groups if all(len(set(group)) == len(group) for group in groups) else None


def _gpus(engine: Engine) -> set[int]:
    groups = _groups(engine.parameters.get(_GPUS, ""))
    if groups is None:
        return set(range(min(engine.said().world_size or 1, _MOST_GPUS)))
    return set(itertools.chain.from_iterable(groups))


def _share(engine: Engine) -> float | None:
    """Return the fraction that the engine takes; None where a number of tokens bounds it, or it cannot be read."""
    if "max_tokens_in_paged_kv_cache" in engine.parameters:
        return None
    text = engine.parameters.get(_KV_FRACTION)
    if text is None:
        return _DEFAULT_KV_FRACTION
    return float(text) if is_fraction(text) else None
