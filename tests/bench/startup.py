"""How long ``specdeploy --help`` takes against an empty Python and against Click alone."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

REPEATS = 15


def _seconds(arguments: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=60)
    return time.perf_counter() - started


def rows() -> list[tuple[str, float]]:
    """Return the start-up ratios; the three programs take turns."""
    programs = {
        "python": ["-c", "pass"],
        "click": ["-c", "import click"],
        "group": ["-m", "specdeploy", "--help"],
        "command": ["-m", "specdeploy", "load", "--help"],
    }
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(REPEATS):
        for name, arguments in programs.items():
            taken[name].append(_seconds(arguments))
    middle = {name: median(values) for name, values in taken.items()}
    return [
        ("specdeploy --help / python -c pass", middle["group"] / middle["python"]),
        ("specdeploy load --help / python -c pass", middle["command"] / middle["python"]),
        ("specdeploy --help / python -c 'import click'", middle["group"] / middle["click"]),
        ("specdeploy --help, ms", 1e3 * middle["group"]),
    ]
