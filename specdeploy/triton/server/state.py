"""A running server as a value that outlives the process that started it: ``server.json`` in the run directory.

Knows how to write it, read it, and tell whether a process is still the one that was started. Processes are named by
their number and their start time, because numbers are given again.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Final

from specdeploy.system.files import write_json_atomic
from specdeploy.triton.server.ports import Endpoints

STATE_FILE: Final = "server.json"
EXIT_FILE: Final = "exit.json"
LOG_FILE: Final = "server.log"
SCHEMA_VERSION: Final = "1.1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Process:
    """One process.

    Args:
        pid: Its number.
        start_ticks: When it started, in clock ticks since boot.
    """

    pid: int
    start_ticks: int

    def is_alive(self) -> bool:
        """Say whether this very process still runs; a zombie does not."""
        return start_ticks(self.pid) == self.start_ticks


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerState:
    """What is needed to find, judge and stop a server.

    Args:
        guard: The process that guards the server; it is the one to signal.
        server: The tritonserver.
        endpoints: Where it listens.
        repository: The model repository that it serves.
        run_dir: Its log, backends and this state.
        shm_prefix: What the names of its shared memory regions begin with.
        version: Version of Triton; empty when it is not known.
        started: When, ISO 8601 in UTC.
        models: The models that it was told to load; empty is all of its repository.
        front_door: The model that requests go to; empty when it has none.
        stop_timeout_s: Seconds between asking it to end and ending it.
        cleanup: Command that removes what no signal reaches, such as its container; empty is none.
    """

    guard: Process
    server: Process
    endpoints: Endpoints
    repository: Path
    run_dir: Path
    shm_prefix: str
    version: str
    started: str
    models: tuple[str, ...] = ()
    front_door: str = ""
    stop_timeout_s: float = 12.0
    cleanup: tuple[str, ...] = ()

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.run_dir / LOG_FILE

    def save(self) -> None:
        """Write ``server.json``."""
        document = dataclasses.asdict(self) | {"repository": str(self.repository), "run_dir": str(self.run_dir)}
        write_json_atomic(
            self.run_dir / STATE_FILE,
            {"schema_version": SCHEMA_VERSION, "kind": "server", "log": str(self.log), **document},
        )


def load_state(run_dir: Path) -> ServerState | None:
    """Return the state in *run_dir*; None when there is none, or it is not one of ours."""
    try:
        document = json.loads((run_dir / STATE_FILE).read_text(encoding="utf-8"))
        return _state(document)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process; None when there is no such process, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def process(pid: int) -> Process:
    """Return the process that *pid* names now; one that has ended already is never alive."""
    ticks = start_ticks(pid)
    return Process(pid=pid, start_ticks=-1 if ticks is None else ticks)


def _state(document: dict[str, Any]) -> ServerState:
    return ServerState(
        guard=Process(**document["guard"]),
        server=Process(**document["server"]),
        endpoints=Endpoints(**document["endpoints"]),
        repository=Path(document["repository"]),
        run_dir=Path(document["run_dir"]),
        shm_prefix=str(document["shm_prefix"]),
        version=str(document["version"]),
        started=str(document["started"]),
        # An earlier release left these out, and its servers are to be found and stopped all the same.
        models=tuple(map(str, document.get("models", ()))),
        front_door=str(document.get("front_door", "")),
        stop_timeout_s=float(document.get("stop_timeout_s", 12.0)),
        cleanup=tuple(map(str, document.get("cleanup", ()))),
    )
