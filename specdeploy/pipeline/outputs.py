"""Files that a command was asked to write: tried before the work begins, and named when they cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Any

from specdeploy.errors import ConfigError, EnvironmentFault
from specdeploy.system.files import explained, folder_locked_if_free, write_json_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class FolderBusy(EnvironmentFault):
    """Another command measures into the report folder; what lies there is its, and is not to be touched."""


class NotKept(EnvironmentFault):
    """A verdict could not be written where it is kept; it is known all the same, and can be shown.

    Args:
        message: What happened.

        document: The verdict.
    """

    def __init__(self, message: str, document: dict[str, Any]) -> None:
        super().__init__(message, hint="make room, or name another folder as report.path")
        self.document = document


def require_writable(path: Path, named_by: str) -> None:
    """Stop when a file cannot be written; missing folders are made.

    Args:
        path: The file.

        named_by: The option or key that names it, for the message.

    Raises:
        ConfigError: It cannot.
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EISDIR, "it is no file")
        path.parent.mkdir(parents=True, exist_ok=True)
        # As atomic writing does it: another name in the same folder.
        trial = path.with_name(f".{path.name}.new-{os.getpid()}")
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ConfigError(
            f"{named_by}: {path} cannot be written: {error.strerror}",
            hint="name a file in a folder that we may write to; nothing was done yet",
        ) from error


def resolved(path: Path, named_by: str) -> Path:
    """Return where a path leads.

    Args:
        path: The path.

        named_by: The option or key that names it, for the message.

    Raises:
        ConfigError: It leads nowhere, as a link to itself does.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        # Older Pythons have no system error for it.
        raise ConfigError(f"{named_by}: {path} cannot be used: {error}", hint="name another file") from error


def require_ours(path: Path, named_by: str, beginning: str, kind: str) -> None:
    """Stop when a file is there that is not of the kind that is to take its place: it may be somebody's work.

    Args:
        path: The file.

        named_by: The option that names it, for the message.

        beginning: How each file of the kind begins.

        kind: What the kind is called, for the message.

    Raises:
        ConfigError: It is something else, or cannot be read.
    """
    wanted = beginning.encode()
    try:
        with path.open("rb") as file:
            found = file.read(len(wanted))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{named_by}: {path} cannot be read: {error.strerror}", hint="name another file") from error
    if found and found != wanted:
        raise ConfigError(
            f"{named_by}: {path} is there already, and is not {kind}",
            hint="name another file, or move this one away",
        )


@contextlib.contextmanager
def alone_in(reports: Path) -> Iterator[None]:
    """Keep other commands that measure out of a report folder during the block.

    Two at once would replace each other's results, and disturb each other's times.

    Raises:
        ConfigError: The folder cannot be made.
        FolderBusy: Another one measures into it.
    """
    with contextlib.ExitStack() as held:
        with explained(reports):
            free = held.enter_context(folder_locked_if_free(reports))
        if not free:
            raise FolderBusy(
                f"another command is just measuring into {reports}",
                hint="wait until it has ended, or give this one a folder of its own: --set report.path=FOLDER",
            )
        yield


def require_appendable(path: Path, named_by: str) -> None:
    """Stop when nothing can be added to a file, which is made when it is not there.

    Args:
        path: The file.

        named_by: The variable that names it, for the message.

    Raises:
        ConfigError: It cannot.
    """
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise ConfigError(
            f"{named_by}: {path} cannot be written: {error.strerror}",
            hint=f"unset {named_by}, or set it to a file that we may write to; nothing was done yet",
        ) from error


def keep_verdict(path: Path, document: dict[str, Any]) -> None:
    """Write the document of a verdict, or leave none: not that of an earlier run either.

    Args:
        path: The file, in the report folder.

        document: The verdict.

    Raises:
        NotKept: It cannot be written.
    """
    said = problem("report.path", path, lambda file: write_json_atomic(file, document))
    if said:
        discard(path)
        raise NotKept(said, document)


def discard(path: Path) -> None:
    """Remove a file that an earlier run wrote, so that it is not taken for what this one could not write."""
    with contextlib.suppress(OSError):
        if path.is_file():
            path.unlink()


def problem(named_by: str, path: Path, write: Callable[[Path], None]) -> str:
    """Write a file, and return what went wrong; empty when nothing did.

    Args:
        named_by: The option or key that names it, for the message.

        path: The file.

        write: Writes it.
    """
    try:
        write(path)
    except OSError as error:
        return f"{named_by}: {path} cannot be written: {error.strerror or error}"
    return ""
