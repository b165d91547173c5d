"""The real tritonserver: started, explained, watched, and gone without a trace, whoever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specdeploy.errors import ConfigError, ServerFault
from specdeploy.system.files import publish_tree
from specdeploy.triton.server import RunningServer, TritonServer, attach, last_exit, start_detached, stop_detached
from specdeploy.triton.server.state import start_ticks
from tests.unit.triton.repositories import repository_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.triton.runtime import Runtime

pytestmark = [pytest.mark.triton, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
CONFIG = """name: "echo"
backend: "python"
max_batch_size: 0
input { name: "X" data_type: TYPE_INT32 dims: [1] }
output { name: "Y" data_type: TYPE_INT32 dims: [1] }
instance_group { count: 1 kind: KIND_CPU }
"""
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", value)]) for value in values]
"""
RAISING = (
    MODEL
    + """
    def initialize(self, args):
        raise RuntimeError("no engine in /models/engine\\nand more")
"""
)
HANGING = (
    MODEL
    + """
    def initialize(self, args):
        import time
        while True:
            time.sleep(1)
"""
)


def write_model(repository: Path, *, config: str = CONFIG, model: str = MODEL) -> Path:
    """Write a repository of one python model."""
    folder = repository / "echo" / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(config)
    (folder / "model.py").write_text(model)
    return repository


@pytest.fixture
def repository(tmp_path) -> Path:
    """A repository that Triton serves."""
    return write_model(tmp_path / "models")


@pytest.fixture
def serve(triton_runtime, tmp_path) -> Iterator[Callable[..., TritonServer]]:
    """Return a function that makes servers in one run directory; they are stopped at the end whatever happens."""
    made: list[TritonServer] = []

    def make(repository: Path, **options) -> TritonServer:
        options = {"run_dir": tmp_path / "run", "startup_timeout_s": 60, **options}
        made.append(TritonServer(triton_runtime, repository, **options))
        return made[-1]

    yield make
    for server in made:
        server.stop()
    stop_detached(tmp_path / "run")


def infer(running: RunningServer, value: int) -> int:
    """Ask the echo model."""
    body = {"inputs": [{"name": "X", "shape": [1], "datatype": "INT32", "data": [value]}]}
    url = f"http://{running.endpoints.http_url}/v2/models/echo/infer"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as response:
        return json.load(response)["outputs"][0]["data"][0]


def regions(running: RunningServer) -> list[str]:
    """Return the shared memory regions of a server."""
    return [path.name for path in Path("/dev/shm").glob(f"{running.state.shm_prefix}*")]


def session(running: RunningServer) -> list[int]:
    """Return the living processes of a server's session."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, sid = stat.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(sid) == running.state.guard.pid and state != "Z":
                members.append(int(stat.parent.name))
    return members


def eventually(condition: Callable[[], bool], *, timeout_s: float = 30) -> bool:
    """Wait until *condition* holds; say whether it did in time."""
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_a_server_is_ready_when_the_block_begins_and_gone_when_it_ends(serve, repository) -> None:
    """Inside the block requests are answered; after it no process, region or state is left.

    A port that is given is used, and other addresses of the machine are not listened on.
    """
    lines: list[str] = []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    with serve(repository, http_port=port, on_line=lines.append) as running:
        assert running.endpoints.http_port == port
        for bound in (port, running.endpoints.grpc_port, running.endpoints.metrics_port):
            with socket.socket() as other:
                other.bind(("127.0.0.2", bound))
        assert running.alive()
        assert running.ready()
        assert running.exit_cause() is None
        assert infer(running, 7) == 7
        metrics = urllib.request.urlopen(f"http://{running.endpoints.metrics_url}/metrics", timeout=10).read()
        assert b"nv_inference_request_success" in metrics
        assert attach(running.state.run_dir).state == running.state
        assert regions(running)

    assert "loaded echo" in lines
    assert not running.alive()
    assert session(running) == []
    assert regions(running) == []
    assert attach(running.state.run_dir) is None
    assert running.was_stopped()
    assert last_exit(running.state.run_dir) == "it was stopped (SIGTERM)"


@pytest.mark.parametrize("use", ["http", "grpc", "metrics"])
def test_a_taken_port_is_named_before_anything_starts(serve, repository, use: str) -> None:
    """The error names the port and the setting that cures it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ServerFault, match=f"port {port} on 127.0.0.1 is in use") as caught:
            serve(repository, **{f"{use}_port": port}).start()

    assert f"serve.{use}_port" in caught.value.hint


