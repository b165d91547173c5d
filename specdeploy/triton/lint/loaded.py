"""A repository as the checks see it: parsed where it parses, with every model's files at hand.

Knows how to look things up and how to word where something is. Judges nothing.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, TypeAlias

from specdeploy.findings import Finding
from specdeploy.triton.pbtxt import ModelConfig, PbtxtError, parse
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdeploy.triton.repository import RepoTree

    EngineListing: TypeAlias = Callable[[str], frozenset[str] | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """One directory of the repository.

    Args:
        directory: Name of the directory.
        config: What its config.pbtxt says; None when there is none, or it does not parse.
        text: The config.pbtxt; None when there is none.
        error: Why it does not parse.
        files: Path inside the directory -> bytes.
    """

    directory: str
    config: ModelConfig | None
    text: str | None
    error: PbtxtError | None
    files: Mapping[str, bytes]

    @property
    def where(self) -> str:
        """Path of its config.pbtxt."""
        return f"{self.directory}/{names.CONFIG}"

    @property
    def versions(self) -> tuple[str, ...]:
        """Version directories: those with a positive number for a name."""
        folders = {path.split("/")[0] for path in self.files if "/" in path}
        return tuple(sorted(folder for folder in folders if folder.isdecimal() and int(folder) > 0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repository:
    """Everything the checks look at.

    Args:
        tree: The files.
        models: Directory -> model.
        manifest: What ``specdeploy.json`` says; None when there is none, or it is no JSON object.
        engine_files: Engine path -> names of its non-empty files, None for no such directory; None: do not look.
    """

    tree: RepoTree
    models: Mapping[str, Model]
    manifest: Mapping[str, Any] | None
    engine_files: EngineListing | None

    def configs(self) -> Mapping[str, ModelConfig]:
        """Return the configurations that parse, by directory."""
        return {name: model.config for name, model in self.models.items() if model.config is not None}


def load(tree: RepoTree, engine_files: EngineListing | None) -> Repository:
    """Parse what there is to parse."""
    grouped: dict[str, dict[str, bytes]] = {}
    for path, data in sorted(tree.items()):
        directory, slash, rest = path.partition("/")
        if slash:
            grouped.setdefault(directory, {})[rest] = data
    models = {directory: _model(directory, files) for directory, files in grouped.items()}
    return Repository(tree=tree, models=models, manifest=_manifest(tree), engine_files=engine_files)


def error(code: str, message: str, *, where: str, hint: str = "") -> Finding:
    """Return a finding that Triton or a request would fail on."""
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)


def warning(code: str, message: str, *, where: str, hint: str = "") -> Finding:
    """Return a finding that Triton lives with."""
    return Finding(severity="warning", code=code, message=message, hint=hint, where=where)


def line_of(text: str, needle: str) -> int | None:
    """Return the first line, counted from 1, on which *needle* stands."""
    return next((number for number, line in enumerate(text.splitlines(), 1) if needle in line), None)


def _model(directory: str, files: Mapping[str, bytes]) -> Model:
    data = files.get(names.CONFIG)
    if data is None:
        return Model(directory=directory, config=None, text=None, error=None, files=files)
    text = data.decode("utf-8", errors="replace")
    try:
        config, failure = parse(text), None
    except PbtxtError as problem:
        config, failure = None, problem
    return Model(directory=directory, config=config, text=text, error=failure, files=files)


def _manifest(tree: RepoTree) -> Mapping[str, Any] | None:
    try:
        document = json.loads(tree.get(names.MANIFEST, b""))
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
