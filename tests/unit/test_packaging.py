"""What the given top-level layout needs to stay buildable."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from specdeploy import __version__
from specdeploy.config.load import load_config
from specdeploy.config.schema import DeployConfig
from specdeploy.engine.tensorrt_llm.releases import find_release

ROOT = Path(__file__).parents[2]


def test_the_recipes_folder_never_shadows_the_build_tool() -> None:
    """With a ``build/__init__.py``, ``python -m build`` would run our recipes instead of the packaging tool."""
    assert not (ROOT / "build" / "__init__.py").exists()


@pytest.mark.parametrize("recipe", sorted((ROOT / "build").glob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_is_a_valid_configuration(recipe: Path) -> None:
    """Each checked-in recipe loads under the strict schema."""
    assert load_config(recipe, overrides={}, env={}).config.name == recipe.stem


def test_the_image_is_based_on_the_newest_with_the_engine_builder() -> None:
    """The Dockerfile's base is that of the table, and what it copies is there."""
    text = (ROOT / "Dockerfile").read_text()
    newest = find_release(DeployConfig.release).image

    assert newest is not None
    assert f"ARG BASE={newest.tag}\n" in text
    copied = [word for line in text.splitlines() if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_ignore_patterns_are_anchored() -> None:
    """An unanchored ``build/`` in .gitignore would drop the recipes from git and from the sdist."""
    patterns = (ROOT / ".gitignore").read_text().split()

    assert not {"build", "build/", "/build", "/build/"} & set(patterns)


def test_the_version_has_a_changelog_entry() -> None:
    """The version that the package reports is described in CHANGELOG.md."""
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_wheel_ships_what_the_generated_repository_needs(tmp_path: Path) -> None:
    """Model sources, the engine backend, tensor tables and prompts are in the wheel, tests and recipes are not."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()

    wanted = {
        "specdeploy/py.typed",
        "specdeploy/triton/tensors.json",
        "specdeploy/engine/manifest.schema.json",
        "specdeploy/engine/tensorrt_llm/releases.json",
        "specdeploy/engine/llmapi/arguments.json",
        "specdeploy/modelopt/__main__.py",
        "specdeploy/triton/models/speculative_decoder/1/model.py",
        "specdeploy/triton/models/preprocessing/1/model.py",
        "specdeploy/cpu/backend/model.py",
        "specdeploy/bench/data/code.jsonl",
    }
    assert wanted <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "build/"))]
