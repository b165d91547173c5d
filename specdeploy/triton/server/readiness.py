"""From a server that was started to one that has answered: live, every model ready, a first request answered.

Knows the phases, and says in which one a server hangs. A server whose models are ready can still be unable to answer
(a model process that died keeps its model ready), which is why the last phase is a request.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ServerFault
from specdeploy.system.lines import LineSplitter
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
            new = self._log.new()
            self._announce(new)
            if not alive:
                raise self._death(self._log.whole())
            if reason := cause.hopeless(new):
                raise fault(f"tritonserver cannot start: {reason}", running.log, hint=self._cure)
            if running.api.is_ready() and not running.unready_models():
                return
            if time.monotonic() > self._deadline:
                raise self._late(self._log.whole())
            time.sleep(POLL_S)

    def _await_answer(self) -> None:
        if not self._door:
            return
        self._say(f"every model is ready; asking {self._door} for a first answer")
        complaint = self._running.api.warm_up(self._door, max(self._deadline - time.monotonic(), 1.0))
        if complaint is None:
            return
        if not self._running.alive():
            raise self._death(self._log.whole())
        raise fault(
            f"every model is ready, but a first request to {self._door} was not answered: {cause.one_line(complaint)}",
            self._running.log,
            hint=f"the models' own messages are in {self._running.log}; serve.warmup false leaves the request out",
        )

    def _announce(self, new: str) -> None:
        for model in cause.loaded_models(new):
            self._say(f"loaded {model}")
        if time.monotonic() - self._spoke > _PATIENCE_S:
            left, log = self._deadline - time.monotonic(), self._log.whole()
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
    """The server's log as it grows: verbose ones get large, and each of their bytes is looked at once while it waits.

    Raises:
        ServerFault: The log was removed.
    """

    def __init__(self, running: RunningServer) -> None:
        self._path = running.log
        self._offset = 0
        self._lines = LineSplitter()

    def new(self) -> str:
        """Return the lines that were completed since the last call."""
        data = self._read(self._offset)
        self._offset += len(data)
        return "\n".join(self._lines.feed(data))

    def whole(self) -> str:
        """Return all of it."""
        return self._read(0).decode(errors="replace")

    def _read(self, offset: int) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(offset)
                return file.read()
        except OSError as error:
            raise ServerFault(
                f"the log {self._path} cannot be read any more while the server starts: {error.strerror or error}",
                hint="the run directory has to stay where it is; try again",
            ) from error


def _phase(running: RunningServer, log: str) -> str:
    waiting = cause.loading_models(log)
    if waiting:
        return f"loading {', '.join(waiting)}"
    return "loading models" if running.api.is_live() else "starting, and not answering"


def _last(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith(("|", "+"))]
    return f"; the log says: {lines[-1][:_LONGEST]}" if lines else ""
