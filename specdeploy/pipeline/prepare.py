"""``repo`` and ``lint``: the model repository of a deployment's engines."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from specdeploy.errors import RepositoryError
from specdeploy.findings import has_errors
from specdeploy.pipeline.workspace import workspace
from specdeploy.system.files import publish_tree
from specdeploy.triton.lint import lint_repository
from specdeploy.triton.repository import (
    EngineFacts,
    KvBudget,
    build_repository,
    default_budgets,
    engine_path,
    names,
)
from specdeploy.triton.repository.llm_arguments import relocate
from specdeploy.triton.server.state import load_state
from specdeploy.triton.sources import engine_listing, model_sources, read_repository, tokenizer_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.config.load import LoadedConfig
    from specdeploy.config.schema import DeployConfig
    from specdeploy.findings import Finding
    from specdeploy.pipeline.engines import Built
    from specdeploy.planning.memory import MemoryPlan


def write_repository(loaded: LoadedConfig, built: Built) -> tuple[Finding, ...]:
    """Generate, lint and publish the model repository; return what lint says. One that is not sound is not published.

    Raises:
        RepositoryError: the directory is not ours to replace, or the generated repository is not sound.
    """
    config, place = loaded.config, workspace(loaded)
    tree = build_repository(
        config,
        {role: EngineFacts.of(manifest) for role, manifest, _ in built.rows()},
        engine_paths={
            role: engine_path(path, place.repository, root=config.repo.engine_root) for role, _, path in built.rows()
        },
        tokenizer_files=tokenizer_files(place.target_tokenizer or place.target),
        sources=model_sources(),
        kv=_budgets(config, built.checked.memory),
        model_yaml=_model_yaml(config, built, place.repository),
    )
    # What lies elsewhere when it is served cannot be looked at here.
    root = Path(config.repo.engine_root)
    elsewhere = root.is_absolute() and not root.is_dir()
    findings = lint_repository(tree, None if elsewhere else engine_listing(place.repository))
    require_sound(place.repository, findings)
    publish_tree(tree, place.repository)
    return findings


def served_by(loaded: LoadedConfig) -> int | None:
    """Return the process of the server that runs from this deployment's repository; None where none does."""
    state = load_state(workspace(loaded).run)
    return state.server.pid if state is not None and state.server.is_alive() else None


def _budgets(config: DeployConfig, memory: MemoryPlan | None) -> Mapping[str, KvBudget]:
    """Return what the memory plan gives each KV cache, and where it cannot tell what is usual."""
    budgets = dict(default_budgets(config))
    for share in () if memory is None else memory.kv_shares:
        if share.fraction and share.tokens:
            budgets[share.role] = KvBudget(fraction=share.fraction, tokens=share.tokens if share.advised else None)
    return budgets


def _model_yaml(config: DeployConfig, built: Built, repository: Path) -> str:
    """Return the LLM API's arguments with its checkpoints named as the repository will find them."""
    if config.profile != "llmapi":
        return ""
    sources = built.checked.sources
    folders = [part.path for part in (sources.target, sources.draft, sources.head) if part is not None]
    root = config.repo.engine_root
    text = (built.paths[0] / names.MODEL_YAML).read_text(encoding="utf-8")
    return relocate(text, {folder: engine_path(PurePath(folder), repository, root=root) for folder in folders})


def lint(repository: Path, *, engines: bool = True) -> tuple[Finding, ...]:
    """Lint any Triton model repository on disk; *engines* says whether to look at those, which may lie elsewhere."""
    return lint_repository(read_repository(repository), engine_listing(repository) if engines else None)


def require_sound(repository: Path, findings: tuple[Finding, ...]) -> None:
    """Stop when lint found an error.

    Raises:
        RepositoryError: with every finding.
    """
    if has_errors(findings):
        raise RepositoryError(f"the model repository {repository} is not sound", findings=findings)
