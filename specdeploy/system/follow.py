"""Reads what is appended to a text file, line by line, while somebody else writes it.

Knows offsets and line ends. Does not wait: whoever asks decides when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdeploy.system.lines import LineSplitter

if TYPE_CHECKING:
    from pathlib import Path


class Follow:
    """Follows one file from its present end on; it may come into being later.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._lines = LineSplitter()

    def read(self) -> tuple[str, ...]:
        """Return the lines that were completed since the last call."""
        try:
            # Opened anew each time: a network file system looks at the server's state of a file when it is opened.
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            # Not there yet, or a server that is slow to answer: what is missed now is read the next time.
            return ()
        self._offset += len(data)
        return self._lines.feed(data)

    def rest(self) -> tuple[str, ...]:
        """Return what is left when nobody writes any more, with a last line that has no end."""
        return (*self.read(), *self._lines.close())
