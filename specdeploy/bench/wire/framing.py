"""Where the body of an HTTP/1.1 answer begins and ends (RFC 9112), whatever pieces it arrives in. Touches no socket."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final

from specdeploy.triton.client.failures import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Longest head of an answer, and longest trailer; longest line that tells the size of a chunk (bytes).
_MAX_HEAD: Final = 65536
_MAX_LINE: Final = 4096
_SHOWN: Final = 100
_START: Final = b"HTTP/1."
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: [^\r\n]*)?")
_EMPTY_LINE: Final = re.compile(rb"\r?\n\r?\n")
_HEX: Final = b"0123456789abcdefABCDEF"
_LINE_END: Final = b"\r\n"
#: A size of more digits than this is no size.
_MAX_DIGITS: Final = 15
_EMPTY: Final = frozenset({204, 304})
#: More interim answers than any server sends in front of one answer.
_MOST_INTERIM: Final = 100


class ResponseReader:
    """Reads one answer to a POST: takes bytes as they arrive and returns those of the body.

    Interim answers (status 1xx) are passed over. Chunk extensions and trailers are, too.
    """

    def __init__(self) -> None:
        self.status = 0
        #: Where a redirect leads to, as the server says it; else empty.
        self.location = ""
        #: Whether any byte has come.
        self.begun = False
        self.ended = False
        #: Whether another request can be sent over the connection, once this answer has ended.
        self.reusable = False
        self._rest = b""
        self._left = 0
        self._interim = 0
        self._state: Callable[[bytes], bytes] = self._head

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return the bytes of the body that they hold.

        Raises:
            RequestFailed: ``protocol``: they are not HTTP/1.
        """
        return self._state(data)

    def end_of_connection(self) -> None:
        """Take note that nothing follows.

        Raises:
            RequestFailed: ``connection``: the answer is not complete.
        """
        if self._state == self._until_close:
            self.ended = True
        if not self.ended:
            told = "before the answer was complete" if self.begun else "without an answer"
            raise RequestFailed("connection", f"the server closed the connection {told}")

    def _head(self, data: bytes) -> bytes:
        self.begun = True
        self._rest += data
        while self._rest and not self.status:
            if not self._one_head():
                return b""
        body, self._rest = self._rest, b""
        return self._state(body) if body else b""

    def _one_head(self) -> bool:
        """Take a whole head, be it of an interim answer, off what has come; say whether there was one."""
        if not _START.startswith(self._rest[: len(_START)]):
            raise RequestFailed("protocol", f"the server does not speak HTTP/1: {self._rest[:_SHOWN]!r}")
        head, *behind = _EMPTY_LINE.split(self._rest, maxsplit=1)
        _limit(head, _MAX_HEAD, "head of the answer")
        if not behind:
            return False
        self._rest = behind[0]
        first, *lines = head.replace(_LINE_END, b"\n").split(b"\n")
        status_line = _STATUS_LINE.fullmatch(first)
        if status_line is None:
            raise RequestFailed("protocol", f"the server does not speak HTTP/1: {first[:_SHOWN]!r}")
        status = int(status_line[2])
        if status == 101:
            raise RequestFailed("protocol", "the server switches to another protocol", status=status)
        if status >= 200:
            self.status = status
            headers = _headers(lines)
            self.location = headers.get(b"location", b"").decode("latin-1")
            self._find_body(headers, newest=status_line[1] == b"1")
            return True
        self._interim += 1
        if self._interim > _MOST_INTERIM:
            raise RequestFailed("protocol", f"more than {_MOST_INTERIM} interim answers, the last a {status}")
        return True

    def _find_body(self, headers: Mapping[bytes, bytes], *, newest: bool) -> None:
        """Choose how the body ends, by RFC 9112, section 6.3."""
        options = {option.strip().lower() for option in headers.get(b"connection", b"").split(b",")}
        self.reusable = b"close" not in options and (newest or b"keep-alive" in options)
        coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
        if self.status in _EMPTY:
            self._end()
        elif coding is not None:
            if coding.lower() != b"chunked":
                raise RequestFailed("protocol", f"the answer has the transfer coding {coding[:_SHOWN]!r}")
            self._state = self._size
        elif length is not None:
            self._left = _content_length(length)
            self._state = self._sized
            if not self._left:
                self._end()
        else:
            self.reusable = False
            self._state = self._until_close

    def _end(self) -> None:
        self.ended = True
        self._state = self._after_the_end

    def _after_the_end(self, data: bytes) -> bytes:
        # Nobody has asked for anything yet that this could be the answer to.
        self.reusable = self.reusable and not data
        return b""

    def _until_close(self, data: bytes) -> bytes:
        return data

    def _sized(self, data: bytes) -> bytes:
        body = data[: self._left]
        self._left -= len(body)
        if not self._left:
            self._end()
            self._after_the_end(data[len(body) :])
        return body

    def _size(self, data: bytes) -> bytes:
        """Take bytes that begin with a chunk's size, and all whole chunks with it."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        pieces: list[bytes] = []
        at, whole = 0, len(data)
        while at < whole:
            end_of_line = data.find(b"\n", at)
            if end_of_line < 0:
                self._rest = data[at:]
                _limit(self._rest, _MAX_LINE, "line in front of a chunk")
                break
            size = _chunk_size(data[at:end_of_line])
            start = end_of_line + 1
            end = start + size
            if not size:
                self._state = self._trailer
                self._trailer(data[start:])
                break
            if data[end : end + 2] != _LINE_END:
                self._left, self._state = size, self._chunk
                pieces.append(self._chunk(data[start:]))
                break
            pieces.append(data[start:end])
            at = end + 2
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _chunk(self, data: bytes) -> bytes:
        """Take bytes of a chunk that has not come as a whole; what is there of it is passed on at once."""
        body = data[: self._left]
        self._left -= len(body)
        if self._left:
            return body
        self._state = self._chunk_end
        return body + self._chunk_end(data[len(body) :])

    def _chunk_end(self, data: bytes) -> bytes:
        end = self._rest + data
        if not _LINE_END.startswith(end[:2]):
            raise RequestFailed("protocol", f"a chunk is longer than its size: {end[:_SHOWN]!r} follows it")
        if len(end) < len(_LINE_END):
            self._rest = end
            return b""
        self._rest, self._state = b"", self._size
        return self._size(end[2:])

    def _trailer(self, data: bytes) -> bytes:
        self._rest += data
        while (end_of_line := self._rest.find(b"\n")) >= 0:
            line, self._rest = self._rest[:end_of_line], self._rest[end_of_line + 1 :]
            if not line.rstrip(b"\r"):
                self._end()
                self._after_the_end(self._rest)
                return b""
        _limit(self._rest, _MAX_HEAD, "trailer of the answer")
        return b""


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    """Return the headers by lower-case name; the values of one that is repeated are joined by commas."""
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise RequestFailed("protocol", f"the answer has the header line {line[:_SHOWN]!r}")
        key = name.lower()
        headers[key] = headers[key] + b"," + value.strip() if key in headers else value.strip()
    return headers


def _content_length(told: bytes) -> int:
    lengths = {length.strip() for length in told.split(b",")}
    length = lengths.pop()
    if lengths or not length.isdigit() or len(length) > _MAX_DIGITS:
        raise RequestFailed("protocol", f"the answer has the Content-Length {told[:_SHOWN]!r}")
    return int(length)


@functools.lru_cache(1024)
def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or digits.strip(_HEX) or len(digits) > _MAX_DIGITS:
        raise RequestFailed("protocol", f"a chunk has the size {line[:_SHOWN]!r}")
    return int(digits, 16)


def _limit(data: bytes, most: int, what: str) -> None:
    if len(data) > most:
        raise RequestFailed("protocol", f"the {what} is longer than {most} bytes")
