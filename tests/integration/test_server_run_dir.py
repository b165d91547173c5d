"""Who owns a run directory: two starts at once, files that were damaged, copied or removed under a running server.

The server is a plain one of Python's own; guard, state, locks and signals are the real ones.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specdeploy.config.schema import ServeConfig
from specdeploy.errors import EnvironmentFault, ServerFault
from specdeploy.triton.server import ManagedServer, attach, orphans, start_detached, stop_detached
from specdeploy.triton.server.state import STATE_FILE
from tests.integration.server_stand_ins import SERVE, PlainLauncher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.triton.server import ServerState

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def run_dir(tmp_path) -> Iterator[Path]:
    """A run directory; whatever runs from it at the end is stopped."""
    (tmp_path / "models").mkdir()
    yield tmp_path / "run"
    stop_detached(tmp_path / "run")
    assert orphans.find(tmp_path / "run") == ()


@pytest.fixture
def server(run_dir) -> Callable[..., ManagedServer]:
    """Return a function that makes servers of one run directory."""

    def make(**launcher) -> ManagedServer:
        serve = ServeConfig(startup_timeout_s=60, exit_timeout_s=0)
        return ManagedServer(PlainLauncher(**launcher), run_dir.parent / "models", serve, run_dir=run_dir)

    return make


def regions(state: ServerState) -> list[Path]:
    """Return the shared memory of a server."""
    return list(Path("/dev/shm").glob(f"{state.shm_prefix}*"))


def test_of_two_starts_at_once_one_is_told_so(server, run_dir) -> None:
    """The loser starts nothing, and neither its failure nor its stop takes the winner's log or state away."""
    inside, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert go_on.wait(60)

    first, second = server(before=wait), server()
    with ThreadPoolExecutor(max_workers=1) as executor:
        started = executor.submit(first.start)
        try:
            assert inside.wait(60)
            with pytest.raises(ServerFault, match="another command is just starting a server from"):
                second.start()
        finally:
            go_on.set()
        running = started.result(60)
    second.stop()

    assert running.ready()
    assert running.log.is_file()
    assert attach(run_dir).state == running.state
    first.stop()
    assert attach(run_dir) is None


def test_a_second_server_in_one_run_directory_is_refused(server, run_dir) -> None:
    """The first one goes on; when it has been stopped, twice even, the next may start."""
    first = server()
    running = first.start()

    with pytest.raises(ServerFault, match="already runs"):
        server().start()

    assert running.ready()
    first.stop()
    first.stop()
    with server() as again:
        assert attach(run_dir).state == again.state


def test_stopping_leaves_the_state_of_a_later_server(server, run_dir) -> None:
    """The first server was replaced while somebody still held it."""
    state = start_detached(server())
    held = attach(run_dir)
    assert stop_detached(run_dir)
    later = start_detached(server())

    held.stop()

    assert later.shm_prefix != state.shm_prefix
    assert attach(run_dir).state == later


DAMAGES = {
    "truncated": lambda run: (run / STATE_FILE).write_text((run / STATE_FILE).read_text()[:90]),
    "no process": lambda run: rewrite(run, guard={"pid": None, "start_ticks": None}),
    "removed": lambda run: (run / STATE_FILE).unlink(),
    "removed with its directory": shutil.rmtree,
}


def rewrite(run: Path, **values: object) -> None:
    """Change keys of a state."""
    document = json.loads((run / STATE_FILE).read_text())
    (run / STATE_FILE).write_text(json.dumps({**document, **values}))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_server_without_its_state_is_found_and_stopped(server, run_dir, damage: Callable[[Path], object]) -> None:
    """A look says that it runs, no second one is started beside it, and stopping ends it with its shared memory."""
    state = start_detached(server())
    assert regions(state)
    damage(run_dir)

    with pytest.raises(ServerFault, match=r"a server runs from .* is damaged or gone") as looked:
        attach(run_dir)
    with pytest.raises(ServerFault, match="a server runs from"):
        server().start()
    assert state.server.is_alive()
    assert stop_detached(run_dir)

    assert "serve stop" in looked.value.hint
    assert not state.server.is_alive()
    assert not state.guard.is_alive()
    assert regions(state) == []
    assert not (run_dir / STATE_FILE).exists()
    assert not stop_detached(run_dir)


def test_a_server_whose_guard_was_killed_too_is_found(server, run_dir) -> None:
    """Neither file nor guard is left: a process that left the session still carries the marks."""
    escape = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True);"
    state = start_detached(server(act=escape + SERVE))
    (run_dir / STATE_FILE).unlink()
    os.kill(state.guard.pid, signal.SIGKILL)

    assert stop_detached(run_dir)

    assert orphans.find(run_dir) == ()
    assert regions(state) == []


def test_a_copied_run_directory_has_no_server(server, run_dir) -> None:
    """The copy's state names the original's server, which goes on; the copy's is cleared."""
    state = start_detached(server())
    copy = run_dir.with_name("copy")
    shutil.copytree(run_dir, copy)

    assert not stop_detached(copy)

    assert attach(copy) is None
    assert not (copy / STATE_FILE).exists()
    assert state.server.is_alive()
    assert attach(run_dir).state == state


def test_a_run_directory_that_is_removed_during_the_start_ends_it(server, run_dir) -> None:
    """With a message about the directory, and nothing is left running."""
    act = "import shutil, time; shutil.rmtree(run_dir); time.sleep(600)"

    with pytest.raises(EnvironmentFault, match=r"cannot be (read any more|written)"):
        server(act=act).start()

    assert orphans.find(run_dir) == ()


def test_a_crafted_state_runs_and_deletes_nothing(run_dir, tmp_path) -> None:
    """Whoever may write a file into the directory does not get to choose a command or a file of ours."""
    victim, touched = tmp_path / "victim", tmp_path / "touched"
    victim.touch()
    run_dir.mkdir()
    dead = {"pid": 2**22 - 1, "start_ticks": 1}
    up = "../" * len(Path("/dev/shm").parts)
    for prefix in (f"{up}{victim}".replace("//", "/"), "", "specdeploy_"):
        document = {
            "guard": dead,
            "server": dead,
            "endpoints": {"host": "127.0.0.1", "http_port": 1, "grpc_port": 2, "metrics_port": 3},
            "repository": "/r",
            "run_dir": str(run_dir),
            "shm_prefix": prefix,
            "version": "",
            "started": "",
            "cleanup": ["touch", str(touched)],
        }
        (run_dir / STATE_FILE).write_text(json.dumps(document))

        assert not stop_detached(run_dir)

    (run_dir / STATE_FILE).write_text(json.dumps({**document, "shm_prefix": "specdeploy_0123456789ab_"}))
    assert attach(run_dir) is None
    assert victim.exists()
    assert not touched.exists()
    assert not (run_dir / STATE_FILE).exists()
