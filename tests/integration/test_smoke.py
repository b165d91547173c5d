"""The smoke test against real deployments of tiny checkpoints: a sound one, and some broken in one way each."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specdeploy.smoke import CHECKS, CheckResult, Expectations, SmokePrompt, run_smoke
from specdeploy.triton.repository import names
from specdeploy.triton.server import TritonServer
from specdeploy.triton.sources import backend_sources
from tests.deployments import specdeploy, write_deployment
from tests.integration.plain_triton import client_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.smoke import SmokeReport
    from specdeploy.triton.runtime import Runtime
    from specdeploy.triton.server import RunningServer

pytestmark = [pytest.mark.cpu, pytest.mark.triton]

EXPECT = Expectations(
    models=names.MODELS,
    num_draft_tokens=4,
    max_seq_len=1024,
    max_tokens=24,
    prompts=(
        SmokePrompt(name="code", text="def main(n):\n    return"),
        SmokePrompt(name="prose", text="The lighthouse keeper climbed the stairs"),
        SmokePrompt(name="cyrillic", text="Москва является столицей"),
    ),
)
DECODER = "speculative_decoder/1/model.py"
ENGINE = "tensorrtllm_cpu/verify.py"


@pytest.fixture(scope="module")
def repository(triton_runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of a sound deployment, its engines built."""
    folder = tmp_path_factory.mktemp("smoke")
    write_deployment(folder)
    for command in ("build", "repo"):
        done = specdeploy(command, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder / "models"


@pytest.fixture(scope="module")
def sound(triton_runtime: Runtime, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> SmokeReport:
    """What the smoke test says of the sound deployment."""
    with TritonServer(triton_runtime, repository, run_dir=tmp_path_factory.mktemp("run")) as server:
        return smoke(server)


def smoke(server: RunningServer, *only: str) -> SmokeReport:
    """Run the smoke test."""
    return run_smoke(lambda: client_of(server), EXPECT, only=only)


def replaced(code: bytes, old: str, new: str) -> bytes:
    """Change one place of a source file, which must be there."""
    text = code.decode()
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new).encode()


def model_process(server: RunningServer, model: str) -> int:
    """Return the process in which a python model or backend runs."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = os.getsid(int(folder.name)) == os.getsid(server.state.server.pid)
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except (ProcessLookupError, FileNotFoundError):
            continue
        if ours and any(f"/{model}/".encode() in argument for argument in arguments):
            return int(folder.name)
    raise AssertionError(f"no process of {model}")


def failures(report: SmokeReport) -> dict[str, str]:
    """Return the reasons of the checks that failed."""
    return {check.name: check.reason for check in report.checks if check.status == "fail"}


def test_a_sound_deployment_passes(sound: SmokeReport) -> None:
    """Nothing fails on a deployment that is as it should be."""
    assert failures(sound) == {}
    assert {check.name for check in sound.checks} == set(CHECKS)
    # Random weights may write no word that the answer could be stopped at.
    assert {check.name for check in sound.checks if check.status == "skip"} <= {"stop-word"}
    assert sound.exit_code == 0


MUTANTS: Mapping[str, tuple[str, str, str, str, str]] = {
    "the engine accepts every draft": (
        ENGINE,
        "if ids[-1] != draft:",
        "if False:",
        "lossless-greedy",
        "differ from the target's own",
    ),
    "a doubled space between chunks": (
        DECODER,
        '"text_output": partial(_texts, *response.texts),',
        '"text_output": partial(_texts, *(text if response.final else text + " " for text in response.texts)),',
        "stream-grpc",
        "same token ids, different text",
    ),
    "the last token is dropped": (
        DECODER,
        '"output_ids": partial(_row, response.ids, np.int32),',
        '"output_ids": partial(_row, response.ids[: -1 if response.final else None], np.int32),',
        "stream-http",
        "the server counts",
    ),
    "speculation is off by default": (
        "speculative_decoder/config.pbtxt",
        'key: "num_draft_tokens" value { string_value: "4" }',
        'key: "num_draft_tokens" value { string_value: "0" }',
        "speculation-on",
        "speculation is off",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str, triton_runtime: Runtime, repository: Path, tmp_path: Path) -> None:
    """A deployment that is broken in one way fails the check that is there for it, with the reason."""
    path, old, new, check, reason = MUTANTS[mutant]
    backend = dict(backend_sources())
    models = Path(shutil.copytree(repository, repository.with_name(f"models-{list(MUTANTS).index(mutant)}")))
    if path in backend:
        backend[path] = replaced(backend[path], old, new)
    else:
        (models / path).write_bytes(replaced((models / path).read_bytes(), old, new))

    with TritonServer(triton_runtime, models, run_dir=tmp_path, backends={"tensorrtllm": backend}) as server:
        report = smoke(server, check)

    assert reason in failures(report)[check]
    assert report.exit_code == 1


def test_models_and_servers_that_die(triton_runtime: Runtime, repository: Path, tmp_path: Path) -> None:
    """A dead draft shows as speculation off, a dead target as failures, and a dead server ends the run with 4.

    Readiness shows neither of the first two.
    """
    expect = dataclasses.replace(EXPECT, request_timeout_s=10.0)
    with TritonServer(triton_runtime, repository, run_dir=tmp_path) as server:
        os.kill(model_process(server, "tensorrt_llm_draft"), signal.SIGKILL)
        draft_gone = run_smoke(
            lambda: client_of(server), expect, only=["server-ready", "models-ready", "speculation-on"]
        )
        assert failures(draft_gone).keys() == {"speculation-on"}
        assert "speculation is off: draft" in failures(draft_gone)["speculation-on"]
        assert draft_gone.exit_code == 1

        os.kill(model_process(server, "tensorrt_llm"), signal.SIGKILL)
        target_gone = run_smoke(lambda: client_of(server), expect, only=["server-ready", "http-equals-grpc", "seeds"])
        assert failures(target_gone).keys() == {"http-equals-grpc", "seeds"}
        assert target_gone.exit_code == 1

        def kill_after_first(result: CheckResult) -> None:
            if result.name == "server-ready":
                os.kill(server.state.server.pid, signal.SIGKILL)

        server_gone = run_smoke(lambda: client_of(server), expect, on_check=kill_after_first)
    statuses = [check.status for check in server_gone.checks]
    assert statuses == ["pass", "fail", *["skip"] * (len(CHECKS) - 2)]
    assert server_gone.exit_code == 4
