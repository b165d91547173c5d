"""``repo --from-image``, ``repo diff``, ``repo migrate``: looking at repositories, and moving deployments to ours."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdeploy.checkpoint.read import read_tokenizer
from specdeploy.config.leaves import flatten
from specdeploy.config.load import DEFAULT_ORIGIN, LoadedConfig, load_config
from specdeploy.config.template import render
from specdeploy.errors import ConfigError, RepositoryError
from specdeploy.findings import has_errors
from specdeploy.system.files import OWNER_TAG, explained, owner_tag, publish_tree, write_atomic
from specdeploy.triton.lint import lint_repository
from specdeploy.triton.migration_sources import find_folder, read_engine
from specdeploy.triton.repository import build_repository, engine_path
from specdeploy.triton.repository.diff import diff_repositories
from specdeploy.triton.repository.migrate import Migration, migrate
from specdeploy.triton.repository.notes import notes_document, notes_text
from specdeploy.triton.repository.nvidia import read_nvidia
from specdeploy.triton.repository.templates import FAMILY, compare_templates
from specdeploy.triton.repository.to_llmapi import relative_keys, to_llmapi
from specdeploy.triton.sources import engine_listing, model_sources, read_repository, tokenizer_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from specdeploy.config.leaves import Value
    from specdeploy.findings import Finding
    from specdeploy.triton.lint.engine_dir import EngineDirectory
    from specdeploy.triton.repository import RepoTree
    from specdeploy.triton.repository.diff import Change
    from specdeploy.triton.repository.notes import Note
    from specdeploy.triton.repository.nvidia import NvidiaRepository
    from specdeploy.triton.repository.templates import Comparison

#: What a moved deployment's folder holds.
MODELS = "models"
CONFIG = "specdeploy.yaml"
REPORT_JSON = "migration.json"
REPORT_TEXT = "migration.txt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moved:
    """A deployment that was moved.

    Args:
        written: What was written: a folder, or a configuration.
        config: The ``specdeploy.yaml`` of the new deployment.
        notes: What became of every value.
        findings: What lint says of the new repository.
        document: The machine-readable report.
    """

    written: Path
    config: Path
    notes: tuple[Note, ...]
    document: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Where folders lie on this machine that the repository names by the paths of another one.

    Args:
        engines: A folder that holds the engines under the last part of their paths.
        tokenizer: The tokenizer's folder.
        templates: The image's templates, to find code that was changed.
    """

    engines: Path | None = None
    tokenizer: Path | None = None
    templates: Path | None = None


def compare_image(folder: Path, release: str | None = None) -> Comparison:
    """Compare an image's templates with our table.

    Args:
        folder: The image's ``all_models``, or ``inflight_batcher_llm`` in it.
        release: The release to compare with; None takes the row that differs least.

    Raises:
        RepositoryError: There are no such templates in *folder*.
        ConfigError: *release* is not in the table.
    """
    return compare_templates(_tree(folder, "the image's templates"), release)


def compare_repositories(before: Path, after: Path) -> tuple[Change, ...]:
    """Return how two repositories on disk differ, by model and field.

    Raises:
        RepositoryError: One is no folder, or has a config.pbtxt that cannot be read.
    """
    trees = [_tree(path, "the repository") for path in (before, after)]
    return diff_repositories(*trees, names=(str(before), str(after)))


def migrate_repository(
    source: Path, destination: Path, *, name: str = "", draft: str | None = None, elsewhere: Elsewhere | None = None
) -> Moved:
    """Make a deployment of ours around the engines of an ``inflight_batcher_llm`` repository.

    Args:
        source: The repository, filled in; it is only read.
        destination: A folder that is absent, empty or ours: it becomes the new deployment's, as a whole.
        name: Of the deployment; empty takes the name of *source*.
        draft: The engine model that proposes, when `tensorrt_llm_bls` does not name it.
        elsewhere: Where engines and tokenizer lie here.

    Raises:
        RepositoryError: The repository cannot be moved, or *destination* is not ours; nothing was written then.
    """
    here = elsewhere or Elsewhere()
    source, destination = source.resolve(), destination.resolve()
    if destination == source or destination.is_relative_to(source) or source.is_relative_to(destination):
        raise RepositoryError(f"{destination} and {source} lie in each other", hint="Name a new folder outside of it.")
    tree = _tree(source, "the repository")
    repository = read_nvidia(tree, draft=draft)
    folders = _engine_folders(repository, source, here)
    tokenizer = _tokenizer_folder(repository, source, here)
    migration = migrate(
        repository,
        {role: read_engine(folder) for role, folder in folders.items()},
        name=name or source.name,
        tokenizer=str(tokenizer),
        eos_token_ids=read_tokenizer(tokenizer).eos_token_ids,
        templates=None if here.templates is None else _family(here.templates),
    )
    models = destination / MODELS
    paths = {role: _named(repository.engine_dir(role), folders[role], models) for role in migration.parts}
    generated = build_repository(
        migration.config,
        migration.parts,
        engine_paths=paths,
        tokenizer_files=tokenizer_files(tokenizer),
        sources=model_sources(),
    )
    findings = lint_repository(generated, _listing({paths[role]: folders[role] for role in paths}))
    if has_errors(findings):
        raise RepositoryError("the repository that would be written is not sound", findings=findings)
    document = _document(migration.notes, source, destination, findings)
    publish_tree(_folder(migration, generated, document), destination)
    return Moved(
        written=destination,
        config=destination / CONFIG,
        notes=migration.notes,
        findings=findings,
        document=document,
    )


