"""Runs chains of jobs in containers on this machine, and leaves no container behind.

Knows that ending an engine's client does not end the container, and what the engines' own errors mean. The command line
is ``system.container_command``; the client itself is run by a ``Runner``.
"""

from __future__ import annotations

import collections
import contextlib
import re
import uuid
from typing import TYPE_CHECKING, Final

from specdeploy.errors import EnvironmentFault, ToolMissing
from specdeploy.system import process
from specdeploy.system.container_command import ContainerSettings, client_env, container_argv, removal_argv
from specdeploy.system.mounts import job_mounts, require_present, with_link_targets
from specdeploy.system.shield import undisturbed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specdeploy.system.jobs import Job, Listener
    from specdeploy.system.process import Captured, Runner

__all__ = ["ContainerJobs", "ContainerSettings", "container_argv"]

_REMOVE_TIMEOUT_S: Final = 60.0
_TAIL_LINES: Final = 8
# How an engine begins a line of its own, as opposed to one of the program inside.
_OWN_LINE: Final = {
    "docker": re.compile(r"docker: |Error response from daemon|unknown (shorthand )?flag|invalid argument"),
    "podman": re.compile(r"Error: "),
    "apptainer": re.compile(r"(\x1b\[\d+m)?FATAL: "),
}
_OWN_CODES: Final = {"docker": (125, 126, 127), "podman": (125, 126, 127), "apptainer": (255,)}
_MEANINGS: Final = {
    125: "the engine's own code for a container that could not be started",
    126: "usually a program that is there but cannot be executed",
    127: "usually a program that the image does not have",
}
_HINTS: Final = (
    (r"[Cc]annot connect to the Docker daemon", "Start the Docker daemon, or point DOCKER_HOST to one that runs."),
    (r"permission denied.*docker.*sock", "Let your user use Docker (the group docker), or choose podman or apptainer."),
    (
        r"pull access denied|manifest unknown|name unknown|unauthorized|authentication required|repository .*not exist",
        "Look at the image's name and tag, log in to its registry (for nvcr.io with an NGC API key), or pull it first.",
    ),
    (
        r"no such host|i/o timeout|TLS handshake timeout|connection refused|dial tcp|network is unreachable",
        "The image is not here and its registry does not answer. Pull the image where there is a network and load it.",
    ),
    (
        r"could not select device driver|[Uu]nknown (or invalid )?runtime.*nvidia|nvidia-container-cli",
        "Install the NVIDIA Container Toolkit and its hook for this engine; `nvidia-smi` must work outside, too.",
    ),
    (r"unresolvable CDI devices", "Describe the GPUs for podman: `nvidia-ctk cdi generate`."),
    (
        r"executable file not found|no such file or directory.*exec",
        "The image has no such program; is it the right one?",
    ),
    (r"no space left on device", "Free some space where the engine keeps its images."),
    (r"could not open image|no such file", "Look at the image's path."),
)


class ContainerJobs:
    """Runs chains of jobs, each in a fresh container.

    What a job reads is mounted read-only and what it writes read-write, at the same paths as outside.

    Args:
        settings: Engine, image and what the containers get.
        runner: What runs the engine's client.
        capture: What runs a short command for its output.
    """

    def __init__(
        self,
        settings: ContainerSettings,
        runner: Runner,
        *,
        capture: Callable[[Sequence[str]], Captured] = lambda argv: process.run_capture(
            argv, timeout_s=_REMOVE_TIMEOUT_S
        ),
    ) -> None:
        self._settings = settings
        self._runner = runner
        self._capture = capture

    def run_chain(self, jobs: Sequence[Job], listener: Listener) -> None:
        """Run the jobs in order, as :class:`specdeploy.system.jobs.JobRunner` says."""
        for number, job in enumerate(jobs, start=1):
            code = self._run(with_link_targets(job), job, listener)
            listener.ended(job, code)
            if code and number < len(jobs):
                raise EnvironmentFault(f"{job.name} ended with exit code {code}; what should follow it was not run")

    def _run(self, mounted: Job, job: Job, listener: Listener) -> int:
        """Run *mounted*, which is *job* with all that its links need, and return its exit code."""
        require_present(job, job_mounts(mounted))
        name = f"specdeploy-{uuid.uuid4().hex[:12]}"
        argv = container_argv(self._settings, mounted, name)
        last = collections.deque[str](maxlen=_TAIL_LINES)

        def on_line(text: str) -> None:
            last.append(text)
            listener.line(job, text)

        listener.started(job)
        try:
            code = self._runner.run(
                argv,
                env=client_env(self._settings, job),
                cwd=None,
                log=job.log,
                timeout_s=job.timeout_s,
                on_line=on_line,
            )
        except ToolMissing:
            raise ToolMissing(
                f"the container engine {self._settings.engine} is not on PATH",
                hint="Install it, choose another engine, or build without a container.",
            ) from None
        finally:
            self._remove(name, job, listener)
        self._judge(code, tuple(last), job, listener)
        return code

    def _remove(self, name: str, job: Job, listener: Listener) -> None:
        """Remove the container, whatever became of its client: the daemon keeps it running when that one is ended."""
        argv = removal_argv(self._settings, name)
        if argv is None or process.which(argv[0]) is None:
            return
        answer = undisturbed(lambda: self._capture(argv))
        if not answer.ok and not re.search("no such container|no container with name", answer.output, re.IGNORECASE):
            # Often on the way out of another error, which this one must not hide.
            with contextlib.suppress(Exception):
                listener.line(job, f"the container may still run; remove it: {process.quote(argv)}")

    def _judge(self, code: int, last: tuple[str, ...], job: Job, listener: Listener) -> None:
        """Tell an engine that could not start the container from a program that failed in it."""
        engine = self._settings.engine
        if code not in _OWN_CODES[engine]:
            return
        own = [line for line in last if _OWN_LINE[engine].match(line)]
        if own:
            text = "\n".join(last)
            hint = next((hint for pattern, hint in _HINTS if re.search(pattern, text)), "The log has all it said.")
            raise EnvironmentFault(f"{engine} could not run {job.name} in {self._settings.image}: {own[-1]}", hint=hint)
        if code in _MEANINGS:
            listener.line(job, f"{engine} gave exit code {code}: {_MEANINGS[code]}")
