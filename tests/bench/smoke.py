"""How long the smoke test of the demo's pair takes, and how many of 20 runs on a sound deployment pass.

The runs have seeds of their own, so their sampled answers differ, as those of 20 different days do.
"""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.deployments import specdeploy, write_deployment

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = 20
SAMPLES = 100
#: Of the demo's pair a run takes a minute on two cores; a machine that is busy with other work takes several.
TIMEOUT_S = 600


def rows(recipe: Path) -> list[tuple[str, float]]:
    """Return the seconds of the demo's pair, and how many of the runs on tiny engines passed.

    Args:
        recipe: The demo's configuration.
    """
    # A repository names its engines relative to itself, so it lies where they do.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=recipe.parents[1] / "triton_repo") as scratch:
        place = Path(scratch)
        demo = ("--config", str(recipe), "--set", f"repo.path={place / 'demo'}", "--set", f"report.path={place}")
        with served(place, *demo):
            whole_s, quick_s = (_seconds(place, "smoke", *part, *demo) for part in ((), ("--quick",)))
        write_deployment(place)
        with served(place):
            seeds = [("--samples", str(SAMPLES), "--set", f"smoke.seed={seed}") for seed in range(1, RUNS + 1)]
            codes = [_run(place, "smoke", "--json", *seed) for seed in seeds]
    return [
        ("smoke of the demo's pair, s", whole_s),
        ("smoke --quick of the demo's pair, s", quick_s),
        (f"smoke of a sound deployment: passes of {RUNS} runs", float(codes.count(0))),
    ]


@contextmanager
def served(folder: Path, *configuration: str) -> Iterator[None]:
    """Build a deployment, write its repository, and run its server for the time of the block."""
    for command in (("build",), ("repo",), ("serve", "--detach")):
        if _run(folder, *command, *configuration):
            raise RuntimeError(f"specdeploy {' '.join(command)} failed")
    try:
        yield
    finally:
        _run(folder, "serve", "stop", *configuration)


def _seconds(folder: Path, *arguments: str) -> float:
    started = time.perf_counter()
    if _run(folder, *arguments):
        raise RuntimeError(f"specdeploy {' '.join(arguments)} did not pass")
    return time.perf_counter() - started


def _run(folder: Path, *arguments: str) -> int:
    done = specdeploy(*arguments, cwd=folder, timeout_s=TIMEOUT_S)
    if done.returncode:
        # Why, for whoever runs the benchmark.
        print(done.stderr[-2000:])
        if "--json" in arguments and done.stdout.startswith("{"):
            checks = json.loads(done.stdout)["checks"]
            print([(check["name"], check["reason"]) for check in checks if check["status"] in {"fail", "undecided"}])
    return done.returncode
