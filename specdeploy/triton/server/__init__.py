"""A real tritonserver of the embedded runtime: started, watched, explained when it fails, and never left behind.

Knows processes, ports and readiness. Does not know requests; :mod:`specdeploy.triton.client` does. The server runs in a
session of its own under a small guard process (see :mod:`specdeploy.triton.server.guard`), which ends it when we end,
however we end, unless it was detached.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import ConfigError, ServerFault
from specdeploy.system.clock import SystemClock
from specdeploy.triton.server import cause, health, launch
from specdeploy.triton.server.ports import Endpoints, choose_ports
from specdeploy.triton.server.running import (
    POLL_S,
    STOP_TIMEOUT_S,
    RunningServer,
    attach,
    fault,
    last_exit,
    stop_detached,
)
from specdeploy.triton.server.state import ServerState, process
from specdeploy.triton.sources import backend_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from specdeploy.triton.runtime import Runtime
    from specdeploy.triton.server.launch import RunDir

__all__ = [
    "Endpoints",
    "RunningServer",
    "ServerState",
    "TritonServer",
    "attach",
    "last_exit",
    "start_detached",
    "stop_detached",
]

BACKEND: Final = "tensorrtllm"
_GUARD: Final = Path(__file__).with_name("guard.py")
_GUARD_TIMEOUT_S: Final = 30.0
# A free port can be taken by another process between our look and the server's.
_ATTEMPTS: Final = 3
_REINSTALL: Final = "install the runtime again with `specdeploy runtime install`"


class TritonServer:
    """A server for the time of a ``with`` block, ready when the block begins, gone when it ends.

    Args:
        runtime: The embedded runtime.
        repository: The model repository.
        run_dir: Log, state and backends; made when absent, an earlier one of ours is reused.
        host: Address to bind.
        http_port: 0 takes a free one.
        grpc_port: 0 takes a free one.
        metrics_port: 0 takes a free one.
        startup_timeout_s: Not ready after this many seconds is an error.
        on_line: Called with each step of the start, such as a model that has loaded.
        backends: Further backends (name -> file -> bytes); None takes the CPU engine's.
    """

    def __init__(  # noqa: PLR0913 - the keys of the configuration's `serve` block, by name only
        self,
        runtime: Runtime,
        repository: Path,
        *,
        run_dir: Path,
        host: str = "127.0.0.1",
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        startup_timeout_s: float = 120.0,
        on_line: Callable[[str], None] | None = None,
        backends: Mapping[str, Mapping[str, bytes]] | None = None,
    ) -> None:
        self._runtime = runtime
        self._repository = repository.absolute()
        self._run_dir = run_dir.absolute()
        self._host = host
        self._ports = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
        self._startup_timeout_s = startup_timeout_s
        self._on_line = on_line or (lambda _line: None)
        self._backends = backends
        self._guard: subprocess.Popen[bytes] | None = None
        self._running: RunningServer | None = None

    def __enter__(self) -> RunningServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> RunningServer:
        """Start the server and return it when every model is ready.

        Raises:
            ConfigError: The repository is not there, or the run directory or an address is unusable.
            ServerFault: A port is taken, another server runs in the run directory, or the server died or was not ready
                in time; the message says why in its first line and ends with the log's last lines.
        """
        if not self._repository.is_dir():
            hint = "write it with `specdeploy repo`"
            raise ConfigError(f"the model repository {self._repository} is not there", hint=hint)
        if (other := attach(self._run_dir)) is not None:
            raise ServerFault(
                f"a server (process {other.state.server.pid}) already runs from {self._run_dir}",
                hint="`specdeploy serve stop` ends it",
            )
        attempts = 1 if all(self._ports.values()) else _ATTEMPTS
        while True:
            attempts -= 1
            try:
                return self._start_once()
            except _PortTaken:
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

    def _start_once(self) -> RunningServer:
        ports = choose_ports(self._host, self._ports)
        endpoints = Endpoints(host=self._host, **{f"{use}_port": port for use, port in ports.items()})
        backends = {BACKEND: backend_sources()} if self._backends is None else self._backends
        run = launch.prepare_run_dir(self._run_dir, self._runtime, backends)
        self._on_line(f"starting tritonserver {self._runtime.version} on {endpoints.http_url}")
        try:
            self._running = self._launch(run, endpoints)
            self._await_ready(self._running)
        except BaseException:
            self._abort()
            raise
        return self._running

    def _launch(self, run: RunDir, endpoints: Endpoints) -> RunningServer:
        prefix = f"specdeploy_{secrets.token_hex(6)}_"
        spec = {
            "argv": launch.command(self._runtime, self._repository, run, endpoints, prefix),
            "env": launch.environment(self._runtime, os.environ),
            "log": str(run.log),
            "exit_file": str(run.exit_file),
            "shm_prefix": prefix,
            "stop_timeout_s": STOP_TIMEOUT_S,
        }
        self._guard = _spawn_guard(run)
        state = ServerState(
            guard=process(self._guard.pid),
            server=process(_start_server(self._guard, spec, run)),
            endpoints=endpoints,
            repository=self._repository,
            run_dir=self._run_dir,
            shm_prefix=prefix,
            version=self._runtime.version,
            started=SystemClock().now_iso(),
        )
        state.save()
        return RunningServer(state)

    def _await_ready(self, running: RunningServer) -> None:
        deadline = time.monotonic() + self._startup_timeout_s
        announced = 0
        while True:
            # Asked before the log is read: what a server that has died said is then all there.
            alive = running.alive()
            log = running.log.read_text(encoding="utf-8", errors="replace")
            loaded = cause.loaded_models(log)
            for model in loaded[announced:]:
                self._on_line(f"loaded {model}")
            announced = len(loaded)
            if not alive:
                raise _start_fault(running, log)
            if reason := cause.hopeless(log):
                raise fault(f"tritonserver cannot start: {reason}", running.log, hint=_REINSTALL)
            if health.is_ready(running.endpoints) and not running.unready_models():
                return
            if time.monotonic() > deadline:
                raise self._late_fault(running, loaded)
            time.sleep(POLL_S)

    def _late_fault(self, running: RunningServer, loaded: tuple[str, ...]) -> ServerFault:
        waiting = ", ".join(running.unready_models()) or "it does not report itself ready"
        return fault(
            f"tritonserver was not ready after {self._startup_timeout_s:g} s: {waiting}; "
            f"loaded so far: {', '.join(loaded) or 'nothing'}",
            running.log,
            hint="raise serve.startup_timeout_s if the engines are merely large",
        )

    def _abort(self) -> None:
        """End a server whose start failed, without waiting for it to be gentle."""
        if self._guard is not None and self._guard.poll() is None:
            self._guard.send_signal(signal.SIGQUIT)
        self._release()
        if self._running is not None:
            self._running.stop()
            self._running = None

    def _release(self) -> None:
        """Let go of the guard: its lifeline is closed, which ends a server that still runs, and its end awaited."""
        if self._guard is not None:
            _close(self._guard)
            self._guard.wait(_GUARD_TIMEOUT_S)
            self._guard = None


class _PortTaken(ServerFault):
    """A port that was free when we looked was not when the server bound it."""


def start_detached(server: TritonServer) -> ServerState:
    """Start *server*, leave it running, and return what ``server.json`` in its run directory says.

    Raises:
        ConfigError: See :meth:`TritonServer.start`.
        ServerFault: See :meth:`TritonServer.start`; nothing is left running then.
    """
    state = server.start().state
    server.detach()
    return state


def _start_fault(running: RunningServer, log: str) -> ServerFault:
    reason = cause.start_failure(log, running.exit_code())
    kind = _PortTaken if cause.port_was_taken(log) else ServerFault
    return fault(f"tritonserver did not start: {reason}", running.log, kind=kind)


def _spawn_guard(run: RunDir) -> subprocess.Popen[bytes]:
    with run.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", str(_GUARD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            start_new_session=True,
        )


def _start_server(guard: subprocess.Popen[bytes], spec: dict[str, Any], run: RunDir) -> int:
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
        raise fault(f"tritonserver cannot be run: {reason}", run.log, hint=_REINSTALL)
    return int(answer["pid"])


def _close(guard: subprocess.Popen[bytes]) -> None:
    for pipe in (guard.stdin, guard.stdout):
        if pipe is not None:
            pipe.close()