def test_one_port_for_two_uses_is_a_configuration_error(serve, repository) -> None:
    """Nothing is started that could not work."""
    with pytest.raises(ConfigError, match="given twice"):
        serve(repository, http_port=18000, grpc_port=18000).start()


def test_a_missing_repository_is_a_configuration_error(serve, tmp_path) -> None:
    """The error names the path and the command that writes one."""
    with pytest.raises(ConfigError, match="not there") as caught:
        serve(tmp_path / "nowhere").start()

    assert "specdeploy repo" in caught.value.hint


@pytest.mark.parametrize(
    ("config", "model", "cause"),
    [
        (CONFIG + "max_batch: 3\n", MODEL, r'config\.pbtxt, line 7, column 10: .* no field named "max_batch"'),
        (CONFIG.replace('"python"', '"tensorrt_x"'), MODEL, "needs the backend 'tensorrt_x'"),
        (CONFIG, RAISING, "model echo failed to load: RuntimeError: no engine in /models/engine"),
        (CONFIG, "import os\nos.kill(os.getpid(), 9)\n", "model echo failed to load: Stub process .* is not healthy"),
    ],
    ids=["broken configuration", "missing backend", "initialize raises", "model process dies"],
)
def test_a_failed_start_says_why_in_its_first_line(serve, tmp_path, config: str, model: str, cause: str) -> None:
    """The first line is the cause, the rest the end of the log, and nothing is left running."""
    server = serve(write_model(tmp_path / "models", config=config, model=model))

    with pytest.raises(ServerFault) as caught:
        server.start()

    first, *rest = caught.value.message.splitlines()
    assert first.startswith("tritonserver did not start: ")
    assert re.search(cause, first), first
    assert any("failed to load all models" in line for line in rest)
    assert "server.log" in caught.value.hint
    assert attach(tmp_path / "run") is None


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of living processes that name *folder*."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line and start_ticks(int(file.parent.name)) is not None:
                found.append(line)
    return found


def test_a_server_that_is_not_ready_in_time_is_ended(serve, tmp_path) -> None:
    """A model that loads for ever ends at the deadline, and its process with it."""
    server = serve(write_model(tmp_path / "models", model=HANGING), startup_timeout_s=4)

    with pytest.raises(ServerFault, match="not ready after 4 s"):
        server.start()

    assert processes_of(tmp_path) == []
    assert last_exit(tmp_path / "run") == "its start was given up"


def test_a_runtime_without_its_python_library_is_noticed_at_once(triton_runtime, repository, tmp_path) -> None:
    """Triton itself would wait for ever; the start ends long before its deadline and says what to do."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "venv").symlink_to(triton_runtime.root / "venv")
    (tmp_path / "lib" / triton_runtime.library.name).write_bytes(b"")
    broken = type(triton_runtime)(root=tmp_path, python_version=triton_runtime.python_version)

    with pytest.raises(ServerFault, match="model processes cannot load") as caught:
        TritonServer(broken, repository, run_dir=tmp_path / "run", startup_timeout_s=100).start()

    assert "runtime install" in caught.value.hint
    assert processes_of(tmp_path / "run") == []


def test_a_killed_server_is_noticed_and_leaves_nothing(serve, repository) -> None:
    """After SIGKILL: not alive, the cause in one line, no model process, no shared memory."""
    running = serve(repository).start()

    os.kill(running.state.server.pid, signal.SIGKILL)

    assert eventually(lambda: not running.alive())
    assert "SIGKILL" in (running.exit_cause() or "")
    assert not running.ready()
    with pytest.raises(ServerFault, match="tritonserver is gone: it was ended by SIGKILL"):
        running.require_alive()
    assert session(running) == []
    assert regions(running) == []


def test_a_killed_guard_takes_the_server_with_it(serve, repository) -> None:
    """Nobody is left to clean up: the kernel ends the server, and the next look clears its traces.

    The next server starts in what it left of the run directory.
    """
    running = serve(repository).start()

    os.kill(running.state.guard.pid, signal.SIGKILL)

    assert eventually(lambda: session(running) == [])
    assert running.exit_cause() == "it ended without leaving an exit code"
    assert attach(running.state.run_dir) is None
    assert regions(running) == []
    with serve(repository) as again:
        assert infer(again, 2) == 2


SCRIPT = """
import sys, time
from pathlib import Path
from specdeploy.triton.runtime import Runtime
from specdeploy.triton.server import TritonServer, start_detached
root, version, repository, run_dir, mode = sys.argv[1:]
server = TritonServer(Runtime(root=Path(root), python_version=version), Path(repository), run_dir=Path(run_dir))
if mode == "detach":
    start_detached(server)
