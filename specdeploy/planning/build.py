"""From a configuration and two checkpoints to the list of commands that make their engines; nothing runs here."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.engine.profile import BuildStep, EngineSpec, engine_key

if TYPE_CHECKING:
    from specdeploy.checkpoint.info import CheckpointInfo
    from specdeploy.config.schema import DeployConfig, ModelConfig
    from specdeploy.engine.profile import EngineProfile, Role


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedEngine:
    """One engine of the deployment and how it is made.

    Args:
        spec: What is wanted.
        profile: Name of the profile.
        key: The engine's key in the store.
        steps: The commands, in order.
        limit: Longest sequence that the finished engine holds, in tokens.
        estimated_bytes: About how large it will be.
    """

    spec: EngineSpec
    profile: str
    key: str
    steps: tuple[BuildStep, ...]
    limit: int
    estimated_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``; of the checkpoint only what identifies it."""
        return {
            "role": self.spec.role,
            "name": self.spec.name,
            "profile": self.profile,
            "key": self.key,
            "precision": self.spec.precision,
            "checkpoint": {"path": self.spec.checkpoint.path, "fingerprint": self.spec.checkpoint.fingerprint},
            "max_seq_len": self.limit,
            "estimated_bytes": self.estimated_bytes,
            "steps": [step.as_dict() for step in self.steps],
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """The engines of a deployment, the target's first.

    Both may have one key (the same checkpoint at the same precision): the executor then builds it once.
    """

    engines: tuple[PlannedEngine, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return {"engines": [engine.as_dict() for engine in self.engines]}


def plan_build(
    config: DeployConfig, target: CheckpointInfo, draft: CheckpointInfo, profile: EngineProfile
) -> BuildPlan:
    """Return the plan that makes both engines with *profile*."""
    return BuildPlan(
        engines=(
            _planned(config, config.target, target, "target", profile),
            _planned(config, config.draft, draft, "draft", profile),
        )
    )


def _planned(
    config: DeployConfig, model: ModelConfig, checkpoint: CheckpointInfo, role: Role, profile: EngineProfile
) -> PlannedEngine:
    spec = EngineSpec(
        role=role,
        name=f"{checkpoint.name}-{model.precision}",
        precision=model.precision,
        checkpoint=checkpoint,
        max_seq_len=config.build.max_seq_len,
        max_batch_size=config.build.max_batch_size,
    )
    steps = profile.steps(spec)
    return PlannedEngine(
        spec=spec,
        profile=profile.name,
        key=engine_key(steps),
        steps=steps,
        limit=profile.limit(spec),
        estimated_bytes=profile.estimated_bytes(spec),
    )
