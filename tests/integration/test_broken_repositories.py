"""Lint measured against the real tritonserver: every broken repository is started, and what either says is recorded.

The record is ``tests/data/broken_repositories.json``; ``docs/lint.md`` shows it. Where they differ on purpose, write it
anew with ``SPECDEPLOY_UPDATE_GOLDENS=1 pytest tests/integration/test_broken_repositories.py`` and read the difference.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from specdeploy.pipeline.prepare import lint
from specdeploy.system.files import free_port
from specdeploy.triton.sources import backend_sources
from tests import broken_repositories as broken
from tests.deployments import specdeploy, write_deployment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.findings import Finding
    from specdeploy.triton.runtime import Runtime

pytestmark = [pytest.mark.cpu, pytest.mark.triton]

UPDATE: Final = os.environ.get("SPECDEPLOY_UPDATE_GOLDENS") == "1"
SERVERS: Final = 2
# Another server may have a backend of that name.
UNSURE: Final = frozenset({"backend-misspelt"})
START_S, REQUEST_S, POLL_S = 60, 10, 0.02
# The server waits for a model process that will never come.
_HOPELESS: Final = re.compile(r"Failed to preinitialize Python stub: (Python model file not found.*)")
# What the server says first is why; the most telling first. The groups are what is kept.
_CAUSES: Final = (
    re.compile(r"Error parsing text-format inference\.ModelConfig: (\d+:\d+: .*)"),
    re.compile(r"failed to load '([^']+)' version \d+: (.*)"),
    re.compile(r"Poll failed for model directory '([^']+)': (.*)"),
    re.compile(r"model_repository_manager\.cc:\d+\] \"(.*)"),
    re.compile(r"error: creating server: (.*)"),
)
_CHATTER: Final = re.compile(r"[IW]\d{4} |[|+]")
_KEY: Final = re.compile(r"\b[0-9a-f]{16,64}\b")
_NUMBERS: Final = re.compile(r"\b\d+ bytes|(?<=manifest says )\d+|\(\d+ \+ \d+\)")
_DROPPED: Final = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "LD_PRELOAD"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What Triton did with a repository, in one line, and what lint says of it."""

    folder: Path
    triton: str
    findings: tuple[Finding, ...]

    @property
    def told(self) -> list[Finding]:
        """Errors and warnings, without the remark that a file was edited, which every break of a deployment brings."""
        findings = [f for f in self.findings if f.severity != "info"]
        return [f for f in findings if f.code != "repo.file-changed"] or findings


class Bench:
    """Makes repositories, starts a server on each, and asks it once."""

    def __init__(self, root: Path, runtime: Runtime) -> None:
        self.root = root
        self.runtime = runtime
        self.backends = {
            "real": self._backends("real", backend_sources()),
            "pretender": self._backends("pretender", {"model.py": broken.PRETENDER.encode()}),
        }
        self.deployment = root / "deployment"
        self.deployment.mkdir()
        write_deployment(self.deployment)
        self._specdeploy("build")
        self._specdeploy("repo")

    def outcome(self, kind: str, case: broken.Case | broken.Good) -> Outcome:
        """Write the repository, lint it and start the server on it."""
        folder = self.root / kind / case.name
        repository = folder / "models"
        folder.mkdir(parents=True)
        if case.base == "deployment":
            shutil.copytree(self.deployment / "models", repository)
            shutil.copytree(self.deployment / "engines", folder / "engines")
        else:
            {"plain": broken.plain, "templates": broken.templates}[case.base](repository)
        if isinstance(case, broken.Good) and case.settings:
            shutil.rmtree(repository)
            self._specdeploy("repo", "--set", f"repo.path={repository}", *case.settings)
        case.apply(repository)
        findings = lint(repository)
        backends = self.backends["pretender" if case.base == "templates" else "real"]
        said = _Server(self.runtime, repository, backends).says(case.ask or broken.ASK[case.base])
        return Outcome(folder=folder, triton=_clean(said, folder), findings=findings)

    def _specdeploy(self, *arguments: str) -> None:
        done = specdeploy(*arguments, cwd=self.deployment)
        assert done.returncode == 0, done.stderr

    def _backends(self, name: str, engines: dict[str, bytes]) -> Path:
        """Make a backend directory with Triton's python backend, and *engines* as the backend `tensorrtllm`."""
        folder = self.root / "backends" / name
        shutil.copytree(self.runtime.python_backend, folder / "python")
        (folder / "python" / self.runtime.stub.name).symlink_to(self.runtime.stub)
        for path, data in engines.items():
            file = folder / "tensorrtllm" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        return folder