def migrate_config(source: Path, destination: Path, *, method: str = "", draft: str = "", release: str = "") -> Moved:
    """Write the ``specdeploy.yaml`` of a deployment on engines anew, for the LLM API.

    Args:
        source: The deployment's ``specdeploy.yaml``, with the profile tensorrt_llm; it is only read.
        destination: The new file, which must not exist.
        method: Another speculation method; empty keeps it.
        draft: Another draft or head, relative to this process's folder; empty keeps it.
        release: Another release; empty keeps it.

    Raises:
        ConfigError: A file cannot be read, or *destination* exists.
        RepositoryError: The deployment cannot be moved as it is.
    """
    if destination.exists():
        raise ConfigError(f"{destination} exists already", hint="Name a new file; none is overwritten.")
    loaded = load_config(source, overrides={}, env={})
    old, new = loaded.base_dir, destination.resolve().parent
    named = os.path.relpath(Path(draft).expanduser().absolute(), old) if draft else ""
    moved = to_llmapi(loaded.config, _given(loaded), method=method, draft=named, release=release)
    values = dict(moved.values)
    for key in (key for key in relative_keys() if old != new):
        path = values.get(key)
        # A bundled prompt set is a name and no path.
        named_file = key != "load.prompts" or (old / str(path)).is_file()
        if isinstance(path, str) and path and named_file and not Path(path).expanduser().is_absolute():
            values[key] = os.path.relpath(old / path, new)
    with explained(destination):
        write_atomic(destination, render(values))
    document = _document(moved.notes, source, destination, ())
    return Moved(written=destination, config=destination, notes=moved.notes, document=document)


def _given(loaded: LoadedConfig) -> dict[str, Value]:
    """Return the keys that the file gives."""
    return {key: value for key, value in flatten(loaded.config).items() if loaded.origin[key] != DEFAULT_ORIGIN}


def _tree(path: Path, what: str) -> RepoTree:
    if not path.is_dir():
        raise RepositoryError(f"{what}, {path}, is not a directory", hint="Name a folder that holds models.")
    return read_repository(path)


def _family(folder: Path) -> RepoTree:
    """Return an image's templates by path inside of ``inflight_batcher_llm``."""
    nested = folder / FAMILY
    return _tree(nested if nested.is_dir() else folder, "the image's templates")


def _engine_folders(repository: NvidiaRepository, source: Path, here: Elsewhere) -> dict[str, Path]:
    beside = (source, source.parent, Path.cwd())
    return {
        role: find_folder(
            repository.engine_dir(role),
            beside=beside,
            instead=here.engines,
            what=f"the engine of {model.name}",
            cure="Say where the engines lie here with --engines DIR; their config.json is needed.",
        )
        for role, model in repository.engines.items()
    }


def _tokenizer_folder(repository: NvidiaRepository, source: Path, here: Elsewhere) -> Path:
    cure = "Say where the tokenizer lies here with --tokenizer DIR: a folder with tokenizer.json."
    naming = ("preprocessing", "postprocessing", repository.target)
    named = next((found for model in naming if (found := repository.parameter(model, "tokenizer_dir"))), "")
    if here.tokenizer is None and not named:
        raise RepositoryError("no model names a tokenizer: tokenizer_dir is not set", hint=cure)
    if here.tokenizer is not None:
        named = str(here.tokenizer.absolute())
    beside = (source, source.parent, Path.cwd())
    return find_folder(named, beside=beside, instead=None, what="the tokenizer", cure=cure)


def _listing(folders: Mapping[str, Path]) -> Callable[[str], EngineDirectory | None]:
    """Return what lists an engine's files, given the path that is written: it may be that of another machine."""
    here = engine_listing(Path("/"))
    return lambda written: here(str(folders.get(written, written)))


def _named(written: str, folder: Path, models: Path) -> str:
    """Return an engine's path for the new repository: an absolute one as it was, a relative one from there."""
    return written if Path(written).is_absolute() else engine_path(folder, models)


def _folder(migration: Migration, generated: RepoTree, document: Mapping[str, Any]) -> dict[str, bytes]:
    values = {**migration.values, "repo.path": MODELS}
    files = {
        CONFIG: render(values),
        REPORT_JSON: json.dumps(document, indent=2, ensure_ascii=False) + "\n",
        REPORT_TEXT: notes_text(migration.notes),
    }
    return {
        **{name: text.encode() for name, text in files.items()},
        # `specdeploy repo` may write the models again, once it has built engines of its own.
        f"{MODELS}/{OWNER_TAG}": owner_tag(generated),
        **{f"{MODELS}/{path}": data for path, data in generated.items()},
    }


def _document(notes: tuple[Note, ...], source: Path, written: Path, findings: tuple[Finding, ...]) -> dict[str, Any]:
    found = [finding.as_dict() for finding in findings]
    return {**notes_document(notes, source=_text(source), written=_text(written)), "findings": found}


def _text(path: Path) -> str:
    """Return a path as text that any document can hold; names on disk need not be UTF-8."""
    return os.fsencode(path).decode("utf-8", errors="replace")
