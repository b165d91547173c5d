"""Slurm's client programs: submit, look, ask how a job ended, cancel.

Knows their options and what they print. Does not know what the jobs are for, nor when to ask. Every program has a
time-out of its own, since a controller that does not answer keeps its clients waiting.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import TYPE_CHECKING, Final

from specdeploy.errors import EnvironmentFault, ToolMissing
from specdeploy.system import process

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from specdeploy.system.process import Captured
    from specdeploy.system.slurm_script import BatchScript

PROGRAMS: Final = ("sbatch", "squeue", "scontrol", "scancel")
_TIMEOUT_S: Final = 60.0
_JOB_ID: Final = re.compile(r"^(\d+)(;\S+)?$", re.MULTILINE)
_FIELD: Final = re.compile(r"(\w+)=(\S*)")
_ENDED: Final = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "EXPIRED", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
    }
)
# Options that the programs take from the environment as well. sbatch's win over those in the script.
_PREFIXES: Final = {"sbatch": "SBATCH_", "squeue": "SQUEUE_", "sacct": "SACCT_", "scancel": "SCANCEL_"}
# Of sbatch's, these are good defaults for what a script leaves open.
_DEFAULTS: Final = ("account", "constraint", "partition", "qos", "reservation")
_UNREACHABLE: Final = r"[Uu]nable to contact slurm controller|Connection refused|timed out|Zero Bytes were transmitted"
_HINTS: Final = (
    (_UNREACHABLE, "Slurm's controller (slurmctld) does not answer; `scontrol ping` shows whether it runs."),
    (r"[Ii]nvalid partition", "`sinfo` lists the partitions."),
    (
        r"Invalid account|Invalid qos|user's permission|not permitted",
        "`sacctmgr show associations` lists what you may use.",
    ),
    (
        r"Requested node configuration is not available|[Ii]nvalid generic resource|More processors requested",
        "No node has that many GPUs, processors or that much memory; `sinfo --Node --long` shows what they have.",
    ),
    (r"time limit", "`sinfo` shows how long a partition lets jobs run."),
    (r"QOSMax|AssocMax|AssocGrp|violates accounting", "A limit of your account or quality of service is in the way."),
    (r"No such file|Permission denied", "Slurm's configuration or the script cannot be read."),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What Slurm knows of one job, or of one task of an array.

    Args:
        key: The job's number; ``<array job>_<task>`` for a task.

        state: Slurm's word, such as ``PENDING`` or ``OUT_OF_MEMORY``.

        reason: Slurm's word for why it waits or ended so; empty when there is none.

        code: Exit code; None when unknown.

        signal: Signal that ended it; 0 is none.
    """

    key: str
    state: str
    reason: str = ""
    code: int | None = None
    signal: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether this state is the last."""
        return self.state in _ENDED


class SlurmClient:
    """Talks to Slurm.

    Args:
        capture: What runs a short command for its output.

        which: What finds a program.

        environ: The variables that the programs inherit.
    """

    def __init__(
        self,
        *,
        capture: Callable[[Sequence[str]], Captured] = lambda argv: process.run_capture(argv, timeout_s=_TIMEOUT_S),
        which: Callable[[str], Path | None] = process.which,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._capture = capture
        self._which = which
        self._environ = environ
        self._has_accounts = True

    def require(self) -> None:
        """Find the programs.

        Raises:
            ToolMissing: One is not here.
        """
        missing = [name for name in PROGRAMS if self._which(name) is None]
        if missing:
            raise ToolMissing(
                f"Slurm's programs {', '.join(missing)} are not on PATH",
                hint="Run this on a login node of the cluster, or build without Slurm.",
            )
        self._has_accounts = self._which("sacct") is not None

    def submit(self, script: BatchScript, *, name: str, after: str | None) -> str:
        """Submit a script and return the job's number.

        Args:
            script: Written already.

            name: Name in the queue, in place of the script's.

            after: Number of the job that must have ended well before.

        Raises:
            EnvironmentFault: Slurm did not take it, or did not say.
        """
        argv = ["sbatch", "--parsable", f"--job-name={name}"]
        if after is not None:
            argv += [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"]
        if script.tasks:
            argv.append(f"--array=0-{script.tasks - 1}")
        kept = {f"SBATCH_{name.upper()}" for name in _DEFAULTS if f"#SBATCH --{name}=" not in script.text}
        answer = self._run([*argv, str(script.path)], kept=kept)
        found = _JOB_ID.findall(answer.output) if answer.ok else []
        if not found:
            raise _fault(f"Slurm did not take the job {script.name}", answer)
        number: str = found[-1][0]
        return number

    def look(self, number: str) -> tuple[Task, ...]:
        """Return what the queue says of a job, in any state; empty when Slurm has forgotten it.

        Raises:
            EnvironmentFault: The queue could not be read.
        """
        return self._queue([number], "--states=all")

    def unfinished(self, numbers: Iterable[str]) -> tuple[str, ...]:
        """Return the keys of those jobs and tasks that wait, run or are being ended.

        Raises:
            EnvironmentFault: The queue could not be read.
        """
        return tuple(task.key for task in self._queue(numbers))

    def _queue(self, numbers: Iterable[str], *options: str) -> tuple[Task, ...]:
        argv = ["squeue", "--noheader", "--array", f"--jobs={','.join(numbers)}", *options, "--format=%i|%T|%r"]
        answer = self._run(argv)
        if answer.ok:
            rows = (line.split("|") for line in answer.output.splitlines())
            return tuple(Task(key=row[0], state=row[1], reason=_word(row[2])) for row in rows if len(row) == 3)
        if "Invalid job id" in answer.output:
            return ()
        raise _fault("Slurm's queue could not be read", answer)

    def ended(self, number: str) -> tuple[Task, ...]:
        """Return how a job and its tasks ended; empty when Slurm does not say, or not yet."""
        return self._accounted(number) or self._remembered(number)

    def _accounted(self, number: str) -> tuple[Task, ...]:
        """Ask the accounts, which many small clusters do not keep; they can be a while behind, too."""
        if not self._has_accounts:
            return ()
        fields = "JobID,State,ExitCode,Reason"
        answer = self._run(
            ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={number}", f"--format={fields}"]
        )
        if "storage is disabled" in answer.output:
            self._has_accounts = False
        rows = [line.split("|") for line in answer.output.splitlines()] if answer.ok else []
        return _only_ended(
            _task(key, state.partition(" "), exit_code, reason) for key, state, exit_code, reason in _rows_of(rows, 4)
        )

    def _remembered(self, number: str) -> tuple[Task, ...]:
        """Ask the controller, which forgets jobs some minutes after their end."""
        answer = self._run(["scontrol", "--oneliner", "show", "job", number])
        if not answer.ok:
            return ()
        records = [dict(_FIELD.findall(line)) for line in answer.output.splitlines() if line.startswith("JobId=")]
        return _only_ended(_record_task(record) for record in records)

    def cancel(self, numbers: Sequence[str]) -> Captured:
        """Cancel jobs; those that have ended already are no error."""
        return self._run(["scancel", "--quiet", *numbers])

    def cancel_named(self, name: str) -> Captured:
        """Cancel a job whose number was never learned."""
        return self._run(["scancel", "--quiet", f"--name={name}"])

    def _run(self, argv: Sequence[str], *, kept: Collection[str] = ()) -> Captured:
        prefix = _PREFIXES.get(argv[0])
        options = [name for name in self._environ if prefix is not None and name.startswith(prefix)]
        unset = [f"--unset={name}" for name in options if name not in kept]
        return self._capture(["env", *unset, *argv] if unset else list(argv))


def _rows_of(rows: Iterable[Sequence[str]], columns: int) -> Iterable[Sequence[str]]:
    """Leave out lines that are no row of the table, such as warnings."""
    return (row for row in rows if len(row) == columns)


def _word(reason: str) -> str:
    return "" if reason in {"None", "(null)"} else reason


def _only_ended(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """Return the tasks, if all have ended: half of an array's end is no answer."""
    found = tuple(tasks)
    return found if all(task.has_ended for task in found) else ()


def _record_task(record: Mapping[str, str]) -> Task:
    key = record["JobId"]
    if "ArrayTaskId" in record:
        key = f"{record['ArrayJobId']}_{record['ArrayTaskId']}"
    return _task(key, (record.get("JobState", ""), "", ""), record.get("ExitCode", ""), record.get("Reason", ""))


def _task(key: str, state: tuple[str, str, str], exit_code: str, reason: str) -> Task:
    """Make a task of what Slurm prints; its state may carry who cancelled it: ``CANCELLED by 1000``."""
    word, _, who = state
    code, _, signal = exit_code.partition(":")
    return Task(
        key=key,
        state=word,
        reason=who or _word(reason),
        code=int(code) if code.isdigit() else None,
        signal=int(signal) if signal.isdigit() else 0,
    )


def _fault(what: str, answer: Captured) -> EnvironmentFault:
    if answer.exit_code is None:
        return EnvironmentFault(f"{what}: no answer in {_TIMEOUT_S:g} s", hint=_HINTS[0][1])
    said = "; ".join(line.strip() for line in answer.output.splitlines() if line.strip()) or "it printed nothing"
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, said)), "")
    return EnvironmentFault(f"{what}: {said} (exit code {answer.exit_code})", hint=hint)
