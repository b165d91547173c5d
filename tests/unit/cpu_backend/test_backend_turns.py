"""Engines take turns: one pass at a time, in the order of asking, and never for good behind one that hangs or died."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from tensorrtllm_cpu import turns
from tensorrtllm_cpu.turns import Turns

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 30.0
HOLDER = """
import sys, time
sys.path.append(sys.argv[1])
from pathlib import Path
from tensorrtllm_cpu.turns import Turns
with Turns(Path(sys.argv[2])).turn():
    print("in", flush=True)
    time.sleep(600)
"""


@pytest.fixture(name="folder")
def folder_(tmp_path: Path) -> Path:
    """Return the folder that engines share; its parent is locked, too."""
    folder = tmp_path / "backend" / "package"
    folder.mkdir(parents=True)
    return folder


def test_passes_never_run_beside_each_other(folder: Path) -> None:
    """Three engines with 50 passes each."""
    inside, most = [0], []

    def work() -> None:
        own = Turns(folder, patience_s=TIMEOUT_S)
        for _ in range(50):
            with own.turn():
                inside[0] += 1
                most.append(inside[0])
                inside[0] -= 1
        own.close()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)

    assert most == [1] * 150


def test_who_has_just_had_a_turn_does_not_overtake_who_waits(folder: Path) -> None:
    """However fast it asks again."""
    order, first, second = [], Turns(folder, patience_s=TIMEOUT_S), Turns(folder, patience_s=TIMEOUT_S)

    def wait() -> None:
        with second.turn():
            order.append("second")

    waiter = threading.Thread(target=wait)
    with first.turn():
        waiter.start()
        look = turns._Lock(folder.parent)
        while look.take(0.0):
            look.drop()
        order.append("first")
    with first.turn():
        order.append("first again")
    waiter.join(TIMEOUT_S)

    assert order == ["first", "second", "first again"]


def test_one_that_hangs_keeps_nobody_for_good(folder: Path) -> None:
    """A stopped process in its turn is waited for once; when it goes on, turns are kept again."""
    hung, other = Turns(folder), Turns(folder, patience_s=0.01)
    with hung.turn():
        for _ in range(2):
            with other.turn():
                assert not other._patient
    with other.turn():
        assert other._patient
        assert not turns._Lock(folder).take(0.0)


def test_the_turn_of_a_process_that_dies_is_over(folder: Path) -> None:
    """The kernel drops its locks, however it died."""
    backend = turns.__file__.rsplit("/", 2)[0]
    command = [sys.executable, "-c", HOLDER, backend, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        assert not turns._Lock(folder).take(0.0)
        holder.kill()

    other = Turns(folder, patience_s=TIMEOUT_S)
    with other.turn():
        assert other._patient


def test_without_locks_there_are_no_turns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that has none, engines run as they come."""

    def refuse(*_: object) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with Turns(folder).turn(), Turns(folder).turn():
        pass
