"""What the command line says: outcomes on standard output, everything else on standard error.

A stream that takes nothing more is no bug of ours, and no other outcome: a reader that has gone (`| head`) wanted no
more, a full disk below standard output is said, as is one that was closed before we began, and what cannot be shown of
the progress ends nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import IO, Final, cast

import click

from specdeploy.errors import EnvironmentFault

_ELSEWHERE: Final = "write to another place; what the command keeps in files of its own is there"


def say(text: str, *, nl: bool = True) -> None:
    """Print a part of an outcome.

    Raises:
        EnvironmentFault: Standard output takes nothing, such as a file on a full disk, or is closed.
    """
    # Python's own annotation knows nothing of a process that was started without one.
    if cast("IO[str] | None", sys.stdout) is None:
        raise EnvironmentFault("the outcome cannot be written to standard output: it is closed", hint=_ELSEWHERE)
    try:
        _echo(text, nl=nl)
    except OSError as error:
        _give_up(sys.stdout)
        if error.errno != errno.EPIPE:
            raise EnvironmentFault(
                f"the outcome cannot be written to standard output: {error.strerror}",
                hint=f"make room, or {_ELSEWHERE}",
            ) from error


def tell(text: str, *, nl: bool = True) -> None:
    """Print what is to be known meanwhile; where that cannot be shown, it is not."""
    try:
        _echo(text, nl=nl, err=True)
    except OSError:
        _give_up(sys.stderr)


def _echo(text: str, *, nl: bool, err: bool = False) -> None:
    """Print a text; characters that the stream has no bytes for are escaped."""
    try:
        click.echo(text, nl=nl, err=err)
    except UnicodeEncodeError:
        encoding = (sys.stderr if err else sys.stdout).encoding
        click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=nl, err=err)


def _give_up(stream: IO[str]) -> None:
    """Send what follows nowhere; what is in the buffer would fail again at the exit of the interpreter."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
