"""Streams that take nothing: no command takes that for a bug of ours, or for another outcome."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdeploy.cli import _render
from specdeploy.cli import run as run_command
from specdeploy.cli._events import LoadLines
from specdeploy.cli._streams import say
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
def test_a_standard_output_that_is_closed_is_said(command: tuple[str, ...]) -> None:
    """Exit code 4, also where the process was started without one."""
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "specdeploy", *command]
    done = subprocess.run(shell, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=100, check=False)

    assert done.returncode == 4
    assert "the outcome cannot be written to standard output: it is closed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_an_error_is_the_one_that_it_was(monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    """Also where nobody can be told, as people or as a document."""
    monkeypatch.setattr(sys, closed, None)

    assert run_command(["check", "--config", "nothing.yaml", "--json"]) == 2
    LoadLines().close()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_gone_wanted_no_more(command: tuple[str, ...]) -> None:
    """As `| head` does: the outcome is what it is, and nothing is said."""
    whole = run(command)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        done = run(command, stdout=pipe)

    assert (done.returncode, done.stderr) == (whole.returncode, whole.stderr)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-8"])
def test_an_output_that_is_not_utf_8_takes_every_character(encoding: str) -> None:
    """What it has no bytes for is escaped: in a document as JSON does it, so that it is read as what it was."""
    value = {"category": "\u010d \xe9 \U0001f600"}
    table, document = (io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2))
    with contextlib.redirect_stdout(table):
        say(value["category"])
    with contextlib.redirect_stdout(document):
        _render.document(value)
    for stream in (table, document):
        stream.seek(0)

    assert table.read().rstrip() == value["category"].encode(encoding, "backslashreplace").decode(encoding)
    assert json.load(document) == value


def test_errors_that_cannot_be_shown_are_errors_all_the_same() -> None:
    """The exit code says so."""
    with Path("/dev/full").open("w") as full:
        assert run(("check", "--config", "nothing.yaml"), stderr=full).returncode == 2
