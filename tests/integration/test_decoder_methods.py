"""The decoder of deployments without a draft engine, and of older releases: a real tritonserver over table models."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from specdeploy.config.schema import DraftConfig, RepositoryConfig
from specdeploy.triton.client import RequestFailed
from tests.integration.test_decoder import PROMPT, SLOTS, WAYS, ask, config, reference, serving, text_of

pytestmark = pytest.mark.triton


def deployment(method: str, release: str = "1.2.1", profile: str = "tensorrt_llm"):
    """Return a deployment of the method, with the draft that it has."""
    base = config()
    checkpoint = "" if method in {"ngram", "lookahead"} else "nowhere"
    return dataclasses.replace(
        base,
        profile=profile,
        release=release,
        draft=DraftConfig(checkpoint=checkpoint),
        speculation=dataclasses.replace(base.speculation, method=method),
    )


@pytest.fixture(scope="module")
def medusa(triton_runtime, tmp_path_factory):
    """An engine that drafts on its own, four tokens a call, and says how many of them were accepted."""
    with serving(triton_runtime, tmp_path_factory.mktemp("medusa"), deployment("medusa"), reports="true") as client:
        yield client


@pytest.mark.parametrize("way", WAYS)
def test_an_engine_that_drafts_on_its_own_answers_as_it_would_alone(medusa, way) -> None:
    """Requests pass through, streamed or not, and nothing is said to be bypassed."""
    answer = WAYS[way](medusa, ask())

    assert (list(answer.ids), answer.text) == (reference(PROMPT, 40), text_of(reference(PROMPT, 40)))
    assert answer.bypass_reason == ""


def test_what_it_reports_is_added_up_over_the_whole_request(medusa) -> None:
    """Streamed, the answer is made by several calls; the sums are those of all of them, and grow."""
    chunks = list(medusa.stream_grpc(ask(tokens=40)))
    drafted = [chunk.total_draft_tokens for chunk in chunks]

    assert len(chunks) == 4  # 1, 16, 16 and 7 tokens
    assert drafted == [4, 8, 12, 16]
    assert [chunk.total_accepted_draft_tokens for chunk in chunks] == [1, 2, 3, 4]
    assert chunks[-1].acceptance_rate == pytest.approx(0.25)


def test_what_it_does_not_report_is_not_made_up(medusa) -> None:
    """How many steps it took is the engine's own affair: absent, not 0."""
    answer = medusa.generate_http(ask())

    assert answer.num_spec_steps is None
    assert answer.total_draft_tokens == 4


@pytest.mark.parametrize("drafts", [0, 3])
def test_how_much_it_drafts_is_not_the_requests_to_say(medusa, drafts) -> None:
    """A control that is none would be worse than an error."""
    with pytest.raises(RequestFailed, match=r"drafts on its own \(medusa\)"):
        medusa.generate_http(ask(num_draft_tokens=drafts))


def test_before_0_19_engines_report_nothing(triton_runtime, tmp_path) -> None:
    """The answer is the same, and the counts are absent; the engine's inputs have their older names."""
    with serving(triton_runtime, tmp_path, deployment("medusa", "0.17.0"), reports="") as client:
        answer = client.generate_http(ask(tokens=40))

    assert list(answer.ids) == reference(PROMPT, 40)
    assert (answer.total_draft_tokens, answer.acceptance_rate, answer.num_spec_steps) == (None, None, None)


def test_a_pair_of_an_older_release_is_called_by_its_names(triton_runtime, tmp_path) -> None:
    """Seeds and least lengths arrive under the names that the front door and the engines of 0.19 have for them."""
    with serving(triton_runtime, tmp_path, deployment("draft_target", "0.19.0")) as client:
        sampled = [client.generate_http(ask(temperature=1.0, top_p=1.0, seed=5)).ids for _ in range(2)]
        least = [
            client.generate_http(ask(tokens=30, extra={"min_length": 30}), model=model).ids
            for model in ("ensemble", "speculative_decoder")
        ]

    assert sampled[0] == sampled[1]
    assert [list(ids) for ids in least] == [reference(PROMPT, 30, 30)] * 2


def test_drafts_are_looked_up_in_the_text(triton_runtime, tmp_path) -> None:
    """Without a draft engine: the answer is the target's own, and repeats in it are drafted and accepted."""
    with serving(triton_runtime, tmp_path, deployment("ngram", profile="cpu"), by_match="yes") as client:
        on, off = (client.generate_http(ask(tokens=120, num_draft_tokens=drafts)) for drafts in (None, 0))
        logits = {"use_draft_logits": True}
        sampled = client.generate_http(ask(tokens=60, temperature=1.0, top_p=1.0, seed=3, extra=logits))

    assert on.ids == off.ids
    assert (on.bypass_reason, off.bypass_reason) == ("", "requested")
    assert on.total_draft_tokens is not None
    assert on.total_draft_tokens > 0
    assert sampled.num_output_tokens is not None
    assert sampled.num_output_tokens > 0


@pytest.fixture(scope="module")
def limited(triton_runtime, tmp_path_factory):
    """A deployment whose engines are warmed up, and in front of which few requests may wait."""
    limits = RepositoryConfig(warmup=True, max_queue_size=2, queue_timeout_ms=30_000, priority_levels=3)
    folder = tmp_path_factory.mktemp("limited")
    with serving(triton_runtime, folder, dataclasses.replace(config(), repo=limits)) as client:
        yield client


def test_each_engine_has_answered_before_it_is_ready(limited) -> None:
    """Triton makes the warm-up request that the repository holds, once for each instance, and counts it."""
    counts = [limited.statistics(model).success_count for model in ("tensorrt_llm", "tensorrt_llm_draft")]
    assert counts == [SLOTS, SLOTS]


def test_more_requests_than_may_wait_are_refused_and_the_others_answered(limited) -> None:
    """Back-pressure: with all slots busy and the queue full, a client learns at once that it is one too many."""
    slow = ask("~ slow", tokens=30)

    def outcome(_number: int) -> str:
        try:
            return str(limited.generate_http(slow).finish_reason)
        except RequestFailed as error:
            return error.message

    with ThreadPoolExecutor(16) as clients:
        outcomes = list(clients.map(outcome, range(16)))

    refused = [text for text in outcomes if "Exceeds maximum queue size" in text]
    assert refused
    assert len([text for text in outcomes if text in {"length", "end_id"}]) == len(outcomes) - len(refused) > 0