class _Server:
    """One tritonserver on one repository."""

    def __init__(self, runtime: Runtime, repository: Path, backends: Path) -> None:
        self._log = repository.parent / "log"
        self._port = free_port("127.0.0.1")
        self._regions = f"lint_{uuid.uuid4().hex[:12]}_"
        self._environment = {name: value for name, value in os.environ.items() if name not in _DROPPED} | {
            "PATH": f"{runtime.python.parent}{os.pathsep}{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(runtime.library_path),
        }
        self._argv = [
            str(runtime.tritonserver),
            f"--model-repository={repository}",
            f"--backend-directory={backends}",
            "--disable-auto-complete-config",
            "--http-address=127.0.0.1",
            f"--http-port={self._port}",
            "--allow-grpc=false",
            "--allow-metrics=false",
            "--allow-gpu-metrics=false",
            "--pinned-memory-pool-byte-size=0",
            *(f"--backend-config={name},shm-region-prefix-name={self._regions}" for name in ("python", "tensorrtllm")),
        ]

    def says(self, request: broken.Request) -> str:
        """Return what becomes of the server and of its first request."""
        with self._running() as process:
            refused = self._await(process)
            return refused or f"serves; the first request {self._ask(request)}"

    @contextlib.contextmanager
    def _running(self) -> Iterator[subprocess.Popen[bytes]]:
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                self._argv, stdout=log, stderr=subprocess.STDOUT, env=self._environment, start_new_session=True
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)
            for region in Path("/dev/shm").glob(f"{self._regions}*"):
                region.unlink(missing_ok=True)

    def _await(self, process: subprocess.Popen[bytes]) -> str:
        """Return why the server is not going to serve; nothing once it does."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            log = self._log.read_text(errors="replace")
            hopeless = _HOPELESS.search(log)
            if hopeless:
                return f"never ready; its log says: {hopeless[1]}"
            cause = _cause(log)
            if cause:  # it will take itself down, which takes some seconds
                return f"refuses: {cause}"
            if process.poll() is not None:
                return f"ends with {process.returncode}: {log.strip().splitlines()[-1]}"
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/v2/health/ready", timeout=2).close()
                return ""
            time.sleep(POLL_S)
        return f"never ready in {START_S} s"

    def _ask(self, request: broken.Request) -> str:
        kind = "generate_stream" if request.body else "infer"
        body = dict(request.body) or {"inputs": [_tensor(name, *given) for name, given in request.inputs.items()]}
        call = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v2/models/{request.model}/{kind}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(call, timeout=REQUEST_S) as response:
                text = response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
        except OSError:
            return f"gets no answer in {REQUEST_S} s"
        found = re.search(r'"error":\s*("(?:[^"\\]|\\.)*")', text)
        return f"fails: {json.loads(found[1]).splitlines()[0]}" if found else "is answered"


def _cause(log: str) -> str:
    """Return what the server says of what it refuses, in one line; nothing while it has refused nothing.

    Triton escapes line ends, and a traceback follows. The last line may be half-written.
    """
    said = "".join(line for line in log.splitlines(keepends=True) if line.endswith("\n") and not _CHATTER.match(line))
    for pattern in _CAUSES:
        found = pattern.search(said)
        if found:
            return ": ".join(found.groups()).split("\\n")[0].rstrip('"').removeprefix("Invalid argument: ")
    return ""


def _tensor(name: str, kind: str, values: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": kind, "shape": [1, len(values)], "data": values}


def _clean(text: str, folder: Path) -> str:
    """Take out what differs from run to run: folders, keys of engines, sizes of what was compiled."""
    return _NUMBERS.sub("N", _KEY.sub("KEY", text.replace(f"{folder}/", "")))


@pytest.fixture(scope="module", name="outcomes")
def _outcomes(tmp_path_factory: pytest.TempPathFactory, triton_runtime: Runtime) -> dict[tuple[str, str], Outcome]:
    bench = Bench(tmp_path_factory.mktemp("bench"), triton_runtime)
    jobs = [*(("broken", case) for case in broken.CASES), *(("good", case) for case in broken.GOOD)]
    with concurrent.futures.ThreadPoolExecutor(SERVERS) as pool:
        done = list(pool.map(lambda job: bench.outcome(*job), jobs))
    found = {(kind, case.name): outcome for (kind, case), outcome in zip(jobs, done, strict=True)}
    if UPDATE:
        rows = [_row(case, found["broken", case.name]) for case in broken.CASES]
        broken.RECORD.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    return found


def _row(case: broken.Case, outcome: Outcome) -> dict[str, Any]:
    told = sorted(outcome.told, key=lambda finding: finding.severity != "error")
    return {
        "name": case.name,
        "what": case.what,
        "base": case.base,
        "triton": outcome.triton,
        "lint": list(dict.fromkeys(f"{finding.severity} {finding.code}" for finding in told)),
        "message": _clean(told[0].message, outcome.folder) if told else "",
    }


@pytest.mark.parametrize("case", broken.CASES, ids=lambda case: case.name)
def test_triton_and_lint_say_what_is_recorded(case: broken.Case, outcomes: dict[tuple[str, str], Outcome]) -> None:
    """Both columns of the table are what a real server and lint say of the repository today."""
    recorded = {row["name"]: row for row in json.loads(broken.RECORD.read_text())}

    assert _row(case, outcomes["broken", case.name]) == recorded[case.name]


@pytest.mark.parametrize("case", broken.CASES, ids=lambda case: case.name)
def test_lint_finds_every_break(case: broken.Case, outcomes: dict[tuple[str, str], Outcome]) -> None:
    """What Triton refuses is an error of lint's, unless it cannot be sure; what it serves, a warning."""
    outcome = outcomes["broken", case.name]
    severities = {finding.severity for finding in outcome.told}

    assert severities & {"error", "warning"}
    assert outcome.triton.startswith("serves") or "error" in severities or case.name in UNSURE


@pytest.mark.parametrize("case", broken.GOOD, ids=lambda case: case.name)
def test_lint_is_silent_about_what_triton_serves(case: broken.Good, outcomes: dict[tuple[str, str], Outcome]) -> None:
    """A good repository is served, answers its first request, and has no finding but that files were edited."""
    outcome = outcomes["good", case.name]

    assert outcome.triton == "serves; the first request is answered"
    assert [f for f in outcome.findings if f.severity != "info"] == []


def test_the_record_has_no_others() -> None:
    """Cases that are gone are gone from the record, too."""
    assert [row["name"] for row in json.loads(broken.RECORD.read_text())] == [case.name for case in broken.CASES]
