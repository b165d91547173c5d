"""Checks of the files beside the configurations: python models that compile, tokenizers that are there."""

from __future__ import annotations

import ast
import posixpath
import sys
from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint.loaded import Model, Repository, error, info, set_parameters, warning
from specdeploy.triton.lint.python_source import imports, mentions, parse, stores
from specdeploy.triton.lint.unread import size_of
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.findings import Finding
    from specdeploy.triton.pbtxt import ModelConfig

_MODEL_CLASS: Final = "TritonPythonModel"
_ENVIRONMENT: Final = "EXECUTION_ENV_PATH"
# Triton's word for the model's own directory.
_HERE: Final = "$$TRITON_MODEL_DIRECTORY/"
_DEFAULT_FILE: Final = "model.py"
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model")
#: What Triton itself calls.
_HOOKS: Final = frozenset({"auto_complete_config", "initialize", "execute", "finalize"})


def python_files(repository: Repository) -> Iterator[Finding]:
    """Python files compile as far as they are loaded, and each python model has its class."""
    for model in repository.models.values():
        loaded: Mapping[str, bool] = {}
        if model.config is not None and model.config.backend == "python":
            loaded = _loaded(model, model.config)
            yield from _entry_points(repository, model, model.config)
        for path, data in model.files.items():
            if path.endswith(".py"):
                yield from _compiles(f"{model.directory}/{path}", data, loaded.get(path))


def called_models(repository: Repository) -> Iterator[Finding]:
    """Models that the code of another calls by a name that is written there exist."""
    for model in repository.models.values():
        for path, data in model.files.items():
            if not path.endswith(".py") or b"InferenceRequest" not in data:
                continue
            for name, line, used in _called(data):
                if name not in repository.models:
                    yield (warning if used else info)(
                        "bls.unknown-call",
                        f"it calls the model {name!r}, which is not in the repository",
                        where=f"{model.directory}/{path}:{line}",
                        hint=f"one of {', '.join(sorted(repository.models))}, or one that another repository has",
                    )


def environments(repository: Repository) -> Iterator[Finding]:
    """A Python environment that a model brings with it is there; one elsewhere cannot be seen."""
    for name, config in repository.configs().items():
        value = set_parameters(config).get(_ENVIRONMENT, "")
        model = repository.models[name]
        path = value.removeprefix(_HERE).rstrip("/")
        if value.startswith(_HERE) and not any(f == path or f.startswith(f"{path}/") for f in model.files):
            yield error(
                "python.environment",
                f"{_ENVIRONMENT} is {value!r}, and {name} has no {path}",
                where=model.at(_ENVIRONMENT),
                hint="put the environment there, or leave the parameter out",
            )


def tokenizers(repository: Repository) -> Iterator[Finding]:
    """A repository of ours carries the tokenizer that its models name.

    NVIDIA's templates name a folder of the machine or a repository on the hub instead, which a tree cannot tell.
    """
    if names.DECODER not in repository.models:
        return
    for name in (names.PREPROCESSING, names.DECODER):
        model = repository.models.get(name)
        folder = model.config.parameters.get("tokenizer_dir", "") if model and model.config else ""
        if model is None or model.config is None or folder.startswith("/"):
            continue
        for version in model.versions:
            if not any(size_of(model.files.get(f"{version}/{folder}/{file}", b"")) for file in _TOKENIZERS):
                yield error(
                    "tokenizer.missing",
                    f"tokenizer_dir is {folder!r}, and there is no tokenizer",
                    where=f"{name}/{version}/{folder or '?'}",
                    hint="write the repository again with `specdeploy repo`",
                )


def _loaded(model: Model, config: ModelConfig) -> Mapping[str, bool]:
    """Return the python files that are loaded, and whether that is certain, or only happens if some code runs."""
    found: dict[str, bool] = {}
    for version in model.versions:
        todo = [(posixpath.normpath(f"{version}/{config.default_model_filename or _DEFAULT_FILE}"), True)]
        while todo:
            path, certain = todo.pop()
            if path not in model.files or found.get(path) in {True, certain}:
                continue
            found[path] = certain
            tree = parse(model.files[path]).tree
            for name, sure in imports(tree) if tree is not None else ():
                todo += [(file, certain and sure) for file in _files_of(name, path, version)]
    return found


