"""The log of a server that starts, read as it grows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from specdeploy.errors import ServerFault
from specdeploy.triton.server.readiness import _Log

if TYPE_CHECKING:
    from pathlib import Path


def test_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    """A verbose log gets large while engines load; a line is given once, when it is complete."""
    path = tmp_path / "server.log"
    path.write_text("one\ntw")
    log = _Log(SimpleNamespace(log=path))

    assert log.new() == "one"
    with path.open("a") as file:
        file.write("o\nthree\n")
    assert log.new() == "two\nthree"
    assert log.new() == ""
    assert log.whole() == "one\ntwo\nthree\n"


def test_a_log_that_is_removed_ends_the_start(tmp_path: Path) -> None:
    """With its path and what to do, and not as a bug of ours."""
    path = tmp_path / "server.log"
    path.write_text("one\n")
    log = _Log(SimpleNamespace(log=path))
    path.unlink()

    with pytest.raises(ServerFault, match=r"server\.log cannot be read any more"):
        log.new()
