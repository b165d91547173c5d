"""Bytes to lines, however the chunks fall."""

from __future__ import annotations

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from specdeploy.system.lines import LineSplitter

# Few letters, so that line ends are common.
BYTES = st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", "Ü".encode(), b"\xff"]), max_size=20).map(b"".join)


def _lines(chunks):
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + list(splitter.close())


@given(data=BYTES, cuts=st.lists(st.integers(0, 40), max_size=5))
def test_chunks_do_not_matter(data, cuts):
    """The same lines as from one piece, even when a line end or a character is cut in two."""
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    chunks = [data[a:b] for a, b in itertools.pairwise(places)]
    *expected, rest = re.split(r"\r\n|\n|\r", data.decode(errors="replace"))

    assert _lines(chunks) == expected + ([rest] if rest else [])


def test_a_progress_bar_gives_lines_as_it_redraws():
    """A lone carriage return ends a line as soon as the next byte shows that it is alone."""
    splitter = LineSplitter()

    assert splitter.feed(b"10%\r") == ()
    assert splitter.feed(b"20%\r30%") == ("10%", "20%")
    assert splitter.close() == ("30%",)


def test_memory_stays_bounded_without_line_ends():
    """A program that prints megabytes without a line end is passed on in pieces."""
    pieces = LineSplitter().feed(b"x" * 200_000)

    assert sum(map(len, pieces)) == 200_000
