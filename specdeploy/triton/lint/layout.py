"""Checks of files and of single configurations: what Triton refuses to load, whatever the models are for."""

from __future__ import annotations

import difflib
import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from specdeploy.triton.lint.loaded import ENGINE_BACKEND, Model, Repository, error, info, warning
from specdeploy.triton.lint.unread import CIRCLE, DANGLING, Unread
from specdeploy.triton.pbtxt import parse_message
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.findings import Finding
    from specdeploy.triton.pbtxt import ModelConfig

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
# Letters that a slip changes, and names so short that any other is near.
_SLIPS: Final = 2
_SHORT: Final = 5
_LISTED: Final = 8


def has_models(repository: Repository) -> Iterator[Finding]:
    """An empty repository loads, and serves nothing."""
    if not repository.models:
        yield error("repo.no-models", "the repository holds no model directory", where=".", hint=_REWRITE)


def unseen(repository: Repository) -> Iterator[Finding]:
    """What lint could not read: a server that can may find there what lint did not."""
    grouped: dict[tuple[bool, str], list[str]] = defaultdict(list)
    for path, item in repository.unseen.items():
        grouped[item.hidden, item.reason].append(path)
    for (hidden, reason), paths in grouped.items():
        more = f" and {len(paths) - _LISTED} more" if len(paths) > _LISTED else ""
        refused = reason in {DANGLING, CIRCLE} and any("/" in path for path in paths)
        yield (error if refused else warning if hidden else info)(
            "repo.unread",
            f"{', '.join(paths[:_LISTED])}{more} {reason}",
            where=paths[0].rstrip("/"),
            hint="lint it as a user who may read it" if hidden else "take it out, if nobody needs it",
        )


def configurations(repository: Repository) -> Iterator[Finding]:
    """Every model needs a config.pbtxt that parses, named as its directory, a backend, and a version directory."""
    for model in repository.models.values():
        yield from _file(repository, model)
        if model.config is not None:
            yield from _names(model, model.config)
            yield from _backend(model, model.config)
            yield from _batches(model, model.config)
            yield from _priorities(model)
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
        hidden = repository.unseen.get(path)
        if data is None and not (hidden is not None and hidden.hidden):
            yield error("repo.file-missing", f"{path} is listed in {names.MANIFEST}", where=path, hint=_REWRITE)
        elif data is not None and isinstance(facts, dict) and _differs(data, facts):
            yield warning("repo.file-changed", "edited since the repository was written", where=path, hint=_REWRITE)


def _file(repository: Repository, model: Model) -> Iterator[Finding]:
    if model.text is None:
        hidden = repository.unseen.get(model.where)
        yield error(
            "repo.config-missing",
            f"{model.where} {hidden.reason}" if hidden is not None else f"{model.directory} has no {names.CONFIG}",
            where=model.directory,
            hint=f"Triton takes every directory for a model: write {model.where}, or move the directory out",
        )
    elif model.error is not None and not _caused_by_placeholder(model):
        line = f":{model.error.line}" if model.error.line else ""
        yield error("repo.pbtxt-parse", model.error.message, where=f"{model.where}{line}", hint="mend the line")


def _differs(data: bytes, facts: Mapping[str, Any]) -> bool:
    if isinstance(data, Unread):  # only its size is known
        return facts.get("size_bytes") not in {None, data.size}
    return hashlib.sha256(data).hexdigest() != facts.get("sha256")


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
        yield (info if guess else error)(
            "repo.backend-missing", "neither backend nor platform is set", where=model.where, hint='backend: "python"'
        )
    elif config.backend and config.backend not in _BACKENDS:
        for nearest in difflib.get_close_matches(config.backend, _BACKENDS, n=1, cutoff=_NEARLY):
            # A server may have any backend; one whose name only has letters swapped, lost or added is a slip.
            slip = edits(config.backend, nearest, most=_SLIPS) <= _SLIPS and len(nearest) > _SHORT
            yield (warning if slip else info)(
                "repo.backend-unknown",
                f"Triton's images have no backend {config.backend!r}",
                where=model.at("backend"),
                hint=f'backend: "{nearest}", unless the server has one of that name',
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


def _priorities(model: Model) -> Iterator[Finding]:
    if "priority_levels" not in (model.text or ""):
        return
    queue = parse_message(model.text or "").dynamic_batching
    if queue.priority_levels and not 0 < queue.default_priority_level <= queue.priority_levels:
        yield error(
            "repo.priority",
            f"priority_levels is {queue.priority_levels}, and default_priority_level {queue.default_priority_level}",
            where=model.at("priority_levels"),
            hint=f"default_priority_level: from 1 to {queue.priority_levels}",
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


def edits(one: str, other: str, *, most: int) -> int:
    """Return how many slips (a letter swapped, lost, added, changed) make one name the other; at most *most* + 1."""
    if abs(len(one) - len(other)) > most:
        return most + 1
    before, row = list[int](), list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, wanted in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return min(row[-1], most + 1)
