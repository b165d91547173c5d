"""``repo`` and ``lint``: the model repository of a deployment's engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdeploy.errors import RepositoryError
from specdeploy.findings import has_errors
from specdeploy.pipeline.workspace import workspace
from specdeploy.system.files import publish_tree
from specdeploy.triton.lint import lint_repository
from specdeploy.triton.repository import build_repository, engine_path
from specdeploy.triton.sources import engine_listing, model_sources, read_repository, tokenizer_files

if TYPE_CHECKING:
    from pathlib import Path

    from specdeploy.config.load import LoadedConfig
    from specdeploy.findings import Finding
    from specdeploy.pipeline.engines import Built


def write_repository(loaded: LoadedConfig, built: Built) -> tuple[Finding, ...]:
    """Generate, publish and lint the model repository; return what lint says.

    Raises:
        RepositoryError: the directory is not ours to replace, or the generated repository is not sound.
    """
    place, draft = workspace(loaded), built.draft
    if loaded.config.profile != "cpu" or draft is None:
        raise RepositoryError(
            f"the repository of profile {loaded.config.profile} cannot be written yet; its engines are built",
            hint="This release writes, serves and measures repositories of profile cpu.",
        )
    tree = build_repository(
        loaded.config,
        built.target,
        draft,
        engine_paths={role: engine_path(path, place.repository) for role, _, path in built.rows()},
        tokenizer_files=tokenizer_files(place.target),
        sources=model_sources(),
    )
    publish_tree(tree, place.repository)
    return lint(place.repository)


def lint(repository: Path) -> tuple[Finding, ...]:
    """Lint any Triton model repository on disk."""
    return lint_repository(read_repository(repository), engine_listing(repository))


def require_sound(repository: Path, findings: tuple[Finding, ...]) -> None:
    """Stop when lint found an error.

    Raises:
        RepositoryError: with every finding.
    """
    if has_errors(findings):
        raise RepositoryError(f"the model repository {repository} is not sound", findings=findings)
