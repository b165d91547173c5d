"""The model repository that is to be served, as it lies on disk: what it holds, and whether it is this deployment's.

Knows the configuration and the repository's files. Knows no server.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdeploy.config.values import nearest
from specdeploy.errors import ConfigError, RepositoryError
from specdeploy.pipeline.workspace import workspace
from specdeploy.planning.placement import place
from specdeploy.triton.pbtxt import PbtxtError, parse
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.config.load import LoadedConfig
    from specdeploy.config.schema import DeployConfig


def front_door(loaded: LoadedConfig) -> str:
    """Return the model that requests go to; empty when the server does not load it."""
    served = chosen_models(loaded.config) or _models(workspace(loaded).repository, loaded.config)
    return next((door for door in (names.ENSEMBLE, names.BLS) if door in served), "")


def chosen_models(config: DeployConfig) -> tuple[str, ...]:
    """Return the models that are to be loaded, none for all: a decoder calls its engines, which Triton cannot know."""
    chosen = config.serve.models
    callers = {names.ENSEMBLE, names.BLS, names.DECODER}
    called = names.engine_models(config).values() if callers.intersection(chosen) else ()
    return tuple(dict.fromkeys([*chosen, *called]))


def repository_document(repository: Path) -> dict[str, Any]:
    """Return what ``specdeploy.json`` of a repository says; empty when there is none."""
    try:
        document = json.loads((repository / names.MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def require_repository(loaded: LoadedConfig) -> None:
    """Refuse a repository that is not there, not ours, or another deployment profile's."""
    config, repository = loaded.config, workspace(loaded).repository
    if not repository.is_dir():
        what = "is not a directory" if repository.exists() else "is not there"
        raise RepositoryError(f"the model repository {repository} {what}", hint="write it with `specdeploy repo`")
    document = repository_document(repository)
    profile = document.get("profile")
    if profile is None:
        raise RepositoryError(
            f"{repository} is no model repository of specdeploy: it has no readable {names.MANIFEST}",
            hint="point repo.path to one that `specdeploy repo` wrote, or write it there",
        )
    if profile != config.profile:
        raise RepositoryError(
            f"the model repository {repository} is for profile {profile}, and the configuration is for "
            f"{config.profile}",
            hint="write it again with `specdeploy repo`, or point repo.path to another",
        )
    _require_same(config, repository, document)
    _require_models(config, repository)
    _require_placement(config, repository)


def engines_are_elsewhere(repository: Path) -> bool:
    """Say whether the repository names its engines by absolute paths that are not of this machine."""
    paths = [Path(written) for written in _written_engine_paths(repository)]
    return bool(paths) and all(path.is_absolute() and not path.exists() for path in paths)


def engine_paths(repository: Path) -> tuple[Path, ...]:
    """Return where the repository's engines are, as far as it can be read."""
    return tuple(Path(os.path.normpath(repository / written)) for written in _written_engine_paths(repository))


def _models(repository: Path, config: DeployConfig) -> tuple[str, ...]:
    return tuple(repository_document(repository).get("models", names.model_names(config)))


def _written_engine_paths(repository: Path) -> tuple[str, ...]:
    found = []
    for name in names.ENGINE_MODELS.values():
        with contextlib.suppress(OSError, ValueError, PbtxtError):
            model = parse((repository / name / names.CONFIG).read_text(encoding="utf-8"))
            found.append(model.parameters.get("gpt_model_path", ""))
    return tuple(path for path in found if path)


def _require_same(config: DeployConfig, repository: Path, document: Mapping[str, Any]) -> None:
    """Refuse a repository that was written with other values than the configuration has now.

    What is measured would be called by the name of what is not served.
    """
    written = {**_section(document, "defaults"), **{key: document.get(key) for key in ("method", "release")}}
    wanted = {
        "method": config.speculation.method,
        "release": config.release,
        "max_seq_len": config.build.max_seq_len,
        "max_inflight": config.build.max_batch_size,
        "num_draft_tokens": config.speculation.num_draft_tokens,
    }
    for key, value in wanted.items():
        # A deployment that drafts on its own has no number of drafts.
        if written.get(key) not in (None, value):
            raise RepositoryError(
                f"the model repository {repository} was written with {key} {written[key]}, and the configuration now "
                f"has {value}",
                hint="write it again with `specdeploy repo`, or set the configuration back",
            )


def _section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _require_models(config: DeployConfig, repository: Path) -> None:
    """Refuse a model that the repository does not have, before anything is started."""
    listed = _models(repository, config)
    for name in config.serve.models:
        if name not in listed and not (repository / name).is_dir():
            raise ConfigError(
                f"serve.models names {name!r}, and the repository has no such model",
                hint=nearest(name, listed) or f"it has {', '.join(listed)}",
            )


def _require_placement(config: DeployConfig, repository: Path) -> None:
    """Refuse a repository that was written for another way to start its ranks: they would wait for each other."""
    written = repository_document(repository).get("serving")
    placement = place(config)
    wanted = {"mode": placement.mode, "spawn": placement.spawn, "processes": placement.processes}
    if config.profile == "tensorrt_llm" and isinstance(written, dict) and written != wanted:
        raise RepositoryError(
            f"the model repository {repository} was written to be served as {_shown(written)}, and the configuration "
            f"is now for {_shown(wanted)}",
            hint="write it again with `specdeploy repo`",
        )


def _shown(serving: Mapping[str, Any]) -> str:
    spawn = "" if serving.get("spawn", True) else ", ranks beside it"
    return f"{serving.get('mode')} ({serving.get('processes')} processes{spawn})"
