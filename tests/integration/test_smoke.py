"""The smoke test against a real deployment of tiny checkpoints: sound, and with models and servers that die."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specdeploy.smoke import CHECKS, CheckResult, Expectations, SmokePrompt, run_smoke
from specdeploy.triton.repository import names
from specdeploy.triton.server import TritonServer
from tests.deployments import specdeploy, write_deployment
from tests.integration.plain_triton import client_of

if TYPE_CHECKING:
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
def sound(triton_runtime: Runtime, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> list[SmokeReport]:
    """What the smoke test says of the sound deployment, twice; the long comparison of samples once."""
    with TritonServer(triton_runtime, repository, run_dir=tmp_path_factory.mktemp("run")) as server:
        return [
            run_smoke(lambda: client_of(server), EXPECT),
            run_smoke(lambda: client_of(server), EXPECT, skip=["lossless-sampled"]),
        ]


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


def test_a_sound_deployment_passes(sound: list[SmokeReport]) -> None:
    """Nothing fails on a deployment that is as it should be, and a second run leaves it so."""
    first, second = sound
    assert [failures(report) for report in sound] == [{}, {}]
    assert [check.name for check in first.checks] == list(CHECKS)
    assert [check.name for check in second.checks] == [name for name in CHECKS if name != "lossless-sampled"]
    assert [report.exit_code for report in sound] == [0, 0]


def test_what_is_skipped_says_why(sound: list[SmokeReport]) -> None:
    """A check is left out only where this deployment cannot show what it asks for."""
    skipped = {check.name: check.reason for report in sound for check in report.checks if check.status == "skip"}

    # Random weights may write no word to stop at or to ban, and no character of several bytes.
    assert skipped.keys() <= {"stop-word", "bad-words", "multibyte", "self-draft", "golden"}
    assert all(skipped.values())


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
