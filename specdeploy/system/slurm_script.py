"""The batch scripts that a chain of jobs becomes, as text.

Knows sbatch's options, bash's quoting and pyxis's options. Submits nothing. A script can hold secrets (the job's
variables), so whoever writes it to a file keeps others from reading it.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError
from specdeploy.system.mounts import job_mounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from specdeploy.system.jobs import Job
    from specdeploy.system.mounts import Mount

_VERIFY_MINUTES: Final = 5
_TIME: Final = re.compile(r"\d+|\d+:\d+|\d+:\d+:\d+|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
_MEMORY: Final = re.compile(r"\d+[KMGT]?", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_REGISTRY: Final = re.compile(r"([^/#@]+[.:][^/#@]*)/(.+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """How jobs are handed to Slurm; what is left empty is the cluster's default.

    Args:
        partition: Where the jobs run.

        account: Who is charged.

        qos: Quality of service.

        time_limit: As sbatch takes it, such as ``04:00:00``; empty is the job's time-out, in minutes rounded up.

        gres: What a job that needs GPUs asks for; ``{gpus}`` is their number.

        cpus_per_task: Processors; 0 is the cluster's default.

        mem: Memory of the node, such as ``200G``.

        container_image: Image that pyxis runs the jobs in; empty is none.

        extra_lines: Lines for the script: options (``--exclusive``, with or without ``#SBATCH`` before it) among the
            others, commands (``module load cuda``) in front of the job's.

        poll_s: Seconds between two looks at the queue.

        verify: Whether to check, on a node and after the last job, that the files are there that it promised.

    Raises:
        ConfigError: A value cannot be what it should.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    time_limit: str = ""
    gres: str = "gpu:{gpus}"
    cpus_per_task: int = 0
    mem: str = ""
    container_image: str = ""
    extra_lines: tuple[str, ...] = ()
    poll_s: float = 5.0
    verify: bool = True

    def __post_init__(self) -> None:
        if self.time_limit and not _TIME.fullmatch(self.time_limit):
            raise ConfigError(
                f"slurm.time_limit is {self.time_limit!r}, which sbatch does not take", hint="Such as 90 or 02:00:00."
            )
        if self.mem and not _MEMORY.fullmatch(self.mem):
            raise ConfigError(f"slurm.mem is {self.mem!r}, which sbatch does not take", hint="Such as 128G.")
        if not self.poll_s > 0:
            raise ConfigError(f"the seconds between two looks at Slurm's queue are {self.poll_s}, which is not above 0")
        for line in self.extra_lines:
            if "\n" in line or "\r" in line:
                raise ConfigError(f"a line for Slurm's script holds a line break: {line!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchScript:
    """One script for sbatch.

    Args:
        name: The job's name in the queue.

        path: File that it is written to, beside the job's log.

        text: What it holds.

        tasks: Tasks of an array job; 0 is a job that is none.
    """

    name: str
    path: Path
    text: str
    tasks: int = 0


def chain_scripts(settings: SlurmSettings, jobs: Sequence[Job]) -> tuple[BatchScript, ...]:
    """Return the scripts of a chain in order; the last one checks the promised files, where it is to and there are any.

    Raises:
        ConfigError: Something in a job cannot be written into a script.
    """
    scripts = [
        BatchScript(name=queue_name(job), path=_script_path(job, number), text=job_script(settings, job))
        for number, job in enumerate(jobs, start=1)
    ]
    if jobs and settings.verify and jobs[-1].promises:
        last = jobs[-1]
        scripts.append(
            BatchScript(
                name="specdeploy-verify",
                path=verify_log(last).with_suffix(".sbatch"),
                text=verify_script(settings, last),
                tasks=len(last.promises),
            )
        )
    return tuple(scripts)


def queue_name(job: Job) -> str:
    """Return a job's name in the queue, made of characters that nothing on the way gives a meaning."""
    return "specdeploy-" + (re.sub(r"[^A-Za-z0-9_.+-]+", "-", job.name).strip("-") or "job")


def _script_path(job: Job, number: int) -> Path:
    return job.log.with_name(f"{job.log.stem}.{number}.sbatch")


def verify_log(job: Job) -> Path:
    """Return the log of the array that looks for what *job* promised; the job's own may still be read to its end."""
    return job.log.with_name(f"{job.log.stem}.verify.log")


def exit_file(log: Path, key: str) -> Path:
    """Return the file that a script writes its exit code to.

    Args:
        log: The job's log.

        key: The number that Slurm gave to the job; ``<array job>_<task>`` for a task of an array.
    """
    return log.with_name(f"{log.stem}.{key}.exit")


def job_script(settings: SlurmSettings, job: Job) -> str:
    """Return the batch script of one job.

    Raises:
        ConfigError: Something in the job cannot be written into a script.
    """
    options = _options(settings, job)
    body = [
        *_exit_trap(job.log, "$SLURM_JOB_ID"),
        *_exports({"PYTHONUNBUFFERED": "1", **job.env}),
        *_commands(settings),
        " ".join([*_container(settings, job), *map(quote, job.argv)]),
    ]
    return _script(settings, options, body)


def verify_script(settings: SlurmSettings, job: Job) -> str:
    """Return the script of the array job whose task *i* looks for the promised file *i* where the jobs run."""
    small = dataclasses.replace(settings, time_limit="", cpus_per_task=0, mem="256M" if settings.mem else "")
    check = dataclasses.replace(job, name="verify", log=verify_log(job), timeout_s=60.0 * _VERIFY_MINUTES, gpus=0)
    options = _options(small, check)
    body = [
        *_exit_trap(check.log, "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"),
        f"files=({' '.join(quote(str(path)) for path in job.promises)})",
        "file=${files[$SLURM_ARRAY_TASK_ID]}",
        'if [ -s "$file" ]; then',
        '  echo "$file: $(stat --dereference --format=%s -- "$file") bytes on $(hostname)"',
        "else",
        '  echo "$file: missing or empty on $(hostname)"',
        "  exit 1",
        "fi",
    ]
    return _script(settings, options, body)


def _script(settings: SlurmSettings, options: Mapping[str, str], body: Sequence[str]) -> str:
    lines = [f"#SBATCH --{name}={_option_value(name, value)}" for name, value in options.items()]
    lines += [
        "#SBATCH --no-requeue",
        *(f"#SBATCH {line.removeprefix('#SBATCH').strip()}" for line in settings.extra_lines if _is_option(line)),
    ]
    return "\n".join(["#!/bin/bash", *lines, "", *body, ""])


def _options(settings: SlurmSettings, job: Job) -> dict[str, str]:
    options = {
        "job-name": queue_name(job),
        # Percent signs would stand for job numbers and the like.
        "output": str(job.log).replace("%", "%%"),
        "open-mode": "append",
        "nodes": "1",
        "ntasks": "1",
        "time": settings.time_limit or str(max(1, math.ceil(job.timeout_s / 60))),
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "gres": settings.gres.replace("{gpus}", str(job.gpus)) if job.gpus else "",
        "cpus-per-task": str(settings.cpus_per_task) if settings.cpus_per_task else "",
        "mem": settings.mem,
    }
    return {name: value for name, value in options.items() if value}


def _option_value(name: str, value: str) -> str:
    """Quote a value as sbatch reads it; there is no way to write a control character or a backslash."""
    if _CONTROL.search(value) or "\\" in value:
        raise ConfigError(f"Slurm cannot take the {name} {value!r}: it holds a backslash or a control character")
    if re.fullmatch(r"[A-Za-z0-9_./:,=+%@-]+", value):
        return value
    escaped = value.replace('"', '\\"')
    return f'"{escaped}"'


def _exit_trap(log: Path, key: str) -> list[str]:
    """Return lines that leave the exit code in a file, for clusters that forget jobs and keep no accounts."""
    # Written under another name first, so that nobody reads half of it.
    target = f"{quote(str(exit_file(log, '')).removesuffix('.exit'))}{key}.exit"
    return [
        f"exit_file={target}",
        """trap 'echo "$?" > "$exit_file.new" && mv -f "$exit_file.new" "$exit_file"' EXIT""",
    ]


def _exports(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise ConfigError(f"a shell cannot set a variable called {name!r}")
        yield f"export {name}={quote(value)}"


def _commands(settings: SlurmSettings) -> Iterator[str]:
    return (line for line in settings.extra_lines if not _is_option(line))


def _is_option(line: str) -> bool:
    return line.startswith(("#SBATCH", "-"))


def quote(text: str) -> str:
    r"""Quote one word for bash; control characters become escapes, since sbatch refuses a script that holds ``\r\n``.

    Raises:
        ConfigError: It holds a NUL, which no program can be given.
    """
    if "\0" in text:
        raise ConfigError(f"an argument or a variable holds a NUL: {text!r}")
    if not _CONTROL.search(text):
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", escaped) + "'"


def _container(settings: SlurmSettings, job: Job) -> Iterator[str]:
    """Yield the command that runs the rest of the line in a container, by way of pyxis.

    As a step of the job and not as options of sbatch: so the script itself, which leaves the exit code, stays outside,
    and clusters that keep pyxis from batch scripts can run it, too.
    """
    if not settings.container_image:
        return
    yield from ("srun", "--ntasks=1")
    if settings.cpus_per_task:
        # Not inherited from the job since Slurm 22.05.
        yield f"--cpus-per-task={settings.cpus_per_task}"
    yield quote(f"--container-image={_enroot_image(settings.container_image)}")
    yield quote(f"--container-mounts={','.join(_bind(mount) for mount in job_mounts(job))}")
    yield from ("--container-writable", "--no-container-mount-home")
    # Without it a variable that the image sets as well keeps the image's value.
    yield f"--container-env={','.join(['PYTHONUNBUFFERED', *job.env])}"


def _bind(mount: Mount) -> str:
    path = str(mount.path)
    if _CONTROL.search(path) or "," in path or ":" in path:
        raise ConfigError(f"{path} cannot be mounted into a container under Slurm: a comma or a colon is in its name")
    return f"{path}:{path}:{'rw' if mount.writable else 'ro'}"


def _enroot_image(image: str) -> str:
    """Spell an image's name as enroot does, with ``#`` after the registry: ``nvcr.io#nvidia/tritonserver:...``."""
    return image if image.startswith((".", "/")) else _REGISTRY.sub(r"\1#\2", image, count=1)
