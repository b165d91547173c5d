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
    placement,
    speculation,
    tensors,
)
from specdeploy.triton.lint.loaded import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.findings import Finding
    from specdeploy.triton.lint.loaded import EngineListing, Repository
    from specdeploy.triton.repository import RepoTree

CHECKS: Final[tuple[Callable[[Repository], Iterator[Finding]], ...]] = (
    layout.has_models,
    layout.placeholders,
    layout.configurations,
    tensors.tensors,
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
    code.secrets,
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
    return tuple(finding for check in CHECKS for finding in check(repository))
