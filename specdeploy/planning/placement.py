"""Which GPUs and which processes hold the ranks of a deployment's engines when it is served.

NVIDIA's backend has three ways. Engines of one rank live in the server's own process. Engines of several ranks that all
have as many are served in *leader* mode: mpirun starts one server a rank, and the first of them leads. Engines whose
numbers of ranks differ need the *orchestrator*: one server, whose backend spawns the ranks' processes, or, where draft
logits go from GPU to GPU, finds them started beside it, each rank of each engine named by its MPI rank.

Knows numbers of ranks and of GPUs. Does not know command lines, and never looks at the machine.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from specdeploy.config.rules import PAIRS
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.config.schema import DeployConfig, ModelConfig

Mode: TypeAlias = Literal["single", "leader", "orchestrator"]
_ONE_PROCESS: Final = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnginePlacement:
    """Where the ranks of one engine are.

    Args:
        role: ``target`` or ``draft``.
        gpu_ids: GPU of each rank.
        participant_ids: MPI rank of each rank; empty where the backend finds out itself.
    """

    role: str
    gpu_ids: tuple[int, ...]
    participant_ids: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the ranks of all engines are, and how they are started.

    Args:
        mode: See the module.
        spawn: Whether the orchestrator's backend starts the ranks' processes itself; True in the other modes.
        processes: Servers that are started at once, by mpirun where it is more than one.
        engines: Target first.
    """

    mode: Mode
    spawn: bool
    processes: int
    engines: tuple[EnginePlacement, ...]

    @property
    def gpus(self) -> tuple[int, ...]:
        """Every GPU that is used, in order."""
        return tuple(sorted({gpu for engine in self.engines for gpu in engine.gpu_ids}))

    def of(self, role: str) -> EnginePlacement:
        """Return the place of one engine; raises KeyError for a role that has none."""
        found = {engine.role: engine for engine in self.engines}
        return found[role]


def place(config: DeployConfig) -> Placement:
    """Return where the engines of a configuration go; what speaks against it says :func:`check_placement`."""
    models = _models(config)
    ranks = {role: model.tp_size * model.pp_size for role, model in models.items()}
    gpus = {role: model.gpu_ids or tuple(range(ranks[role])) for role, model in models.items()}
    # The LLM API starts its own workers.
    mode = "single" if config.profile != "tensorrt_llm" else _mode(config, ranks)
    spawn = mode != "orchestrator" or not config.speculation.fast_logits
    participants = {} if spawn else _participants(ranks)
    return Placement(
        mode=mode,
        spawn=spawn,
        processes=_processes(mode, spawn=spawn, ranks=ranks),
        engines=tuple(
            EnginePlacement(role=role, gpu_ids=gpus[role], participant_ids=participants.get(role, ()))
            for role in models
        ),
    )


def check_placement(config: DeployConfig) -> tuple[Finding, ...]:
    """Return every contradiction between ranks, GPUs, the serving mode and fast logits."""
    if config.profile != "tensorrt_llm":
        return tuple(_not_placed(config))
    return (*_check_gpu_ids(config), *_check_mode(config), *_check_fast_logits(config))


def _models(config: DeployConfig) -> Mapping[str, ModelConfig]:
    pair = config.speculation.method in PAIRS and config.profile == "tensorrt_llm"
    return {"target": config.target, **({"draft": config.draft} if pair else {})}


def _mode(config: DeployConfig, ranks: Mapping[str, int]) -> Mode:
    wanted = config.repo.serving_mode
    if wanted != "auto":
        return wanted
    if config.speculation.fast_logits or len(set(ranks.values())) > 1:
        return "orchestrator"
    return "single" if set(ranks.values()) == {1} else "leader"


def _processes(mode: Mode, *, spawn: bool, ranks: Mapping[str, int]) -> int:
    if mode == "leader":
        return max(ranks.values())
    return _ONE_PROCESS if spawn else _ONE_PROCESS + sum(ranks.values())