def _files_of(name: str, importer: str, version: str) -> Iterator[str]:
    """Yield the files that an import may load: Triton's search path has the version directory, and the model's."""
    parts = name.lstrip(".")
    dots = len(name) - len(parts)
    if not dots and parts.partition(".")[0] in sys.stdlib_module_names:
        return
    folders = [posixpath.join(importer, *[".."] * dots)] if dots else [version, ""]
    words = parts.split(".") if parts else []
    for folder in folders:
        for count in range(len(words) + 1):
            stem = posixpath.normpath(posixpath.join(folder, *words[:count]))
            if count:
                yield f"{stem}.py"
            if count or dots:
                yield f"{stem}/__init__.py"


def _compiles(path: str, data: bytes, loaded: bool | None) -> Iterator[Finding]:
    """Yield what is wrong with a file that is loaded (True), may be (False), or is not as far as we see (None)."""
    source = parse(data)
    if source.newer:
        yield info(
            "python.syntax",
            f"{source.problem}; Python {source.newer} may take it",
            where=f"{path}:{source.line}",
            hint=f"run the server with Python {source.newer} or later, or write it for an older one",
        )
    elif source.problem:
        severity = info if loaded is None else error if loaded else warning
        yield severity("python.syntax", source.problem, where=f"{path}:{source.line}", hint="mend the line")
    elif source.unread:
        yield (info if loaded is None else warning)(
            "python.unread",
            f"lint cannot parse it: {source.unread}",
            where=path,
            hint="Triton's Python may not, either",
        )


def _entry_points(repository: Repository, model: Model, config: ModelConfig) -> Iterator[Finding]:
    file = config.default_model_filename or _DEFAULT_FILE
    for version in model.versions:
        where = posixpath.normpath(f"{model.directory}/{version}/{file}")
        if where.startswith("../"):  # above the repository, where nobody looks
            continue
        if where not in repository.tree:
            yield error(
                "python.missing",
                f"the python backend loads {version}/{file}, which {_state(repository, where)}",
                where=where,
                hint="put the model's code there, or name its file in default_model_filename",
            )
            continue
        tree = parse(repository.tree[where]).tree
        if tree is not None and not mentions(tree, _MODEL_CLASS):
            yield error(
                "python.no-class", f"defines no class {_MODEL_CLASS}", where=where, hint=f"class {_MODEL_CLASS}:"
            )
        elif tree is not None and not stores(tree, "execute") and any(_lacks_execute(node) for node in tree.body):
            yield error(
                "python.no-execute",
                f"{_MODEL_CLASS} has no method execute; Triton loads it, and every request fails",
                where=where,
                hint="def execute(self, requests):",
            )


def _state(repository: Repository, path: str) -> str:
    unseen = repository.unseen.get(path)
    return unseen.reason if unseen is not None else "is not there"


def _called(data: bytes) -> Iterator[tuple[str, int, bool]]:
    """Yield the models that calls of ``InferenceRequest`` name, the lines, and whether the calls are used.

    What stands in a function that nothing in the file calls, and Triton neither, is not.
    """
    tree = parse(data).tree
    if tree is None:
        return
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | _HOOKS
    idle: set[int] = set()
    for node in ast.walk(tree):  # from the outside to the inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in used:
            idle |= {id(inner) for inner in ast.walk(node)} if id(node) not in idle else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_request(node.func):
            for keyword in node.keywords:
                value = keyword.value
                if keyword.arg == "model_name" and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value, value.lineno, id(node) not in idle


def _is_request(function: ast.expr) -> bool:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == "InferenceRequest"
        case _:
            return False


def _lacks_execute(node: ast.stmt) -> bool:
    """Say whether this is the model's class, without bases to inherit from, and without anything called execute."""
    if not (isinstance(node, ast.ClassDef) and node.name == _MODEL_CLASS):
        return False
    return not (
        node.bases or node.keywords or node.decorator_list or any(mentions(item, "execute") for item in node.body)
    )
