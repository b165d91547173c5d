"""Finds in milliseconds what Triton reveals after minutes, at the first request, or never.

Knows a repository as a value and returns every finding at once. Does not read files: the caller hands in the tree and,
if engines are to be checked, a function that looks an engine directory up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint import (
    callers,
    code,
    decoder,
    engines,
    ensemble,
    layout,
    parameters,
    placeholders,
    placement,
    secrets,
    speculation,
    tensors,
)
from specdeploy.triton.lint.loaded import load, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.findings import Finding
    from specdeploy.triton.lint.loaded import EngineListing, Repository
    from specdeploy.triton.repository import RepoTree

CHECKS: Final[tuple[Callable[[Repository], Iterator[Finding]], ...]] = (
    layout.has_models,
    layout.unseen,
    placeholders.placeholders,
    layout.configurations,
    tensors.tensors,
    tensors.formats,
    tensors.labels,
    tensors.warmups,
    ensemble.ensembles,
    ensemble.cycles,
    callers.references,
    callers.passed_tensors,
    callers.rounds,
    parameters.known,
    parameters.values,
    engines.directories,
    engines.stored,
    engines.releases,
    engines.limits,
    engines.written_limits,
    speculation.targets_and_drafts,
    speculation.built_in,
    speculation.vocabularies,
    placement.ranks,
    placement.worlds,
    placement.fast_logits,
    placement.memory,
    decoder.decoder,
    code.python_files,
    code.called_models,
    code.environments,
    code.tokenizers,
    secrets.secrets,
    layout.manifest,
)


def lint_repository(tree: RepoTree, engine_at: EngineListing | None = None) -> tuple[Finding, ...]:
    """Return everything that is wrong with a model repository; nothing for one that Triton serves correctly.

    Args:
        tree: Path -> bytes, as :func:`specdeploy.triton.repository.build_repository` returns it; a path that ends with
            ``/`` is an empty directory.
        engine_at: ``gpt_model_path`` -> what lies there, None for no such directory. Without it engine directories are
            not looked at.
    """
    repository = load(tree, engine_at)
    return tuple(finding for check in CHECKS for finding in _found(check, repository))


def _found(check: Callable[[Repository], Iterator[Finding]], repository: Repository) -> Iterator[Finding]:
    """Yield what one check finds; a mistake in it is a finding, too, and the others still have their say."""
    try:
        yield from check(repository)
    except Exception as problem:  # noqa: BLE001 - anybody's files come here, and one check must not hide the others
        name = f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
        yield warning(
            "lint.check-failed",
            f"the check {name} ended with {type(problem).__name__}: {str(problem)[:200]}; this is a bug of specdeploy, "
            "not of the repository",
            where=".",
            hint="report it; everything else was checked",
        )
