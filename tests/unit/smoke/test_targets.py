"""What is expected of servers that are not ours, derived from what they say of themselves."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.config.schema import BuildConfig, DeployConfig, DraftConfig, ModelConfig, SmokeConfig, SpeculationConfig
from specdeploy.errors import ConfigError
from specdeploy.openai import Dialect, ask_dialect
from specdeploy.smoke import CHECKS, run_smoke
from specdeploy.smoke.capabilities import ALL, CONTROL, COUNTS, ENGINES, GRPC, IDS, STREAM, STREAM_END, TRITON
from specdeploy.smoke.targets import (
    FrontDoor,
    ensemble_steps,
    is_decoupled,
    nvidia_expectations,
    openai_expectations,
    tells_limit,
)
from specdeploy.triton.protocol import ModelMetadata, TensorSpec
from tests.unit.openai.fake_openai import MODEL, FakeOpenAI
from tests.unit.smoke.deployment import DRAFTS, EXPECT

if TYPE_CHECKING:
    from specdeploy.smoke import Expectations

TEMPLATES = json.loads((Path(__file__).parents[2] / "data" / "triton_templates.json").read_text(encoding="utf-8"))
RELEASES = list(TEMPLATES["releases"])
CONFIG = DeployConfig(
    name="toy",
    target=ModelConfig(checkpoint="t", precision="fp8"),
    draft=DraftConfig(checkpoint="d"),
    speculation=SpeculationConfig(num_draft_tokens=DRAFTS),
    build=BuildConfig(max_seq_len=64),
    smoke=SmokeConfig(max_tokens=8, request_timeout_s=5, clients=3, samples=7, alpha=0.05, tie_margin=0.5),
)


def door(release: str, model: str, *, streams: bool = False, steps: tuple[str, ...] = ()) -> FrontDoor:
    """Return a front door of NVIDIA's templates as Triton would describe it."""
    template = TEMPLATES["releases"][release][model]

    def specs(kind: str) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name=t["name"], datatype="?", shape=(-1,)) for t in template[kind])

    metadata = ModelMetadata(name=model, versions=("1",), platform="", inputs=specs("inputs"), outputs=specs("outputs"))
    return FrontDoor(metadata=metadata, steps=steps, streams=streams, engine=True)


def nvidia(release: str, model: str, **more: Any) -> Expectations:
    """Return what is expected of one of them."""
    return nvidia_expectations(door(release, model, **more), config=CONFIG, metrics=True)


@pytest.mark.parametrize("release", RELEASES)
class TestNvidia:
    """NVIDIA's two front doors, of every release that we have read."""

    def test_the_ensemble(self, release: str) -> None:
        """It offers no ids, no counts of its own, no reason for the end, and no request without drafts."""
        expect = nvidia(release, "ensemble", steps=("preprocessing", "tensorrt_llm", "postprocessing"))
        assert expect.capabilities == {TRITON, GRPC, ENGINES}
        assert expect.models == ("ensemble", "preprocessing", "tensorrt_llm", "postprocessing")
        assert expect.draft_model is None
        assert expect.fixed_by == "the engine behind ensemble"

    def test_the_decoder(self, release: str) -> None:
        """It can decode with the target alone; its counts, of the last round only, are not taken for the whole."""
        expect = nvidia(release, "tensorrt_llm_bls")
        assert expect.capabilities == {TRITON, GRPC, ENGINES, CONTROL}
        assert expect.draft_model == "tensorrt_llm_draft"
        assert set(expect.models) == {
            *("tensorrt_llm_bls", "preprocessing", "postprocessing", "tensorrt_llm", "tensorrt_llm_draft"),
        }
        assert not expect.fixed_by

    def test_streaming(self, release: str) -> None:
        """A decoupled front door streams, though it never says why an answer ended."""
        expect = nvidia(release, "ensemble", streams=True)
        assert STREAM in expect.capabilities
        assert STREAM_END not in expect.capabilities


def test_the_limits_are_the_configurations() -> None:
    """Lengths, time limits and thresholds come from the deployment that a server is compared with."""
    for expect in (
        nvidia("1.x", "ensemble"),
        openai_expectations(Dialect(), about={"id": MODEL}, model=MODEL, config=CONFIG),
    ):
        assert (expect.max_seq_len, expect.max_tokens, expect.request_timeout_s) == (64, 8, 5)
        assert (expect.clients, expect.samples, expect.alpha, expect.tie_margin) == (3, 7, 0.05, 0.5)
        assert (expect.num_draft_tokens, expect.target_precision, expect.second_door) == (DRAFTS, "fp8", None)


def test_a_server_of_openais_api() -> None:
    """Its capabilities are what it was found to offer; it drafts as it was started to."""
    expect = openai_expectations(Dialect(counts=True), about={"id": MODEL}, model=MODEL, config=CONFIG)
    assert expect.capabilities == {IDS, COUNTS, STREAM, STREAM_END}
    assert (expect.models, expect.front_door, expect.draft_model, expect.metrics) == ((MODEL,), MODEL, None, False)
    plain = openai_expectations(Dialect(ids=False, stream_end=False), about={}, model=MODEL, config=CONFIG)
    assert plain.capabilities == {STREAM}


