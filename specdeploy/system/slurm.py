"""Runs chains of jobs on a Slurm cluster: all are submitted at once, then followed in order, and none is left behind.

Knows when to look, what to pass on and what to cancel. The scripts are ``system.slurm_script``, the client programs
``system.slurm_client``, and what a state means ``system.slurm_outcome``.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from typing import TYPE_CHECKING, Final

from specdeploy.errors import EnvironmentFault
from specdeploy.system.clock import Clock, SystemClock
from specdeploy.system.follow import Follow
from specdeploy.system.mounts import with_link_targets
from specdeploy.system.shield import undisturbed
from specdeploy.system.signals import Endings
from specdeploy.system.slurm_client import SlurmClient, Task
from specdeploy.system.slurm_outcome import exit_code, fault, waiting
from specdeploy.system.slurm_script import BatchScript, SlurmSettings, chain_scripts, exit_file, verify_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from specdeploy.system.jobs import Job, Listener

__all__ = ["BatchScript", "SlurmJobs", "SlurmSettings", "chain_scripts"]

# How often the log is read between two looks at the queue: a file costs the cluster less than a question.
_TICK_S: Final = 0.5
# A controller that is restarted, or moves to its stand-in, is silent for minutes.
_PATIENCE_S: Final = 600.0
_SETTLE_S: Final = 60.0
_CANCEL_WAIT_S: Final = 20.0
_RUNNING: Final = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING"})


class SlurmJobs:
    """Runs chains of jobs on a cluster.

    Each job starts when the one before it ended well. Its log must be on a disk that the nodes share with this machine,
    and its own: where jobs share one, the first lines of the next may count as the last of the one before.

    Args:
        settings: What to ask Slurm for.
        client: What talks to Slurm.
        clock: Measures time-outs.
        wait: Sleeps.
    """

    def __init__(
        self,
        settings: SlurmSettings,
        *,
        client: SlurmClient | None = None,
        clock: Clock | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._client = client or SlurmClient()
        self._clock = clock or SystemClock()
        self._wait = wait

    def run_chain(self, jobs: Sequence[Job], listener: Listener) -> None:
        """Run the jobs in order, as :class:`specdeploy.system.jobs.JobRunner` says.

        Raises:
            ToolMissing: Slurm's programs are not here.
            EnvironmentFault: Slurm did not take a job, a job did not end by itself (time-out, cancelled, node failed,
                out of memory), or a node does not see a promised file.
        """
        if not jobs:
            return
        self._client.require()
        mounted = [with_link_targets(job) for job in jobs] if self._settings.container_image else jobs
        scripts = chain_scripts(self._settings, mounted)
        logs = [*(Follow(job.log) for job in jobs), Follow(verify_log(jobs[-1]))]
        with Endings() as endings:
            run = _Run(
                self._client, listener, endings, clock=self._clock, wait=self._wait, poll_s=self._settings.poll_s
            )
            try:
                numbers = run.submit(scripts)
                for number, job, log in zip(numbers, jobs, logs, strict=False):
                    code = run.program(_Watch(number, job, listener, log))
                    listener.ended(job, code)
                    if code and job is not jobs[-1]:
                        raise EnvironmentFault(f"{job.name} ended with exit code {code}; what follows it was cancelled")
                if len(scripts) > len(jobs) and not code:
                    run.verification(_VerifyWatch(numbers[-1], jobs[-1], listener, logs[-1]))
            finally:
                run.cancel(jobs[-1])


class _Watch:
    """What the listener has been told about one job (or about the array that checks its files)."""

    def __init__(self, number: str, job: Job, listener: Listener, log: Follow) -> None:
        self.number = number
        self.job = job
        self.has_started = False
        self._listener = listener
        self.log = log
        self._reason = ""

    def start(self) -> None:
        if not self.has_started:
            self.has_started = True
            self._listener.started(self.job)

    def say(self, text: str) -> None:
        self._listener.line(self.job, text)

    def say_reason(self, task: Task) -> None:
        # That it waits for the job before it is known: the chain was made so.
        if task.state == "PENDING" and task.reason not in {"", "Dependency", self._reason}:
            self._reason = task.reason
            self.say(waiting(task))

    def pass_on(self, *, to_its_end: bool = False) -> None:
        """Hand on what the log has gained; what it printed is a sign that it runs."""
        for line in self.log.rest() if to_its_end else self.log.read():
            self.start()
            self.say(line)


class _VerifyWatch(_Watch):
    """The array that checks the files is no job of the chain: its start is not told."""

    def start(self) -> None:
        self.has_started = True


class _Run:
    """One chain on the cluster: what was submitted, and what of it has not ended."""

    def __init__(
        self,
        client: SlurmClient,
        listener: Listener,
        endings: Endings,
        *,
        clock: Clock,
        wait: Callable[[float], None],
        poll_s: float,
    ) -> None:
        self._client = client
        self._listener = listener
        self._endings = endings
        self._clock = clock
        self._wait = wait
        self._poll_s = poll_s
        self._open: list[str] = []
        self._unsure = ""
        self._silent_since: float | None = None

    def submit(self, scripts: Sequence[BatchScript]) -> tuple[str, ...]:
        """Submit all scripts, each to run after the one before it, and return the jobs' numbers.

        Nothing interrupts it: a submission that is cut short leaves a job of unknown number.
        """
        undisturbed(lambda: self._submit(scripts))
        return tuple(self._open)

    def _submit(self, scripts: Sequence[BatchScript]) -> None:
        tag = uuid.uuid4().hex[:8]
        after = None
        for script in scripts:
            _write_private(script.path, script.text)
            self._unsure = f"{script.name}.{tag}"
            after = self._client.submit(script, name=self._unsure, after=after)
            self._open.append(after)
            self._unsure = ""

    def program(self, watch: _Watch) -> int:
        """Follow a job to its end and return its program's exit code.

        Raises:
            EnvironmentFault: It did not end by itself.
        """
        (task,) = self._follow(watch, keys=(watch.number,))
        code = exit_code(task)
        if code is None:
            raise fault(watch.job, task)
        watch.start()
        return code

    def verification(self, watch: _Watch) -> None:
        """Follow the array that checks the promised files.

        Raises:
            EnvironmentFault: A file is not there for the nodes, or could not be looked for.
        """
        files = {f"{watch.number}_{index}": path for index, path in enumerate(watch.job.promises)}
        tasks = self._follow(watch, keys=tuple(files))
        codes = {task.key: exit_code(task) for task in tasks}
        for task in tasks:
            if codes[task.key] is None:
                raise fault(watch.job, task)
        absent = [str(path) for key, path in files.items() if codes.get(key)]
        if absent:
            raise EnvironmentFault(
                f"{watch.job.name} ended well, but a node of the cluster finds {', '.join(absent)} missing or empty",
                hint="Is the path on a disk that all nodes share? Its server may also be slow to show new files.",
            )

    def cancel(self, job: Job) -> None:
        """Cancel what has not ended, and wait until it has left the queue."""
        if not (self._open or self._unsure):
            return
        left = undisturbed(self._cancel)
        if left:
            # Often on the way out of another error, which this one must not hide.
            with contextlib.suppress(Exception):
                self._listener.line(job, f"jobs may be left in Slurm's queue; cancel them: scancel {' '.join(left)}")

    def _cancel(self) -> tuple[str, ...]:
        """Cancel what has not ended and return what is left of it all the same."""
        if self._unsure:
            # Slurm may have taken it although it did not say so.
            self._client.cancel_named(self._unsure)
        if not self._open:
            return ()
        self._client.cancel(self._open)
        return self._await_gone()

    def _await_gone(self) -> tuple[str, ...]:
        """Return the jobs that are in the queue still, when it takes too long."""
        deadline = self._clock.monotonic() + _CANCEL_WAIT_S
        left = tuple(self._open)
        while left and self._clock.monotonic() < deadline:
            try:
                left = self._client.unfinished(self._open)
            except EnvironmentFault:
                break
            if left:
                self._wait(min(_TICK_S, self._poll_s))
        return left

    def _follow(self, watch: _Watch, keys: Sequence[str]) -> tuple[Task, ...]:
        """Pass on what a job says until it and all its tasks have ended, and return how.

        Args:
            watch: The job.

            keys: Its number; for an array the keys of its tasks.
        """
        running_since: float | None = None
        while (tasks := self._look(watch)) is None or not all(task.has_ended for task in tasks):
            for task in tasks or ():
                watch.say_reason(task)
                if task.state in _RUNNING:
                    watch.start()
            if watch.has_started and running_since is None:
                running_since = self._clock.monotonic()
            self._check_time(watch, running_since)
            self._pause(watch, keys)
        ended = self._outcome(watch, keys)
        watch.pass_on(to_its_end=True)
        self._open.remove(watch.number)
        return ended

    def _look(self, watch: _Watch) -> tuple[Task, ...] | None:
        """Look at the queue; None when it does not answer, which is borne for some minutes."""
        try:
            tasks = self._client.look(watch.number)
        except EnvironmentFault as error:
            now = self._clock.monotonic()
            if self._silent_since is None:
                self._silent_since = now
                watch.say(f"{error.message}; trying on for {_PATIENCE_S / 60:g} minutes")
            if now - self._silent_since > _PATIENCE_S:
                raise
            return None
        self._silent_since = None
        return tasks

    def _check_time(self, watch: _Watch, running_since: float | None) -> None:
        # Slurm counts in minutes, and looks only now and then.
        if running_since is not None and self._clock.monotonic() - running_since > watch.job.timeout_s:
            raise EnvironmentFault(
                f"Slurm job {watch.number} ({watch.job.name}) ran longer than {watch.job.timeout_s:g} s and was ended",
                hint="Raise the time-out, or see in the log where it hangs.",
            )

    def _pause(self, watch: _Watch, keys: Sequence[str]) -> None:
        """Wait until it is time for the next look, or until the job has left its exit code."""
        until = self._clock.monotonic() + self._poll_s
        while True:
            self._endings.raise_if_asked()
            watch.pass_on()
            remaining = until - self._clock.monotonic()
            if remaining <= 0:
                return
            self._wait(min(_TICK_S, remaining))
            if _codes(watch.log.path, keys) is not None:
                return

    def _outcome(self, watch: _Watch, keys: Sequence[str]) -> tuple[Task, ...]:
        """Return how the job and its tasks ended, by the accounts, the controller or the files that they left."""
        deadline = self._clock.monotonic() + _SETTLE_S
        while True:
            tasks = self._client.ended(watch.number) or _codes(watch.log.path, keys)
            if tasks:
                for key in keys:
                    exit_file(watch.log.path, key).unlink(missing_ok=True)
                return tasks
            if self._clock.monotonic() > deadline:
                raise EnvironmentFault(
                    f"Slurm job {watch.number} ({watch.job.name}) has left the queue, and nothing tells how it ended",
                    hint=f"Is {watch.job.log.parent} on a disk that the nodes share with this machine?",
                )
            self._pause(watch, keys)


def _codes(log: Path, keys: Sequence[str]) -> tuple[Task, ...] | None:
    """Return what the scripts left as exit codes; None when one is missing."""
    tasks = []
    for key in keys:
        try:
            code = int(exit_file(log, key).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        tasks.append(Task(key=key, state="FAILED" if code else "COMPLETED", code=code))
    return tuple(tasks)


def _write_private(path: Path, text: str) -> None:
    """Write a script that only we can read: it holds the job's variables."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - keeps the mode
        file.write(text)
