"""An ``inflight_batcher_llm`` repository that somebody filled in by hand, as values: who is who, and what was set.

Knows NVIDIA's names of models and placeholders. Tolerates placeholders that were never filled in: they are no values.
Does not know what becomes of the values.
"""

from __future__ import annotations

import dataclasses
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from specdeploy.errors import RepositoryError
from specdeploy.findings import Finding
from specdeploy.triton.pbtxt import PbtxtError
from specdeploy.triton.repository import names
from specdeploy.triton.repository.diff import flat_config
from specdeploy.triton.repository.templates import settle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.triton.repository import RepoTree

POSTPROCESSING: Final = "postprocessing"
_BACKENDS: Final = frozenset({"tensorrtllm", "python", ""})
_OPEN: Final = "${"
_PARAMETER: Final = "parameters["


@dataclasses.dataclass(frozen=True, kw_only=True)
class NvidiaModel:
    """One model.

    Args:
        name: Its folder.
        fields: Field -> text of everything but its parameters, as a comparison of repositories names them.
        parameters: Its parameters that are set to something.
        unset: Parameters that are empty or still a placeholder.
        bare: Placeholders outside of strings that were never filled in; fields that they stood in mean nothing.
        files: Path inside the model -> content, but its configuration.
    """

    name: str
    fields: Mapping[str, str]
    parameters: Mapping[str, str]
    unset: tuple[str, ...]
    bare: tuple[str, ...]
    files: Mapping[str, bytes]

    def field(self, path: str, placeholder: str = "") -> str | None:
        """Return a field's text; None when it is not there, or when its *placeholder* was never filled in."""
        return None if placeholder in self.bare else self.fields.get(path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NvidiaRepository:
    """A whole repository.

    Args:
        models: Name -> model, every one that there is.
        target: The engine model that answers.
        draft: The engine model that proposes; empty when there is none.
        loose: Files that lie beside the models.
    """

    models: Mapping[str, NvidiaModel]
    target: str
    draft: str = ""
    loose: tuple[str, ...] = ()

    @property
    def engines(self) -> Mapping[str, NvidiaModel]:
        """Role -> engine model."""
        roles = {"target": self.target, **({"draft": self.draft} if self.draft else {})}
        return {role: self.models[name] for role, name in roles.items()}

    def engine_dir(self, role: str) -> str:
        """Return the engine's folder as the repository names it."""
        return self.engines[role].parameters["gpt_model_path"]

    def parameter(self, model: str, key: str) -> str:
        """Return a parameter of a model that need not be there; empty when it is not set."""
        found = self.models.get(model)
        return "" if found is None else found.parameters.get(key, "")


def read_nvidia(tree: RepoTree, *, draft: str | None = None) -> NvidiaRepository:
    """Read a repository.

    Args:
        tree: Its files.
        draft: The engine model that proposes; None takes the one that `tensorrt_llm_bls` names, or
            `tensorrt_llm_draft` where there is one.

    Raises:
        RepositoryError: It is no such repository; ``findings`` has everything that speaks against it.
    """
    if names.MANIFEST in tree:
        raise RepositoryError(
            f"the repository is one of specdeploy's: it has a {names.MANIFEST}",
            hint="To move it to the LLM API, name its specdeploy.yaml.",
        )
    problems: list[Finding] = []
    models = {name: model for name in _model_names(tree) if (model := _model(name, tree, problems)) is not None}
    _stop(problems)
    target = _parameter(models, names.BLS, "tensorrt_llm_model_name") or names.TARGET
    wanted = draft if draft is not None else _parameter(models, names.BLS, "tensorrt_llm_draft_model_name")
    known = wanted or (names.DRAFT if names.DRAFT in models else "")
    _stop([*_missing(models, target, known)])
    loose = tuple(sorted(path for path in tree if PurePosixPath(path).parts[0] not in models and path[-1] != "/"))
    return NvidiaRepository(models=models, target=target, draft=known, loose=loose)


def _model_names(tree: RepoTree) -> list[str]:
    return sorted(
        {parts[0] for path in tree if len(parts := PurePosixPath(path).parts) == 2 and parts[1] == names.CONFIG}
    )


def _model(name: str, tree: RepoTree, problems: list[Finding]) -> NvidiaModel | None:
    path = f"{name}/{names.CONFIG}"
    try:
        settled = settle(tree[path].decode())
        fields = flat_config(settled.text.encode())
    except UnicodeDecodeError as error:
        problems.append(_error("unreadable", f"byte {error.start} is not UTF-8", path))
        return None
    except PbtxtError as error:
        problems.append(_error("unreadable", error.message, f"{path}:{error.line}" if error.line else path))
        return None
    given = {key[len(_PARAMETER) : -1]: value for key, value in fields.items() if key.startswith(_PARAMETER)}
    bare = tuple(key for key, where in settled.placeholders.items() if where not in {"string", "comment"})
    inside = f"{name}/"
    return NvidiaModel(
        name=name,
        fields={key: value for key, value in fields.items() if not key.startswith(_PARAMETER)},
        parameters={key: value for key, value in given.items() if _is_set(value)},
        unset=tuple(sorted(key for key, value in given.items() if not _is_set(value))),
        bare=bare,
        files={
            file.removeprefix(inside): data for file, data in tree.items() if file.startswith(inside) and file != path
        },
    )


def _is_set(value: str) -> bool:
    return bool(value.strip()) and _OPEN not in value


def _parameter(models: Mapping[str, NvidiaModel], model: str, key: str) -> str:
    return models[model].parameters.get(key, "") if model in models else ""


def _missing(models: Mapping[str, NvidiaModel], target: str, draft: str) -> Iterator[Finding]:
    for role, name in (("target", target), ("draft", draft)):
        if not name:
            continue
        model = models.get(name)
        if model is None:
            have = ", ".join(models) or "none"
            hint = f"The repository has the models: {have}."
            yield _error("no-model", f"there is no model {name}, which should be the {role}", f"{name}/", hint)
        elif model.fields.get("backend", "") not in _BACKENDS and _OPEN not in model.fields["backend"]:
            hint = "Only NVIDIA's templates with TensorRT-LLM engines can be moved."
            yield _error("backend", f"{name} has the backend {model.fields['backend']}", f"{name}/{names.CONFIG}", hint)
        elif "gpt_model_path" not in model.parameters:
            hint = "Fill in ${engine_dir}: the folder that trtllm-build wrote."
            yield _error("no-engine", f"{name} names no engine: gpt_model_path is not set", f"{name}/", hint)


def _stop(problems: list[Finding]) -> None:
    if problems:
        raise RepositoryError("this is no inflight_batcher_llm repository that can be moved", findings=problems)


def _error(code: str, message: str, where: str, hint: str = "") -> Finding:
    return Finding(severity="error", code=f"migrate.{code}", message=message, hint=hint, where=where)
