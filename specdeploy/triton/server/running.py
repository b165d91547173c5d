"""A server that runs: judged, waited for and stopped by what ``server.json`` says of it, whoever started it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final

from specdeploy.deploy.access import OPEN
from specdeploy.deploy.launch import MARK
from specdeploy.deploy.metrics import parse_metrics
from specdeploy.errors import ServerFault
from specdeploy.system.files import locked_if_free, tail
from specdeploy.system.process import run_capture
from specdeploy.triton.server import cause, orphans
from specdeploy.triton.server.guard import CLEANUP_TIMEOUT_S, KILL_TIMEOUT_S, kill_marked, remove_shared_memory
from specdeploy.triton.server.health import Api
from specdeploy.triton.server.rundir import LOCK_FILE, being_claimed
from specdeploy.triton.server.state import EXIT_FILE, STATE_FILE, Process, ServerState, forget, load_state

if TYPE_CHECKING:
    from pathlib import Path

    from specdeploy.deploy.access import Access
    from specdeploy.deploy.metrics import Sample
    from specdeploy.triton.server.ports import Endpoints

POLL_S: Final = 0.05
# It may have to remove a container, and to try in vain to end the server, the rest of its session and what is marked.
GUARD_TIMEOUT_S: Final = 10.0 + CLEANUP_TIMEOUT_S + 3 * KILL_TIMEOUT_S
_LINES_READ: Final = 200
_TAIL_LINES: Final = 12
_LONGEST_LINE: Final = 300
_READY: Final = "READY"
_ABSENT: Final = "not in the repository"
# How a start that failed is ended; nobody else sends it.
GIVE_UP: Final = signal.SIGQUIT


class RunningServer:
    """A server that was started, by this process or an earlier one.

    Args:
        state: What is known of it.
        access: What it asks of clients.
    """

    def __init__(self, state: ServerState, access: Access = OPEN) -> None:
        self.state = state
        self.api = Api(state.endpoints, access)

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
        """Say whether it is alive, answers, and every model that it was told to load is ready."""
        return self.alive() and self.api.is_ready() and not self.unready_models()

    def unready_models(self) -> tuple[str, ...]:
        """Return the models that are to be ready and are not, each with its state and what Triton says of it."""
        index = self.api.index()
        if index is None:
            return ("the server does not answer",)
        states = {str(entry.get("name", "")): _state(entry) for entry in index}
        # Without explicit control, every model of the index is to be ready.
        wanted = {name: states.get(name, _ABSENT) for name in self.state.models} or states
        return tuple(f"{name} ({state})" for name, state in wanted.items() if state != _READY)

    def metrics(self) -> tuple[Sample, ...]:
        """Return the samples of its metrics page; none when it has no such page."""
        return parse_metrics(self.api.metrics() or "")

    def index(self) -> list[dict[str, Any]]:
        """Return the models of its repository with their states; none when it does not answer."""
        return self.api.index() or []

    def exit_cause(self) -> str | None:
        """Return in one line how the server ended; None while it runs."""
        return None if self.alive() else cause.death(self.exit_code())

    def exit_code(self) -> int | None:
        """Return the exit code of a server that has ended, minus the signal's number; None when nobody saw it end."""
        _await_end(self.state.guard, timeout_s=GUARD_TIMEOUT_S)  # it writes the code a moment after the server's end
        return _recorded_exit(self.state.run_dir)

    def require_alive(self) -> None:
        """Stop when the server has died.

        Raises:
            ServerFault: It has; the message says how, and ends with the log's last lines.
        """
        reason = self.exit_cause()
        if reason is not None:
            raise fault(f"tritonserver is gone: {reason}", self.log)

    def was_stopped(self) -> bool:
        """Say whether the server has ended because somebody asked it to, and not by itself."""
        return not self.alive() and self.exit_code() is not None and bool(_asked(self.state.run_dir))

    def stop(self) -> None:
        """End the server and all of its processes, and remove its shared memory and its state; fine when it is gone.

        Raises:
            ServerFault: It belongs to another user.
        """
        guard, server = self.state.guard, self.state.server
        _signal(guard, signal.SIGTERM)
        _await_end(guard, timeout_s=self.state.stop_timeout_s + GUARD_TIMEOUT_S)
        # Nothing is left of the rest unless the guard was killed or hangs.
        if self.state.container is not None and not self._ended_cleanly():
            run_capture(self.state.container.removal(), timeout_s=CLEANUP_TIMEOUT_S)
        for process in (guard, server):
            _signal(process, signal.SIGKILL)
            _await_end(process, timeout_s=GUARD_TIMEOUT_S)
        kill_marked(mark(self.state.shm_prefix))
        remove_shared_memory(self.state.shm_prefix)
        forget(self.state)

    def _ended_cleanly(self) -> bool:
        """Say whether the guard came to its last act: to write how the server ended."""
        return not self.state.guard.is_alive() and _recorded_exit(self.state.run_dir) is not None


