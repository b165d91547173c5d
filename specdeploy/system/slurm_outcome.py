"""What the end of a Slurm job means: an exit code of its program, or a fault of the cluster.

Knows Slurm's words for states and reasons. Asks nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.errors import EnvironmentFault

if TYPE_CHECKING:
    from specdeploy.system.jobs import Job
    from specdeploy.system.slurm_client import Task

# What slurmd gives for a script that it could not start, most often since it could not open the log.
_NOT_LAUNCHED_SIGNAL: Final = 53
_NEVER_RAN: Final = frozenset({"BadConstraints", "AccountNotAllowed", "PartitionConfig", "SystemFailure"})
_HINTS: Final = {
    "BOOT_FAIL": "The node did not come up. Run the command again.",
    "CANCELLED": "Somebody cancelled it, or Slurm did for its own reasons. Run the command again to repeat it.",
    "DEADLINE": "It could not have ended before its deadline.",
    "NODE_FAIL": "The node failed. Run the command again; `sinfo --list-reasons` shows nodes that are out of order.",
    "OUT_OF_MEMORY": "Ask Slurm for more memory.",
    "PREEMPTED": "A job of higher priority took its place. Run the command again, or use another partition.",
    "TIMEOUT": "Raise the job's time-out, or Slurm's time limit.",
}
WAITS: Final = {
    "AssocGrpGRES": "your account uses all the GPUs that it may",
    "BeginTime": "its time has not come",
    "DependencyNeverSatisfied": "the job before it failed, so it will never run",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "somebody holds it; `scontrol release` lets it go",
    "PartitionDown": "the partition is down",
    "PartitionNodeLimit": "it asks for more than the partition has, so it will never run",
    "PartitionTimeLimit": "it asks for more time than the partition allows, so it will never run",
    "Priority": "jobs of higher priority come first",
    "QOSMaxGRESPerUser": "you use all the GPUs that you may",
    "ReqNodeNotAvail": "the nodes that it needs are not available",
    "Resources": "no node has enough that is free",
}


def exit_code(task: Task) -> int | None:
    """Return the exit code of the job's program, minus a signal's number; None when it did not end by itself."""
    if task.state == "COMPLETED":
        return 0
    if task.state != "FAILED" or task.reason in _NEVER_RAN or task.signal == _NOT_LAUNCHED_SIGNAL:
        return None
    if task.signal:
        return -task.signal
    return _from_shell(task.code) if task.code else None


def _from_shell(code: int) -> int:
    """Undo what a shell does to a signal: 128 plus its number. There are 64 of them."""
    return 128 - code if 128 < code <= 192 else code


def fault(job: Job, task: Task) -> EnvironmentFault:
    """Return the error for a job that did not end by itself."""
    what = f"Slurm job {task.key} ({job.name})"
    if task.signal == _NOT_LAUNCHED_SIGNAL and task.state == "FAILED":
        return EnvironmentFault(
            f"{what} could not be started on its node",
            hint=f"Is {job.log.parent}, where its log goes, on a disk that the nodes see and may write to?",
        )
    reason = f" ({task.reason})" if task.reason else ""
    hint = _HINTS.get(task.state, f"`scontrol show job {task.key}` shows more.")
    if task.reason in _NEVER_RAN:
        hint = "No node has what it asks for; look at the partition, the GPUs, the processors and the memory."
    return EnvironmentFault(f"{what} ended in the state {task.state}{reason}", hint=hint)


def waiting(task: Task) -> str:
    """Say in one line why a job does not run yet."""
    # Some reasons carry a list: "ReqNodeNotAvail, UnavailableNodes:node[1-4]".
    meaning = WAITS.get(task.reason.partition(",")[0].strip())
    known = f": {meaning}" if meaning else ""
    return f"Slurm job {task.key} waits ({task.reason}){known}"
