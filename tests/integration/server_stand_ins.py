"""Stand-ins of tritonserver, mpirun and docker: strict about what they are given, and they start real processes.

* ``tritonserver`` takes the options of the real one and nothing else, and becomes the embedded runtime's: a server that
  brings its own backends, as an image's does.
* ``mpirun`` starts the ranks of its line, each in a session of its own (the worst for whoever wants
  to end them), hands on signals, and ends all when one fails. It does not connect them.
* ``docker`` plays client and daemon: the container is no child of the client and inherits nothing of it, it outlives
  that when it is killed, and only ``docker rm`` ends it then. It isolates nothing.

Each writes how it was called into ``calls.jsonl``.

:class:`PlainLauncher` needs no Triton: its server answers that it is ready, for tests of what surrounds a server.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from specdeploy.deploy.launch import Launch
from specdeploy.triton.server.launchers import _write_backends
from specdeploy.triton.sources import backend_sources

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from specdeploy.triton.runtime import Runtime
    from specdeploy.triton.server.launchers import Naming
    from specdeploy.triton.server.rundir import RunDir

_HEAD = """\
#!{python}
import json, os, signal, subprocess, sys, time
ROOT = {root!r}
def record(**facts):
    with open(os.path.join(ROOT, "calls.jsonl"), "a") as file:
        file.write(json.dumps(dict(facts, argv=sys.argv[1:], cwd=os.getcwd(), pid=os.getpid())) + "\\n")
def refuse(message):
    sys.exit(os.path.basename(sys.argv[0]) + ": stand-in: " + message)
"""

TRITONSERVER = """
ALLOWED = {
    "--model-repository", "--disable-auto-complete-config", "--http-address", "--http-port", "--grpc-address",
    "--grpc-port", "--metrics-address", "--metrics-port", "--allow-http", "--allow-grpc", "--allow-metrics",
    "--allow-gpu-metrics", "--exit-timeout-secs", "--backend-config", "--pinned-memory-pool-byte-size",
    "--enable-peer-access", "--cuda-memory-pool-byte-size", "--model-control-mode", "--load-model", "--rate-limit",
    "--log-info", "--log-verbose", "--model-load-thread-count",
}
shown = {name: os.environ[name] for name in os.environ if name.startswith(("TRTLLM_", "OMPI_", "SPECDEPLOY_"))}
record(tool="tritonserver", env=shown)
for word in sys.argv[1:]:
    if word.partition("=")[0] not in ALLOWED:
        refuse("unrecognised option " + word)
prefix = [word for word in sys.argv[1:] if word.startswith("--backend-config=python,shm-region-prefix-name=")]
if len(prefix) != 1:
    refuse("one prefix of shared memory is expected")