def mark(shm_prefix: str) -> str:
    """Return the variable that all processes of a server carry."""
    return f"{MARK}={shm_prefix}"


def attach(run_dir: Path, access: Access = OPEN) -> RunningServer | None:
    """Return the server that runs from *run_dir*, or None; what a dead one left there is cleared away.

    Raises:
        ServerFault: One runs, or is just being started, and no file describes it.
    """
    running = _described(run_dir, access)
    if running is not None:
        return running
    found = orphans.find(run_dir)
    # Its start may have ended, and written the file, since we looked.
    if found and (running := _described(run_dir, access)) is None:
        raise _undescribed(run_dir, found)
    if running is None:
        _discard_damaged(run_dir)
    return running


def last_exit(run_dir: Path) -> str | None:
    """Return in one line how the last server of *run_dir* ended; None when none did, or one still runs."""
    code = _recorded_exit(run_dir)
    if code is None:
        return None
    asked = _asked(run_dir)
    if asked == GIVE_UP.name:
        return "its start was given up"
    return f"it was stopped ({asked})" if asked else cause.death(code)


def stop_detached(run_dir: Path) -> bool:
    """End the server that runs from *run_dir*, also one that no file describes; say whether there was one.

    Raises:
        ServerFault: It belongs to another user.
    """
    running = _described(run_dir, OPEN)
    if running is not None:
        running.stop()
    undescribed = orphans.stop(run_dir)
    _discard_damaged(run_dir)
    return running is not None or undescribed


def _described(run_dir: Path, access: Access) -> RunningServer | None:
    """Return the living server that the state in *run_dir* names, and clear away a dead one."""
    state = load_state(run_dir)
    if state is None:
        return None
    running = RunningServer(state, access)
    if running.alive():
        return running
    running.stop()
    return None


def _discard_damaged(run_dir: Path) -> None:
    """Remove a state that describes no server, because it is damaged or was copied with its directory."""
    if not (run_dir / STATE_FILE).exists():
        return
    # Not while somebody starts a server and is about to write its own.
    with contextlib.suppress(OSError), locked_if_free(run_dir / LOCK_FILE) as free:
        if free and load_state(run_dir) is None:
            (run_dir / STATE_FILE).unlink(missing_ok=True)


def _undescribed(run_dir: Path, found: tuple[int, ...]) -> ServerFault:
    if being_claimed(run_dir):
        return ServerFault(f"a server is just being started from {run_dir}", hint="try again in a moment")
    return ServerFault(
        f"a server runs from {run_dir} (process {found[0]}), and its server.json there is damaged or gone",
        hint="`specdeploy serve stop` ends it",
    )


def fault(message: str, log: Path, *, hint: str = "", kind: type[ServerFault] = ServerFault) -> ServerFault:
    """Return an error whose message ends with the last lines of a server's log: complaints, or else progress."""
    read = [line for line in tail(log, _LINES_READ) if line.strip() and not line.startswith(("|", "+"))]
    lines = cause.complaints("\n".join(read)) or read
    said = "\n".join(f"  {line[:_LONGEST_LINE]}" for line in lines[-_TAIL_LINES:])
    return kind(f"{message}\n{said}" if said else message, hint=hint or f"the whole log is {log}")


def _state(entry: dict[str, Any]) -> str:
    """Return the state of one model of the index; of one that is not ready, with Triton's reason."""
    state, reason = str(entry.get("state", "")) or "not loaded", str(entry.get("reason", ""))
    return f"{state}: {cause.one_line(reason)}" if reason and state != _READY else state


def _recorded_exit(run_dir: Path) -> int | None:
    code = _record(run_dir).get("exit_code")
    return code if isinstance(code, int) else None


def _asked(run_dir: Path) -> str:
    """Return who asked the last server to end, such as a signal; nothing where it ended by itself."""
    return str(_record(run_dir).get("asked") or "")


def _record(run_dir: Path) -> dict[str, Any]:
    try:
        document = json.loads((run_dir / EXIT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _signal(process: Process, number: signal.Signals) -> None:
    if not process.is_alive():
        return
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return  # it ended since we looked
    except PermissionError:
        raise ServerFault(
            f"the server's process {process.pid} belongs to another user and cannot be stopped",
            hint="stop it as that user",
        ) from None


def _await_end(process: Process, *, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while process.is_alive() and time.monotonic() < deadline:
        time.sleep(POLL_S)
