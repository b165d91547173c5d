"""Finds in milliseconds what Triton reveals after minutes, at the first request, or never.

Knows a repository as a value and returns every finding at once. Does not read files: the caller hands in the tree and,
if engines are to be checked, a function that lists an engine directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint import code, ensemble, layout, speculation
from specdeploy.triton.lint.loaded import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.findings import Finding
    from specdeploy.triton.lint.loaded import Repository
    from specdeploy.triton.repository import RepoTree

CHECKS: Final[tuple[Callable[[Repository], Iterator[Finding]], ...]] = (
    layout.has_models,
    layout.placeholders,
    layout.configurations,
    ensemble.ensembles,
    speculation.references,
    speculation.engines,
    speculation.decoder,
    speculation.vocabularies,
    speculation.engine_limits,
    code.python_files,
    code.tokenizers,
    code.secrets,
    layout.manifest,
)


def lint_repository(
    tree: RepoTree, engine_files: Callable[[str], frozenset[str] | None] | None = None
) -> tuple[Finding, ...]:
    """Return everything that is wrong with a model repository; nothing for one that Triton serves correctly.

    Args:
        tree: Path -> bytes, as :func:`specdeploy.triton.repository.build_repository` returns it.
        engine_files: ``gpt_model_path`` -> names of the non-empty files there, None for no such directory. Without it
            engine directories are not looked at.
    """
    repository = load(tree, engine_files)
    return tuple(finding for check in CHECKS for finding in check(repository))
