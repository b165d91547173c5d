"""A server from its start to its end: guarded, watched until it answers, explained when it fails, never left behind.

Knows processes, phases and time-outs. Does not know who runs the server (:mod:`.launchers`), nor what its messages mean
(:mod:`.cause`). It runs in a session of its own under a small guard process (:mod:`.guard`), which ends it when we end,
however we end, unless it was detached.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specdeploy.deploy.access import OPEN
from specdeploy.deploy.flags import Listening
from specdeploy.deploy.launch import MARK, RUN_MARK
from specdeploy.errors import ConfigError, EnvironmentFault, ServerFault
from specdeploy.system.clock import SystemClock
from specdeploy.triton.server.launchers import Naming
from specdeploy.triton.server.ports import Endpoints, choose_ports
from specdeploy.triton.server.readiness import PortTaken, Readiness
from specdeploy.triton.server.rundir import claimed, clear
from specdeploy.triton.server.running import GIVE_UP, GUARD_TIMEOUT_S, RunningServer, attach, fault, mark
from specdeploy.triton.server.state import Container, ServerState, process

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from specdeploy.config.schema import ServeConfig
    from specdeploy.deploy.access import Access
    from specdeploy.triton.server.launchers import Launcher
    from specdeploy.triton.server.rundir import RunDir

_GUARD: Final = Path(__file__).with_name("guard.py")
# A free port can be taken by another process between our look and the server's.
_ATTEMPTS: Final = 3


class ManagedServer:
    """A server for the time of a ``with`` block, ready when the block begins, gone when it ends.

    Args:
        launcher: Who runs it.
        repository: The model repository.
        serve: How it is started.
        run_dir: Log, state and backends; made when absent, an earlier one of ours is reused.
        front_door: The model that requests go to, and a first one before the server counts as ready; empty is none.
        access: What it asks of clients.
        on_line: Called with each step of the start, such as a model that has loaded.
    """

    def __init__(
        self,
        launcher: Launcher,
        repository: Path,
        serve: ServeConfig,
        *,
        run_dir: Path,
        front_door: str = "",
        access: Access = OPEN,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self._launcher = launcher
        self._repository = repository.absolute()
        self._serve = serve
        self._run_dir = run_dir.absolute()
        self._front_door = front_door
        self._access = access
        self._on_line = on_line or (lambda _line: None)
        self._stop_timeout_s = serve.exit_timeout_s + launcher.slack_s
        self._guard: subprocess.Popen[bytes] | None = None
        self._running: RunningServer | None = None

    def __enter__(self) -> RunningServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> RunningServer:
        """Start the server and return it when every model is ready and the front door has answered.

        Raises:
            ConfigError: The repository is not there, or the run directory or an address is unusable.
            EnvironmentFault: The run directory cannot be written.
            ServerFault: A port is taken, another server runs or is being started in the run directory, or the server
                died or was not ready in time; the message says why in its first line and ends with the log's last
                lines.
        """
        if not self._repository.is_dir():
            hint = "write it with `specdeploy repo`"
            raise ConfigError(f"the model repository {self._repository} is not there", hint=hint)
        self._require_alone()
        wanted = self._wanted_ports()
        attempts = 1 if all(wanted.values()) else _ATTEMPTS
        while True:
            attempts -= 1
            try:
                return self._start_once(wanted)
            except PortTaken:
                if not attempts:
                    raise
                self._on_line("a port was taken meanwhile; trying others")

    def stop(self) -> None:
        """End the server; fine when it never started or is gone already."""
        if self._running is not None:
            self._running.stop()
            self._running = None
        self._release()

    def detach(self) -> None:
        """Let the server live on when this process ends; :func:`attach` finds it again."""
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.write(b"d")
            _close(self._guard)
            # It is its own master now: nobody waits for it, and Python need not warn of that.
            self._guard.returncode = 0
        self._guard = self._running = None

    def _wanted_ports(self) -> dict[str, int]:
        serve = self._serve
        metrics = {"metrics": serve.metrics_port} if serve.metrics else {}
        return {"http": serve.http_port, "grpc": serve.grpc_port, **metrics}

    def _start_once(self, wanted: dict[str, int]) -> RunningServer:
        chosen = {"metrics": 0, **choose_ports(self._serve.host, wanted)}
        endpoints = Endpoints(host=self._serve.host, **{f"{use}_port": port for use, port in chosen.items()})
        try:
            # Until the state is written, nobody else could know that this directory is taken.
            with claimed(self._run_dir) as run:
                self._require_alone()
                clear(run)
                self._launcher.prepare(run)
                self._on_line(f"starting {self._launcher.title} on {endpoints.http_url}")
                self._running = self._launch(run, endpoints)
            Readiness(self._running, self._serve, self._on_line, cure=self._launcher.cure).wait()
        except BaseException:
            self._abort()
            raise
        return self._running

    def _require_alone(self) -> None:
        if (other := attach(self._run_dir)) is not None:
            raise ServerFault(
                f"a server (process {other.state.server.pid}) already runs from {self._run_dir}",
                hint="`specdeploy serve stop` ends it",
            )

    def _launch(self, run: RunDir, endpoints: Endpoints) -> RunningServer:
        try:
            return self._spawn(run, endpoints)
        except OSError as error:
            raise EnvironmentFault(f"the run directory {run.path} cannot be written: {error}") from error

    def _spawn(self, run: RunDir, endpoints: Endpoints) -> RunningServer:
        unique = secrets.token_hex(6)
        prefix = f"specdeploy_{unique}_"
        naming = Naming(listening=_listening(endpoints), shm_prefix=prefix, container=f"specdeploy-{unique}")
        command, engine = self._launcher.command(run, naming), self._launcher.engine
        spec = {
            "argv": command.argv,
            "env": {**command.environment(os.environ), MARK: prefix, RUN_MARK: str(run.path.resolve())},
            "cwd": command.cwd,
            "log": str(run.log),
            "exit_file": str(run.exit_file),
            "shm_prefix": prefix,
            "mark": mark(prefix),
            "cleanup": command.cleanup,
            "stop_timeout_s": self._stop_timeout_s,
        }
        self._guard = _spawn_guard(run)
        state = ServerState(
            guard=process(self._guard.pid),
            server=process(_start_server(self._guard, spec, run, self._launcher.cure)),
            endpoints=endpoints,
            repository=self._repository,
            run_dir=self._run_dir,
            shm_prefix=prefix,
            version=self._launcher.version,
            started=SystemClock().now_iso(),
            models=self._serve.models,
            front_door=self._front_door,
            stop_timeout_s=self._stop_timeout_s,
            container=Container(engine=engine, name=naming.container) if engine else None,
        )
        state.save()
        return RunningServer(state, self._access)

    def _abort(self) -> None:
        """End a server whose start failed, without waiting for it to be gentle."""
        if self._guard is not None and self._guard.poll() is None:
            self._guard.send_signal(GIVE_UP)
        self._release()
        if self._running is not None:
            self._running.stop()
            self._running = None

    def _release(self) -> None:
        """Let go of the guard: its lifeline is closed, which ends a server that still runs, and its end awaited."""
        if self._guard is not None:
            _close(self._guard)
            try:
                self._guard.wait(self._stop_timeout_s + GUARD_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._guard.kill()
            self._guard = None


def start_detached(server: ManagedServer) -> ServerState:
    """Start *server*, leave it running, and return what ``server.json`` in its run directory says.

    Raises:
        ConfigError: See :meth:`ManagedServer.start`.
        ServerFault: See :meth:`ManagedServer.start`; nothing is left running then.
    """
    state = server.start().state
    server.detach()
    return state


def _listening(endpoints: Endpoints) -> Listening:
    values = dataclasses.asdict(endpoints)
    return Listening(**{name: str(value) for name, value in values.items()})


def _spawn_guard(run: RunDir) -> subprocess.Popen[bytes]:
    with run.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", str(_GUARD)],
            # It carries the mark of the directory alone: that of the server is on what it is to end.
            env={**os.environ, RUN_MARK: str(run.path.resolve())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            start_new_session=True,
        )


def _start_server(guard: subprocess.Popen[bytes], spec: dict[str, Any], run: RunDir, cure: str) -> int:
    """Tell the guard what to start and return the number of the server's process.

    Raises:
        ServerFault: It cannot be started.
    """
    said = b""
    if guard.stdin is not None and guard.stdout is not None:
        with contextlib.suppress(BrokenPipeError):  # it died at once: then it says nothing, either
            guard.stdin.write(json.dumps(spec).encode() + b"\n")
        said = guard.stdout.readline()
    answer = json.loads(said or b"{}")
    if "pid" not in answer:
        reason = answer.get("error", "its guard process failed")
        raise fault(f"tritonserver cannot be run: {reason}", run.log, hint=cure)
    return int(answer["pid"])


def _close(guard: subprocess.Popen[bytes]) -> None:
    for pipe in (guard.stdin, guard.stdout):
        if pipe is not None:
            pipe.close()
