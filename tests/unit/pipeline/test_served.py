"""The repository that is to be served: is it this deployment's, where are its engines, which models are loaded?"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.config.load import LoadedConfig
from specdeploy.config.schema import DeployConfig, DraftConfig, ModelConfig, RepositoryConfig, ServeConfig
from specdeploy.errors import ConfigError, RepositoryError
from specdeploy.pipeline.served import (
    chosen_models,
    engine_paths,
    engines_are_elsewhere,
    front_door,
    require_repository,
)
from specdeploy.triton.pbtxt import ModelConfig as TritonModel
from specdeploy.triton.pbtxt import render

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = DeployConfig(
    name="pair",
    profile="tensorrt_llm",
    target=ModelConfig(checkpoint="a"),
    draft=DraftConfig(checkpoint="b"),
    repo=RepositoryConfig(path="models"),
)


def loaded(folder: Path, **changes: Any) -> LoadedConfig:
    """Return a configuration of the deployment in *folder*."""
    return LoadedConfig(config=dataclasses.replace(CONFIG, **changes), base_dir=folder, origin={})


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """A deployment whose repository was written for it, with the target's engine beside it."""
    document = {
        "profile": "tensorrt_llm",
        "method": "draft_target",
        "release": CONFIG.release,
        "serving": {"mode": "single", "spawn": True, "processes": 1},
        "defaults": {"max_seq_len": CONFIG.build.max_seq_len, "num_draft_tokens": None},
        "models": ["ensemble", "preprocessing", "speculative_decoder", "tensorrt_llm", "tensorrt_llm_draft"],
    }
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "specdeploy.json").write_text(json.dumps(document))
    (tmp_path / "engines" / "target").mkdir(parents=True)
    engine(tmp_path, "tensorrt_llm", "../engines/target")
    engine(tmp_path, "tensorrt_llm_draft", "../engines/draft")
    return tmp_path


def engine(folder: Path, name: str, path: str) -> None:
    """Write the configuration of an engine's model."""
    model = TritonModel(name=name, backend="tensorrtllm", parameters={"gpt_model_path": path})
    (folder / "models" / name).mkdir(exist_ok=True)
    (folder / "models" / name / "config.pbtxt").write_text(render(model))


def test_a_repository_of_this_deployment_is_taken(folder: Path) -> None:
    """What a repository does not say is not held against it."""
    require_repository(loaded(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"release": "0.17.0"}, "was written with release 1.2.1, and the configuration now has 0.17.0"),
        ({"build": dataclasses.replace(CONFIG.build, max_seq_len=77)}, "max_seq_len"),
        ({"target": dataclasses.replace(CONFIG.target, tp_size=2)}, "served as single .* now for orchestrator"),
        ({"profile": "llmapi"}, "is for profile tensorrt_llm"),
        ({"repo": RepositoryConfig(path="absent")}, "is not there"),
    ],
    ids=["release", "length", "ranks", "profile", "absent"],
)
def test_a_repository_that_was_written_for_something_else_is_refused(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    """What is measured must be what is served, and its ranks must be started as it says."""
    with pytest.raises(RepositoryError, match=message):
        require_repository(loaded(folder, **changes))


def test_a_model_that_is_not_there_is_found_before_the_start(folder: Path) -> None:
    """With the nearest one that is."""
    with pytest.raises(ConfigError, match="'ensembl'") as refused:
        require_repository(loaded(folder, serve=ServeConfig(models=("ensembl",))))

    assert "ensemble" in refused.value.hint


def test_a_front_door_brings_the_engines_that_its_decoder_calls() -> None:
    """Triton knows an ensemble's steps, and not whom the code of one calls."""
    chosen = dataclasses.replace(CONFIG, serve=ServeConfig(models=("ensemble",)))
    alone = dataclasses.replace(CONFIG, serve=ServeConfig(models=("preprocessing",)))

    assert chosen_models(chosen) == ("ensemble", "tensorrt_llm", "tensorrt_llm_draft")
    assert chosen_models(alone) == ("preprocessing",)
    assert chosen_models(CONFIG) == ()


@pytest.mark.parametrize(
    ("models", "door"),
    [((), "ensemble"), (("tensorrt_llm_bls",), "tensorrt_llm_bls"), (("preprocessing",), "")],
)
def test_the_front_door_is_one_that_is_loaded(folder: Path, models: tuple[str, ...], door: str) -> None:
    """By either of its names; without one there is nothing to ask."""
    assert front_door(loaded(folder, serve=ServeConfig(models=models))) == door


def test_engines_are_where_the_repository_says(folder: Path) -> None:
    """Relative to it, or anywhere; a model that cannot be read names none."""
    (folder / "models" / "tensorrt_llm_draft" / "config.pbtxt").write_text("nonsense {")

    assert engine_paths(folder / "models") == (folder / "engines" / "target",)
    assert not engines_are_elsewhere(folder / "models")


def test_absolute_paths_that_are_not_here_are_those_of_another_machine(folder: Path) -> None:
    """Of an image, or of a volume; a relative one that is not there is a mistake."""
    for name in ("tensorrt_llm", "tensorrt_llm_draft"):
        engine(folder, name, f"/surely/not/here/{name}")
    assert engines_are_elsewhere(folder / "models")

    engine(folder, "tensorrt_llm", "../gone")
    assert not engines_are_elsewhere(folder / "models")
