"""Server-sent events, cut out as the bytes arrive (WHATWG HTML, section 9.2); only ``data`` is of interest here."""

from __future__ import annotations

from typing import Final

_FIRST: Final = b"data: "
_NEXT: Final = b"\n\ndata: "
_END: Final = b"\n\n"


class EventSplitter:
    """Cuts a byte stream into the data of whole events, not decoded.

    Pieces may end anywhere, also within a character or a line ending.
    """

    def __init__(self) -> None:
        #: What came since the last line ending, in pieces, so that a line without end is not copied for each of them.
        self._pending: list[bytes] = []
        self._data: list[bytes] = []

    @property
    def unfinished(self) -> bool:
        """Whether bytes of an event are waiting for the rest; true at the end means that the stream was cut."""
        return bool(self._data) or any(piece.strip() for piece in self._pending)

    @property
    def rest(self) -> bytes:
        """The bytes after the last line ending."""
        return b"".join(self._pending)

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes and return the data of the events that they complete, in order."""
        # Nearly every piece is one event of one line, or several of them: these need no look at their lines.
        if piece[:6] == _FIRST and piece[-2:] == _END and not (self._pending or self._data):
            if piece.find(b"\n") == len(piece) - 2 and piece[-3:-2] != b"\r":
                return [piece[6:-2]]
            events = piece[6:-2].split(_NEXT)
            if piece.count(b"\n") == 2 * len(events) and b"\r" not in piece:
                return events
        if b"\n" not in piece:
            self._pending.append(piece)
            return []
        self._pending.append(piece)
        *lines, rest = b"".join(self._pending).split(b"\n")
        self._pending = [rest] if rest else []
        events = []
        for line in lines:
            events += self._line(line.removesuffix(b"\r"))
        return events

    def _line(self, line: bytes) -> list[bytes]:
        if line:
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            return []
        event, self._data = self._data, []
        return [b"\n".join(event)] if event else []
