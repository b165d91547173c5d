"""``specdeploy smoke`` as its users start it: outputs, recorded answers, servers that hang, signals, and its page."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from specdeploy.cli import cli
from specdeploy.smoke import CHECKS
from specdeploy.smoke.cures import CURES
from specdeploy.smoke.golden import answers_digest
from tests.deployments import served, specdeploy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = (Path(__file__).parents[2] / "docs" / "smoke.md").read_text()
CONFIG = """\
name: tiny
target: {checkpoint: target}
draft: {checkpoint: draft}
smoke: {request_timeout_s: 120}
"""
# For commands that are started without `specdeploy()`.
HERE = {"PYTHONPATH": str(Path(__file__).parents[2])}
# Far more than an interpreter takes to end, on a busy machine too, and far less than a request may take above.
SOON_S = 60.0
# A machine that is busy with other tests takes longer than a gate may.
PATIENT = {"SPECDEPLOY__SMOKE__QUICK_S": "120"}


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """A deployment that was never built: only its configuration."""
    (tmp_path / "specdeploy.yaml").write_text(CONFIG)
    return tmp_path


@contextlib.contextmanager
def silent_port() -> Iterator[str]:
    """Accept every connection and never say a word."""
    accepted: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted.append(listener.accept()[0])

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        # Wakes the thread, which closing alone does not.
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for connection in (listener, *accepted):
            connection.close()


class LiveServer(ThreadingHTTPServer):
    """Says that it and every model is there, and answers nothing else."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _LiveHandler)
        self.asked = threading.Event()
        self.ends = threading.Event()

    @property
    def address(self) -> str:
        """Where it is, host:port."""
        return f"127.0.0.1:{self.server_address[1]}"


class _LiveHandler(BaseHTTPRequestHandler):
    server: LiveServer

    def do_GET(self) -> None:
        if self.path not in {"/v2", "/v2/health/live"} and not self.path.endswith("/ready"):
            self._hang()
            return
        body = b'{"name": "triton", "version": "2.51.0", "extensions": []}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self._hang()

    def _hang(self) -> None:
        self.server.asked.set()
        self.server.ends.wait(300)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        pass


@pytest.fixture(name="live")
def _live() -> Iterator[LiveServer]:
    """A server that is live and ready, and hangs when it is asked for anything else."""
    server = LiveServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server
    server.ends.set()
    server.shutdown()
    server.server_close()
    thread.join(10)


