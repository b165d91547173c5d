"""The run directory of a server: its log, its state, how it ended, and the backends that it brings.

Knows where things are in it and whether it is ours. Starts nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError, EnvironmentFault, ServerFault
from specdeploy.system.files import OWNER_TAG, locked_if_free
from specdeploy.triton.server.state import EXIT_FILE, LOG_FILE, STATE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_FILE: Final = "start.lock"
_TAG_TEXT: Final = (
    "Run directory of a specdeploy server: its log, state and backends. Safe to delete when it is stopped.\n"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDir:
    """The run directory of a server, and where things are in it."""

    path: Path

    @property
    def backends(self) -> Path:
        """Triton's ``--backend-directory``, of a server that does not bring its own."""
        return self.path / "backends"

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.path / LOG_FILE

    @property
    def exit_file(self) -> Path:
        """Where the guard says how the server ended."""
        return self.path / EXIT_FILE


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[RunDir]:
    """Make a run directory, or take an earlier one of ours, and keep other starts out of it during the block.

    Raises:
        ConfigError: *path* holds something that is not ours.
        EnvironmentFault: It cannot be written.
        ServerFault: Another process is just starting a server from it.
    """
    _make(path)
    with contextlib.ExitStack() as held:
        try:
            free = held.enter_context(locked_if_free(path / LOCK_FILE))
        except OSError as error:
            raise _unwritable(path, error) from error
        if not free:
            raise ServerFault(
                f"another command is just starting a server from {path}",
                hint="`specdeploy serve status` shows it when it has started",
            )
        yield RunDir(path=path)


def being_claimed(path: Path) -> bool:
    """Say whether somebody is just starting a server from a run directory."""
    if not (path / LOCK_FILE).is_file():
        return False
    try:
        with locked_if_free(path / LOCK_FILE) as free:
            return not free
    except OSError:
        return False


def clear(run: RunDir) -> None:
    """Remove what an earlier server left in a run directory.

    Raises:
        EnvironmentFault: It cannot be written.
    """
    try:
        for stale in (run.path / STATE_FILE, run.log, run.exit_file):
            stale.unlink(missing_ok=True)
        shutil.rmtree(run.backends, ignore_errors=True)
    except OSError as error:
        raise _unwritable(run.path, error) from error


def _make(path: Path) -> None:
    if path.exists() and not (path.is_dir() and ((path / OWNER_TAG).is_file() or not any(path.iterdir()))):
        raise ConfigError(f"{path} is not a run directory of ours", hint="name an empty or new directory")
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / OWNER_TAG).write_text(_TAG_TEXT, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(f"the run directory {path} cannot be written: {error}")
