"""Stands between us and a tritonserver, so that the server never outlives whoever wanted it. Run as a script.

Knows one program, its session and its shared memory. Does not know Triton otherwise, and imports nothing of ours: it is
run as ``python -I guard.py``. The first line of its standard input says what to guard::

    {"argv": [...], "env": {...}, "log": "...", "exit_file": "...", "shm_prefix": "...", "stop_timeout_s": 10.0,
     "cwd": "...", "mark": "NAME=VALUE", "cleanup": [...]}

The last three may be left out. It starts the program, prints ``{"pid": ...}`` or ``{"error": ...}`` on standard output,
and stays until that ends.

* The rest of standard input is the lifeline. Its end means that our parent is gone, and the program is ended. A ``d``
  on it detaches: from then on only a signal ends the program.
* SIGTERM, SIGINT and SIGHUP end the program gently (SIGTERM, then SIGKILL after ``stop_timeout_s``), SIGQUIT at once.
* When the program ends, however it does, ``cleanup`` is run (the program may be the client of a daemon that keeps the
  server), everything else in the session is killed (a server that was killed leaves its model processes behind), and so
  is every process whose environment carries the mark (a rank may have left the session). Shared memory that carries the
  prefix is removed.
* Should this process itself be killed, the kernel kills the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.1
CLEANUP_TIMEOUT_S = 30.0
# A process in an uninterruptible wait (state D) is not ended by SIGKILL, perhaps for ever.
KILL_TIMEOUT_S = 5.0
EMPTY_LOOKS = 5
# What the names of a server's shared memory begin with; nothing else is ever removed.
SHM_PREFIX = re.compile(r"specdeploy_[0-9a-f]{12}_")
# What engines say of a container that has removed itself.
NOTHING_THERE = re.compile(rb"no such container|no container with name", re.IGNORECASE)
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Triton's python backend puts its regions

_libc = ctypes.CDLL(None, use_errno=True)


class Guard:
    """One guarded program, from its start to the last of its traces."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._asked = ""
        self._at_once = False

    def run(self) -> int:
        """Guard the program until it has ended; return its exit code, minus the signal's number if one ended it."""
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, self._note)
        try:
            program = self._start()
        except OSError as error:
            _say({"error": str(error)})
            return 1
        _say({"pid": program.pid})
        self._watch(program)
        code = self._end(program)
        self._clean_up()
        kill_rest_of_session()
        kill_marked(self._spec.get("mark", ""))
        remove_shared_memory(self._spec["shm_prefix"])
        record = {"exit_code": code, "asked": self._asked}
        # The run directory may have been removed meanwhile.
        with contextlib.suppress(OSError):
            Path(self._spec["exit_file"]).write_text(json.dumps(record) + "\n", encoding="utf-8")
        return 1 if code is None else code

    def _ask(self, who: str) -> None:
        """Keep who asked first: whoever gives a start up by a signal lets go of the lifeline, too."""
        self._asked = self._asked or who

    def _note(self, number: int, _frame: object) -> None:
        self._ask(signal.Signals(number).name)
        self._at_once = self._at_once or number == signal.SIGQUIT

    def _start(self) -> subprocess.Popen[bytes]:
        with Path(self._spec["log"]).open("ab") as log:
            return subprocess.Popen(
                self._spec["argv"],
                env=self._spec["env"],
                cwd=self._spec.get("cwd") or None,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
            )

    def _watch(self, program: subprocess.Popen[bytes]) -> None:
        """Return when the program has ended, or is to end."""
        lifeline: list[int] = [sys.stdin.fileno()]
        while program.poll() is None and not self._asked:
            if not select.select(lifeline, [], [], POLL_S)[0]:
                continue
            told = os.read(lifeline[0], 1)
            lifeline = []
            if told != b"d":
                self._ask("the process that started it is gone")

    def _end(self, program: subprocess.Popen[bytes]) -> int | None:
        """End the program and return its exit code; None when even SIGKILL does not end it in time."""
        deadline = time.monotonic() + self._spec["stop_timeout_s"]
        if program.poll() is None:
            program.send_signal(signal.SIGTERM)
        while program.poll() is None and time.monotonic() < deadline and not self._at_once:
            time.sleep(POLL_S / 4)
        program.kill()
        try:
            return program.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None

    def _clean_up(self) -> None:
        """Run the command that removes what no signal reaches; the log only hears of it when that fails."""
        argv = self._spec.get("cleanup")
        if not argv:
            return
        try:
            done = subprocess.run(
                argv,
                env=self._spec["env"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=CLEANUP_TIMEOUT_S,
                check=False,
            )
            said = done.stdout if done.returncode and not NOTHING_THERE.search(done.stdout) else b""
        except (OSError, subprocess.TimeoutExpired) as error:
            said = f"{error}\n".encode()
        if said:
            with contextlib.suppress(OSError), Path(self._spec["log"]).open("ab") as log:
                log.write(said)


def kill_rest_of_session() -> None:
    """Kill whatever else is in our session, until nothing is, or the rest cannot be killed."""
    _kill_all(lambda: [pid for pid in _session_members() if pid != os.getpid()])


def kill_marked(mark: str) -> None:
    """Kill every process whose environment carries *mark*, until none is left, or the rest cannot be killed.

    An empty mark marks nothing.
    """
    if mark:
        _kill_all(lambda: marked_processes(mark))


def remove_shared_memory(prefix: str) -> None:
    """Remove the shared memory regions of the program that was given *prefix*; of no other prefix than ours."""
    if not SHM_PREFIX.fullmatch(prefix):
        return
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        # Another user's are not ours to remove.
        with contextlib.suppress(OSError):
            region.unlink(missing_ok=True)


def _kill_all(living: Callable[[], list[int]]) -> None:
    deadline = time.monotonic() + KILL_TIMEOUT_S
    empty = 0
    # Between fork and exec a process shows no environment for a moment: one look that finds nobody is not enough.
    while empty < EMPTY_LOOKS and time.monotonic() < deadline:
        rest = living()
        empty = 0 if rest else empty + 1
        for pid in rest:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(POLL_S / 10)


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (runs in the child, before the program is loaded)."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _session_members() -> list[int]:
    """Return the processes of our session that have not ended."""
    own = os.getsid(0)
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # "pid (name) state ppid pgrp session ...": the name may hold blanks and brackets.
                state, _, _, session = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
                if int(session) == own and state not in {"Z", "X"}:
                    members.append(int(entry.name))
    return members


def marked_processes(mark: str) -> list[int]:
    """Return the processes of ours that carry *mark* and have not ended: of those, the kernel shows no environment."""
    others = (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal() and int(entry.name) != os.getpid())
    return [int(entry.name) for entry in others if os.fsencode(mark) in _environment(entry)]


def value_in(pid: int, name: str) -> str:
    """Return the value of a variable in the environment of a process; empty when it has none, or is gone."""
    start = os.fsencode(f"{name}=")
    found = (entry for entry in _environment(Path(f"/proc/{pid}")) if entry.startswith(start))
    return os.fsdecode(next(found, start)[len(start) :])


def _environment(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _reap() -> None:
    """Reap the orphans that were handed to us."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _say(value: dict[str, Any]) -> None:
    """Answer our parent, which may be gone already."""
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), json.dumps(value).encode() + b"\n")


def _first_line() -> bytes:
    """Read up to the first line end, and not a byte further: what follows is the lifeline."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            raise SystemExit("guard: nothing to guard")
        line += byte
    return line


if __name__ == "__main__":
    sys.exit(min(abs(Guard(json.loads(_first_line())).run()), 255))
