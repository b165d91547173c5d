"""How often the gate raises a false alarm on real runs: a deployment against itself, load test and gate, many times.

It has tiny engines on a real Triton server of this machine. Each run is ``specdeploy load --control-http`` and
``specdeploy gate`` as a pipeline starts them, each with other prompts first, at concurrency 1. Both arms are one
server: two on the same few cores may differ for as long as a run lasts, which is no false alarm of the gate's.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.deployments import served, specdeploy

if TYPE_CHECKING:
    import subprocess

RUNS = 20
RULE = "output_token_throughput: 5% of control"
#: More prompts in a block than the engines have slots, so that no arm finds the KV cache of the other one.
LOAD = {"load.pairs": "10", "load.requests": "9", "load.max_tokens": "24", "load.warmup_requests": "4"}


def main(runs: int = RUNS) -> None:
    """Print each verdict, how many of each there were, and how busy the machine was."""
    began_s, load_before = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as here:
        seen = Counter(_judged(here, seed) for seed in range(runs))
    took_s = time.monotonic() - began_s
    rule = f"{RULE!r}, {LOAD['load.pairs']} pairs of {LOAD['load.requests']} requests"
    print(f"{runs} runs of one build against itself, {rule}: {_listed(seen)}; {took_s:.0f} s in all")
    print(f"load average of the machine: {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")
    print(json.dumps({f"gate, {runs} real runs: {status}": count for status, count in seen.items()}))


def _judged(here: Path, seed: int) -> str:
    """Measure once, judge, and return the status of the rule."""
    control = _addresses(here)
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
