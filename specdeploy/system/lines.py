"""Cuts a stream of bytes into lines of text, however the chunks fall.

Knows line ends and UTF-8; knows nothing about where the bytes come from.
"""

from __future__ import annotations

import re
from typing import Final

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_LONGEST_LINE: Final = 64 * 1024


class LineSplitter:
    r"""Collects bytes and gives back the lines they complete, without their line ends.

    ``\n``, ``\r\n`` and ``\r`` each end one line: progress bars redraw with a lone carriage return. Bytes that are
    not UTF-8 are replaced. A line of more than 64 KiB is given in pieces, so that memory stays bounded.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[str, ...]:
        """Add *data* and return the lines that are complete now."""
        buffer = self._rest + data
        # A carriage return at the very end may be half of a CRLF: it waits for the next byte.
        held = b"\r" if buffer.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(buffer.removesuffix(held))
        if len(rest) > _LONGEST_LINE:
            lines.append(rest)
            rest = b""
        self._rest = rest + held
        return tuple(_text(line) for line in lines)

    def close(self) -> tuple[str, ...]:
        """Return the last line, when the stream did not end with a line end."""
        rest, self._rest = self._rest, b""
        return (_text(rest.removesuffix(b"\r")),) if rest else ()


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")
