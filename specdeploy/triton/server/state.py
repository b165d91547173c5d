"""A running server as a value that outlives the process that started it: ``server.json`` in the run directory.

Knows how to write it, read it, and tell whether a process is still the one that was started. Processes are named by
their number and their start time, because numbers are given again.

Anybody may have written what is read: a state says what to look for, never what to run or to delete, and one that is
not wholly as we write it is none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import json
import math
import re
from pathlib import Path
from typing import Any, Final, TypeVar

from specdeploy.system.container_command import ENGINES, ContainerSettings, removal_argv
from specdeploy.system.files import write_json_atomic
from specdeploy.triton.server.guard import SHM_PREFIX
from specdeploy.triton.server.ports import Endpoints

STATE_FILE: Final = "server.json"
EXIT_FILE: Final = "exit.json"
LOG_FILE: Final = "server.log"
SCHEMA_VERSION: Final = "1.2"
_CONTAINER: Final = re.compile(r"specdeploy-[0-9a-f]{12}")
_LARGEST_PORT: Final = 2**16 - 1
_T = TypeVar("_T")


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
class Container:
    """The container of a server, which no signal to a process reaches.

    Args:
        engine: What keeps it, such as ``docker``.
        name: Its name.
    """

    engine: str
    name: str

    def removal(self) -> tuple[str, ...]:
        """Return the command that removes it."""
        # The image does not matter to who removes a container.
        argv = removal_argv(ContainerSettings(image="any", engine=self.engine), self.name)
        if argv is None:
            raise ValueError(f"{self.engine} keeps no containers")
        return argv


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
        container: Its container; None when it has none.
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
    container: Container | None = None

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
    """Return the state in *run_dir*; None when there is none, it is damaged, or it is not of this directory.

    That there is no state does not mean that there is no server: :func:`specdeploy.triton.server.orphans.find` looks.
    """
    try:
        state = _state(json.loads((run_dir / STATE_FILE).read_text(encoding="utf-8")))
        # A copy of a run directory has no server: the one that its state names belongs to the original.
        return state if state.run_dir.resolve() == run_dir.resolve() else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def forget(state: ServerState) -> None:
    """Remove ``server.json`` if it still is the one of *state*; another server may have written its own meanwhile."""
    written = load_state(state.run_dir)
    if written is not None and written.shm_prefix == state.shm_prefix:
        with contextlib.suppress(OSError):  # another user's, perhaps
            (state.run_dir / STATE_FILE).unlink(missing_ok=True)


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
        guard=_process(document["guard"]),
        server=_process(document["server"]),
        endpoints=_endpoints(document["endpoints"]),
        repository=Path(_is(str, document["repository"])),
        run_dir=Path(_is(str, document["run_dir"])),
        shm_prefix=_matching(SHM_PREFIX, document["shm_prefix"]),
        version=_is(str, document["version"]),
        started=_is(str, document["started"]),
        # An earlier release left these out, and its servers are to be found and stopped all the same.
        models=tuple(_is(str, model) for model in _is(list, document.get("models", []))),
        front_door=_is(str, document.get("front_door", "")),
        stop_timeout_s=_seconds(document.get("stop_timeout_s", 12.0)),
        container=_container(document.get("container")),
    )


def _process(value: dict[str, Any]) -> Process:
    # -1 is the start of a process that had ended before we could look.
    return Process(pid=_whole(value["pid"], lowest=1), start_ticks=_whole(value["start_ticks"], lowest=-1))


def _endpoints(value: dict[str, Any]) -> Endpoints:
    ipaddress.ip_address(_is(str, value["host"]))
    ports = {use: _whole(value[use], lowest=0) for use in ("http_port", "grpc_port", "metrics_port")}
    if max(ports.values()) > _LARGEST_PORT:
        raise ValueError(f"no port: {max(ports.values())}")
    return Endpoints(host=value["host"], **ports)


def _container(value: dict[str, Any] | None) -> Container | None:
    if value is None:
        return None
    if value["engine"] not in ENGINES:
        raise ValueError(f"no container engine: {value['engine']!r}")
    container = Container(engine=value["engine"], name=_matching(_CONTAINER, value["name"]))
    container.removal()
    return container


def _is(kind: type[_T], value: object) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _whole(value: object, *, lowest: int) -> int:
    # JSON's true and false are numbers to Python.
    if isinstance(value, bool) or _is(int, value) < lowest:
        raise ValueError(f"{value!r} is no number from {lowest} on")
    return _is(int, value)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is no number of seconds")
    return float(value)


def _matching(pattern: re.Pattern[str], value: object) -> str:
    if not pattern.fullmatch(_is(str, value)):
        raise ValueError(f"{value!r} is no name of ours")
    return _is(str, value)
