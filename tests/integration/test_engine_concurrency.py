"""Two processes that build one engine, and one that is killed while it does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from specdeploy.engine.store import EngineStore
from tests.unit.engine.fakes import KEY

ROOT = Path(__file__).parents[2]
# Builds the engine of the fakes with a real process as its compiler, which waits for a file before it ends.
BUILDER = """
import sys
from pathlib import Path
from specdeploy.engine.execute import Surroundings, execute
from specdeploy.engine.store import EngineStore
from specdeploy.system.clock import SystemClock
from specdeploy.system.jobs import LocalJobs
from specdeploy.system.process import SubprocessRunner
from tests.unit.engine.fakes import TOOLS, FakeProfile, plan, planned, step

compiler = '''
import os, sys, time
from pathlib import Path
Path(sys.argv[1], "model.bin").write_bytes(b"weights")
with open(sys.argv[2] + "/started", "a") as file:
    file.write("x")
while not os.path.exists(sys.argv[2] + "/go"):
    time.sleep(0.01)
'''
store, meet = sys.argv[1], sys.argv[2]
steps = [step(argv=(sys.executable, "-c", compiler, "{output}", meet))]
(manifest,) = execute(
    plan(planned(steps=steps)), profile=FakeProfile(), jobs=LocalJobs(SubprocessRunner()),
    store=EngineStore(Path(store)), clock=SystemClock(),
    timeout_s=120, on_event=lambda event: print(type(event).__name__, flush=True),
    surroundings=Surroundings(tools=TOOLS),
)
print(manifest.created, flush=True)
"""


@pytest.fixture
def builders(tmp_path):
    """Return a function that starts a builder process; all are ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start():
        builder = subprocess.Popen(
            [sys.executable, "-c", BUILDER, str(tmp_path / "engines"), str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(builder)
        return builder

    yield start
    (tmp_path / "go").touch()
    for builder in started:
        builder.kill()
        builder.wait()
        builder.stdout.close()


def _await(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def _starts(tmp_path) -> int:
    path = tmp_path / "started"
    return len(path.read_text()) if path.exists() else 0


def _events(builder) -> list[str]:
    output, _ = builder.communicate(timeout=60)
    assert builder.returncode == 0
    return output.split()


def test_two_builders_of_one_engine_make_one(tmp_path, builders):
    """The second waits for the first and takes what it made."""
    first = builders()
    _await(lambda: _starts(tmp_path) == 1)
    second = builders()
    assert second.stdout.readline() == "Waiting\n"
    (tmp_path / "go").touch()

    *made, created = _events(first)
    *taken, same = _events(second)

    assert made == ["StepStarted", "StepFinished", "Published"]
    assert taken == ["CacheHit"]
    assert created == same
    assert _starts(tmp_path) == 1


def test_a_killed_builder_leaves_nothing_that_is_used(tmp_path, builders):
    """The waiting one gets the lock, removes the leftovers, and builds the engine itself."""
    store = EngineStore(tmp_path / "engines")
    first = builders()
    _await(lambda: _starts(tmp_path) == 1)
    second = builders()
    assert second.stdout.readline() == "Waiting\n"

    first.kill()
    first.communicate()
    _await(lambda: _starts(tmp_path) == 2)
    (tmp_path / "go").touch()
    *made, _ = _events(second)

    assert made == ["StepStarted", "StepFinished", "Published"]
    assert store.verify(KEY, full=True) == ()
    store.clean()
    assert [path.name for path in store.root.glob(".staging-*")] == []
