"""Importing the command line is light, so that ``--help`` is instant and works where nothing else is installed."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from specdeploy.cli import COMMANDS

HEAVY = {
    "numpy",
    "scipy",
    "onnx",
    "onnxruntime_genai",
    "tritonclient",
    "grpc",
    "torch",
    "tensorrt_llm",
    "yaml",
    "asyncio",
}


def _loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize("arguments", [["--help"], *[[name, "--help"] for name in COMMANDS]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    """Neither the list of commands nor any command's help imports a heavy package."""
    loaded = _loaded_after(f"from specdeploy.cli import run\nassert run({arguments!r}) == 0")

    assert loaded & HEAVY == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_the_commands_say(name: str) -> None:
    """The one-line summary of each command is the first line of its own help."""
    command = importlib.import_module(f"specdeploy.cli.{name}").command

    assert " ".join(command.help.split("\n\n")[0].split()) == COMMANDS[name]
