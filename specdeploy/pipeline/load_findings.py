"""What a load test cannot measure, or would be refused, because of how the deployment was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdeploy.findings import Finding
from specdeploy.triton.repository.models import queue_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.bench.schedule import LoadPlan
    from specdeploy.config.schema import DeployConfig


def deployment_findings(config: DeployConfig, plan: LoadPlan) -> tuple[Finding, ...]:
    """Return what speaks against measuring a deployment by a plan.

    Args:
        config: The deployment.

        plan: What is sent to it.
    """
    return (*_whole_answers(config), *_queue(config, plan))


def _whole_answers(config: DeployConfig) -> Iterator[Finding]:
    """Yield what cannot be measured where answers come in one piece."""
    if not config.repo.decoupled:
        yield Finding(
            severity="warning",
            code="load.not-streamed",
            message="repo.decoupled is false, so that each answer is one response: its first token comes with its last "
            "one, and what is made of the time between tokens is not measured",
            hint="compare request latencies and throughput, or measure with repo.decoupled true: it decodes alike",
        )


def _queue(config: DeployConfig, plan: LoadPlan) -> Iterator[Finding]:
    """Yield that requests will be refused because too many wait."""
    waiting, decoded = queue_size(config), config.build.max_batch_size
    most = max((block.in_flight for block in plan.blocks), default=0)
    if waiting and most > waiting + decoded:
        yield Finding(
            severity="warning",
            code="load.queue-too-short",
            message=f"{most} requests at once are more than the {decoded} that are decoded and the {waiting} that may "
            "wait: the others are refused, and count as errors",
            hint="lower load.concurrency, or write the repository with a larger repo.max_queue_size",
        )
