"""What a user can get wrong, and what then is said: the value, the cure, the exit code, and nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deployments import specdeploy, write_deployment
from tests.tiny import write_tiny_checkpoint


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    write_deployment(tmp_path)
    return tmp_path


@pytest.fixture(name="prepared", scope="module")
def _prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment that is built and has its repository; tests start and stop their own servers."""
    folder = tmp_path_factory.mktemp("prepared")
    write_deployment(folder)
    for command in ("build", "repo"):
        done = specdeploy(command, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def test_no_configuration(tmp_path: Path) -> None:
    """Without specdeploy.yaml the cure is named."""
    done = specdeploy("check", cwd=tmp_path)

    assert done.returncode == 2
    assert "specdeploy init" in done.stderr


def test_unknown_key(folder: Path) -> None:
    """An unknown key is an error with its line and the nearest match."""
    config = folder / "specdeploy.yaml"
    config.write_text(config.read_text().replace("  pairs: 2", "  pears: 2"))
    done = specdeploy("check", cwd=folder)

    assert done.returncode == 2
    assert "pears" in done.stderr
    assert "pairs" in done.stderr
    assert "specdeploy.yaml:14" in done.stderr


def test_missing_checkpoint(folder: Path) -> None:
    """A checkpoint folder that is not there is named."""
    shutil.rmtree(folder / "draft")
    done = specdeploy("build", cwd=folder)

    assert done.returncode == 2
    assert str(folder / "draft") in done.stderr
    assert not (folder / "engines").exists()


def test_truncated_checkpoint(folder: Path) -> None:
    """A truncated weight file is found before anything is built, with the bytes expected and seen."""
    weights = folder / "target" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1000)
    done = specdeploy("build", cwd=folder)

    assert done.returncode == 2
    assert str(weights.stat().st_size) in done.stderr
    assert not (folder / "engines").exists()


def test_tokenizers_that_differ(folder: Path) -> None:
    """A draft with another tokenizer is refused, and the first differing token is shown."""
    shutil.rmtree(folder / "draft")
    write_tiny_checkpoint(folder / "draft", seed=2, vocab=310)
    done = specdeploy("build", cwd=folder)

    assert done.returncode == 2
    assert "tokenizer." in done.stderr
    assert not (folder / "engines").exists()


def test_check_reports_every_finding_as_json(folder: Path) -> None:
    """``check --json`` is a document with all findings, also when the pair is refused."""
    shutil.rmtree(folder / "draft")
    write_tiny_checkpoint(folder / "draft", seed=2, vocab=310)
    done = specdeploy("check", "--json", cwd=folder)
    document = json.loads(done.stdout)

    assert done.returncode == 2
    assert document["ok"] is False
    assert len({finding["code"] for finding in document["findings"] if finding["severity"] == "error"}) > 1


@pytest.mark.parametrize("path", [".", "specdeploy.yaml/other.yaml"])
def test_init_where_no_file_can_be(folder: Path, path: str) -> None:
    """A folder, or a file where a folder is needed, is named: exit code 2."""
    done = specdeploy("init", path, "--force", cwd=folder)

    assert done.returncode == 2
    assert path in done.stderr


@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, "7", '{"kind": "load", "schema_version": "1.0", "arms": 7}', '{"kind": "smoke"}'],
    ids=["nested", "number", "arms", "smoke"],
)
@pytest.mark.parametrize("command", ["gate", "report"])
def test_damaged_results(folder: Path, command: str, content: str) -> None:
    """A load.json that is no load document is refused by name, by the gate and by the report alike."""
    (folder / "reports").mkdir()
    (folder / "reports" / "load.json").write_text(content)
    done = specdeploy(command, cwd=folder)

    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "reports" / "report.html").exists()


def test_a_rule_that_cannot_be_read_stops_up_before_anything_is_built(folder: Path) -> None:
    """``up`` reads the gate's rules first: a typo must not cost the minutes of a build and a load test."""
    done = specdeploy("up", "--set", "gate.rules=[eror_rate <= 0]", cwd=folder)

    assert done.returncode == 2
    assert "error_rate" in done.stderr
    assert not (folder / "engines").exists()


@pytest.mark.parametrize(
    "other", [("--http", "h:1", "--grpc", "h:2"), ("--metrics", "h:1"), ("--serve",)], ids=lambda other: other[0]
)
def test_a_load_test_of_two_servers_at_once(folder: Path, other: tuple[str, ...]) -> None:
    """Options that name another server, or a part of one, are not left unheard beside ``--openai``."""
    done = specdeploy("load", "--openai", "http://h/v1", *other, cwd=folder)

    assert done.returncode == 2
    assert "--openai names a server" in done.stderr