else:
    server.start()
print("started", flush=True)
if mode == "wait":
    time.sleep(600)
"""


def start_in_another_process(runtime: Runtime, repository: Path, run_dir: Path, mode: str) -> subprocess.Popen[bytes]:
    """Start a server from a Python process of its own and wait until it is ready."""
    argv = [
        sys.executable,
        "-c",
        SCRIPT,
        str(runtime.root),
        runtime.python_version,
        str(repository),
        str(run_dir),
        mode,
    ]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert parent.stdout.readline() == b"started\n"
    parent.stdout.close()
    return parent


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_with_the_process_that_started_it(triton_runtime, repository, tmp_path, number) -> None:
    """Even when that is killed and can clean up nothing, no process and no shared memory is left."""
    parent = start_in_another_process(triton_runtime, repository, tmp_path / "run", "wait")
    running = attach(tmp_path / "run")
    assert infer(running, 3) == 3

    parent.send_signal(number)

    assert parent.wait(10) == -number
    assert eventually(lambda: session(running) == [])
    assert regions(running) == []


def test_a_process_that_just_ends_takes_its_server_with_it(triton_runtime, repository, tmp_path) -> None:
    """Forgetting to stop is no leak."""
    parent = start_in_another_process(triton_runtime, repository, tmp_path / "run", "leave")
    assert parent.wait(30) == 0

    assert eventually(lambda: attach(tmp_path / "run") is None)
    assert eventually(lambda: processes_of(tmp_path) == [])


def test_a_detached_server_lives_on_until_it_is_stopped(triton_runtime, repository, tmp_path) -> None:
    """``serve --detach``: the starter ends, the state file finds the server, ``serve stop`` ends it once."""
    parent = start_in_another_process(triton_runtime, repository, tmp_path / "run", "detach")
    assert parent.wait(30) == 0
    running = attach(tmp_path / "run")
    try:
        assert running is not None
        assert running.ready()
        assert infer(running, 5) == 5
    finally:
        assert stop_detached(tmp_path / "run")

    assert session(running) == []
    assert regions(running) == []
    assert not stop_detached(tmp_path / "run")


def test_detaching_in_this_process_hands_the_server_over(serve, repository) -> None:
    """After ``start_detached``, stopping the object that started it does nothing any more."""
    server = serve(repository)
    state = start_detached(server)

    server.stop()

    running = attach(state.run_dir)
    assert running.state == state
    assert running.ready()


def test_a_directory_that_is_not_ours_is_not_used(serve, repository, tmp_path) -> None:
    """A run directory is only made, or taken over from an earlier server."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")

    with pytest.raises(ConfigError, match="not a run directory of ours"):
        serve(repository).start()

    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


STAND_IN = """
class TritonPythonModel:
    def execute(self, requests):
        return [None for _ in requests]
"""


def test_the_generated_repository_loads_as_it_is(serve, tmp_path) -> None:
    """All six configurations are read by the real server, the engines by a python-based backend of NVIDIA's name."""
    publish_tree(repository_tree(), tmp_path / "models")
    backends = {"tensorrtllm": {"model.py": STAND_IN.encode()}}

    with serve(tmp_path / "models", backends=backends) as running:
        url = f"http://{running.endpoints.http_url}/v2/repository/index"
        index = json.load(urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=10))

    assert {entry["name"]: entry["state"] for entry in index} == dict.fromkeys(
        ("ensemble", "preprocessing", "speculative_decoder", "tensorrt_llm", "tensorrt_llm_bls", "tensorrt_llm_draft"),
        "READY",
    )
