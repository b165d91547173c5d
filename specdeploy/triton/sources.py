"""Files that go into a repository or come out of one: model sources, the CPU backend, tokenizers, repositories on disk.

Knows where they are. Does not know what they mean; the pure rooms take what is read here as values.
"""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdeploy.errors import RepositoryError
from specdeploy.system.files import OWNER_TAG
from specdeploy.triton.lint.engine_dir import DOCUMENTS, EngineDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.resources.abc import Traversable

    from specdeploy.triton.repository import RepoTree

# What tokenizers and chat templates consist of; anything else in a checkpoint is weights, or not needed to serve it.
TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
# A repository's own files are small. Weights that lie in one are listed, not read.
MAX_READ_BYTES: Final = 64 * 1024 * 1024
_IGNORED_DIRS: Final = frozenset({"__pycache__", ".git"})


def model_sources() -> dict[str, bytes]:
    """Return the code of the python models, by path such as ``preprocessing/1/model.py``."""
    return _python_files(importlib.resources.files("specdeploy.triton").joinpath("models"))


def backend_sources() -> dict[str, bytes]:
    """Return the code of the CPU engine's Triton backend, by path inside the backend's directory."""
    return _python_files(importlib.resources.files("specdeploy.cpu").joinpath("backend"))


def tokenizer_files(checkpoint: Path) -> dict[str, bytes]:
    """Return the tokenizer files of a checkpoint folder, by name.

    Raises:
        RepositoryError: A file cannot be read.
    """
    return {name: _read(checkpoint / name) for name in TOKENIZER_FILES if (checkpoint / name).is_file()}


def read_repository(path: Path) -> RepoTree:
    """Return a model repository on disk as a value; files over 64 MiB are there with no content.

    A path that ends with ``/`` is an empty directory, which to Triton can be a version, or a model without anything.

    Raises:
        RepositoryError: *path* is no directory, or a file in it cannot be read.
    """
    if not path.is_dir():
        raise RepositoryError(f"{path} is not a directory", hint="write the repository with `specdeploy repo`")
    files = sorted(file for file in _files(path) if file.relative_to(path).as_posix() != OWNER_TAG)
    empty = {f"{folder.relative_to(path).as_posix()}/": b"" for folder in _empty_folders(path)}
    return {file.relative_to(path).as_posix(): _read(file) for file in files} | empty


def engine_listing(repository: Path) -> Callable[[str], EngineDirectory | None]:
    """Return a function from an engine path in config.pbtxt to what lies there: sizes, and the small documents.

    The function gives None where there is no such directory. A relative path starts at the root of *repository*.
    """

    def listing(engine: str) -> EngineDirectory | None:
        directory = repository / engine
        if not repository.exists():  # not published yet: there is nothing that ".." could go through
            directory = Path(os.path.normpath(directory))
        if not directory.is_dir():
            return None
        sizes = {file.relative_to(directory).as_posix(): _size(file) for file in _files(directory)}
        return EngineDirectory(
            sizes=sizes, documents={name: _read(directory / name) for name in DOCUMENTS if name in sizes}
        )

    return listing


def _python_files(root: Traversable) -> dict[str, bytes]:
    return {path: item.read_bytes() for path, item in sorted(_walk(root, "")) if path.endswith(".py")}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for item in folder.iterdir():
        if item.is_dir():
            if item.name not in _IGNORED_DIRS:
                yield from _walk(item, f"{prefix}{item.name}/")
        else:
            yield f"{prefix}{item.name}", item


def _files(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root, followlinks=True):
        subfolders[:] = [name for name in subfolders if name not in _IGNORED_DIRS]
        yield from (Path(folder, name) for name in names)


def _empty_folders(root: Path) -> Iterator[Path]:
    """Yield directories with nothing in them, and at the top those that are not looked into: Triton looks there."""
    for folder, subfolders, names in os.walk(root, followlinks=True):
        if Path(folder) == root:
            yield from (root / name for name in subfolders if name in _IGNORED_DIRS)
        elif not subfolders and not names:
            yield Path(folder)
        subfolders[:] = [name for name in subfolders if name not in _IGNORED_DIRS]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise RepositoryError(f"{path} cannot be read: {error.strerror}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.stat().st_size <= MAX_READ_BYTES else b""
    except OSError as error:
        raise RepositoryError(f"{path} cannot be read: {error.strerror}") from error
