"""How this program talks: progress lines, errors of one line and a hint, exit codes.

Knows nothing about models. The cause of a failed conversion is printed in full above the error, for the build log.
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING

from specdeploy.errors import EXIT_OK, BuildFailed, SpecdeployError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Progress:
    """Prints ``[k/n] text`` lines, flushed, so that a caller who reads a pipe sees them as they happen.

    Args:
        total: The number of steps that will be announced.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0

    def step(self, text: str) -> None:
        """Announce the next step."""
        self._done += 1
        say(f"[{self._done}/{self._total}] {text}")


def say(text: str) -> None:
    """Write one line to standard output at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def in_one_line(error: BaseException) -> str:
    """Return the kind of ``error`` and the first line of what it says."""
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def exit_code_of(main: Callable[[Sequence[str] | None], None], argv: Sequence[str] | None = None) -> int:
    """Run ``main(argv)``; print an error of ours as one line and its hint; return the exit code."""
    try:
        main(argv)
    except SpecdeployError as error:
        sys.stdout.flush()
        if isinstance(error, BuildFailed) and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error.message}{hint}\n")
        return error.exit_code
    return EXIT_OK