def start(folder: Path, *arguments: str, script: str = "") -> subprocess.Popen[str]:
    """Start a command line that a test will interrupt; *script* runs in its interpreter before."""
    code = f"import sys\n{script}\nfrom specdeploy.cli import main\nsys.argv[0] = 'specdeploy'\nmain()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def end(process: subprocess.Popen[str], number: int) -> tuple[str, str]:
    """Send a signal, and return what was printed; a process that does not go soon fails the test."""
    started = time.monotonic()
    process.send_signal(number)
    try:
        printed = process.communicate(timeout=SOON_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert time.monotonic() - started < SOON_S
    return printed


# Servers that hang, and signals


def test_a_server_that_never_answers_does_not_hold_up_the_command(folder: Path) -> None:
    """It is lost (4), whatever the time-out of a request is, and JUnit is not green."""
    with silent_port() as address:
        done = specdeploy(
            "smoke", "--http", address, "--grpc", address, "--junit", "junit.xml", cwd=folder, timeout_s=60
        )

    assert done.returncode == 4, done.stderr
    assert "the server was lost: the server cannot be reached: timeout" in done.stdout
    assert [error.get("type") for error in ET.parse(folder / "junit.xml").iter("error")] == ["server-lost"]


def test_quick_ends_in_time_with_a_server_that_is_live_and_hangs(folder: Path, live: LiveServer) -> None:
    """Requests of up to 120 s are allowed; the budget of ``--quick`` goes before, and the server is not ready."""
    with silent_port() as silent:
        done = specdeploy(
            "smoke", "--quick", "--json", "--http", live.address, "--grpc", silent, cwd=folder, timeout_s=90
        )

    document = json.loads(done.stdout)
    statuses = {check["name"]: check["status"] for check in document["checks"]}
    assert done.returncode == document["exit_code"] == 1, done.stderr
    assert statuses["server-ready"] == "pass"
    assert set(statuses.values()) == {"pass", "fail", "undecided"}
    # The budget, a look at the server, and what a busy machine adds; without a budget it would be ten times as much.
    assert document["duration_s"] < 30


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_that_waits(folder: Path, live: LiveServer, number: int, code: int) -> None:
    """The process is gone long before the request's deadline; what was found is kept and marked as partial."""
    with silent_port() as silent:
        process = start(
            folder, "smoke", "--skip", "models-ready", "--http", live.address, "--grpc", silent, "--junit", "junit.xml"
        )
        assert live.asked.wait(SOON_S)
        stdout, stderr = end(process, number)

    assert process.returncode == code, stderr
    assert "interrupted: this report is partial" in stdout
    kept = json.loads((folder / "reports" / "smoke.json").read_text())
    assert (kept["interrupted"], kept["passed"], kept["exit_code"]) == (True, False, code)
    assert [check["status"] for check in kept["checks"][:3]] == ["pass", "undecided", "skip"]
    assert "interrupted" in {error.get("type") for error in ET.parse(folder / "junit.xml").iter("error")}


def test_a_signal_ends_a_check_that_waits_for_threads_of_its_own(folder: Path, live: LiveServer) -> None:
    """The interpreter would wait for them at its exit, for as long as their requests may take."""
    script = """
import concurrent.futures, threading
from specdeploy.smoke.checks import CHECKS, Check

def run(probe):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda _: probe.client.metadata("ensemble", timeout_s=110), range(2)))

CHECKS["metadata"] = Check(run)
"""
    with silent_port() as silent:
        arguments = ("smoke", "--only", "metadata", "--http", live.address, "--grpc", silent)
        process = start(folder, *arguments, script=script)
        assert live.asked.wait(SOON_S)
        _, stderr = end(process, signal.SIGINT)

    assert process.returncode == 130, stderr
    assert json.loads((folder / "reports" / "smoke-only.json").read_text())["interrupted"] is True


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT,) * 4])
def test_signals_close_together_are_one(folder: Path, live: LiveServer, numbers: tuple[int, ...]) -> None:
    """None is taken for a failing check, and none comes between the outcome and its files."""
    with silent_port() as silent:
        arguments = ("--skip", "models-ready", "--http", live.address, "--grpc", silent, "--junit", "junit.xml")
        process = start(folder, "smoke", *arguments)
        assert live.asked.wait(SOON_S)
        for number in numbers[:-1]:
            process.send_signal(number)
        _, stderr = end(process, numbers[-1])

    # The last may also meet an interpreter that is at its end, and has no handlers any more.
    assert process.returncode in {130, 143, -signal.SIGINT}, stderr
    kept = json.loads((folder / "reports" / "smoke.json").read_text())
    assert (kept["interrupted"], kept["counts"]["fail"]) == (True, 0)
    assert "interrupted" in {error.get("type") for error in ET.parse(folder / "junit.xml").iter("error")}


def test_a_server_that_answers_no_request_is_lost_after_a_few(folder: Path, live: LiveServer) -> None:
    """Live over HTTP, and silent otherwise: the checks that are left do not wait for a time-out each."""
    with silent_port() as silent:
        limit = ("--set", "smoke.request_timeout_s=1")
        done = specdeploy("smoke", *limit, "--http", live.address, "--grpc", silent, cwd=folder, timeout_s=100)

    assert done.returncode == 4, done.stdout
    assert "the server takes requests and does not answer them: 3 checks ended with a time-out" in done.stdout


# Outputs without a server