def test_an_address_that_is_none(folder: Path) -> None:
    """A malformed server address is a usage error, not a lost server."""
    done = specdeploy("smoke", "--http", "a:b:9", "--grpc", "localhost:8001", cwd=folder)

    assert done.returncode == 2
    assert "a:b:9" in done.stderr


@pytest.mark.cpu
def test_a_foreign_directory_is_not_overwritten(prepared: Path, tmp_path: Path) -> None:
    """A repository path that holds somebody's files is left alone."""
    (tmp_path / "precious.txt").write_text("mine")
    done = specdeploy("repo", "--set", f"repo.path={tmp_path}", cwd=prepared)

    assert done.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_tritonserver_missing(folder: Path, tmp_path: Path) -> None:
    """Without a Triton runtime ``serve`` says how to get one: exit code 4."""
    done = specdeploy("serve", cwd=folder, env={"SPECDEPLOY_CACHE_DIR": str(tmp_path / "empty")})

    assert done.returncode == 4
    assert "specdeploy runtime install" in done.stderr


@pytest.mark.cpu
@pytest.mark.triton
def test_port_in_use(prepared: Path) -> None:
    """A port that somebody else holds is named before anything is started: exit code 4."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = specdeploy("serve", "--set", f"serve.http_port={port}", cwd=prepared)

    assert done.returncode == 4
    assert str(port) in done.stderr
    assert specdeploy("serve", "status", cwd=prepared).returncode == 4


@pytest.mark.cpu
@pytest.mark.triton
def test_sigterm_stops_the_server(prepared: Path) -> None:
    """A foreground server ends with its command, and leaves nothing running."""
    with _serving(prepared) as process:
        pid = _server_pid(prepared)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGTERM, stderr
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.cpu
@pytest.mark.triton
def test_server_killed_while_serving(prepared: Path) -> None:
    """When tritonserver is killed, ``serve`` says how it ended and with which log: exit code 4."""
    with _serving(prepared) as process:
        os.kill(_server_pid(prepared), signal.SIGKILL)
        _, stderr = process.communicate(timeout=60)

    assert process.returncode == 4
    assert "SIGKILL" in stderr


@pytest.mark.cpu
@pytest.mark.triton
def test_engine_killed_while_serving(prepared: Path) -> None:
    """When the target's engine process is killed, the smoke test fails with its name within its time limits."""
    with _serving(prepared) as process:
        for pid in _stubs_of(_server_pid(prepared), "tensorrt_llm"):
            os.kill(pid, signal.SIGKILL)
        limits = ["--set", "smoke.request_timeout_s=5"]
        done = specdeploy("smoke", "--only", "http-equals-grpc", *limits, cwd=prepared, timeout_s=120)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    assert done.returncode == 1
    assert "tensorrt_llm" in done.stdout


@pytest.mark.cpu
@pytest.mark.triton
def test_draft_killed_while_serving(prepared: Path) -> None:
    """When the draft's engine process is killed, answers go on from the target alone and say so."""
    with _serving(prepared) as process:
        for pid in _stubs_of(_server_pid(prepared), "tensorrt_llm_draft"):
            os.kill(pid, signal.SIGKILL)
        done = specdeploy("smoke", "--only", "http-equals-grpc", "--only", "speculation-on", cwd=prepared)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    assert done.returncode == 1
    # After some failures in a row it is left alone.
    assert "draft_failed" in done.stdout or "draft_unavailable" in done.stdout


class _serving:  # noqa: N801 - reads as the verb it is
    """A foreground ``specdeploy serve``, ready when the block begins and gone when it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "specdeploy", "serve"],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # The table of endpoints is printed when every model is ready.
        if not self._process.stdout.readline():
            raise AssertionError(self._process.communicate(timeout=60))
        return self._process

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.communicate(timeout=60)


def _server_pid(folder: Path) -> int:
    done = specdeploy("serve", "status", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["pid"]


def _stubs_of(server: int, model: str) -> list[int]:
    """Return the process of *server* that runs *model*; both are on the stub's command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = set((entry / "cmdline").read_text().split("\0"))
        except OSError:
            continue
        if {str(server), f"{model}_0_0"} <= words:
            found.append(int(entry.name))
    assert found, f"no process serves {model}"
    return found
