"""Real deployments, broken in one way each: the check that is there for it finds each, and none without the fault."""

from __future__ import annotations

import dataclasses
import shutil
import socket
from typing import TYPE_CHECKING

import pytest

from specdeploy.smoke import CHECKS, Expectations, SmokePrompt, run_smoke
from specdeploy.triton.client import TritonClient
from specdeploy.triton.repository import names
from specdeploy.triton.server import TritonServer
from tests.deployments import specdeploy
from tests.integration.plain_triton import client_of
from tests.integration.smoke_mutants import (
    MUTANTS,
    STATIC,
    break_for_good,
    switchable,
    switched_on,
    write_deployment_with_long_characters,
)

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterator
    from pathlib import Path

    from specdeploy.smoke import SmokeReport
    from specdeploy.triton.runtime import Runtime
    from specdeploy.triton.server import RunningServer

pytestmark = [pytest.mark.cpu, pytest.mark.triton]

EXPECT = Expectations(
    models=names.MODELS,
    num_draft_tokens=4,
    max_seq_len=1024,
    max_tokens=24,
    request_timeout_s=30.0,
    prompts=(
        SmokePrompt(name="code", text="def main(n):\n    return"),
        SmokePrompt(name="prose", text="The lighthouse keeper climbed the stairs"),
        SmokePrompt(name="cyrillic", text="Москва является столицей"),
    ),
)
#: Checks of other rooms, which are shown to fail elsewhere.
ELSEWHERE = ("lossless-", "golden", "self-draft", "server-ready", "models-ready")
#: Every check that finds a fault here.
FINDERS = sorted(
    {mutant.check for mutant in MUTANTS.values()}
    | {mutant.also[0] for mutant in MUTANTS.values() if mutant.also}
    | {check for check, _ in STATIC.values()}
)


@dataclasses.dataclass(frozen=True)
class Switchboard:
    """A server with every fault, and the switch."""

    server: RunningServer
    switch: Path

    def broken(self, fault: str) -> contextlib.AbstractContextManager[None]:
        """Switch a fault on, and off at the end."""
        return switched_on(self.switch, fault)


@pytest.fixture(scope="module")
def repository(triton_runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound repository, its engines built."""
    folder = tmp_path_factory.mktemp("mutants")
    write_deployment_with_long_characters(folder)
    for command in ("build", "repo"):
        done = specdeploy(command, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder / "models"


@pytest.fixture(scope="module")
def switchboard(
    triton_runtime: Runtime, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Switchboard]:
    """The server whose faults are switched on and off."""
    folder = tmp_path_factory.mktemp("switchboard")
    models = repository.with_name("models-switchable")
    shutil.copytree(repository, models)
    backend = switchable(models, folder / "switch")
    with TritonServer(triton_runtime, models, run_dir=folder / "run", backends={"tensorrtllm": backend}) as server:
        yield Switchboard(server, folder / "switch")


@pytest.fixture(scope="module")
def sound(switchboard: Switchboard) -> SmokeReport:
    """What the smoke test says while no fault is on."""
    return smoke(switchboard.server, *FINDERS)


@pytest.fixture(scope="module")
def broken_for_good(
    triton_runtime: Runtime, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """The server with the faults that no switch turns on."""
    models = repository.with_name("models-broken")
    shutil.copytree(repository, models)
    break_for_good(models)
    with TritonServer(triton_runtime, models, run_dir=tmp_path_factory.mktemp("broken") / "run") as server:
        yield server


def smoke(server: RunningServer, *only: str) -> SmokeReport:
    """Run the smoke test."""
    return run_smoke(lambda: client_of(server), EXPECT, only=only)


def require_found(report: SmokeReport, reason: str) -> None:
    """Make sure that the one check that ran has failed, and says why."""
    (result,) = report.checks
    assert result.status == "fail", result
    assert reason in result.reason
    assert report.exit_code == 1


def test_without_a_fault_everything_passes(sound: SmokeReport) -> None:
    """The faults are found because they are there: with all of them switched off nothing fails or is left out."""
    assert {check.name: check.reason for check in sound.checks if check.status != "pass"} == {}


@pytest.mark.parametrize("fault", MUTANTS)
def test_a_fault_is_found(fault: str, switchboard: Switchboard, sound: SmokeReport) -> None:
    """The check that passes without the fault fails with it, and says what is wrong."""
    mutant = MUTANTS[fault]
    with switchboard.broken(fault):
        require_found(smoke(switchboard.server, mutant.check), mutant.reason)
        if mutant.also:
            check, reason = mutant.also
            require_found(smoke(switchboard.server, check), reason)


@pytest.mark.parametrize("fault", [name for name in STATIC if name != "there are no metrics"])
def test_a_fault_of_the_repository_is_found(fault: str, broken_for_good: RunningServer) -> None:
    """What is wrong in the models themselves is found as well."""
    check, reason = STATIC[fault]

    require_found(smoke(broken_for_good, check), reason)


def test_metrics_that_are_not_there_are_missed(switchboard: Switchboard) -> None:
    """An endpoint at which nobody listens is a failure where metrics are expected."""
    check, reason = STATIC["there are no metrics"]
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        where, address = switchboard.server.endpoints, f"127.0.0.1:{nobody.getsockname()[1]}"
        report = run_smoke(
            lambda: TritonClient(where.http_url, where.grpc_url, metrics_url=address), EXPECT, only=[check]
        )

    require_found(report, reason)


def test_every_check_has_a_fault_that_it_finds() -> None:
    """No check of the contract is without a real deployment that fails it."""
    assert {name for name in CHECKS if not name.startswith(ELSEWHERE)} - set(FINDERS) == set()
    assert len(MUTANTS) + len(STATIC) >= 20
