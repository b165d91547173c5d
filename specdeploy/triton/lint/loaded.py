"""A repository as the checks see it: parsed where it parses, with every model's files and every engine at hand.

Knows how to look things up and how to word where something is. Judges nothing.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from specdeploy.findings import Finding
from specdeploy.triton.lint.engine_dir import EngineConfig, EngineDirectory, read_config
from specdeploy.triton.lint.unread import Unread
from specdeploy.triton.pbtxt import ModelConfig, PbtxtError, parse
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdeploy.triton.repository import RepoTree

    EngineListing: TypeAlias = Callable[[str], EngineDirectory | None]

#: NVIDIA's backend for engines, and ours that stands in for it on a CPU.
ENGINE_BACKEND: Final = "tensorrtllm"
#: What a placeholder of NVIDIA's templates begins with; in a string it counts as "not set".
PLACEHOLDER: Final = "${"
# No number of the backend's has more digits: those of 64 bits that are whole in any case.
_DIGITS: Final = 18


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
        """Version directories as Triton takes them: a positive number without leading zeros."""
        folders = {path.split("/")[0] for path in self.files if "/" in path}
        return tuple(
            sorted(name for name in folders if name.isascii() and name.isdecimal() and not name.startswith("0"))
        )

    def at(self, needle: str) -> str:
        """Return the place of *needle* in the configuration: file and line, or the file alone."""
        line = line_of(self.text or "", needle)
        return f"{self.where}:{line}" if line else self.where


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """A model that serves an engine.

    Args:
        model: The model.
        parameters: Its string parameters that are set: not empty, and no ``${placeholder}``.
        path: ``gpt_model_path``; empty when it is not set.
        directory: What lies there; None when there is no such directory, or nobody looked.
        config: What the engine says it is; None when that cannot be read.
    """

    model: Model
    parameters: Mapping[str, str]
    path: str
    directory: EngineDirectory | None
    config: EngineConfig | None

    @property
    def name(self) -> str:
        """The model's directory."""
        return self.model.directory

    def at(self, parameter: str) -> str:
        """Return where *parameter* is set."""
        return self.model.at(f'"{parameter}"')

    def said(self) -> EngineConfig:
        """Return what the engine says it is; nothing at all when that cannot be read."""
        return self.config or EngineConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repository:
    """Everything the checks look at.

    Args:
        tree: The files that there are to see; one that is only too large to read is an ``Unread`` with its size.
        models: Directory -> model.
        manifest: What ``specdeploy.json`` says; None when there is none, or it is no JSON object.
        engines: Directory -> the models of NVIDIA's backend or its stand-in.
        engines_seen: Whether engine directories were looked at.
        unseen: Path -> what stands for what cannot be read there.
    """

    tree: RepoTree
    models: Mapping[str, Model]
    manifest: Mapping[str, Any] | None
    engines: Mapping[str, Engine]
    engines_seen: bool
    unseen: Mapping[str, Unread] = dataclasses.field(default_factory=dict)

    def configs(self) -> Mapping[str, ModelConfig]:
        """Return the configurations that parse, by directory."""
        return {name: model.config for name, model in self.models.items() if model.config is not None}

    def section(self, name: str) -> Mapping[str, Any]:
        """Return an object of ``specdeploy.json``; an empty one when there is none."""
        value = (self.manifest or {}).get(name)
        return value if isinstance(value, dict) else {}


def load(tree: RepoTree, engine_at: EngineListing | None) -> Repository:
    """Parse what there is to parse."""
    unseen = {path: data for path, data in tree.items() if isinstance(data, Unread) and data.size is None}
    tree = {path: data for path, data in tree.items() if path not in unseen or path.endswith("/")}
    grouped: dict[str, dict[str, bytes]] = {}
    for path, data in sorted(tree.items()):
        directory, slash, rest = path.partition("/")
        if slash:
            grouped.setdefault(directory, {})[rest] = data
    models = {directory: _model(directory, files) for directory, files in grouped.items()}
    return Repository(
        tree=tree,
        models=models,
        manifest=_manifest(tree),
        engines={name: engine for name, model in models.items() if (engine := _engine(model, engine_at))},
        engines_seen=engine_at is not None,
        unseen=unseen,
    )


def set_parameters(config: ModelConfig) -> Mapping[str, str]:
    """Return the parameters that count: an empty one, or one that is an unfilled placeholder, is not set."""
    stripped = {key: value.strip() for key, value in config.parameters.items()}
    return {key: value for key, value in stripped.items() if value and PLACEHOLDER not in value}


def whole_number(text: str | None) -> int | None:
    """Return a number that is written with digits only; None for anything else, and for one that nothing can hold."""
    fits = text is not None and text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    return int(text) if text is not None and fits else None


def error(code: str, message: str, *, where: str, hint: str = "") -> Finding:
    """Return a finding that Triton or a request would fail on."""
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)


def warning(code: str, message: str, *, where: str, hint: str = "") -> Finding:
    """Return a finding that Triton lives with."""
    return Finding(severity="warning", code=code, message=message, hint=hint, where=where)


def info(code: str, message: str, *, where: str, hint: str = "") -> Finding:
    """Return a finding that is good to know, about what works as it is."""
    return Finding(severity="info", code=code, message=message, hint=hint, where=where)


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


def _engine(model: Model, engine_at: EngineListing | None) -> Engine | None:
    config = model.config
    if config is None or config.backend != ENGINE_BACKEND:
        return None
    parameters = set_parameters(config)
    path = parameters.get("gpt_model_path", "")
    directory = engine_at(path) if engine_at is not None and path else None
    return Engine(
        model=model,
        parameters=parameters,
        path=path,
        directory=directory,
        config=None if directory is None else read_config(directory),
    )


def _manifest(tree: RepoTree) -> Mapping[str, Any] | None:
    try:
        document = json.loads(tree.get(names.MANIFEST, b""))
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
