"""Where an HTTP answer begins and ends, in whatever pieces it comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.wire.framing import ResponseReader
from specdeploy.triton.client.failures import RequestFailed
from tests.unit.bench.wire.scripted import END, HEAD, chunk, events, sized

SIZES = st.lists(st.integers(1, 40), max_size=6)


def read(*pieces: bytes) -> tuple[ResponseReader, bytes]:
    """Feed pieces to a reader and return it with the body."""
    reader = ResponseReader()
    return reader, b"".join(reader.feed(piece) for piece in pieces)


@st.composite
def cut_up(draw: st.DrawFn, whole: bytes) -> list[bytes]:
    """Cut bytes anywhere."""
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


class TestBody:
    """The body, by each way to delimit it."""

    @given(st.binary(max_size=200), SIZES, st.sampled_from([b"", b";a=b", b" ; x"]), st.booleans(), st.data())
    def test_chunks(self, body: bytes, sizes: list[int], extension: bytes, trailers: bool, data: st.DataObject) -> None:
        """Chunks of any size, with extensions and trailers, cut anywhere, are the body."""
        left, framed = body, b""
        for size in [*sizes, len(body) or 1]:
            piece, left = left[:size], left[size:]
            framed += b"%X%s\r\n%s\r\n" % (len(piece), extension, piece) if piece else b""
        end = b"0%s\r\n%s\r\n" % (extension, b"Later: x\r\nMore: y\r\n" if trailers else b"")
        reader, got = read(*data.draw(cut_up(HEAD + framed + end)))
        assert (got, reader.status, reader.ended, reader.reusable) == (body, 200, True, True)

    @given(st.binary(max_size=50), st.data())
    def test_length(self, body: bytes, data: st.DataObject) -> None:
        """A body with a length, cut anywhere."""
        reader, got = read(*data.draw(cut_up(sized(404, body))))
        assert (got, reader.status, reader.ended, reader.reusable) == (body, 404, True, True)

    def test_to_the_end_of_the_connection(self) -> None:
        """Without length and chunks the body ends with the connection, which cannot be used again."""
        reader, got = read(b"HTTP/1.0 200 OK\r\n\r\nab", b"c")
        assert (got, reader.ended) == (b"abc", False)
        reader.end_of_connection()
        assert (reader.ended, reader.reusable) == (True, False)

    @pytest.mark.parametrize("status", [204, 304])
    def test_none(self, status: int) -> None:
        """Some statuses have no body, whatever their headers say."""
        reader, got = read(b"HTTP/1.1 %d x\r\nContent-Length: 5\r\n\r\n" % status)
        assert (got, reader.ended, reader.reusable) == (b"", True, True)

    def test_a_part_of_a_chunk_is_not_held_back(self) -> None:
        """Bytes are handed on when they come, not when their chunk is complete."""
        reader = ResponseReader()
        assert [reader.feed(piece) for piece in (HEAD + b"5\r\nab", b"cd", b"e\r", b"\n", END)] == [
            b"ab",
            b"cd",
            b"e",
            b"",
            b"",
        ]
        assert reader.ended

    def test_interim_answers(self) -> None:
        """An answer of status 1xx is followed by the real one."""
        reader, got = read(
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + sized(200, b"x")
        )
        assert (reader.status, got, reader.ended) == (200, b"x", True)

    def test_very_many_interim_answers(self) -> None:
        """Up to a hundred of them are passed over, in pieces of any size; more are none of HTTP (see `TestFaults`)."""
        whole = b"HTTP/1.1 100 Continue\r\n\r\n" * 100 + sized(200, b"x")
        for size in (7, len(whole)):
            reader, got = read(*(whole[at : at + size] for at in range(0, len(whole), size)))
            assert (reader.status, got, reader.ended) == (200, b"x", True)

    def test_bare_line_feeds(self) -> None:
        """Lines of a head may end without a carriage return."""
        reader, got = read(b"HTTP/1.1 200 OK\nContent-Length: 5\n\na\r\n\r\n")
        assert (reader.status, got, reader.ended) == (200, b"a\r\n\r\n", True)


class TestReuse:
    """Whether another request may follow."""

    @pytest.mark.parametrize(
        ("answer", "reusable"),
        [
            (sized(200, b"x"), True),
            (sized(200, b"x", b"Connection: Keep-Alive, Close"), False),
            (sized(200, b"x").replace(b"1.1", b"1.0"), False),
            (sized(200, b"x", b"connection: keep-alive").replace(b"1.1", b"1.0"), True),
            (sized(200, b"x") + b"more", False),
            (HEAD + END + b"more", False),
            (HEAD + b"0\r\nConnection: x\r\n\r\n", True),
        ],
    )
    def test_as_the_server_says(self, answer: bytes, reusable: bool) -> None:
        """The version and ``Connection`` decide; bytes that nobody asked for spoil the connection."""
        reader, _ = read(answer)
        assert (reader.ended, reader.reusable) == (True, reusable)


class TestFaults:
    """What is not HTTP, and what is not complete."""

    @pytest.mark.parametrize(
        "answer",
        [
            b"SSH-2.0-OpenSSH\r\n",
            b"\x00\x01",
            b"HTTP/2 200\r\n\r\n",
            b"HTTP/1.1 20\r\n\r\n",
            b"HTTP/1.1 999 x\r\n\r\n",
            b"HTTP/1.1 101 Switching\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nbad name: x\r\n : y\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            HEAD + b"\r\n",
            HEAD + b"x\r\n",
            HEAD + b"-1\r\n",
            HEAD + b"0x5\r\n",
            HEAD + b"1_0\r\n",
            HEAD + b"f" * 20 + b"\r\n",
            HEAD + b"2\r\nabc\r\n",
            HEAD + b"1" * 5000,
            HEAD + b"0\r\n" + b"a: b\r\n" + b"x" * 70000,
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000,
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000 + b"\r\n\r\n",
        ],
    )
    def test_what_is_not_http(self, answer: bytes) -> None:
        """It fails as `protocol`, at once and with bounded memory, whether it comes as a whole or in pieces."""
        size = max(7, len(answer) // 50)
        for pieces in ([answer], [answer[i : i + size] for i in range(0, len(answer), size)]):
            with pytest.raises(RequestFailed) as failed:
                read(*pieces)
            assert failed.value.label == "protocol"

    @pytest.mark.parametrize(
        "answer", [HEAD[:20], HEAD, HEAD + b"5\r\nab", HEAD + events("a"), sized(200, b"abc")[:-1]]
    )
    def test_what_is_not_complete(self, answer: bytes) -> None:
        """An answer that the end of the connection cuts off fails as `connection`."""
        reader, _ = read(answer)
        with pytest.raises(RequestFailed, match="before the answer was complete") as failed:
            reader.end_of_connection()
        assert failed.value.label == "connection"

    def test_no_answer(self) -> None:
        """A connection that ends without a byte says so."""
        reader = ResponseReader()
        assert not reader.begun
        with pytest.raises(RequestFailed, match="without an answer"):
            reader.end_of_connection()

    def test_the_end_after_the_end(self) -> None:
        """A connection that ends after a complete answer is no fault."""
        reader, _ = read(HEAD + chunk(b"x") + END)
        reader.end_of_connection()
