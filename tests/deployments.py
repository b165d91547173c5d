"""A small deployment of tiny random checkpoints, and the command line as its users start it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.tiny import perturb_checkpoint, write_tiny_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
#: Longer than a command takes to end on a busy machine.
ENDS_WITHIN_S = 60.0

CONFIG = """\
name: tiny
target:
  checkpoint: target
draft:
  checkpoint: draft
build:
  max_seq_len: 1024
repo:
  path: models
smoke:
  max_tokens: 24
  samples: 0
load:
  pairs: 2
  requests: 5
  warmup_requests: 1
  max_tokens: 16
gate:
  rules:
    - error_rate <= 0
    - overall_spec_decode_acceptance_length >= 1.2
"""


def write_deployment(folder: Path) -> Path:
    """Write two tiny checkpoints that agree often, and their configuration; return the configuration."""
    write_tiny_checkpoint(folder / "target", seed=1, max_positions=1024)
    perturb_checkpoint(folder / "target", folder / "draft", 0.02)
    config = folder / "specdeploy.yaml"
    config.write_text(CONFIG)
    return config


def specdeploy(
    *arguments: str, cwd: Path, timeout_s: float = 240, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command line to its end and return what it printed."""
    return subprocess.run(
        [sys.executable, "-m", "specdeploy", *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def start(folder: Path, command: Sequence[str]) -> subprocess.Popen[str]:
    """Start one command line, to be ended by :func:`finish`."""
    return subprocess.Popen(
        [sys.executable, "-m", "specdeploy", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what was printed; a process that does not end soon fails the test."""
    try:
        return process.communicate(timeout=ENDS_WITHIN_S)
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Path]:
    """Build a deployment of tiny checkpoints in a folder, and run its server for the time of the block."""
    write_deployment(folder)
    try:
        for command in (("build",), ("repo",), ("serve", "--detach")):
            done = specdeploy(*command, cwd=folder)
            assert done.returncode == 0, done.stderr
        yield folder
    finally:
        specdeploy("serve", "stop", cwd=folder)
