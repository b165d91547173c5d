"""Engines take turns: one pass at a time, nobody twice before one that waits, nor for good behind one that hangs."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tensorrtllm_cpu import turns
from tensorrtllm_cpu.turns import Turns

TIMEOUT_S = 30.0
PASS_S = 0.002
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
    """A stopped process in its turn is waited for once in a while; when it goes on, turns are kept again at once."""
    hung, other = Turns(folder), Turns(folder, patience_s=0.2)
    with hung.turn():
        started = time.monotonic()
        for _ in range(100):
            with other.turn():
                pass
        took_s = time.monotonic() - started
    with other.turn():
        assert not turns._Lock(folder).take(0.0)

    assert 0.2 <= took_s < 10


def test_who_went_beside_a_long_pass_takes_turns_again_later(folder: Path) -> None:
    """However busy the others are, so that it never finds them between two passes."""
    inside, other = threading.Lock(), Turns(folder, patience_s=0.05)
    over, long, begun = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        busy = Turns(folder, patience_s=TIMEOUT_S)
        while not over.is_set():
            with busy.turn(), inside:
                begun.set()
                long.wait(TIMEOUT_S)
                over.wait(PASS_S)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    begun.wait(TIMEOUT_S)
    with other.turn():
        assert inside.locked()
    long.set()
    until, kept = time.monotonic() + TIMEOUT_S, 0
    while kept < 20 and time.monotonic() < until:
        with other.turn():
            kept = 0 if inside.locked() else kept + 1
            over.wait(PASS_S)
    over.set()
    for worker in workers:
        worker.join(TIMEOUT_S)

    assert kept == 20


def test_the_turn_of_a_process_that_dies_is_over(folder: Path) -> None:
    """The kernel drops its locks, however it died."""
    backend = turns.__file__.rsplit("/", 2)[0]
    command = [sys.executable, "-c", HOLDER, backend, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        assert not turns._Lock(folder).take(0.0)
        holder.kill()

    started = time.monotonic()
    with Turns(folder, patience_s=TIMEOUT_S).turn():
        assert time.monotonic() < started + TIMEOUT_S


def test_without_locks_there_are_no_turns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that has none, engines run as they come."""

    def refuse(*_: object) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with Turns(folder).turn(), Turns(folder).turn():
        pass


def test_without_a_folder_to_lock_there_are_no_turns(tmp_path: Path) -> None:
    """One that may not be opened is no reason not to load an engine."""
    with Turns(tmp_path / "missing" / "folder").turn(), Turns(tmp_path / "missing" / "folder").turn():
        pass


def test_locks_are_closed_with_their_engine(folder: Path) -> None:
    """An engine that is loaded again and again leaves nothing open."""

    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    for _ in range(5):
        Turns(folder)

    assert opened() == before
