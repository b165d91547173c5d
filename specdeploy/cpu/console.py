"""How the programs of this room talk: progress lines, one-line errors, exit codes.

Knows nothing about models. Errors are those of ``specdeploy.errors``; whatever else escapes keeps its traceback.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from specdeploy.errors import EXIT_OK, SpecdeployError

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


def exit_code_of(main: Callable[[Sequence[str] | None], None], argv: Sequence[str] | None = None) -> int:
    """Run ``main(argv)``; print an error of ours as one line and its hint; return the exit code."""
    try:
        main(argv)
    except SpecdeployError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stdout.flush()
        sys.stderr.write(f"error: {error.message}{hint}\n")
        return error.exit_code
    return EXIT_OK
