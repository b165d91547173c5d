"""What a server is started with: its run directory, its backends, its command line and its environment.

Knows the flags of tritonserver 2.51 and where the embedded runtime keeps things. Starts nothing.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError, EnvironmentFault
from specdeploy.system.files import OWNER_TAG
from specdeploy.triton.server.state import EXIT_FILE, LOG_FILE, STATE_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from specdeploy.triton.runtime import Runtime
    from specdeploy.triton.server.ports import Endpoints

# Seconds that a stopping server waits for requests in flight.
EXIT_TIMEOUT_S: Final = 5
_TAG_TEXT: Final = (
    "Run directory of a specdeploy server: its log, state and backends. Safe to delete when it is stopped.\n"
)
# They could lead the model processes' Python away from the runtime's own packages.
_DROPPED: Final = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "LD_PRELOAD"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDir:
    """The run directory of a server, and where things are in it."""

    path: Path

    @property
    def backends(self) -> Path:
        """Triton's ``--backend-directory``."""
        return self.path / "backends"

    def backend_names(self) -> list[str]:
        """Return the backends that are installed in it."""
        return sorted(folder.name for folder in self.backends.iterdir())

    @property
    def log(self) -> Path:
        """The server's log."""
        return self.path / LOG_FILE

    @property
    def exit_file(self) -> Path:
        """Where the guard says how the server ended."""
        return self.path / EXIT_FILE


def prepare_run_dir(path: Path, runtime: Runtime, backends: Mapping[str, Mapping[str, bytes]]) -> RunDir:
    """Make a run directory for a new server, over an earlier one of ours.

    Args:
        path: The directory.
        runtime: The embedded runtime.
        backends: Further backends: name -> file -> bytes.

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
        _write_backends(run.backends, runtime, backends)
    except OSError as error:
        raise EnvironmentFault(f"the run directory {path} cannot be written: {error}") from error
    return run


def command(runtime: Runtime, repository: Path, run: RunDir, endpoints: Endpoints, shm_prefix: str) -> list[str]:
    """Return the command line of a server; every address and port is given, since the defaults listen to everybody."""
    return [
        str(runtime.tritonserver),
        f"--model-repository={repository}",
        f"--backend-directory={run.backends}",
        # Configurations are complete; completing them would start every model process twice.
        "--disable-auto-complete-config",
        f"--http-address={endpoints.host}",
        f"--http-port={endpoints.http_port}",
        f"--grpc-address={endpoints.host}",
        f"--grpc-port={endpoints.grpc_port}",
        f"--metrics-address={endpoints.host}",
        f"--metrics-port={endpoints.metrics_port}",
        "--allow-gpu-metrics=false",
        "--pinned-memory-pool-byte-size=0",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        # So that what a killed server leaves in shared memory can be told from others'; each backend is told by itself.
        *(f"--backend-config={backend},shm-region-prefix-name={shm_prefix}" for backend in run.backend_names()),
    ]


def environment(runtime: Runtime, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server: ours, with the runtime's Python first and nothing that leads it astray."""
    kept = {name: value for name, value in inherited.items() if name not in _DROPPED}
    return kept | {
        # The first python3 on PATH decides whose packages the model processes see.
        "PATH": f"{runtime.python.parent}{os.pathsep}{inherited.get('PATH', os.defpath)}",
        "LD_LIBRARY_PATH": str(runtime.library_path),
    }


def _write_backends(root: Path, runtime: Runtime, backends: Mapping[str, Mapping[str, bytes]]) -> None:
    python = root / "python"
    python.mkdir(parents=True)
    # Copies: Triton refuses a library or a directory that is linked from outside for backends made of Python.
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        shutil.copy2(runtime.python_backend / name, python / name)
    (python / runtime.stub.name).symlink_to(runtime.stub)
    for backend, files in backends.items():
        for name, data in files.items():
            file = root / backend / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
