"""A server that runs: judged, waited for and stopped by what ``server.json`` says of it, whoever started it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ServerFault
from specdeploy.system.files import tail
from specdeploy.triton.server import cause, health, launch
from specdeploy.triton.server.state import EXIT_FILE, STATE_FILE, Process, ServerState, load_state

if TYPE_CHECKING:
    from specdeploy.triton.server.ports import Endpoints

POLL_S: Final = 0.05
# Between SIGTERM and SIGKILL: requests in flight get their time, then unloading the models takes a few seconds.
STOP_TIMEOUT_S: Final = launch.EXIT_TIMEOUT_S + 7.0
_GUARD_TIMEOUT_S: Final = 10.0
_LINES_READ: Final = 200
_TAIL_LINES: Final = 12
_LONGEST_LINE: Final = 300
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where Triton's python backend puts its regions


class RunningServer:
    """A server that was started, by this process or an earlier one.

    Args:
        state: What is known of it.
    """

    def __init__(self, state: ServerState) -> None:
        self.state = state

    @property
    def endpoints(self) -> Endpoints:
        """Where it listens."""
        return self.state.endpoints

    @property
    def log(self) -> Path:
        """Its log."""
        return self.state.log

    def alive(self) -> bool:
        """Say whether the server's process still runs."""
        return self.state.server.is_alive()

    def ready(self) -> bool:
        """Say whether it is alive, answers, and every model of its index is ready."""
        return self.alive() and health.is_ready(self.endpoints) and not self.unready_models()

    def unready_models(self) -> tuple[str, ...]:
        """Return the models of the index that are not ready, with their state, or that the server does not answer."""
        states = health.model_states(self.endpoints)
        if states is None:
            return ("the server does not answer",)
        return tuple(f"{name} ({state or 'no state'})" for name, state in states.items() if state != "READY")

    def exit_cause(self) -> str | None:
        """Return in one line how the server ended; None while it runs."""
        return None if self.alive() else cause.death(self.exit_code())

    def exit_code(self) -> int | None:
        """Return the exit code of a server that has ended, minus the signal's number; None when nobody saw it end."""
        _await_end(self.state.guard, timeout_s=_GUARD_TIMEOUT_S)  # it writes the code a moment after the server's end
        return _recorded_exit(self.state.run_dir)

    def require_alive(self) -> None:
        """Stop when the server has died.

        Raises:
            ServerFault: It has; the message says how, and ends with the log's last lines.
        """
        reason = self.exit_cause()
        if reason is not None:
            raise fault(f"tritonserver is gone: {reason}", self.log)

    def stop(self) -> None:
        """End the server and all of its processes, and remove its shared memory and its state; fine when it is gone."""
        guard, server = self.state.guard, self.state.server
        _signal(guard, signal.SIGTERM)
        _await_end(guard, timeout_s=STOP_TIMEOUT_S + _GUARD_TIMEOUT_S)
        # Nothing is left of these two unless the guard was killed or hangs.
        for process in (guard, server):
            _signal(process, signal.SIGKILL)
            _await_end(process, timeout_s=_GUARD_TIMEOUT_S)
        for region in _SHARED_MEMORY.glob(f"{self.state.shm_prefix}*"):
            region.unlink(missing_ok=True)
        (self.state.run_dir / STATE_FILE).unlink(missing_ok=True)


def attach(run_dir: Path) -> RunningServer | None:
    """Return the server that runs from *run_dir*, or None; what a dead one left there is cleared away."""
    state = load_state(run_dir)
    if state is None:
        return None
    running = RunningServer(state)
    if running.alive():
        return running
    running.stop()
    return None


def last_exit(run_dir: Path) -> str | None:
    """Return in one line how the last server of *run_dir* ended; None when none did, or one still runs."""
    code = _recorded_exit(run_dir)
    return None if code is None else cause.death(code)


def stop_detached(run_dir: Path) -> bool:
    """End the server that runs from *run_dir*; say whether there was one."""
    running = attach(run_dir)
    if running is None:
        return False
    running.stop()
    return True


def fault(message: str, log: Path, *, hint: str = "", kind: type[ServerFault] = ServerFault) -> ServerFault:
    """Return an error whose message ends with the last lines of a server's log, tables left out."""
    lines = [line for line in tail(log, _LINES_READ) if line.strip() and not line.startswith(("|", "+"))]
    said = "\n".join(f"  {line[:_LONGEST_LINE]}" for line in lines[-_TAIL_LINES:])
    return kind(f"{message}\n{said}" if said else message, hint=hint or f"the whole log is {log}")


def _recorded_exit(run_dir: Path) -> int | None:
    try:
        return int(json.loads((run_dir / EXIT_FILE).read_text(encoding="utf-8"))["exit_code"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _signal(process: Process, number: signal.Signals) -> None:
    if process.is_alive():
        os.kill(process.pid, number)


def _await_end(process: Process, *, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while process.is_alive() and time.monotonic() < deadline:
        time.sleep(POLL_S)
