"""``server.json``: written, read again, and not believed where it is not wholly as we write it."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from specdeploy.errors import ServerFault
from specdeploy.triton.server import guard
from specdeploy.triton.server import running as running_module
from specdeploy.triton.server.ports import Endpoints
from specdeploy.triton.server.running import RunningServer
from specdeploy.triton.server.state import STATE_FILE, Container, Process, ServerState, forget, load_state, process

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "specdeploy_0123456789ab_"
DEAD = Process(pid=2**22 - 1, start_ticks=1)
CONTAINER = Container(engine="docker", name="specdeploy-0123456789ab")


def state(run_dir: Path, **values) -> ServerState:
    """Return the state of a server in a container."""
    known = {
        "guard": DEAD,
        "server": DEAD,
        "endpoints": Endpoints(host="127.0.0.1", http_port=1, grpc_port=2, metrics_port=0),
        "repository": run_dir / "models",
        "run_dir": run_dir,
        "shm_prefix": PREFIX,
        "version": "2.51",
        "started": "2026-01-01T00:00:00Z",
        "models": ("ensemble",),
        "front_door": "ensemble",
        "stop_timeout_s": 3.0,
        "container": CONTAINER,
    }
    return ServerState(**{**known, **values})


def test_what_is_written_is_read_again(tmp_path) -> None:
    """With every field; the container's removal is made of its engine and name, and is in no file."""
    written = state(tmp_path)
    written.save()

    assert load_state(tmp_path) == written
    assert written.container.removal() == ("docker", "rm", "--force", "--volumes", "specdeploy-0123456789ab")
    assert "rm" not in json.loads((tmp_path / STATE_FILE).read_text())["container"].values()


BROKEN = {
    "no process": {"guard": {"pid": None, "start_ticks": None}},
    "a truth for a process": {"server": {"pid": True, "start_ticks": 1}},
    "every process": {"server": {"pid": -1, "start_ticks": 1}},
    "text for a process": {"server": {"pid": "7", "start_ticks": 1}},
    "a prefix that leads elsewhere": {"shm_prefix": "../../tmp/victim"},
    "an empty prefix": {"shm_prefix": ""},
    "a pattern for a prefix": {"shm_prefix": "specdeploy_*_"},
    "a host of another's": {"endpoints": {"host": "example.org", "http_port": 1, "grpc_port": 2, "metrics_port": 3}},
    "no port": {"endpoints": {"host": "127.0.0.1", "http_port": 70000, "grpc_port": 2, "metrics_port": 3}},
    "a program for an engine": {"container": {"engine": "touch", "name": "specdeploy-0123456789ab"}},
    "an engine without containers": {"container": {"engine": "apptainer", "name": "specdeploy-0123456789ab"}},
    "a foreign container": {"container": {"engine": "docker", "name": "database"}},
    "no seconds": {"stop_timeout_s": float("nan")},
    "text for models": {"models": "ensemble"},
    "another directory": {"run_dir": "/another"},
    "numbers for paths": {"repository": 5},
}


@pytest.mark.parametrize("values", BROKEN.values(), ids=BROKEN.keys())
def test_a_state_that_is_not_as_we_write_it_is_none(tmp_path, values: dict[str, object]) -> None:
    """Nothing in it is acted on."""
    state(tmp_path).save()
    document = json.loads((tmp_path / STATE_FILE).read_text())
    (tmp_path / STATE_FILE).write_text(json.dumps({**document, **values}))

    assert load_state(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"guard": 1}', "[" * 100_000, "\udcff"])
def test_a_file_that_is_no_state_is_none(tmp_path, text: str) -> None:
    """Whatever it holds."""
    (tmp_path / STATE_FILE).write_bytes(text.encode(errors="surrogateescape"))

    assert load_state(tmp_path) is None


def test_a_state_is_only_forgotten_by_its_own_server(tmp_path) -> None:
    """Another server may run from the directory by now."""
    state(tmp_path).save()
    forget(state(tmp_path, shm_prefix="specdeploy_ffffffffffff_"))
    assert load_state(tmp_path) is not None

    forget(state(tmp_path))
    assert load_state(tmp_path) is None


class Vanishing(Process):
    """A process that ends between a look and a signal."""

    def is_alive(self) -> bool:
        """Say yes once."""
        looked = self.__dict__.setdefault("looked", [])
        looked.append(1)
        return len(looked) == 1


def test_a_process_that_ends_before_its_signal_is_fine(tmp_path) -> None:
    """It was to end anyway."""
    gone = subprocess.Popen(["true"])
    gone.wait(30)
    vanishing = Vanishing(pid=gone.pid, start_ticks=1)

    RunningServer(state(tmp_path, guard=vanishing, server=vanishing, container=None)).stop()


def test_another_users_server_is_not_stopped(tmp_path, monkeypatch) -> None:
    """The message says whose it is to stop."""

    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(running_module.os, "kill", refuse)
    ours = process(os.getpid())

    with pytest.raises(ServerFault, match=f"process {os.getpid()} belongs to another user"):
        RunningServer(state(tmp_path, guard=ours, server=ours, container=None)).stop()


def test_only_regions_of_ours_are_removed(tmp_path, monkeypatch) -> None:
    """An empty prefix, or one that leads elsewhere, would remove what belongs to others."""
    monkeypatch.setattr(guard, "SHARED_MEMORY", tmp_path)
    for name in (f"{PREFIX}0_a", "other", "specdeploy_x"):
        (tmp_path / name).touch()

    for prefix in ("", "*", "specdeploy_", "../", PREFIX):
        guard.remove_shared_memory(prefix)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "specdeploy_x"]


def test_a_process_that_cannot_be_killed_is_given_up(monkeypatch) -> None:
    """In an uninterruptible wait it outlives SIGKILL, and waiting for it for ever would hang every command."""
    gone = subprocess.Popen(["true"])
    gone.wait(30)
    monkeypatch.setattr(guard, "KILL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(guard, "marked_processes", lambda _mark: [gone.pid])
    monkeypatch.setattr(guard, "_session_members", lambda: [gone.pid])

    guard.kill_marked("A=b")
    guard.kill_rest_of_session()