@pytest.mark.parametrize(
    ("told", "longest"),
    [({"max_model_len": 2048}, 2048), ({}, 64)]
    + [({"max_model_len": odd}, 64) for odd in (None, True, -5, 0, 10**15, 10**19, "2048", 2048.0)],
)
def test_the_longest_sequence(told: dict[str, Any], longest: int) -> None:
    """What the server says of itself goes before the configuration; what cannot be is not told."""
    expect = openai_expectations(Dialect(), about=told, model=MODEL, config=CONFIG)

    assert expect.max_seq_len == longest
    assert tells_limit(expect) == (longest != 64)


def test_answers_that_cannot_fit_are_the_users_to_shorten() -> None:
    """No check could pass with them: that is an error of the configuration, with the numbers, and exit code 2."""
    longer = dataclasses.replace(CONFIG, smoke=dataclasses.replace(CONFIG.smoke, max_tokens=50))
    ensemble = door("1.x", "ensemble")

    with pytest.raises(ConfigError, match="max_tokens is 50, which does not fit") as caught:
        nvidia_expectations(ensemble, config=longer, metrics=True)

    assert caught.value.exit_code == 2
    with pytest.raises(ConfigError, match="a sequence has 60 at most"):
        openai_expectations(Dialect(), about={"max_model_len": 60}, model=MODEL, config=longer)
    # Its own limit is not known, and may be longer than the configuration's.
    assert openai_expectations(Dialect(), about={}, model=MODEL, config=longer).max_tokens == 50


@dataclasses.dataclass(kw_only=True)
class Miscounting(FakeOpenAI):
    """Tells counts that cannot be."""

    drafted: int
    accepted: int

    def _metrics(self, rounds: int) -> dict[str, Any]:
        told = {"num_draft_tokens": self.drafted, "num_accepted_draft_tokens": self.accepted}
        return {"metrics": {"speculative_decoding": told}}


@pytest.mark.parametrize(("drafted", "accepted"), [(-3, 1), (3, 9)])
def test_impossible_counts_of_a_server_fail_the_check_that_reads_them(drafted: int, accepted: int) -> None:
    """The run goes on: only what looks at the counts fails, and says what they are."""
    server = Miscounting(drafted=drafted, accepted=accepted)
    dialect = ask_dialect(server.client)
    expect = openai_expectations(dialect, about={"id": MODEL}, model=MODEL, config=CONFIG)

    report = run_smoke(
        lambda: server.client(dialect),  # type: ignore[arg-type, return-value]
        expect,
        only=["speculation-on", "stream-http"],
    )

    by_name = {check.name: check for check in report.checks}
    assert (by_name["stream-http"].status, by_name["speculation-on"].status) == ("pass", "fail")
    assert f"'total_draft_tokens': {drafted}" in by_name["speculation-on"].reason


def test_what_triton_says_of_a_model() -> None:
    """Steps and streaming are read from Triton's own account of a model, whatever is left out of it."""
    ensemble = {"ensemble_scheduling": {"step": [{"model_name": "a"}, {"model_name": "b"}, {"model_name": "a"}]}}
    assert ensemble_steps(ensemble) == ("a", "b")
    assert ensemble_steps({}) == ()
    assert is_decoupled({"model_transaction_policy": {"decoupled": True}})
    assert not is_decoupled({"model_transaction_policy": {"decoupled": False}})
    assert not is_decoupled({})


@pytest.mark.parametrize("ids", [True, False], ids=["with-ids", "without-ids"])
def test_a_server_without_triton_is_never_asked_for_it(ids: bool) -> None:
    """Checks run unchanged against an OpenAI-compatible server: a sound one fails none of those that it can be asked.

    The rest is skipped with what is missing, and no check calls what the client does not have.
    """
    server = FakeOpenAI(ids=ids)
    dialect = Dialect(ids=ids, counts=True)
    expect = openai_expectations(dialect, about={"id": MODEL}, model=MODEL, config=CONFIG)
    report = run_smoke(lambda: server.client(dialect), expect)  # type: ignore[arg-type, return-value]
    by_name = {check.name: check for check in report.checks}
    assert by_name.keys() == CHECKS.keys()
    assert {name: check.reason for name, check in by_name.items() if check.status not in {"pass", "skip"}} == {}
    passed = {name for name, check in by_name.items() if check.status == "pass"}
    assert passed >= {
        *("server-ready", "stream-http", "speculation-on", "short-answers", "stop-word", "seeds", "parallel-clients"),
        *("refuses-wrong-type", "refuses-missing-input", "refuses-zero-tokens", "refuses-long-prompt"),
        "refuses-unknown-model",
    }
    assert by_name["metadata"].reason == "the server does not speak Triton's protocol"
    assert all(check.reason for check in report.checks)


def test_our_deployment_can_do_everything() -> None:
    """Whatever a check needs, a deployment of ours has: it has every capability."""
    needed = frozenset().union(*(check.needs for check in CHECKS.values()))
    assert needed <= EXPECT.capabilities == ALL