def _participants(ranks: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Number the ranks: 0 is the orchestrator, then come the draft's, then the target's."""
    numbered, following = {}, _ONE_PROCESS
    for role in sorted(ranks):  # the draft first, as NVIDIA's guide has it
        numbered[role] = tuple(range(following, following + ranks[role]))
        following += ranks[role]
    return numbered


def _not_placed(config: DeployConfig) -> Iterator[Finding]:
    for role, model in (("target", config.target), ("draft", config.draft)):
        if model.gpu_ids:
            yield _error(
                "placement.profile",
                f"{role}.gpu_ids",
                f"gpu_ids are given, and the profile {config.profile} does not place ranks",
                "Leave it out; CUDA_VISIBLE_DEVICES says which GPUs the LLM API sees.",
            )
    if config.speculation.fast_logits:
        yield _error(
            "placement.fast-logits",
            "speculation.fast_logits",
            f"the profile {config.profile} has no fast logits",
            "They are a way between two TensorRT-LLM engines: use profile tensorrt_llm, or leave it out.",
        )


def _check_gpu_ids(config: DeployConfig) -> Iterator[Finding]:
    for role, model in _models(config).items():
        ranks, given = model.tp_size * model.pp_size, model.gpu_ids
        if given and len(given) != ranks:
            yield _error(
                "placement.gpu-ids",
                f"{role}.gpu_ids",
                f"{len(given)} GPUs are named ({', '.join(map(str, given))}), and the engine has {ranks} ranks",
                "Name one GPU for each rank.",
            )
        if len(set(given)) != len(given):
            yield _error(
                "placement.gpu-twice",
                f"{role}.gpu_ids",
                f"a GPU is named twice: {', '.join(map(str, given))}",
                "Each rank needs a GPU of its own.",
            )
        most = config.gpu.count
        if most and any(gpu >= most for gpu in given):
            yield _error(
                "placement.no-such-gpu",
                f"{role}.gpu_ids",
                f"GPU {max(given)} is named, and gpu.count is {most}: they are numbered from 0",
                "Name others, or raise gpu.count.",
            )


def _check_mode(config: DeployConfig) -> Iterator[Finding]:
    ranks = {role: model.tp_size * model.pp_size for role, model in _models(config).items()}
    wanted, where = config.repo.serving_mode, "repo.serving_mode"
    listed = " and ".join(f"the {role} {count}" for role, count in ranks.items())
    if wanted == "single" and set(ranks.values()) != {1}:
        message = f"serving_mode is single, which holds engines of one rank, and {listed} ranks"
        yield _error("placement.mode", where, message, "Use auto.")
    if wanted == "leader" and len(set(ranks.values())) > 1:
        message = f"serving_mode is leader, where all engines have as many ranks, and {listed}"
        yield _error("placement.mode", where, message, "Use auto, which takes the orchestrator here.")


def _check_fast_logits(config: DeployConfig) -> Iterator[Finding]:
    speculation, where = config.speculation, "speculation.fast_logits"
    if not speculation.fast_logits:
        return
    if speculation.method not in PAIRS:
        message = f"fast logits go from a draft engine to a target engine, and the method is {speculation.method}"
        yield _error("placement.fast-logits", where, message, "Leave it out, or use the method draft_target.")
    elif not speculation.use_draft_logits:
        message = "fast_logits is on and use_draft_logits is off: there is nothing to send"
        yield _error("placement.fast-logits", where, message, "Set use_draft_logits, or leave fast_logits out.")
    if config.repo.serving_mode not in {"auto", "orchestrator"}:
        message = f"fast logits need the orchestrator, and serving_mode is {config.repo.serving_mode}"
        yield _error("placement.fast-logits", "repo.serving_mode", message, "Use auto.")
    given = [set(model.gpu_ids or range(model.tp_size * model.pp_size)) for model in _models(config).values()]
    if len(given) > 1 and set.intersection(*given):
        shared = ", ".join(map(str, sorted(set.intersection(*given))))
        yield Finding(
            severity="warning",
            code="placement.fast-logits-shared",
            message=f"target and draft share GPU {shared}, and each rank is a process of its own there",
            hint="Give the draft a GPU of its own with draft.gpu_ids.",
            where="draft.gpu_ids",
        )


def _error(code: str, where: str, message: str, hint: str) -> Finding:
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)
