"""The rules of a configuration: its own, or those for what its deployment tells and its load test measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdeploy.gate.defaults import Measured, default_rules
from specdeploy.triton.repository.models import engine_drafts, fixed_by, reports_drafts

if TYPE_CHECKING:
    from specdeploy.config.schema import DeployConfig
    from specdeploy.gate.defaults import Told


def rules_for(config: DeployConfig) -> tuple[str, ...]:
    """Return the rules that a configuration has; the default ones where it has none."""
    if config.gate.rules:
        return config.gate.rules
    wanted = config.load
    return default_rules(
        Measured(
            told=told_by(config),
            # What drafts always as it was built to has no control.
            compared=wanted.compare and not fixed_by(config),
            pairs=wanted.pairs,
            concurrency=wanted.concurrency if wanted.shape == "closed" else (),
        )
    )


def told_by(config: DeployConfig) -> Told:
    """Return what the answers of a deployment tell of drafts."""
    if not engine_drafts(config):
        return "steps"
    return "drafts" if reports_drafts(config.release) else "nothing"
