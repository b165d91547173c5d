"""Bad words, the end token and the least length: each way of getting them wrong is found."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.smoke.deployment import EXPECT, FakeDeployment
from tests.unit.smoke.faults import (
    Fault,
    answers,
    both,
    changed_id,
    every,
    ids_of,
    ignoring,
    last,
    outcome,
    require_found,
    streams,
    whole,
    with_drafts,
    without,
)

FAULTS: tuple[Fault, ...] = (
    ("bad-words", "ignored", ignoring("bad_words"), "is in the answer at token"),
    (
        "bad-words",
        "ignored with drafts",
        answers(changed_id, both(with_drafts(None), lambda x: "bad_words" in x.request.extra)),
        "the target alone and with drafts, with the bad word",
    ),
    (
        "bad-words",
        "ignored in a stream",
        answers(changed_id, both(streams, lambda x: "bad_words" in x.request.extra)),
        "whole and streamed, with the bad word",
    ),
    ("end-id", "ignored", ignoring("end_id"), "with or without the last"),
    (
        "end-id",
        "one token more",
        answers(lambda c: last(c, ids=(*c[-1].ids, 1)), lambda x: "end_id" in x.request.extra),
        "with or without the last",
    ),
    (
        "end-id",
        "wrong reason",
        answers(lambda c: last(c, finish_reason="length"), lambda x: "end_id" in x.request.extra),
        "expected 'end_id'",
    ),
    (
        "end-id",
        "another answer in a stream",
        answers(changed_id, both(streams, lambda x: "end_id" in x.request.extra)),
        "whole and streamed, with end_id",
    ),
    ("min-tokens", "ignored", ignoring("min_tokens"), "is taken too early"),
    (
        "min-tokens",
        "ignored with drafts",
        answers(changed_id, both(with_drafts(None), lambda x: "min_tokens" in x.request.extra)),
        "the target alone and with drafts, with min_tokens",
    ),
    (
        "min-tokens",
        "another answer from its beginning",
        answers(
            lambda c: [dataclasses.replace(c[0], ids=(9, 9, *c[0].ids[2:])), *c[1:]],
            lambda x: "min_tokens" in x.request.extra,
        ),
        "",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=ids_of(FAULTS))
def test_a_broken_deployment_fails(fault: Fault) -> None:
    """The check notices the fault, and says what it saw."""
    require_found(fault)


@pytest.mark.parametrize("check", ["end-id", "min-tokens", "bad-words"])
def test_a_front_door_without_the_input_is_skipped(check: str) -> None:
    """A check of an input that the front door does not have says so."""
    name = check.replace("-", "_")
    deployment = FakeDeployment()
    without("inputs", name)(deployment)

    result = outcome(check, deployment)

    assert (result.status, result.reason) == ("skip", f"ensemble has no input {name}")


def test_an_end_token_that_is_left_out_is_right() -> None:
    """NVIDIA's engines leave the end token out of the answer, and the text is the same."""
    deployment = FakeDeployment()
    answers(
        lambda c: last(c, ids=c[-1].ids[:-1], num_output_tokens=(c[-1].num_output_tokens or 1) - 1),
        lambda x: "end_id" in x.request.extra,
    )(deployment)

    result = outcome("end-id", deployment)

    assert result.status == "pass"
    assert "which is left out" in result.reason


def test_an_answer_of_one_token_over_and_over_has_no_end_to_ask_for() -> None:
    """Where no token of the answer is new, the check says so."""
    deployment = FakeDeployment()
    answers(lambda c: every(c, ids=(4,) * len(c[0].ids)))(deployment)

    assert outcome("end-id", deployment).status == "skip"
    assert outcome("min-tokens", deployment).status == "skip"


def test_an_answer_without_letters_has_no_word_to_ban() -> None:
    """Banned are plain words, which every tokenizer writes in one way; where there is none the check says so."""
    deployment = FakeDeployment()
    answers(lambda c: every(c, text="?"), whole)(deployment)

    assert outcome("bad-words", deployment).status == "skip"


def test_with_a_quantised_target_the_answer_without_drafts_is_not_compared() -> None:
    """A near-tie is no fault of bad words or end tokens; lossless-greedy judges it."""
    deployment = FakeDeployment()
    answers(changed_id, with_drafts(0))(deployment)
    expect = dataclasses.replace(EXPECT, target_precision="int4")

    for check in ("end-id", "min-tokens", "bad-words"):
        assert outcome(check, deployment, expect=expect).status == "pass"
