"""A small deployment of tiny random checkpoints, and the command line as its users start it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.tiny import perturb_checkpoint, write_tiny_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

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
