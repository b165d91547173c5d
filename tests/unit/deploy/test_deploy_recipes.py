"""What ``serve --dry-run`` prints for the checked-in recipes, word by word: as reviewed, kept in ``command_lines/``.

They are written anew with ``SPECDEPLOY_UPDATE_GOLDENS=1``; the difference is to be read.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from specdeploy.config.load import load_config
from specdeploy.errors import ConfigError
from specdeploy.pipeline.launching import plan
from specdeploy.triton.runtime import cache_dir

ROOT = Path(__file__).parents[3]
EXPECTED = Path(__file__).with_name("command_lines")
CASES = [
    ("smollm2-135m", "embedded"),
    # The same number of ranks for both engines is leader mode; the recipe itself has four and one.
    ("llama-3.3-70b", "leader"),
    ("llama-3.3-70b", "local"),
    ("llama-3.3-70b", "fast-logits"),
    ("llama-3.3-70b", "container"),
    ("qwen2.5-32b", "local"),
    ("qwen2.5-coder-7b-lookahead", "local"),
    ("smollm2-135m-gpu", "local"),
    ("vicuna-7b-medusa", "apptainer"),
    ("vicuna-7b-eagle", "local"),
    ("vicuna-7b-redrafter", "podman"),
    ("llama-3.1-8b-eagle3", "local"),
    ("llama-3.1-8b-eagle3", "container"),
]
KEYS = {
    "leader": {"serve.runner": "local", "draft.tp_size": "4"},
    "fast-logits": {"serve.runner": "local", "speculation.fast_logits": "true", "draft.gpu_ids": "[4]"},
    "podman": {"serve.runner": "container", "container.engine": "podman", "container.user": "1000:1000"},
    "apptainer": {"serve.runner": "container", "container.engine": "apptainer", "container.gpus": "device=1"},
    "container": {"serve.runner": "container", "container.user": "1000:1000"},
}


def shown(recipe: str, how: str, **more: str) -> str:
    """Return a recipe's command with a word a line, and without what differs from machine to machine."""
    overrides = {"serve.http_port": "8000", **KEYS.get(how, {"serve.runner": how}), **more}
    planned = plan(load_config(ROOT / "build" / f"{recipe}.yaml", overrides=overrides, env={}))
    text = f"# {planned.runner}, {planned.placement.mode}\n" + planned.launch.shown().replace(" ", "\n") + "\n"
    text = text.replace(str(cache_dir()), "CACHE").replace(str(ROOT), "ROOT")
    return re.sub(r"python3\.\d+", "python3.N", re.sub(r"triton-[^/]*/", "TRITON/", text))


@pytest.mark.parametrize(("recipe", "how"), CASES)
def test_the_command_line_of_a_recipe(recipe: str, how: str) -> None:
    """Every change of it is seen; it takes neither a GPU, nor docker, nor a tritonserver, nor a repository."""
    text, expected = shown(recipe, how), EXPECTED / f"{recipe}.{how}.txt"
    if os.environ.get("SPECDEPLOY_UPDATE_GOLDENS") == "1":
        expected.write_text(text)

    assert text == expected.read_text()


def test_every_recipe_has_a_command_line() -> None:
    """A new recipe is served by a command that somebody has looked at."""
    assert {recipe for recipe, _ in CASES} == {path.stem for path in (ROOT / "build").glob("*.yaml")}


def test_no_secret_is_shown() -> None:
    """A plan needs no variable that holds one, and blots out one that is written down."""
    key = "serve.http_restricted_api"

    for entry in ("health:x-key=env:SURELY_NOT_SET", "health:x-key=s3cret"):
        text = shown("vicuna-7b-eagle", "local", **{key: f"[{entry}]"})
        assert "--http-restricted-api=health:x-key=***" in text
        assert "s3cret" not in text


def test_no_secret_of_a_container_or_a_launcher_is_shown() -> None:
    """Variables that the user hands to either are named without their values."""
    container = shown("llama-3.3-70b", "container", **{"container.extra_args": "[--env=HF_TOKEN=s3cret]"})
    ranks = shown("llama-3.3-70b", "leader", **{"serve.mpirun": "mpirun -x TOK=s3cret"})

    assert "--env=HF_TOKEN=***" in container
    assert "TOK=***" in ranks.replace("'", "")
    assert "s3cret" not in container + ranks


def test_nvidias_images_are_not_for_engines_of_the_cpu() -> None:
    """They hold its backend and not ours; an image that is named is the user's affair."""
    with pytest.raises(ConfigError, match="no backend for engines of profile cpu"):
        shown("smollm2-135m", "container")

    assert "mine:1" in shown("smollm2-135m", "container", **{"container.image": "mine:1"})


@pytest.mark.parametrize("recipe", ["llama-3.3-70b", "llama-3.1-8b-eagle3"])
def test_the_embedded_server_is_not_for_gpus(recipe: str) -> None:
    """It has no backend that could read their engines."""
    with pytest.raises(ConfigError, match="embedded, whose Triton has no backend"):
        shown(recipe, "embedded")
