"""Checks of files and of single configurations: what Triton refuses to load, whatever the models are for."""

from __future__ import annotations

import difflib
import hashlib
import re
from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint.loaded import ENGINE_BACKEND, Model, Repository, error, warning
from specdeploy.triton.pbtxt import parse_message
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.findings import Finding
    from specdeploy.triton.pbtxt import ModelConfig

_PLACEHOLDER: Final = re.compile(r"\$\{\w*\}?")
# A string, in which a # is no comment; or a comment.
_QUOTED_OR_COMMENT: Final = re.compile(r"\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?|#.*")
_FILLED_IN: Final = (".pbtxt", ".yaml", ".yml")
_REWRITE: Final = "write the repository again with `specdeploy repo`"
# Backends that ship with Triton's images. Others may exist; one that is all but spelled like these does not.
_BACKENDS: Final = (
    "python",
    ENGINE_BACKEND,
    "tensorrt",
    "onnxruntime",
    "pytorch",
    "tensorflow",
    "openvino",
    "dali",
    "fil",
    "identity",
    "repeat",
    "square",
    "vllm",
)
_NEARLY: Final = 0.75


def has_models(repository: Repository) -> Iterator[Finding]:
    """An empty repository loads, and serves nothing."""
    if not repository.models:
        yield error("repo.no-models", "the repository holds no model directory", where=".", hint=_REWRITE)


def placeholders(repository: Repository) -> Iterator[Finding]:
    """``${...}`` in a number stops Triton; in a string it is silently taken for "not set"."""
    for path, data in repository.tree.items():
        if not path.endswith(_FILLED_IN) or b"${" not in data:
            continue
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), 1):
            for found in _PLACEHOLDER.findall(_without_comment(line)):
                yield error(
                    "repo.placeholder",
                    f"{found} was not filled in",
                    where=f"{path}:{number}",
                    hint='give it a value; in a string, "" is not set',
                )


def configurations(repository: Repository) -> Iterator[Finding]:
    """Every model needs a config.pbtxt that parses, named as its directory, a backend, and a version directory."""
    for model in repository.models.values():
        yield from _file(model)
        if model.config is not None:
            yield from _names(model, model.config)
            yield from _backend(model, model.config)
            yield from _batches(model, model.config)
        if not model.versions and model.text is not None:
            yield error(
                "repo.version-missing",
                f"{model.directory} has no version directory such as 1/",
                where=model.directory,
                hint=f"make {model.directory}/1, with a file in it so that it is kept",
            )
        elif model.config is not None:
            yield from _version_policy(model)


def manifest(repository: Repository) -> Iterator[Finding]:
    """Files that ``specdeploy.json`` lists are there, and as they were written."""
    if names.MANIFEST in repository.tree and repository.manifest is None:
        yield error("repo.manifest-unreadable", "not a JSON object", where=names.MANIFEST, hint=_REWRITE)
    for path, facts in repository.section("files").items():
        data = repository.tree.get(path)
        if data is None:
            yield error("repo.file-missing", f"{path} is listed in {names.MANIFEST}", where=path, hint=_REWRITE)
        elif isinstance(facts, dict) and hashlib.sha256(data).hexdigest() != facts.get("sha256"):
            yield warning("repo.file-changed", "edited since the repository was written", where=path, hint=_REWRITE)


def _without_comment(line: str) -> str:
    return _QUOTED_OR_COMMENT.sub(lambda found: "" if found[0].startswith("#") else found[0], line)


def _file(model: Model) -> Iterator[Finding]:
    if model.text is None:
        yield error(
            "repo.config-missing",
            f"{model.directory} has no {names.CONFIG}",
            where=model.directory,
            hint=f"Triton takes every directory for a model: write {model.where}, or move the directory out",
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
            where=model.at("name"),
            hint="name it as its directory",
        )


def _backend(model: Model, config: ModelConfig) -> Iterator[Finding]:
    if config.steps and config.platform != "ensemble":
        yield error(
            "ensemble.platform",
            f"it has ensemble_scheduling, and its platform is {config.platform!r}",
            where=model.at("ensemble_scheduling"),
            hint='platform: "ensemble", and no backend',
        )
    elif not config.backend and not config.platform:
        # Triton guesses the python backend from the file's name, and gives up where there is none.
        guess = any(path.endswith("/model.py") for path in model.files)
        yield (warning if guess else error)(
            "repo.backend-missing", "neither backend nor platform is set", where=model.where, hint='backend: "python"'
        )
    elif config.backend and config.backend not in _BACKENDS:
        for nearest in difflib.get_close_matches(config.backend, _BACKENDS, n=1, cutoff=_NEARLY):
            yield error(
                "repo.backend-unknown",
                f"there is no backend {config.backend!r}",
                where=model.at("backend"),
                hint=f'backend: "{nearest}"',
            )
    elif not config.backend and config.platform in _BACKENDS:
        yield error(
            "repo.backend-unknown",
            f"{config.platform!r} is a backend, and no platform",
            where=model.at("platform"),
            hint=f'backend: "{config.platform}"',
        )


def _batches(model: Model, config: ModelConfig) -> Iterator[Finding]:
    if config.max_batch_size < 0:
        yield error(
            "repo.batch-size",
            f"max_batch_size is {config.max_batch_size}",
            where=model.at("max_batch_size"),
            hint="0 or more",
        )
    if "preferred_batch_size" in (model.text or ""):
        preferred = list(parse_message(model.text or "").dynamic_batching.preferred_batch_size)
        # Without batches Triton leaves the dynamic batcher out.
        if config.max_batch_size > 0 and any(not 0 < size <= config.max_batch_size for size in preferred):
            yield error(
                "repo.preferred-batch",
                f"preferred_batch_size is {preferred}, and max_batch_size {config.max_batch_size}",
                where=model.at("preferred_batch_size"),
                hint="from 1 to max_batch_size",
            )


def _version_policy(model: Model) -> Iterator[Finding]:
    if "version_policy" not in (model.text or ""):
        return
    wanted = list(parse_message(model.text or "").version_policy.specific.versions)
    if wanted and not {str(version) for version in wanted} & set(model.versions):
        yield error(
            "repo.version-policy",
            f"version_policy asks for {wanted}, and the directory has {', '.join(model.versions)}",
            where=model.at("version_policy"),
            hint="name a version that is there, or leave version_policy out",
        )