def test_a_server_that_is_not_there_leaves_no_green_results(folder: Path) -> None:
    """JUnit and the document say that nothing was asked, over what an earlier run may have left."""
    (folder / "junit.xml").write_text("<testsuites/>")
    nobody = ("--openai", "http://127.0.0.1:1/v1")
    runs = {"smoke": (), "smoke-openai": nobody}

    for name, arguments in runs.items():
        done = specdeploy("smoke", "--junit", "junit.xml", "--json", *arguments, cwd=folder)

        document = json.loads(done.stdout)
        assert done.returncode == document["exit_code"] == 4, done.stderr
        assert document["server_lost"]
        assert "error:" in done.stderr
        assert json.loads((folder / "reports" / f"{name}.json").read_text()) == document
        assert [error.get("type") for error in ET.parse(folder / "junit.xml").iter("error")] == ["server-lost"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk_below_a_stream_is_no_bug(folder: Path, stream: str) -> None:
    """Where the outcome cannot be shown the message says so (4); progress that cannot be shown ends nothing."""
    command = [sys.executable, "-m", "specdeploy", "smoke", "--http", "127.0.0.1:1", "--grpc", "127.0.0.1:1"]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command,
            cwd=folder,
            text=True,
            timeout=100,
            check=False,
            env={**os.environ, **HERE},
            **streams | {stream: full},
        )

    assert done.returncode == 4
    if stream == "stdout":
        assert "cannot be written to standard output: No space left" in done.stderr
        assert "Traceback" not in done.stderr
    else:
        assert "the server was lost" in done.stdout
    assert (folder / "reports" / "smoke.json").is_file()


def test_a_closed_stream_is_no_bug(folder: Path) -> None:
    """Without standard output the exit code is the outcome."""
    program = f"{shlex.quote(sys.executable)} -m specdeploy smoke --http 127.0.0.1:1 --grpc 127.0.0.1:1"
    done = subprocess.run(
        ["sh", "-c", f"exec {program} >&-"],
        cwd=folder,
        text=True,
        stderr=subprocess.PIPE,
        timeout=100,
        check=False,
        env={**os.environ, **HERE},
    )

    assert done.returncode == 4
    assert "Traceback" not in done.stderr


