"""From a server that was started to one that has answered: live, every model ready, a first request answered.

Knows the phases, and says in which one a server hangs. A server whose models are ready can still be unable to answer
(a model process that died keeps its model ready), which is why the last phase is a request.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ServerFault
from specdeploy.triton.server import cause
from specdeploy.triton.server.running import POLL_S, RunningServer, fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.config.schema import ServeConfig

# While nothing else can be told, say that it goes on, and what the log said last.
_PATIENCE_S: Final = 15.0
_LONGEST: Final = 160


class PortTaken(ServerFault):
    """A port that was free when we looked was not when the server bound it."""


class Readiness:
    """Waits for one server.

    Args:
        running: The server.
        serve: How it was started: the time that it has, and whether it is to answer a request.
        on_line: Called with each step.
        cure: What to do when its program is broken.
    """

    def __init__(
        self, running: RunningServer, serve: ServeConfig, on_line: Callable[[str], None], *, cure: str
    ) -> None:
        self._running = running
        self._timeout_s = serve.startup_timeout_s
        self._door = running.state.front_door if serve.warmup else ""
        self._deadline = time.monotonic() + self._timeout_s
        self._on_line = on_line
        self._cure = cure
        self._log = _Log(running)
        self._announced = 0
        self._spoke = time.monotonic()

    def wait(self) -> None:
        """Return when the server has answered.

        Raises:
            ServerFault: It died, will never be ready, was not in time, or its front door does not answer.
        """
        self._await_models()
        self._await_answer()

    def _await_models(self) -> None:
        running = self._running
        while True:
            # Asked before the log is read: what a server that has died said is then all there.
            alive = running.alive()
            log = self._log.read()
            self._announce(log)
            if not alive:
                raise self._death(log)
            if reason := cause.hopeless(log):
                raise fault(f"tritonserver cannot start: {reason}", running.log, hint=self._cure)
            if running.api.is_ready() and not running.unready_models():
                return
            if time.monotonic() > self._deadline:
                raise self._late(log)
            time.sleep(POLL_S)

    def _await_answer(self) -> None:
        if not self._door:
            return
        self._say(f"every model is ready; asking {self._door} for a first answer")
        complaint = self._running.api.warm_up(self._door, max(self._deadline - time.monotonic(), 1.0))
        if complaint is None:
            return
        if not self._running.alive():
            raise self._death(self._log.read())
        raise fault(
            f"every model is ready, but a first request to {self._door} was not answered: {cause.one_line(complaint)}",
            self._running.log,
            hint=f"the models' own messages are in {self._running.log}; serve.warmup false leaves the request out",
        )

    def _announce(self, log: str) -> None:
        loaded = cause.loaded_models(log)
        for model in loaded[self._announced :]:
            self._say(f"loaded {model}")
        self._announced = len(loaded)
        if time.monotonic() - self._spoke > _PATIENCE_S:
            left = self._deadline - time.monotonic()
            self._say(f"still {_phase(self._running, log)} ({left:.0f} s left){_last(log)}")

    def _say(self, line: str) -> None:
        self._on_line(line)
        self._spoke = time.monotonic()

    def _death(self, log: str) -> ServerFault:
        reason = cause.start_failure(log, self._running.exit_code())
        kind = PortTaken if cause.port_was_taken(log) else ServerFault
        return fault(f"tritonserver did not start: {reason}", self._running.log, kind=kind)

    def _late(self, log: str) -> ServerFault:
        waiting = ", ".join(self._running.unready_models()) or "it does not report itself ready"
        loaded = ", ".join(cause.loaded_models(log)) or "nothing"
        why = cause.telling(log)
        return fault(
            f"tritonserver was not ready after {self._timeout_s:g} s, still {_phase(self._running, log)}: "
            f"{why or waiting}; loaded so far: {loaded}",
            self._running.log,
            hint="raise serve.startup_timeout_s if the engines are merely large",
        )


class _Log:
    """The server's log as it grows; each byte is read once."""

    def __init__(self, running: RunningServer) -> None:
        self._path = running.log
        self._data = b""

    def read(self) -> str:
        with self._path.open("rb") as file:
            file.seek(len(self._data))
            self._data += file.read()
        return self._data.decode(errors="replace")


def _phase(running: RunningServer, log: str) -> str:
    waiting = cause.loading_models(log)
    if waiting:
        return f"loading {', '.join(waiting)}"
    return "loading models" if running.api.is_live() else "starting, and not answering"


def _last(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith(("|", "+"))]
    return f"; the log says: {lines[-1][:_LONGEST]}" if lines else ""
