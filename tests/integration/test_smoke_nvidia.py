"""The smoke test against NVIDIA's front doors on real Triton; ``tests/nvidia_front_doors.py`` says what is theirs."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import pytest

from specdeploy.config.schema import BuildConfig, DeployConfig, DraftConfig, ModelConfig, SmokeConfig
from specdeploy.errors import ServerFault
from specdeploy.pipeline.serving import Addresses
from specdeploy.pipeline.smoke_targets import nvidia_target
from specdeploy.smoke import CHECKS, run_smoke
from specdeploy.smoke.probe import Probe
from specdeploy.triton.protocol import GenerateRequest
from specdeploy.triton.server import TritonServer
from tests.deployments import specdeploy, write_deployment
from tests.nvidia_front_doors import write_front_doors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.pipeline.smoke_targets import Target
    from specdeploy.smoke import CheckResult
    from specdeploy.triton.runtime import Runtime

pytestmark = [pytest.mark.cpu, pytest.mark.triton]

DOORS = ("ensemble", "tensorrt_llm_bls")
CONFIG = DeployConfig(
    name="templates",
    target=ModelConfig(checkpoint="target", precision="fp32"),
    draft=DraftConfig(checkpoint="draft", precision="fp32"),
    build=BuildConfig(max_seq_len=1024),
    smoke=SmokeConfig(max_tokens=24, clients=3, samples=40),
)
REQUEST = GenerateRequest(prompt="The lighthouse keeper climbed the stairs", max_tokens=24)


@pytest.fixture(scope="module")
def addresses(triton_runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """Where NVIDIA's front doors are served, over the engines of a tiny pair."""
    folder = tmp_path_factory.mktemp("templates")
    write_deployment(folder)
    for command in ("build", "repo"):
        done = specdeploy(command, cwd=folder)
        assert done.returncode == 0, done.stderr
    theirs = write_front_doors(folder / "theirs", folder / "models")
    with TritonServer(triton_runtime, theirs, run_dir=tmp_path_factory.mktemp("run")) as server:
        at = server.endpoints
        yield Addresses(http_url=at.http_url, grpc_url=at.grpc_url, metrics_url=at.metrics_url)


@pytest.fixture(scope="module")
def targets(addresses: Addresses) -> dict[str, Target]:
    """Both front doors as targets."""
    return {door: nvidia_target(addresses, front_door=door, config=CONFIG) for door in DOORS}


def smoked(target: Target) -> dict[str, CheckResult]:
    """Run every check and return what it said, by name."""
    return {check.name: check for check in run_smoke(target.client_factory, target.expectations).checks}


@pytest.mark.parametrize("door", DOORS)
def test_what_runs_and_what_does_not(door: str, targets: dict[str, Target]) -> None:
    """What NVIDIA's front door can be asked for passes; the rest is skipped and says what is missing.

    One thing they do otherwise: stop words are compared as token ids. A word that the answer spells by other tokens
    than the word alone does not stop it, and one that does stays in the text. That fails, as it should.
    """
    checks = smoked(targets[door])
    by_status = {
        status: {n for n, c in checks.items() if c.status == status} for status in ("pass", "fail", "undecided")
    }
    assert by_status["pass"] >= {
        *("server-ready", "models-ready", "metadata", "short-answers", "seeds", "parallel-clients"),
        *(name for name in CHECKS if name.startswith("refuses-")),
    }
    assert {name: checks[name].reason for name in by_status["fail"] - {"stop-word"}} == {}
    assert by_status["undecided"] == set()
    assert checks["http-equals-grpc"].reason == "its answers carry no token ids"
    assert "does not stream" in checks["stream-http"].reason
    assert "drafted and accepted" in checks["speculation-on"].reason


def test_the_decoder_decodes_with_drafts_and_without(targets: dict[str, Target]) -> None:
    """Left to its own, a request of ours speculates on NVIDIA's decoder, too; 0 drafts asks the target alone.

    Triton's counters tell which; the answers are the same, and neither begins with the prompt.
    """
    target = targets["tensorrt_llm_bls"]

    def asked(drafts: int | None) -> tuple[str, int]:
        with target.client_factory() as client:
            probe = Probe(client, target.expectations, monotonic=time.monotonic, sleep=time.sleep)
            before = probe.settled_count("tensorrt_llm_draft")
            answer = client.generate_http(dataclasses.replace(REQUEST, num_draft_tokens=drafts))
            return answer.text, probe.settled_count("tensorrt_llm_draft") - before

    (with_drafts, drafted), (alone, idle) = asked(None), asked(0)
    assert with_drafts == alone
    assert not alone.startswith("The lighthouse")
    assert drafted > 0
    assert idle == 0


def test_both_doors_answer_alike_by_every_way(targets: dict[str, Target]) -> None:
    """HTTP and gRPC, whole or streamed, by either door: one text."""
    texts = set()
    for target in targets.values():
        with target.client_factory() as client:
            texts |= {client.generate_http(REQUEST).text, client.generate_grpc(REQUEST).text}
            texts |= {"".join(c.text for c in stream(REQUEST)) for stream in (client.stream_http, client.stream_grpc)}
    assert len(texts) == 1


def test_a_door_that_is_not_there(addresses: Addresses) -> None:
    """A front door that the server does not have is a fault that names it."""
    with pytest.raises(ServerFault, match="nowhere"):
        nvidia_target(addresses, front_door="nowhere", config=CONFIG)