# Options


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--api-model", "m"), "--api-model and --api-key-env are for --openai"),
        (("--openai", "http://h/v1", "--http", "h:1", "--grpc", "h:2"), "--openai names a server"),
        (("--openai", "http://h/v1", "--front-door", "ensemble"), "--openai names a server"),
        (("--openai", "http://h/v1", "--metrics", "h:1"), "--openai names a server"),
        (("--openai", "http://[::1/v1"), "is no address of an OpenAI-compatible server"),
        (("--openai", "http://a..b/v1"), "is no address of an OpenAI-compatible server"),
        (("--http", "a..b:1", "--grpc", "h:2"), "--http 'a..b:1' is no address"),
        (("--http", "h:1", "--grpc", "me:s3cret@h:2"), "--grpc '...@h:2' is no address"),
        (("--metrics", "h:1"), "--metrics is for a server that is named"),
        (("--front-door", "ensemble"), "--front-door ensemble is for a server that is not ours"),
        (("--prompts", "code", "--http", "h:1", "--grpc", "h:2"), "--prompts says what the recorded answers are to"),
        (("--junit", "", "--http", "h:1", "--grpc", "h:2"), "--junit names no file"),
        (("--http", "h:1", "--grpc", "h:2", "record"), "--http stands before record"),
        (("--only", "seeds", "record"), "--only stands before record"),
        (("-c", "specdeploy.yaml", "record"), "--config stands before record"),
        (("record", "-o", "specdeploy.yaml/x.json"), "-o: specdeploy.yaml/x.json cannot be written"),
        (("--only", "sneeds", "--http", "h:1", "--grpc", "h:2"), "there is no smoke check 'sneeds'"),
        (("--golden", "nowhere.json", "--http", "h:1", "--grpc", "h:2"), "nowhere.json cannot be read"),
    ],
)
def test_options_that_make_no_sense_are_refused(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    """Nothing is sent: the exit code is 2, and the message names the value."""
    done = specdeploy("smoke", *arguments, cwd=folder)

    assert done.returncode == 2, done.stderr
    assert said in done.stderr


@pytest.mark.parametrize("arguments", [("--set", "report.path=specdeploy.yaml"), ("--junit", "specdeploy.yaml/x.xml")])
def test_results_that_could_not_be_written_are_known_before_the_run(folder: Path, arguments: tuple[str, ...]) -> None:
    """A read-only file system is the user's to mend (2), not a bug, and nothing is asked that would be lost."""
    done = specdeploy("smoke", "--http", "127.0.0.1:1", "--grpc", "127.0.0.1:1", *arguments, cwd=folder)

    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "cannot be written" in done.stderr
    assert "nothing was done yet" in done.stderr


# The page


def _section(name: str) -> str:
    """Return what the page says of a check, without its line ends."""
    return " ".join(PAGE.split(f"### `{name}`\n")[1].split("\n### ")[0].split())


def test_the_page_has_every_check_in_their_order() -> None:
    """Each has its heading, and no other has one; those of ``--quick`` are marked."""
    explained = re.findall(r"^### `([a-z-]+)`$", PAGE, flags=re.MULTILINE)

    assert explained == list(CHECKS)
    assert [name for name in explained if "* Quick." in _section(name)] == [n for n, c in CHECKS.items() if c.quick]


def test_the_page_says_what_the_command_says() -> None:
    """What to do next is the same sentence on the terminal and on the page."""
    for name, cure in CURES.items():
        assert f"To do: {cure}" in _section(name)


def _parsed(words: list[str]) -> None:
    """Fail where a command line of the page is not one of ours."""
    assert words[0] == "specdeploy"
    name, *arguments = words[1:]
    context = cli.make_context("specdeploy", [name, *arguments])
    command = cli.get_command(context, name)
    assert command is not None
    with command.make_context(name, arguments, parent=context) as parsed:
        assert parsed.params


def _manifests() -> list[Any]:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    return [document for block in blocks for document in yaml.safe_load_all(block)]


def test_the_manifests_of_the_page_are_whole() -> None:
    """A probe has a command of ours and more time than it needs; a Job ends, and is not repeated for ever."""
    kinds = {document["kind"]: document for document in _manifests() if "kind" in document}
    (server,) = kinds["Deployment"]["spec"]["template"]["spec"]["containers"]
    (job,) = kinds["Job"]["spec"]["template"]["spec"]["containers"]

    assert kinds["Deployment"]["spec"]["selector"]["matchLabels"].items() <= (
        kinds["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    )
    for probe in ("startupProbe", "readinessProbe"):
        _parsed(server[probe]["exec"]["command"])
        assert server[probe]["timeoutSeconds"] >= 12
    assert "--quick" in server["startupProbe"]["exec"]["command"]
    _parsed(server["command"])
    _parsed(job["command"])
    assert kinds["Job"]["spec"]["template"]["spec"]["restartPolicy"] in {"Never", "OnFailure"}
    assert kinds["Job"]["spec"]["activeDeadlineSeconds"] > 0
    mounted = {volume["name"] for volume in kinds["Job"]["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in job["volumeMounts"]} == mounted


def test_the_compose_file_of_the_page_is_whole() -> None:
    """Both services are commands of ours; the test waits until the server is healthy by the image's own check."""
    (services,) = [document["services"] for document in _manifests() if "services" in document]

    # The image's entry point is the program.
    for service in services.values():
        _parsed(["specdeploy", *service["command"]])
    assert "healthcheck" not in services["llama"]
    assert services["smoke"]["depends_on"]["llama"]["condition"] == "service_healthy"


def test_the_servers_of_the_page_listen_where_the_test_asks() -> None:
    """Ports and address are set, for by default a server takes free ports of loopback."""
    (services,) = [document["services"] for document in _manifests() if "services" in document]
    kinds = {document["kind"]: document for document in _manifests() if "kind" in document}
    (server,) = kinds["Deployment"]["spec"]["template"]["spec"]["containers"]

    for command in (server["command"], services["llama"]["command"]):
        assert "--set=serve.host=0.0.0.0" in command
        ports = {word.rpartition("=")[2] for word in command if "_port=" in word}
        assert ports == {"8000", "8001", "8002"}
    assert {port["port"] for port in kinds["Service"]["spec"]["ports"]} == {8000, 8001, 8002}


def test_every_command_of_the_page_exists() -> None:
    """Whatever stands behind a prompt parses."""
    lines = [
        line for block in re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()
    ]

    assert lines
    for line in lines:
        assert line.startswith("$ ")
        _parsed(shlex.split(line.removeprefix("$ ")))


# Against the real server


@pytest.fixture(name="served", scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A built deployment of tiny checkpoints with its server running."""
    with served(tmp_path_factory.mktemp("served")) as folder:
        yield folder


real = [pytest.mark.cpu, pytest.mark.triton]


class TestAgainstTriton:
    """With the real tritonserver."""

    pytestmark = real

    def test_the_commands_of_the_page_work_in_their_order(self, served: Path) -> None:
        """Those of its first section, on a sound deployment: each ends with 0."""
        section = PAGE.split("## In short\n")[1].split("\n## ")[0]
        (block,) = re.findall(r"```console\n(.*?)```", section, flags=re.DOTALL)

        for line in block.splitlines():
            done = specdeploy(*shlex.split(line.removeprefix("$ "))[1:], cwd=served, env=PATIENT)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

    def test_quick_passes_and_runs_only_what_is_quick(self, served: Path) -> None:
        """The document has just the checks that are marked so, and is kept beside that of the whole run."""
        whole = served / "reports" / "smoke.json"
        before = whole.read_bytes() if whole.exists() else None
        done = specdeploy("smoke", "--quick", "--json", cwd=served, env=PATIENT)

        document = json.loads(done.stdout)
        assert done.returncode == 0, done.stderr
        assert [check["name"] for check in document["checks"]] == [name for name, c in CHECKS.items() if c.quick]
        assert json.loads((served / "reports" / "smoke-quick.json").read_text()) == document
        assert (whole.read_bytes() if whole.exists() else None) == before

    def test_recorded_answers_are_compared(self, served: Path) -> None:
        """The same deployment passes; changed ids fail with their position, in every output."""
        recording = specdeploy("smoke", "record", "-o", "recorded.json", "--json", cwd=served)
        golden = json.loads((served / "recorded.json").read_text())
        compare = ("smoke", "--only", "server-ready", "--golden")
        same = specdeploy(*compare, "recorded.json", cwd=served)
        golden["answers"][0]["output_ids"][7] += 1
        golden["answers_digest"] = answers_digest(golden)
        (served / "changed.json").write_text(json.dumps(golden))
        changed = specdeploy(*compare, "changed.json", "--format", "github", "--junit", "out/golden.xml", cwd=served)

        assert recording.returncode == same.returncode == 0, recording.stderr + same.stderr
        assert json.loads(recording.stdout)["deployment"]["engines"].keys() == {"target", "draft"}
        assert golden["tokenizer"].startswith("sha256:")
        assert golden["target_alone"] is True
        assert "4 answers" in same.stdout
        assert changed.returncode == 1, changed.stdout
        (annotation,) = [line for line in changed.stdout.splitlines() if line.startswith("::")]
        assert annotation.startswith("::error title=smoke.golden::1 of 4 answers differ from those recorded")
        assert "at token 7" in annotation
        assert "%0A" in annotation
        assert [
            case.get("name") for case in ET.parse(served / "out" / "golden.xml").iterfind(".//testcase[failure]")
        ] == ["golden"]

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda golden: golden.update(tokenizer="sha256:" + "0" * 64), "another tokenizer"),
            (lambda golden: golden["answers"][1].update(text_input="another"), "its prompts are not those"),
        ],
    )
    def test_what_cannot_be_compared_is_refused(
        self, served: Path, change: Callable[[dict[str, Any]], object], said: str
    ) -> None:
        """Answers of another tokenizer or to other prompts are exit code 2, with the cure."""
        assert specdeploy("smoke", "record", "-o", "refused.json", cwd=served).returncode == 0
        golden = json.loads((served / "refused.json").read_text())
        change(golden)
        (served / "refused.json").write_text(json.dumps(golden))

        done = specdeploy("smoke", "--only", "golden", "--golden", "refused.json", cwd=served)
        others = specdeploy("smoke", "--golden", "refused.json", "--prompts", "code", cwd=served)

        assert (done.returncode, others.returncode) == (2, 2)
        assert said in done.stderr
        assert "smoke record" in done.stderr

    def test_a_failure_is_told_in_full_below_the_table(self, served: Path) -> None:
        """One line a check; then what failed, and what to do next."""
        done = specdeploy("smoke", "--only", "metrics", "--only", "server-ready", "--self-draft", cwd=served)
        failing = specdeploy("smoke", "--only", "self-draft", "--self-draft", cwd=served)

        assert done.returncode == 0, done.stdout
        assert failing.returncode == 1, failing.stdout
        assert f"  -> {CURES['self-draft']}" in failing.stdout
        assert failing.stdout.rstrip().endswith("smoke: 0 passed, 1 failed, 0 skipped")
