"""Jobs: commands that run one after another, each only when the one before it ended well, wherever they run.

Knows the shape of a job and how a chain of them runs on this machine. In a container it is ``system.container``, on a
cluster ``system.slurm``. Does not know what the commands do, nor whether they wrote what they promised: that is for the
listener to judge, who can stop the chain by raising.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

from specdeploy.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from specdeploy.system.process import Runner


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One command of a chain.

    Args:
        name: What it does, for progress lines and for the queue.
        argv: Program and arguments; no shell sees them.
        env: Variables set on top of the environment it runs in.
        log: File on a disk that both sides see, which its output is appended to.
        timeout_s: Seconds after which it is ended.
        gpus: GPUs that it needs; 0 is none.
        reads: Paths that must be visible where it runs.
        writes: Directories that must be writable where it runs; they exist.
        promises: Files that it must have written when it has ended.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    timeout_s: float
    gpus: int = 0
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    promises: tuple[Path, ...] = ()


class Listener(Protocol):
    """Who is told what happens to the jobs of a chain, in order and in the thread that runs it."""

    def started(self, job: Job) -> None:
        """A job begins to run (on a cluster: it has left the queue)."""
        ...

    def line(self, job: Job, text: str) -> None:
        """A job, or whoever runs it, printed a line."""
        ...

    def ended(self, job: Job, exit_code: int) -> None:
        """A job ended; minus the number of the signal that ended it. Raising stops the chain."""
        ...


class JobRunner(Protocol):
    """Where chains of jobs run."""

    def run_chain(self, jobs: Sequence[Job], listener: Listener) -> None:
        """Run the jobs in order and return when the last has ended.

        Whatever ends this early (an exception of the listener, Ctrl-C, SIGTERM) also ends the jobs that run or wait.

        Raises:
            ToolMissing: A program is not here.
            EnvironmentFault: A job took longer than its time-out, or could not be started.
        """
        ...


class LocalJobs:
    """Runs chains on this machine.

    Args:
        runner: What runs one command.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def run_chain(self, jobs: Sequence[Job], listener: Listener) -> None:
        """Run the jobs in order, as :class:`JobRunner` says."""
        for job in jobs:
            listener.started(job)
            code = self._runner.run(
                job.argv,
                env=job.env,
                cwd=None,
                log=job.log,
                timeout_s=job.timeout_s,
                on_line=lambda text, job=job: listener.line(job, text),  # type: ignore[misc]
            )
            listener.ended(job, code)
            if code and job is not jobs[-1]:
                raise EnvironmentFault(f"{job.name} ended with exit code {code}; what should follow it was not run")
