"""The smoke test against an OpenAI-compatible server that is not ours: llama.cpp's, by llama-cpp-python 0.3.36.

What it does otherwise than we ask for is written down here as it is, and found by the checks that are there for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specdeploy.config.schema import BuildConfig, DeployConfig, DraftConfig, ModelConfig, SmokeConfig
from specdeploy.pipeline.smoke_targets import openai_target
from specdeploy.smoke import CHECKS, run_smoke
from specdeploy.triton.client import RequestFailed
from specdeploy.triton.protocol import GenerateRequest
from tests.llamacpp_server import LONGEST, MODEL, llamacpp_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.pipeline.smoke_targets import Target

pytestmark = [pytest.mark.openai, pytest.mark.timeout(900)]

KEY = "sk-of-a-test-0123456789"
#: One request at a time and none interrupted; drafts are looked up in the text.
CAREFUL = ("--interrupt_requests", "False", "--draft_model", "prompt-lookup-decoding")
CONFIG = DeployConfig(
    name="other",
    target=ModelConfig(checkpoint="target"),
    draft=DraftConfig(checkpoint="draft"),
    build=BuildConfig(max_seq_len=LONGEST),
    smoke=SmokeConfig(max_tokens=16, clients=3, request_timeout_s=120),
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A careful server that asks for a key."""
    with llamacpp_server(*CAREFUL, "--draft_model_num_pred_tokens", "4", "--api_key", KEY) as url:
        yield url


@pytest.fixture
def target(url: str, monkeypatch: pytest.MonkeyPatch) -> Target:
    """The careful server, asked with its key."""
    monkeypatch.setenv("SMOKE_TEST_KEY", KEY)
    return openai_target(url, model=None, config=CONFIG, api_key_env="SMOKE_TEST_KEY")


def test_what_it_offers(target: Target) -> None:
    """It streams and says why an answer ended; it has no field for token ids, and tells nothing of its drafts."""
    assert target.expectations.capabilities == {"stream", "stream-end"}
    assert target.expectations.front_door == MODEL


def test_it_answers_and_is_asked_with_a_key(url: str, target: Target) -> None:
    """Greedy text comes the same whole and streamed, with the number of tokens; without the key nothing comes."""
    request = GenerateRequest(prompt="The days of the week are Monday, Tuesday,", max_tokens=6)
    with target.client_factory() as client:
        whole, pieces = client.generate_http(request), list(client.stream_http(request))
    assert whole.text.startswith(" Wednesday")
    assert "".join(piece.text for piece in pieces) == whole.text
    assert (whole.finish_reason, whole.num_output_tokens) == ("length", 6)
    assert len(pieces) > 1
    with pytest.raises(RequestFailed, match="Invalid API key") as failed:
        openai_target(url, model=MODEL, config=CONFIG)
    assert failed.value.status == 401


def test_which_checks_pass(target: Target) -> None:
    """What it can be asked passes, but for what it does otherwise, which is found.

    * A request without a prompt, or with an empty one, is a 500 that says nothing.
    * A greedy answer may change from one request to the next: the model is quantised, and a near-tie falls as what the
      cache holds at the time has it. The checks that compare two answers tell so; they are not held to the same ids,
      because there are none.

    Two more it cannot be held to: it takes ``max_tokens`` 0 for no limit, and answers to any model's name.
    """
    report = run_smoke(target.client_factory, target.expectations)
    checks = {check.name: check for check in report.checks}
    assert checks.keys() == CHECKS.keys()
    failed = {name: check.reason for name, check in checks.items() if check.status in {"fail", "undecided"}}
    silent = {"refuses-missing-input", "empty-prompt"}
    assert failed.keys() >= silent, failed
    assert all("HTTP 500" in failed[name] for name in silent), failed
    assert all("different text" in reason for name, reason in failed.items() if name not in silent), failed
    assert {name for name, check in checks.items() if check.status == "pass"} >= {
        *("server-ready", "refuses-wrong-type", "refuses-long-prompt"),
    }
    assert checks["metadata"].reason == "the server does not speak Triton's protocol"
    assert report.exit_code == 1


def test_a_server_that_interrupts_its_clients() -> None:
    """By default it ends a streamed answer as soon as another request comes; parallel clients find that.

    The answer is cut off in its midst: no end of the stream, or one that gives no reason.
    """
    with llamacpp_server() as url:
        target = openai_target(url, model=None, config=CONFIG)
        report = run_smoke(target.client_factory, target.expectations, only=["server-ready", "parallel-clients"])
    assert [check.status for check in report.checks] == ["pass", "fail"]
