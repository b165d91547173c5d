"""The one place that runs programs: streamed to a log, with a time-out, and nothing of them left behind.

Knows process groups, signals and pipes. Does not know what the programs do, and never uses a shell. Every program gets
a session of its own, so that ending it also ends what it started itself (compilers, workers); a program that detaches
into yet another session is out of reach.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Protocol

from specdeploy.errors import EnvironmentFault, ToolMissing
from specdeploy.system.lines import LineSplitter
from specdeploy.system.signals import Endings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_POLL_S: Final = 0.1
_READ_BYTES: Final = 64 * 1024
_DRAIN_READS: Final = 16


class Runner(Protocol):
    """What runs a build step; tests give a fake one."""

    def run(  # all but the command line are keywords
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None,
        log: Path,
        timeout_s: float,
        on_line: Callable[[str], None] | None = None,
    ) -> int:
        """Run a program to its end and return its exit code; minus the signal's number when a signal ended it.

        Args:
            argv: Program and arguments; no shell sees them.

            env: Variables set on top of the inherited environment.

            cwd: Working directory; None keeps ours.

            log: File that the command line and the combined output are appended to.

            timeout_s: Seconds after which the program and all that it started are ended.

            on_line: Called with each line of output as it comes, without its line end. A progress bar's carriage
                return ends a line, too.

        Raises:
            ToolMissing: There is no such program.
            EnvironmentFault: It took longer than *timeout_s*, or could not be started.
        """
        ...


class SubprocessRunner:
    """Runs programs on this machine.

    Args:
        base_env: The environment that programs inherit; None takes ours as it is at each run.

        grace_s: Seconds between asking a process group to end (SIGTERM) and ending it (SIGKILL).
    """

    def __init__(self, *, base_env: Mapping[str, str] | None = None, grace_s: float = 5.0) -> None:
        self._base_env = base_env
        self._grace_s = grace_s

    def run(  # all but the command line are keywords
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None,
        log: Path,
        timeout_s: float,
        on_line: Callable[[str], None] | None = None,
    ) -> int:
        """Run a program to its end, as :class:`Runner` says; Ctrl-C, SIGTERM and SIGHUP end it first."""
        base = os.environ if self._base_env is None else self._base_env
        full = {**base, "PYTHONUNBUFFERED": "1", **env}
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab", buffering=0) as file, Endings() as endings:
            sink = _Sink(file, on_line)
            sink.note(f"$ {quote(argv)}")
            process = start(argv, env=full, cwd=cwd)
            try:
                _pump(process, sink, deadline=time.monotonic() + timeout_s, endings=endings)
            except _DeadlinePassed:
                raise EnvironmentFault(
                    f"{argv[0]} ran longer than {timeout_s:g} s and was ended",
                    hint="Raise the time-out, or see in the log where it hangs.",
                ) from None
            finally:
                code = end_group(process, grace_s=self._grace_s)
        return code


def quote(argv: Sequence[str]) -> str:
    """Return the command line as one would type it."""
    return shlex.join(argv)


def which(program: str, *, path: str | None = None) -> Path | None:
    """Return where *program* is on PATH (or on the search path given), or None."""
    found = shutil.which(program, path=path)
    return None if found is None else Path(found)


def start(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, its output and errors on one pipe, nothing to read on its input.

    Raises:
        ToolMissing: There is no such program.
        EnvironmentFault: It cannot be started, or *cwd* is no directory.
    """
    if cwd is not None and not cwd.is_dir():
        raise EnvironmentFault(f"{argv[0]} cannot be started in {cwd}: no such directory")
    try:
        return subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ToolMissing(f"the program {argv[0]} is not here", hint="Install it, or put it on PATH.") from None
    except OSError as error:
        raise EnvironmentFault(f"{argv[0]} could not be started: {error}") from error


def end_group(process: subprocess.Popen[bytes], *, grace_s: float) -> int:
    """End a program and everything in its process group, and return its exit code.

    A program that ended by itself keeps its code; what it left running in the background is killed all the same. The
    leader is reaped last: until then its number, which is also the group's, cannot be given to another process.
    """
    if process.returncode is None:
        if not _has_ended(process):
            _signal_group(process, signal.SIGTERM)
            _await_end(process, time.monotonic() + grace_s)
        _signal_group(process, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    return process.wait()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Captured:
    """What a short probe printed.

    Args:
        exit_code: None when the program is missing or was ended by the time-out.

        output: Its combined output; empty when it did not run.
    """

    exit_code: int | None
    output: str

    @property
    def ok(self) -> bool:
        """Whether the program ran and ended with 0."""
        return self.exit_code == 0


def run_capture(argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Captured:
    """Run a short program for its output and never raise: a probe that fails is an answer."""
    collected: list[str] = []
    timed_out = False
    with Endings() as endings:
        try:
            process = start(argv, env={**os.environ, **(env or {})}, cwd=None)
        except EnvironmentFault:
            return Captured(exit_code=None, output="")
        try:
            _pump(process, _Sink(None, collected.append), deadline=time.monotonic() + timeout_s, endings=endings)
        except _DeadlinePassed:
            timed_out = True
        finally:
            code = end_group(process, grace_s=0.2)
    return Captured(exit_code=None if timed_out else code, output="\n".join(collected))


class _DeadlinePassed(Exception):
    """The program still runs and its time is over."""


class _Sink:
    """Takes the bytes of a program's output: to the log as they are, to the callback line by line.

    A log that cannot be written (its disk is full, which is often why the program fails) does not end the run: the
    callback still sees every line.
    """

    def __init__(self, log: IO[bytes] | None, on_line: Callable[[str], None] | None) -> None:
        self._log = log
        self._on_line = on_line
        self._lines = LineSplitter()

    def note(self, line: str) -> None:
        self._write(f"{line}\n".encode())

    def feed(self, data: bytes) -> None:
        self._write(data)
        self._emit(self._lines.feed(data))

    def close(self) -> None:
        self._emit(self._lines.close())

    def _write(self, data: bytes) -> None:
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.write(data)

    def _emit(self, lines: Sequence[str]) -> None:
        if self._on_line is not None:
            for line in lines:
                self._on_line(line)


def _pump(process: subprocess.Popen[bytes], sink: _Sink, *, deadline: float, endings: Endings) -> None:
    """Pass the output on until the program has ended and what it had printed is read.

    The pipe's end alone would not do: a background process that inherited it can hold it open for ever.
    """
    pipe = _output(process)
    os.set_blocking(pipe.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not _has_ended(process):
            endings.raise_if_asked()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise _DeadlinePassed
            if selector.select(min(_POLL_S, remaining)) and not _read(pipe, sink):
                # Closed its output but still runs: only its end is left to wait for.
                _await_end(process, min(deadline, time.monotonic() + _POLL_S))
    # Bounded: what it left in the background may go on writing for ever.
    for _ in range(_DRAIN_READS):
        if not _read(pipe, sink):
            break
    sink.close()


def _read(pipe: IO[bytes], sink: _Sink) -> bool:
    """Pass on what is there; False when nothing is, now or ever."""
    try:
        data = os.read(pipe.fileno(), _READ_BYTES)
    except BlockingIOError:
        return False
    if data:
        sink.feed(data)
    return bool(data)


def _output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    if process.stdout is None:
        raise ValueError("the process was started without a pipe for its output")
    return process.stdout


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Say whether the leader has ended, without reaping it."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _await_end(process: subprocess.Popen[bytes], deadline: float) -> None:
    while not _has_ended(process) and time.monotonic() < deadline:
        time.sleep(0.01)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
