"""Several generators as processes of this machine: started, kept in step, stopped together, and made one load test."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from typing import IO, TYPE_CHECKING, Any, Final, Self

from specdeploy.bench.pace import Pace, together
from specdeploy.errors import EnvironmentFault
from specdeploy.system.signals import Endings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: So long after the last generator is ready for a block all of them begin it.
_AHEAD_S: Final = 0.05
_POLL_S: Final = 0.2
#: A generator that was stopped has so long to end: what is in flight has 2 s of it, its report the others.
_STOP_S: Final = 120.0
#: Asked more often than that, they are killed.
_PATIENT: Final = 2
_ERRORS_SHOWN: Final = 4000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Together:
    """How far all generators are.

    Args:
        generators: How many there are.

        block: The block that is running, counted from 1.

        blocks: Blocks of the plan.

        done: Requests done.

        errors: How many of them failed.

        in_flight: Requests that have not ended.

        left_s: Seconds that are left by the plan; None where it does not say.

        pace: How the last requests went.
    """

    generators: int
    block: int
    blocks: int
    done: int
    errors: int
    in_flight: int
    left_s: float | None
    pace: Pace


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the generators ended.

    Args:
        exit_codes: Of each, in order; minus the number of a signal that killed it.

        errors: What each wrote to its standard error, or the end of it.

        stopped_by: What was raised while they ran, by a signal or a listener; None where they ended by themselves.
    """

    exit_codes: tuple[int, ...]
    errors: tuple[str, ...]
    stopped_by: BaseException | None = None


def run_generators(commands: Sequence[Sequence[str]], on_progress: Callable[[Together], None]) -> Outcome:
    """Run one process for each command line until all have ended; when one ends badly, the others are stopped.

    Ctrl-C and SIGTERM stop them, too: each keeps what it measured until then. The second time they do not wait for what
    is in flight, and the third time they are killed.

    Args:
        commands: Each makes a `lockstep.Follower`.

        on_progress: Called when one of them tells how far it is.

    Raises:
        EnvironmentFault: A process cannot be started.
    """
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(_Generator(command)) for command in commands]
        leader = _Leader(running, on_progress)
        error: BaseException | None = None
        with contextlib.suppress(_Over), Endings() as endings:
            while True:
                try:
                    endings.raise_if_asked()
                    leader.step()
                except _Over:
                    raise
                except BaseException as raised:  # noqa: BLE001 - handed on, once the generators have ended
                    leader.stop_sooner()
                    error = error or raised
        return Outcome(
            exit_codes=tuple(generator.process.wait() for generator in running),
            errors=tuple(generator.errors() for generator in running),
            stopped_by=error,
        )


class _Over(Exception):
    """All generators have ended."""


class _Generator:
    """A process that is told when its blocks begin."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the generator
        try:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                # Ctrl-C is for us: we tell them.
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise EnvironmentFault(f"{command[0]} could not be started: {error}") from error
        self.ready: int | None = None
        self.ended = False
        self.told: dict[str, Any] = {}
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None  # noqa: S101 - we asked for a pipe
        self.process.stdout.close()
        self._errors.close()

    def fileno(self) -> int:
        """Return what its lines are read from."""
        assert self.process.stdout is not None  # noqa: S101 - we asked for a pipe
        return self.process.stdout.fileno()

    def begin(self, at_s: float) -> None:
        """Tell when the block begins that it is ready for."""
        self.ready = None
        with contextlib.suppress(BrokenPipeError):
            assert self.process.stdin is not None  # noqa: S101 - we asked for a pipe
            self.process.stdin.write(f"{at_s!r}\n".encode())
            self.process.stdin.flush()

    def stop(self) -> None:
        """Let it end, with what it has measured."""
        assert self.process.stdin is not None  # noqa: S101 - we asked for a pipe
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def hurry(self) -> None:
        """Let it cut off what is in flight: for its run, this is the second signal."""
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End it now."""
        self.process.kill()

    def read(self) -> bool:
        """Take what it says; return whether it said how far it is."""
        data = os.read(self.fileno(), 65536)
        self.ended = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        said = False
        # A library may print something; that is no word of ours.
        for line in (json.loads(line) for line in lines if line.startswith(b"{")):
            if "ready" in line:
                self.ready = line["ready"]
            else:
                self.told, said = line, True
        return said

    def errors(self) -> str:
        """Return the end of what it wrote to its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-_ERRORS_SHOWN:]


class _Leader:
    """Lets the generators begin each block together, and stops them together."""

    def __init__(self, generators: Sequence[_Generator], on_progress: Callable[[Together], None]) -> None:
        self._generators = generators
        self._on_progress = on_progress
        self._selector = selectors.DefaultSelector()
        for generator in generators:
            self._selector.register(generator, selectors.EVENT_READ, generator)
        self._ends_s: float | None = None
        self._asked = 0

    def step(self) -> None:
        """Wait for a moment, and act on what the generators say.

        Raises:
            _Over: All have ended.
        """
        if not self._selector.get_map():
            self._selector.close()
            raise _Over
        if self._ends_s is not None and time.monotonic() > self._ends_s:
            self.stop(at_once=True)
        said = False
        for generator in self._heard():
            said |= generator.read()
            if generator.ended:
                self._selector.unregister(generator)
                if generator.process.wait() != 0:
                    self.stop()
        self._begin()
        if said:
            self._on_progress(self._together())

    def stop(self, *, at_once: bool = False) -> None:
        """Let all end, or kill them."""
        if self._ends_s is None:
            self._ends_s = time.monotonic() + _STOP_S
        for generator in self._generators:
            if at_once and not generator.ended:
                generator.kill()
            generator.stop()

    def stop_sooner(self) -> None:
        """Stop as a user asks for it: the more often, the less is waited for."""
        self._asked += 1
        self.stop(at_once=self._asked > _PATIENT)
        if self._asked == _PATIENT:
            for generator in self._generators:
                if not generator.ended:
                    generator.hurry()

    def _heard(self) -> Iterator[_Generator]:
        for key, _ in self._selector.select(_POLL_S):
            yield key.data

    def _begin(self) -> None:
        """Begin the next block when all that are left are ready for it."""
        left = [generator for generator in self._generators if not generator.ended]
        if self._ends_s is None and left and len({g.ready for g in left}) == 1 and left[0].ready is not None:
            at_s = time.monotonic() + _AHEAD_S
            for generator in left:
                generator.begin(at_s)

    def _together(self) -> Together:
        told = [generator.told for generator in self._generators if generator.told]
        left_s = [line["left_s"] for line in told if line["left_s"] is not None]
        return Together(
            generators=len(self._generators),
            block=max(line["block"] for line in told),
            blocks=max(line["blocks"] for line in told),
            done=sum(line["done"] for line in told),
            errors=sum(line["errors"] for line in told),
            in_flight=sum(line["in_flight"] for line in told),
            left_s=max(left_s, default=None),
            pace=together(Pace(**line["pace"]) for line in told),
        )
