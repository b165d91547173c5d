"""How often the gate raises a false alarm on real runs: two deployments of one build, load test and gate, many times.

Both are tiny engines on real Triton servers of this machine. Each run is ``specdeploy load --control-http`` and
``specdeploy gate`` as a pipeline starts them, each with other prompts first, at concurrency 1.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.deployments import served, specdeploy

if TYPE_CHECKING:
    import subprocess

RUNS = 20
RULE = "output_token_throughput: 5% of control"
LOAD = {"load.pairs": "15", "load.requests": "4", "load.max_tokens": "24", "load.warmup_requests": "4"}


def main(runs: int = RUNS) -> None:
    """Print each verdict, how many of each there were, and how busy the machine was."""
    began_s, load_before = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        here, before = (stack.enter_context(served(_made(Path(folder, name)))) for name in ("here", "before"))
        seen = Counter(_judged(here, before, seed) for seed in range(runs))
    took_s = time.monotonic() - began_s
    rule = f"{RULE!r}, {LOAD['load.pairs']} pairs of {LOAD['load.requests']} requests"
    print(f"{runs} runs of one build against itself, {rule}: {_listed(seen)}; {took_s:.0f} s in all")
    print(f"load average of the machine: {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")
    print(json.dumps({f"gate, {runs} real runs: {status}": count for status, count in seen.items()}))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _judged(here: Path, before: Path, seed: int) -> str:
    """Measure once, judge, and return the status of the rule."""
    control = _addresses(before)
    words = [f"--control-http={control['http_url']}", f"--control-grpc={control['grpc_url']}"]
    words += [f"--set={key}={value}" for key, value in {**LOAD, "load.seed": str(seed)}.items()]
    _require(specdeploy("load", *words, cwd=here))
    specdeploy("gate", "--rule", RULE, cwd=here)
    (rule,) = json.loads((here / "reports" / "gate.json").read_text())["rules"]
    print(f"{seed + 1:3d}  {rule['status']:12s} {rule['reason']}", flush=True)
    return str(rule["status"])


def _addresses(folder: Path) -> dict[str, str]:
    done = specdeploy("serve", "status", "--json", cwd=folder)
    _require(done)
    return dict(json.loads(done.stdout))


def _require(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def _listed(seen: Counter[str]) -> str:
    words = {"fail": "false alarms", "pass": "passed"}
    return ", ".join(f"{seen[status]} {words.get(status, status)}" for status in ("fail", "pass", "undecided"))
