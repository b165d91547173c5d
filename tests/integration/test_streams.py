"""Streams that take nothing: no command takes that for a bug of ours, or for another outcome."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deployments import ROOT

#: Commands that need nothing, and say much or little.
COMMANDS = (("doctor",), ("config", "show", "--config", "build/qwen2.5-32b.yaml", "--json"))


def run(command: tuple[str, ...], **streams: Any) -> subprocess.CompletedProcess[str]:
    """Run a command with other streams."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    words = [sys.executable, "-m", "specdeploy", *command]
    return subprocess.run(words, cwd=ROOT, text=True, timeout=100, check=False, **streams)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_below_standard_output_is_said(command: tuple[str, ...]) -> None:
    """Exit code 4, what it is, and no traceback."""
    with Path("/dev/full").open("w") as full:
        done = run(command, stdout=full)

    assert done.returncode == 4
    assert "the outcome cannot be written to standard output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_gone_wanted_no_more(command: tuple[str, ...]) -> None:
    """As `| head` does: the outcome is what it is, and nothing is said."""
    whole = run(command)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        done = run(command, stdout=pipe)

    assert (done.returncode, done.stderr) == (whole.returncode, whole.stderr)


def test_errors_that_cannot_be_shown_are_errors_all_the_same() -> None:
    """The exit code says so."""
    with Path("/dev/full").open("w") as full:
        assert run(("check", "--config", "nothing.yaml"), stderr=full).returncode == 2
