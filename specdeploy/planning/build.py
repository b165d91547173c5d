"""From a configuration and its checkpoints to the list of commands that make the engines; nothing runs here."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.config.rules import PAIRS
from specdeploy.engine.profile import BuildStep, EngineSpec, engine_key
from specdeploy.findings import has_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdeploy.checkpoint.head import HeadInfo
    from specdeploy.checkpoint.info import CheckpointInfo
    from specdeploy.config.schema import DeployConfig, ModelConfig
    from specdeploy.engine.profile import EngineProfile, Role
    from specdeploy.findings import Finding


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedEngine:
    """One engine of the deployment and how it is made.

    Args:
        spec: What is wanted.
        profile: Name of the profile.
        key: The engine's key in the store.
        steps: The commands, in order; none when the findings hold an error.
        limit: Longest sequence that the finished engine holds, in tokens.
        estimated_bytes: About how large it will be.
        devices: GPUs that its steps may use, as ``CUDA_VISIBLE_DEVICES`` names them; empty leaves it to them.
        findings: What the profile says against it.
    """

    spec: EngineSpec
    profile: str
    key: str
    steps: tuple[BuildStep, ...]
    limit: int
    estimated_bytes: int
    devices: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``; of the checkpoint only what identifies it."""
        head = self.spec.head
        return {
            "role": self.spec.role,
            "name": self.spec.name,
            "profile": self.profile,
            "key": self.key,
            "precision": self.spec.precision,
            "checkpoint": {"path": self.spec.checkpoint.path, "fingerprint": self.spec.checkpoint.fingerprint},
            "head": None if head is None else {"path": head.path, "fingerprint": head.fingerprint},
            "max_seq_len": self.limit,
            "max_batch_size": self.spec.max_batch_size,
            "world_size": self.spec.world_size,
            "estimated_bytes": self.estimated_bytes,
            "devices": list(self.devices),
            "steps": [step.as_dict() for step in self.steps],
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """The engines of a deployment, the target's first.

    Two may have one key (the same checkpoint at the same precision): the executor then builds it once.

    Args:
        engines: What is to be there.
        side_by_side: Whether they are built at the same time.
    """

    engines: tuple[PlannedEngine, ...]
    side_by_side: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What speaks against any of the engines, each once."""
        return tuple(dict.fromkeys(finding for engine in self.engines for finding in engine.findings))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return {"side_by_side": self.side_by_side, "engines": [engine.as_dict() for engine in self.engines]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
    """What a deployment is made from.

    Args:
        target: The large checkpoint.
        draft: The small one, for methods that have one.
        head: The head, for methods that have one.
    """

    target: CheckpointInfo
    draft: CheckpointInfo | None = None
    head: HeadInfo | None = None


def plan_build(
    config: DeployConfig, sources: Sources, profile: EngineProfile, *, devices: Sequence[str] = ()
) -> BuildPlan:
    """Return the plan that makes the engines with *profile*.

    Args:
        config: The deployment.
        sources: Its checkpoints.
        profile: How engines are made.
        devices: GPUs that may be used for building; with enough of them, engines are built side by side, each on its
            own. Empty when they are not known.

    Raises:
        ConfigError: A checkpoint cannot be made into an engine by this profile at all.
    """
    wanted = [(config.target, _spec(config, config.target, sources.target, "target", profile, sources))]
    # The LLM API loads both checkpoints itself: its one "engine" is the configuration.
    if sources.draft is not None and config.speculation.method in PAIRS and config.profile != "llmapi":
        wanted.append((config.draft, _spec(config, config.draft, sources.draft, "draft", profile, sources)))
    engines = [_planned(spec, profile) for _, spec in wanted]
    if config.build.runner == "slurm":
        # The queue gives each job its GPUs, and knows when there are enough for two.
        return BuildPlan(engines=tuple(engines), side_by_side=_differ(engines))
    return _placed(engines, devices)


def _spec(
    config: DeployConfig,
    model: ModelConfig,
    checkpoint: CheckpointInfo,
    role: Role,
    profile: EngineProfile,
    sources: Sources,
) -> EngineSpec:
    precision = profile.precision(model.precision, checkpoint)
    return EngineSpec(
        role=role,
        name=f"{checkpoint.name}-{precision}",
        precision=precision,
        checkpoint=checkpoint,
        max_seq_len=config.build.max_seq_len,
        max_batch_size=config.build.max_batch_size,
        head=sources.head if role == "target" else None,
        draft=sources.draft if role == "target" and config.profile == "llmapi" else None,
        kv_cache=model.kv_cache,
        tp_size=model.tp_size,
        pp_size=model.pp_size,
        ep_size=model.ep_size,
        extra_convert_args=model.extra_convert_args,
        extra_build_args=model.extra_build_args,
    )


def _planned(spec: EngineSpec, profile: EngineProfile) -> PlannedEngine:
    findings = profile.check(spec)
    # What cannot be made has no commands; the findings say why.
    steps = () if has_errors(findings) else profile.steps(spec)
    return PlannedEngine(
        spec=spec,
        profile=profile.name,
        key=engine_key(steps) if steps else "",
        steps=steps,
        limit=profile.limit(spec),
        estimated_bytes=profile.estimated_bytes(spec),
        findings=findings,
    )


def _differ(engines: list[PlannedEngine]) -> bool:
    return len({engine.key for engine in engines}) > 1


def _placed(engines: list[PlannedEngine], devices: Sequence[str]) -> BuildPlan:
    """Give each engine GPUs of its own when there are enough for all, and build them at the same time."""
    needs = [max((step.gpus for step in engine.steps), default=0) for engine in engines]
    if not _differ(engines) or not all(needs) or sum(needs) > len(devices):
        return BuildPlan(engines=tuple(engines))
    placed: list[PlannedEngine] = []
    first = 0
    for engine, need in zip(engines, needs, strict=True):
        placed.append(dataclasses.replace(engine, devices=tuple(devices[first : first + need])))
        first += need
    return BuildPlan(engines=tuple(placed), side_by_side=True)