if os.path.exists(os.path.join(ROOT, "fail-rank-" + os.environ.get("OMPI_COMM_WORLD_RANK", "0"))):
    print("[TensorRT-LLM][ERROR] no NCCL here", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
environment = dict(os.environ, **SERVER_ENV)
environment["PATH"] = SERVER_BIN + ":" + os.environ.get("PATH", os.defpath)
more = ["--backend-directory=" + BACKENDS, prefix[0].replace("=python,", "=tensorrtllm,")]
os.execve(SERVER, ["tritonserver", *sys.argv[1:], *more], environment)
"""

MPIRUN = """
record(tool="mpirun")
words = sys.argv[1:]
if words[:1] != ["--allow-run-as-root"]:
    refuse("Open MPI refuses to run as root")
lines = [[]]
for word in words[1:]:
    lines.append([]) if word == ":" else lines[-1].append(word)
ranks = []
for rank, line in enumerate(lines):
    if line[:2] != ["-n", "1"] or len(line) < 3:
        refuse("expected -n 1 PROGRAM, got " + repr(line[:3]))
    env = dict(os.environ, OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE=str(len(lines)))
    ranks.append(subprocess.Popen(line[2:], env=env, start_new_session=True))
def hand_on(number, _frame):
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(number)
signal.signal(signal.SIGTERM, hand_on)
signal.signal(signal.SIGINT, hand_on)
code = 0
while any(rank.poll() is None for rank in ranks):
    failed = [number for number, rank in enumerate(ranks) if rank.poll()]
    if failed and not code:
        code = ranks[failed[0]].returncode
        if code < 0:
            name = {9: "Killed", 15: "Terminated"}.get(-code, "?")
            where = f"process rank {failed[0]} with PID 1 on node here"
            print(f"mpirun noticed that {where} exited on signal {-code} ({name}).", flush=True)
        for rank in ranks:
            rank.kill()
    time.sleep(0.05)
codes = [rank.wait() for rank in ranks]
code = code or next((code for code in codes if code), 0)
sys.exit(128 - code if code < 0 else code)
"""

DOCKER = """
record(tool="docker", env={name: value for name, value in os.environ.items() if name.startswith("TRTLLM_")})
PLAIN = {"--rm", "--init"}
VALUED = {"--name", "--gpus", "--shm-size", "--ulimit", "--user", "--mount", "--env", "--network", "--workdir"}
def pid_file(name):
    return os.path.join(ROOT, "container-" + name)
def session(leader):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                state, _, _, sid = open(f"/proc/{entry}/stat").read().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if sid == leader and state != "Z":
                found.append(int(entry))
    return found
def kill_session(leader):
    while session(leader):
        for pid in session(leader):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
words = sys.argv[1:]
if words[:3] == ["rm", "--force", "--volumes"]:
    try:
        leader = open(pid_file(words[3])).read()
    except OSError:
        sys.exit("Error response from daemon: No such container: " + words[3])
    kill_session(leader)
    try:
        os.unlink(pid_file(words[3]))
    except FileNotFoundError:  # its own end came first
        pass
    sys.exit(0)
if words[:1] != ["run"]:
    refuse("unknown command " + repr(words[:1]))
options, mounts, inside, rest = {}, [], {}, words[1:]
while rest and rest[0].startswith("--"):
    name, _, value = rest.pop(0).partition("=")
    if name not in PLAIN | VALUED or (name in VALUED) != bool(value):
        sys.exit("docker: unknown flag: " + name)
    options[name] = value
    if name == "--mount":
        fields = dict(field.partition("=")[::2] for field in value.split(","))
        if fields["source"] != fields["target"] or not os.path.exists(fields["source"]):
            sys.exit("docker: Error response from daemon: invalid mount config: " + value)
        mounts.append(fields["source"])
    if name == "--env":
        variable, given, text = value.partition("=")
        inside[variable] = text if given else os.environ[variable]
image, *argv = rest
if image == "absent:1":
    said = "pull access denied for absent, repository does not exist or may require 'docker login'."
    print("docker: Error response from daemon: " + said, file=sys.stderr)
    sys.exit(125)
if options.get("--network") != "host" or "--rm" not in options or "--init" not in options:
    refuse("expected --rm --init --network=host")
if not any(options["--workdir"].startswith(mount) for mount in mounts):
    refuse("the working directory is not mounted")
inside["PATH"] = ROOT + ":" + os.defpath
read, write = os.pipe()
if os.fork() == 0:  # the daemon: it starts the container and is nobody's child
    os.setsid()
    if os.fork():
        os._exit(0)
    container = subprocess.Popen(argv, env=inside, cwd=options["--workdir"], start_new_session=True)
    with open(pid_file(options["--name"]), "w") as file:
        file.write(str(container.pid))
    os.write(write, b"started\\n")
    code = container.wait()
    kill_session(str(container.pid))  # a container ends with its first process
    try:
        os.unlink(pid_file(options["--name"]))
    except FileNotFoundError:
        pass
    try:
        os.write(write, f"{128 - code if code < 0 else code}\\n".encode())
    except OSError:
        pass
    os._exit(0)
os.close(write)
answers = os.fdopen(read)
answers.readline()
leader = open(pid_file(options["--name"])).read()
signal.signal(signal.SIGTERM, lambda number, frame: os.kill(int(leader), number))
sys.exit(int(answers.readline() or 137))
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StandIns:
    """Installed stand-ins.

    Args:
        root: Their folder, to be put on PATH.
    """

    root: Path

    @property
    def path(self) -> str:
        """PATH with them first."""
        return f"{self.root}{os.pathsep}{os.environ['PATH']}"

    def calls(self, tool: str) -> list[dict[str, Any]]:
        """Return how a tool was called, oldest first."""
        try:
            lines = (self.root / "calls.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [call for call in map(json.loads, lines) if call["tool"] == tool]

    def containers(self) -> list[str]:
        """Return the containers that are there."""
        return [path.name for path in self.root.glob("container-*")]

    def fail_rank(self, rank: int) -> None:
        """Let a rank be killed when it starts."""
        (self.root / f"fail-rank-{rank}").touch()


def install_stand_ins(root: Path, runtime: Runtime) -> StandIns:
    """Write the three programs, and the backends that the server brings."""
    root.mkdir(parents=True)
    _write_backends(root / "backends", runtime, {"tensorrtllm": backend_sources()})
    facts = (
        f"SERVER = {str(runtime.tritonserver)!r}\n"
        f"SERVER_BIN = {str(runtime.python.parent)!r}\n"
        f"SERVER_ENV = {{'LD_LIBRARY_PATH': {str(runtime.library_path)!r}}}\n"
        f"BACKENDS = {str(root / 'backends')!r}\n"
    )
    head = _HEAD.format(python=sys.executable, root=str(root))
    for name, text in (("tritonserver", facts + TRITONSERVER), ("mpirun", MPIRUN), ("docker", DOCKER)):
        (root / name).write_text(head + text)
        (root / name).chmod(0o755)
    return StandIns(root=root)


PLAIN_SERVER = """
import http.server, os, pathlib, sys
port, run_dir = int(sys.argv[1]), pathlib.Path(sys.argv[2])
(pathlib.Path("/dev/shm") / (os.environ["SPECDEPLOY_SERVER"] + "region")).touch()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[]")
    do_POST = do_GET
    def log_message(self, *words):
        pass
"""
SERVE = "http.server.ThreadingHTTPServer(('127.0.0.1', port), Handler).serve_forever()"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainLauncher:
    """Starts a small server of Python's own.

    Args:
        act: What it does when it has started; it serves unless told otherwise.
        before: Called while the start prepares the run directory.
    """

    act: str = SERVE
    before: Callable[[], object] = lambda: None
    title: str = "a plain server"
    version: str = ""
    cure: str = ""
    slack_s: float = 2.0
    engine: str = ""

    def prepare(self, run: RunDir) -> None:
        """Do what the test asked for."""
        del run
        self.before()

    def command(self, run: RunDir, naming: Naming) -> Launch:
        """Return what starts it."""
        argv = (sys.executable, "-c", PLAIN_SERVER + self.act, naming.listening.http_port, str(run.path))
        return Launch(argv=argv)
