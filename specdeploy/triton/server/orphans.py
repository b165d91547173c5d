"""Servers of a run directory that no file describes: found by what their processes carry in their environments.

Their ``server.json`` was damaged or removed, perhaps with the whole directory. Knows the marks (:mod:`.guard` carries
the one of the directory, its server both) and ends what carries them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Final

from specdeploy.deploy.launch import MARK, RUN_MARK
from specdeploy.triton.server.guard import (
    CLEANUP_TIMEOUT_S,
    kill_marked,
    marked_processes,
    remove_shared_memory,
    value_in,
)

if TYPE_CHECKING:
    from pathlib import Path

# How long the guard of such a server waits for requests in flight is only known to itself.
_PATIENCE_S: Final = 60.0 + CLEANUP_TIMEOUT_S
_POLL_S: Final = 0.05


def run_mark(run_dir: Path) -> str:
    """Return the variable that all processes of the servers of a run directory carry."""
    return f"{RUN_MARK}={run_dir.resolve()}"


def find(run_dir: Path) -> tuple[int, ...]:
    """Return the living processes of the servers of *run_dir*, in the order of their numbers."""
    return tuple(sorted(marked_processes(run_mark(run_dir))))


def stop(run_dir: Path) -> bool:
    """End the servers of *run_dir* and all that belongs to them; say whether there was one."""
    found = find(run_dir)
    prefixes = {value_in(pid, MARK) for pid in found}
    guards = [pid for pid in found if not value_in(pid, MARK)]
    # A guard ends its server gently, removes its container and cleans up.
    for pid in guards:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE_S
    while set(guards) & set(find(run_dir)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    kill_marked(run_mark(run_dir))
    for prefix in prefixes:
        remove_shared_memory(prefix)
    return bool(found)
