"""How long ``specdeploy --help`` takes against an empty Python and against Click alone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

REPEATS = 15


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    return time.perf_counter() - started


def rows() -> list[tuple[str, float]]:
    """Return the start-up ratios; the three programs take turns."""
    script = str(Path(sys.executable).with_name("specdeploy"))
    programs = {
        "python": [sys.executable, "-c", "pass"],
        "click": [sys.executable, "-c", "import click"],
        "group": [script, "--help"],
        "command": [script, "load", "--help"],
    }
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(REPEATS):
        for name, command in programs.items():
            taken[name].append(_seconds(command))
    middle = {name: median(values) for name, values in taken.items()}
    return [
        ("specdeploy --help / python -c pass", middle["group"] / middle["python"]),
        ("specdeploy load --help / python -c pass", middle["command"] / middle["python"]),
        ("specdeploy --help / python -c 'import click'", middle["group"] / middle["click"]),
        ("specdeploy --help, ms", 1e3 * middle["group"]),
    ]
