"""The load generators that ours is compared with: AIPerf and guidellm, in an environment of their own.

What they depend on is not what the toolkit does, so they run as other processes.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PROGRAMS: Final = ("aiperf", "guidellm")
_INSTALL: Final = ROOT / ".ci" / "install-peers"
_INSTALL_S: Final = 1800


def missing() -> str | None:
    """Say which of them this machine lacks, or None when it has both."""
    absent = [name for name in PROGRAMS if not program(name).is_file()]
    return f"{' and '.join(absent)} not installed in .venv/peers; `.ci/install-peers`" if absent else None


def python() -> Path:
    """Return the interpreter that has them, whether or not it is there."""
    return Path(os.environ.get("SPECDEPLOY_PEERS_PYTHON", ROOT / ".venv" / "peers" / "bin" / "python"))


def program(name: str) -> Path:
    """Return the command of one of them, whether or not it is there."""
    return python().parent / name


def install() -> None:
    """Make their environment; a second call returns at once.

    Raises:
        subprocess.CalledProcessError: It cannot be made; what was said is on the standard error stream.
    """
    subprocess.run([_INSTALL], check=True, timeout=_INSTALL_S)
