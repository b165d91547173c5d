"""Server-sent events, decoded as the bytes arrive (WHATWG HTML, section 9.2); only ``data`` is of interest here."""

from __future__ import annotations


class SseDecoder:
    """Turns pieces of a byte stream into the data of whole events.

    Pieces may end anywhere, also within a character or a line ending.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[str] = []

    @property
    def unfinished(self) -> bool:
        """Whether bytes of an event are waiting for the rest; true at the end means that the stream was cut."""
        return bool(self._buffer.strip() or self._data)

    @property
    def rest(self) -> bytes:
        """The bytes after the last line ending."""
        return self._buffer

    def feed(self, piece: bytes) -> list[str]:
        """Take the next bytes and return the data of the events that they complete, in order.

        Raises:
            UnicodeDecodeError: An event is not UTF-8.
        """
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        events = []
        for line in lines:
            events += self._line(line.removesuffix(b"\r").decode())
        return events

    def _line(self, line: str) -> list[str]:
        if line:
            field, _, value = line.partition(":")
            if field == "data":
                self._data.append(value.removeprefix(" "))
            return []
        event, self._data = self._data, []
        return ["\n".join(event)] if event else []
