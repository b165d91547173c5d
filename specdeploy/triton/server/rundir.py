"""The run directory of a server: its log, its state, how it ended, and the backends that it brings.

Knows where things are in it and whether it is ours. Starts nothing.
"""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError, EnvironmentFault
from specdeploy.system.files import OWNER_TAG
from specdeploy.triton.server.state import EXIT_FILE, LOG_FILE, STATE_FILE

if TYPE_CHECKING:
    from pathlib import Path

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


def prepare_run_dir(path: Path) -> RunDir:
    """Make a run directory for a new server, over an earlier one of ours.

    Raises:
        ConfigError: *path* holds something that is not ours.
        EnvironmentFault: It cannot be written.
    """
    run = RunDir(path=path)
    if path.exists() and not (path.is_dir() and ((path / OWNER_TAG).is_file() or not any(path.iterdir()))):
        raise ConfigError(f"{path} is not a run directory of ours", hint="name an empty or new directory")
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / OWNER_TAG).write_text(_TAG_TEXT, encoding="utf-8")
        for stale in (path / STATE_FILE, run.log, run.exit_file):
            stale.unlink(missing_ok=True)
        shutil.rmtree(run.backends, ignore_errors=True)
    except OSError as error:
        raise EnvironmentFault(f"the run directory {path} cannot be written: {error}") from error
    return run
