"""Files that go into a repository or come out of one: model sources, the CPU backend, tokenizers, repositories on disk.

Knows where they are. Does not know what they mean; the pure rooms take what is read here as values.
"""

from __future__ import annotations

import importlib.resources
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specdeploy.errors import RepositoryError
from specdeploy.system.files import OWNER_TAG
from specdeploy.triton.lint.engine_dir import DOCUMENTS, STORE_MANIFEST, EngineDirectory
from specdeploy.triton.lint.unread import CIRCLE, DANGLING, Unread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
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
# A repository has hundreds of files. Links can make any number of paths of a few folders, so there is an end to it.
MAX_ENTRIES: Final = 50_000
# An engine has a file for each rank, and some beside them.
MAX_ENGINE_ENTRIES: Final = 5_000
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
    """Return a model repository on disk as a value; what is not read is there as an ``Unread``, which says why.

    That is a file over 64 MiB, a link to nothing, a pipe or a device, what this user may not read, and a link back to a
    folder above it. A path that ends with ``/`` is an empty directory, which to Triton can be a version, or a model
    without anything.

    Raises:
        RepositoryError: *path* is no directory that can be read.
    """
    if not os.path.isdir(path):  # noqa: PTH112 - pathlib's raises for a name that no file system takes
        there = os.path.lexists(path)
        raise RepositoryError(
            f"{path} is not a directory" if there else f"there is no directory {path}",
            hint="name a directory of models; `specdeploy repo` writes that of specdeploy.yaml",
        )
    tree = {name: item if isinstance(item, bytes) else _content(item) for name, item in _entries(path)}
    if isinstance(top := tree.pop("", b""), Unread):
        raise RepositoryError(f"{path} {top.reason}", hint="lint it as a user who may read it")
    tree.pop(OWNER_TAG, None)
    return dict(sorted(tree.items()))


def engine_listing(repository: Path) -> Callable[[str], EngineDirectory | None]:
    """Return a function from an engine path in config.pbtxt to what lies there: sizes, and the small documents.

    The function gives None where there is no such directory. A relative path starts at the root of *repository*. Only
    an engine of our store is looked at below its first level: its manifest lists what lies there.
    """

    def listing(engine: str) -> EngineDirectory | None:
        directory = repository / engine
        if not os.path.exists(repository):  # noqa: PTH110 - not published yet: there is nothing to go up from
            directory = Path(os.path.normpath(directory))
        if not os.path.isdir(directory):  # noqa: PTH112 - pathlib's raises for a name that no file system takes
            return None
        deep = (directory / STORE_MANIFEST).is_file()
        found = dict(_entries(directory, deep=deep, limit=MAX_ENGINE_ENTRIES))
        top = found.pop("", b"")
        sizes = {name: _size(item) for name, item in found.items() if not name.endswith("/")}
        return EngineDirectory(
            sizes={name: size for name, size in sizes.items() if size is not None},
            documents={name: _content(directory / name) for name in DOCUMENTS if sizes.get(name) is not None},
            unreadable=top.reason if isinstance(top, Unread) else "",
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


def _entries(root: Path, *, deep: bool = True, limit: int = MAX_ENTRIES) -> Iterator[tuple[str, Path | bytes]]:
    """Yield what lies below *root* by its relative path: a regular file, or the bytes that stand for anything else.

    Directories end with ``/``, and are there when nothing is in them. Links are followed, as Triton does, but never
    back to a folder that they lie in. The root itself is ``""``, and there only when it was not looked into.
    """
    todo: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while todo:
        prefix, above = todo.pop()
        try:
            identity, names = _identity(root / prefix), sorted(os.listdir(root / prefix))  # noqa: PTH208 - names
        except OSError as error:
            yield prefix, Unread(f"cannot be read: {error.strerror}", hidden=True)
            continue
        limit -= len(names)
        if identity in above:
            yield prefix, Unread(CIRCLE)
        elif limit < 0:
            yield prefix, Unread("was not looked into: too many files, or links that make them many", hidden=True)
        else:
            folders, others = _parted(root, prefix, names)
            yield from others.items()
            if prefix and not folders and not others:
                yield prefix, b""
            todo += [(f"{prefix}{name}/", above | {identity}) for name in folders if deep]


def _parted(root: Path, prefix: str, names: Iterable[str]) -> tuple[list[str], dict[str, Path | bytes]]:
    """Return the folders to look into, and everything else by its path."""
    folders: list[str] = []
    others: dict[str, Path | bytes] = {}
    for name in names:
        item = _item(root / prefix / name)
        if item is not None:
            others[f"{prefix}{name}"] = item
        elif name not in _IGNORED_DIRS:
            folders.append(name)
        elif not prefix:  # not looked into, but Triton takes it for a model
            others[f"{name}/"] = b""
    return folders, others


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _item(path: Path) -> Path | Unread | None:
    """Return a regular file, what stands for anything else, or None for a directory."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if path.is_symlink():
            return Unread(DANGLING)
        return Unread(f"cannot be read: {error.strerror}", hidden=True)
    if stat.S_ISDIR(mode):
        return None
    # Opening a pipe would wait for somebody to write to it.
    return path if stat.S_ISREG(mode) else Unread("is a pipe, a socket or a device")


def _size(item: Path | bytes) -> int | None:
    """Return a file's bytes; None when there is no such file by now, or it is none."""
    try:
        return None if isinstance(item, bytes) else item.stat().st_size
    except OSError:
        return None


def _content(path: Path) -> bytes:
    """Return a file's content, or what stands for it."""
    try:
        size = path.stat().st_size
        return path.read_bytes() if size <= MAX_READ_BYTES else Unread("is over 64 MiB", size=size)
    except OSError as error:
        return Unread(f"cannot be read: {error.strerror}", hidden=True)


def _read(path: Path) -> bytes:
    data = _content(path)
    if isinstance(data, Unread):
        raise RepositoryError(f"{path} {data.reason}", hint="a tokenizer's files are small, and the user's to read")
    return data
