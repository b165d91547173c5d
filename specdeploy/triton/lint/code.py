"""Checks of the files beside the configurations: python models that compile, tokenizers that are there, no secrets."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint.loaded import Model, Repository, error, set_parameters, warning
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.findings import Finding
    from specdeploy.triton.pbtxt import ModelConfig

_MODEL_CLASS: Final = "TritonPythonModel"
_ENVIRONMENT: Final = "EXECUTION_ENV_PATH"
# Triton's word for the model's own directory.
_HERE: Final = "$$TRITON_MODEL_DIRECTORY/"
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model")
_TEXT: Final = (".pbtxt", ".py", ".yaml", ".yml", ".json", ".txt", ".env", ".sh")
# Public shapes of access tokens and keys. A vocabulary may hold any string, so tokenizer folders are not searched.
_SECRETS: Final = {
    "a Hugging Face token": re.compile(rb"\bhf_[A-Za-z0-9]{30,}\b"),
    "an NVIDIA API key": re.compile(rb"\bnvapi-[A-Za-z0-9_-]{40,}"),
    "a GitHub token": re.compile(rb"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})\b"),
    "a GitLab token": re.compile(rb"\bglpat-[A-Za-z0-9_-]{20,}"),
    "an AWS access key": re.compile(rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "an OpenAI key": re.compile(rb"\bsk-(?:proj-)?[A-Za-z0-9_-]{40,}"),
    "a private key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a password in a URL": re.compile(rb"[a-z]+://[^\s/:@\"'{}]+:[^\s/:@\"'{}]+@"),
}


def python_files(repository: Repository) -> Iterator[Finding]:
    """Python files compile, and each python model has its class."""
    for model in repository.models.values():
        for path, data in model.files.items():
            if path.endswith(".py"):
                yield from _compiles(f"{model.directory}/{path}", data)
        if model.config is not None and model.config.backend == "python":
            yield from _entry_points(model, model.config)


def called_models(repository: Repository) -> Iterator[Finding]:
    """Models that the code of another calls by a name that is written there exist."""
    for model in repository.models.values():
        for path, data in model.files.items():
            if not path.endswith(".py") or b"InferenceRequest" not in data:
                continue
            for name, line in _called(data):
                if name not in repository.models:
                    yield warning(
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
            if not any(model.files.get(f"{version}/{folder}/{file}") for file in _TOKENIZERS):
                yield error(
                    "tokenizer.missing",
                    f"tokenizer_dir is {folder!r}, and there is no tokenizer",
                    where=f"{name}/{version}/{folder or '?'}",
                    hint="write the repository again with `specdeploy repo`",
                )


def secrets(repository: Repository) -> Iterator[Finding]:
    """No file holds what looks like a credential: repositories are copied to stores and images."""
    for path, data in repository.tree.items():
        if not path.endswith(_TEXT) or f"/{names.TOKENIZER_DIR}/" in path:
            continue
        for kind, pattern in _SECRETS.items():
            found = pattern.search(data)
            if found:
                line = data.count(b"\n", 0, found.start()) + 1
                yield error(
                    "repo.secret",
                    f"holds what looks like {kind}",
                    where=f"{path}:{line}",
                    hint="take it out, revoke it, and hand it to the server through its environment",
                )


def _compiles(path: str, data: bytes) -> Iterator[Finding]:
    try:
        ast.parse(data)
    except SyntaxError as problem:
        yield error("python.syntax", str(problem.msg), where=f"{path}:{problem.lineno or 1}", hint="mend the line")
    except ValueError as problem:  # null bytes, or not the encoding that it declares
        yield error("python.syntax", str(problem), where=path, hint="it is not Python source")


def _entry_points(model: Model, config: ModelConfig) -> Iterator[Finding]:
    file = config.default_model_filename or "model.py"
    for version in model.versions:
        path = f"{version}/{file}"
        where = f"{model.directory}/{path}"
        if path not in model.files:
            yield error(
                "python.missing",
                f"the python backend loads {path}, which is not there",
                where=where,
                hint="put the model's code there, or name its file in default_model_filename",
            )
            continue
        body = _body(model.files[path])
        if body is not None and not any(_binds(node) for node in body):
            yield error(
                "python.no-class", f"defines no class {_MODEL_CLASS}", where=where, hint=f"class {_MODEL_CLASS}:"
            )
        elif body is not None and any(_lacks_execute(node) for node in body):
            yield error(
                "python.no-execute",
                f"{_MODEL_CLASS} has no method execute; Triton loads it, and every request fails",
                where=where,
                hint="def execute(self, requests):",
            )


def _called(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield the names of models, as they stand in calls of ``InferenceRequest``, and their lines."""
    for statement in _body(data) or ():
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("InferenceRequest"):
                for keyword in node.keywords:
                    value = keyword.value
                    if keyword.arg == "model_name" and isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield value.value, value.lineno


def _body(data: bytes) -> list[ast.stmt] | None:
    """Return the module's statements; None when it does not compile, which is a finding of its own."""
    try:
        return ast.parse(data).body
    except (SyntaxError, ValueError):
        return None


def _lacks_execute(node: ast.stmt) -> bool:
    """Say whether this is the model's class, without bases to inherit from, and without anything called execute."""
    if not (isinstance(node, ast.ClassDef) and node.name == _MODEL_CLASS) or node.bases or node.decorator_list:
        return False
    return not any("execute" in ast.unparse(item) for item in node.body)


def _binds(node: ast.stmt) -> bool:
    match node:
        case ast.ClassDef(name=name):
            return name == _MODEL_CLASS
        case ast.ImportFrom(names=aliases):
            return any((alias.asname or alias.name) in {_MODEL_CLASS, "*"} for alias in aliases)
        case ast.Assign(targets=targets):
            return any(isinstance(target, ast.Name) and target.id == _MODEL_CLASS for target in targets)
        case ast.If() | ast.Try():  # whatever they bind, they may bind the class, too
            return _MODEL_CLASS in ast.unparse(node)
        case _:
            return False
