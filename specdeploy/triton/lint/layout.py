"""Checks of files and of single configurations: what Triton refuses to load, whatever the models are for."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint.loaded import Model, Repository, error, line_of, warning
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.findings import Finding
    from specdeploy.triton.pbtxt import ModelConfig, Tensor

_PLACEHOLDER: Final = re.compile(r"\$\{\w*\}?")
_FILLED_IN: Final = (".pbtxt", ".yaml", ".yml")
_REWRITE: Final = "write the repository again with `specdeploy repo`"


def has_models(repository: Repository) -> Iterator[Finding]:
    """An empty repository loads, and serves nothing."""
    if not repository.models:
        yield error("repo.no-models", "the repository holds no model directory", where=".", hint=_REWRITE)


def placeholders(repository: Repository) -> Iterator[Finding]:
    """``${...}`` in a number stops Triton; in a string it is silently taken for "not set"."""
    for path, data in repository.tree.items():
        if not path.endswith(_FILLED_IN):
            continue
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), 1):
            for found in _PLACEHOLDER.findall(line.split("#")[0]):
                yield error(
                    "repo.placeholder", f"{found} was not filled in", where=f"{path}:{number}", hint="give it a value"
                )


def configurations(repository: Repository) -> Iterator[Finding]:
    """Every model needs a config.pbtxt that parses, named as its directory, a backend, and a version directory."""
    for model in repository.models.values():
        yield from _file(model)
        if model.config is not None:
            yield from _names(model, model.config)
            yield from _tensors(model, model.config)
        if not model.versions:
            yield error(
                "repo.version-missing",
                f"{model.directory} has no version directory such as 1/",
                where=model.directory,
                hint=f"make {model.directory}/1, with a file in it so that it is kept",
            )


def manifest(repository: Repository) -> Iterator[Finding]:
    """Files that ``specdeploy.json`` lists are there, and as they were written."""
    if names.MANIFEST in repository.tree and repository.manifest is None:
        yield error("repo.manifest-unreadable", "not a JSON object", where=names.MANIFEST, hint=_REWRITE)
    listed = (repository.manifest or {}).get("files", {})
    for path, facts in listed.items():
        data = repository.tree.get(path)
        if data is None:
            yield error("repo.file-missing", f"{path} is listed in {names.MANIFEST}", where=path, hint=_REWRITE)
        elif hashlib.sha256(data).hexdigest() != facts.get("sha256"):
            yield warning("repo.file-changed", "edited since the repository was written", where=path, hint=_REWRITE)


def _file(model: Model) -> Iterator[Finding]:
    if model.text is None:
        yield error(
            "repo.config-missing", f"{model.directory} has no {names.CONFIG}", where=model.directory, hint=_REWRITE
        )
    elif model.error is not None and not _caused_by_placeholder(model):
        line = f":{model.error.line}" if model.error.line else ""
        yield error("repo.pbtxt-parse", model.error.message, where=f"{model.where}{line}", hint="mend the line")


def _caused_by_placeholder(model: Model) -> bool:
    """Say whether the line that does not parse holds a placeholder, which is a finding of its own."""
    if model.error is None or model.error.line is None or model.text is None:
        return False
    lines = model.text.splitlines()
    return "${" in "".join(lines[model.error.line - 1 : model.error.line])


def _names(model: Model, config: ModelConfig) -> Iterator[Finding]:
    if config.name and config.name != model.directory:
        yield error(
            "repo.name-differs",
            f"the configuration is named {config.name!r}, its directory {model.directory!r}",
            where=_at(model, "name"),
            hint="name it as its directory",
        )
    if not config.backend and not config.platform:
        # Triton guesses the python backend from the file's name, and gives up where there is none.
        guess = any(path.endswith("/model.py") for path in model.files)
        yield (warning if guess else error)(
            "repo.backend-missing", "neither backend nor platform is set", where=model.where, hint='backend: "python"'
        )
    if config.max_batch_size < 0:
        yield error(
            "repo.batch-size",
            f"max_batch_size is {config.max_batch_size}",
            where=_at(model, "max_batch_size"),
            hint="0 or more",
        )


def _tensors(model: Model, config: ModelConfig) -> Iterator[Finding]:
    for kind, tensors in (("input", config.inputs), ("output", config.outputs)):
        for tensor in tensors:
            yield from _tensor(model, kind, tensor)
        for name, count in Counter(tensor.name for tensor in tensors).items():
            if count > 1:
                yield warning(
                    "tensor.duplicate",
                    f"{kind} {name} is declared {count} times",
                    where=_at(model, f'"{name}"'),
                    hint="declare it once",
                )


def _tensor(model: Model, kind: str, tensor: Tensor) -> Iterator[Finding]:
    where = _at(model, f'"{tensor.name}"')
    if not tensor.name:
        yield error("tensor.name-missing", f"an {kind} has no name", where=model.where)
    if tensor.data_type == "TYPE_INVALID":
        yield error("tensor.type-missing", f"{kind} {tensor.name} has no data_type", where=where)
    if not tensor.dims or any(size == 0 or size < -1 for size in tensor.dims):
        yield error(
            "tensor.dims",
            f"{kind} {tensor.name} has dims {list(tensor.dims)}",
            where=where,
            hint="at least one dimension, each positive, or -1 for any length",
        )


def _at(model: Model, needle: str) -> str:
    """Return the place of *needle* in the model's configuration."""
    line = line_of(model.text or "", needle)
    return f"{model.where}:{line}" if line else model.where
