"""The empty prompt, the longest one, and characters of several bytes: each way of getting them wrong is found."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from specdeploy.smoke.targets import LimitUntold
from tests.unit.smoke.deployment import EXPECT, MAX_SEQ_LEN, Context, FakeDeployment
from tests.unit.smoke.faults import (
    Fault,
    after_refusal,
    answers,
    both,
    changed_id,
    every,
    ids_of,
    last,
    outcome,
    over,
    replace,
    require_found,
    setting,
    streams,
    with_drafts,
)
from tests.unit.smoke.plain_server import PLAIN, plain_client

TORN = "\ufffd"


def is_full(context: Context) -> bool:
    """The request fills the engines to the last token."""
    return len(context.request.prompt.split()) + context.request.max_tokens == MAX_SEQ_LEN


FAULTS: tuple[Fault, ...] = (
    (
        "empty-prompt",
        "answered over HTTP, refused over gRPC",
        setting(accepts_over_http={"empty"}),
        "HTTP generate: answered",
    ),
    (
        "empty-prompt",
        "never answered",
        setting(silent=lambda rule: rule == "empty"),
        "no clear refusal but timeout",
    ),
    ("empty-prompt", "refused without a word", setting(refusal_text=lambda text: " "), "no clear refusal"),
    ("empty-prompt", "server astray afterwards", after_refusal, "before and after the empty prompt"),
    ("longest-prompt", "one token too many is answered", setting(accepts={"long"}), "is the prompt cut silently?"),
    (
        "longest-prompt",
        "the prompt is cut",
        answers(lambda c: every(c, num_input_tokens=5), is_full),
        "became one of 5",
    ),
    ("longest-prompt", "an empty answer", answers(lambda c: every(c, text="", ids=()), is_full), "answer is empty"),
    (
        "longest-prompt",
        "never refused",
        setting(silent=lambda rule: rule == "long"),
        "one token over the limit: no clear refusal",
    ),
    (
        "multibyte",
        "torn between pieces",
        answers(lambda c: every(c[:1], text=c[0].text + TORN) + c[1:], with_drafts(None)),
        "characters are torn between pieces",
    ),
    (
        "multibyte",
        "torn in one script",
        answers(
            lambda c: last(c, text=c[-1].text[:-1] + TORN),
            both(streams, lambda x: "月曜日" in x.request.prompt),
        ),
        "japanese: 1 characters are torn",
    ),
    (
        "multibyte",
        "lost between pieces",
        answers(lambda c: every(c, text=c[0].text.replace("д", "")), both(streams, over("grpc"))),
        "same token ids, different text",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=ids_of(FAULTS))
def test_a_broken_deployment_fails(fault: Fault) -> None:
    """The check notices the fault, and says what it saw."""
    require_found(fault)


def test_an_empty_prompt_may_be_answered() -> None:
    """A tokenizer that begins every text with a token of its own has something to go on from."""
    deployment = FakeDeployment()
    deployment.accepts = {"empty"}

    result = outcome("empty-prompt", deployment)

    assert result.status == "pass"
    assert result.reason.startswith("answered: ")


def test_without_a_count_of_the_prompt_the_limit_cannot_be_met() -> None:
    """The server's own count is what the limit is reckoned with."""
    deployment = FakeDeployment()
    answers(lambda c: every(c, num_input_tokens=None))(deployment)

    assert outcome("longest-prompt", deployment).status == "skip"


def test_a_prompt_whose_words_have_no_length_is_skipped() -> None:
    """A server that counts every prompt alike cannot be filled up."""
    deployment = FakeDeployment()
    answers(lambda c: every(c, num_input_tokens=7))(deployment)

    assert outcome("longest-prompt", deployment).status == "skip"


@pytest.mark.parametrize(("refused", "status"), [(True, "pass"), (False, "fail")])
def test_a_limit_that_is_far_away_is_only_gone_over(
    monkeypatch: pytest.MonkeyPatch, refused: bool, status: str
) -> None:
    """A long prompt is not sent where it would take long; that more than fits is refused can be seen all the same."""
    monkeypatch.setattr("specdeploy.smoke.checks.edges_prompts._MOST_FILLED", MAX_SEQ_LEN - 1)
    deployment, longest = FakeDeployment(), []
    answers(lambda c: longest.append(c[-1].num_input_tokens) or c)(deployment)
    if not refused:
        deployment.accepts = {"long"}

    result = outcome("longest-prompt", deployment)

    assert result.status == status
    assert set(longest) == {8}


def untold(**changes: Any) -> LimitUntold:
    """Return what is expected of a plain server that does not tell its limit."""
    fields = {field.name: getattr(PLAIN, field.name) for field in dataclasses.fields(PLAIN)}
    return LimitUntold(**(fields | changes))


@pytest.mark.parametrize(
    ("written", "status", "reason"),
    [
        (3, "pass", "is answered with 3, and is whole"),
        (9, "fail", "was answered with 9 tokens"),
        (None, "skip", "does not say how many tokens it has"),
    ],
)
def test_another_server_may_answer_with_fewer_tokens_but_not_with_all(
    written: int | None, status: str, reason: str
) -> None:
    """Asked for one token more than there is room for, a server may cut the answer; then it has to be shorter."""
    deployment = FakeDeployment()
    deployment.accepts = {"long"}
    answers(
        lambda c: last(c, num_output_tokens=written),
        lambda x: len(x.request.prompt.split()) + x.request.max_tokens > MAX_SEQ_LEN,
    )(deployment)

    result = outcome("longest-prompt", deployment, client=plain_client(frozenset()), expect=PLAIN)

    assert result.status == status
    assert reason in result.reason


@pytest.mark.parametrize("check", ["longest-prompt", "refuses-long-prompt"])
def test_a_limit_that_the_server_does_not_tell_is_not_held_against_it(check: str) -> None:
    """A server with room for more than the configuration's longest sequence is right to answer."""
    deployment = FakeDeployment()
    deployment.accepts = {"long", "longer"}

    result = outcome(check, deployment, client=plain_client(frozenset()), expect=untold())

    assert result.status == "skip"
    assert "does not say how long a sequence may be" in result.reason
    assert outcome(check, deployment, client=plain_client(frozenset()), expect=PLAIN).status == "fail"


def test_a_refusal_needs_no_limit_to_be_told() -> None:
    """A long prompt that is refused is refused; one of which most is dropped silently is a fault all the same."""
    deployment, cutting = FakeDeployment(), FakeDeployment()
    cutting.accepts = {"longer"}
    answers(lambda c: every(c, num_input_tokens=10))(cutting)
    client = plain_client(frozenset())

    assert outcome("refuses-long-prompt", deployment, client=client, expect=untold()).status == "pass"
    assert outcome("refuses-long-prompt", cutting, client=client, expect=untold()).status == "fail"


@pytest.mark.parametrize("check", ["longest-prompt", "refuses-long-prompt"])
def test_no_prompt_of_many_megabytes_is_built(check: str) -> None:
    """A limit of millions of tokens is not tried out."""
    result = outcome(check, FakeDeployment(), expect=dataclasses.replace(EXPECT, max_seq_len=10**9))

    assert result.status == "skip"


def test_bytes_that_are_no_character_are_the_models_own() -> None:
    """What is replaced in the reference, too, is not torn."""
    deployment = FakeDeployment()
    answers(lambda c: last(c, text=c[-1].text + TORN))(deployment)

    assert outcome("multibyte", deployment).status == "pass"


def test_a_model_that_writes_ascii_shows_nothing() -> None:
    """Without a character of several bytes the check says so."""
    deployment = FakeDeployment()
    answers(lambda c: [*every(c[:-1], text=""), *every(c[-1:], text="a")])(deployment)

    assert outcome("multibyte", deployment).status == "skip"


def test_nothing_but_replaced_characters_decides_nothing() -> None:
    """Either the model writes such bytes or the server tears everything: that cannot be told, and is no pass."""
    deployment = FakeDeployment()
    answers(lambda c: [*every(c[:-1], text=""), *every(c[-1:], text=f"a{TORN}")])(deployment)

    assert outcome("multibyte", deployment).status == "undecided"


def test_more_replaced_characters_than_others_decide_nothing() -> None:
    """A server that tears nearly every character, whole and in pieces, does not pass by the few that it does not."""
    deployment = FakeDeployment()
    answers(lambda c: last(c, text=c[-1].text + 40 * TORN))(deployment)

    result = outcome("multibyte", deployment)

    assert result.status == "undecided"
    assert "of several bytes are not" in result.reason


def test_a_torn_character_is_found_in_what_two_answers_have_in_common() -> None:
    """A near-tie later on does not hide a character that was torn before it."""
    deployment = FakeDeployment()
    answers(lambda c: changed_id([replace(c[0], text=c[0].text[:-1] + TORN), *c[1:]]) if len(c) > 1 else c, streams)(
        deployment
    )
    expect = dataclasses.replace(EXPECT, target_precision="int4")

    result = outcome("multibyte", deployment, expect=expect)

    assert result.status == "fail"
    assert "torn between pieces, the first around piece 0" in result.reason


def test_another_answer_is_no_torn_character() -> None:
    """With a quantised target drafts may turn a near-tie, and its text is then another one."""
    deployment = FakeDeployment()
    answers(lambda c: last(changed_id(c), text=TORN), with_drafts(None))(deployment)
    expect = dataclasses.replace(EXPECT, target_precision="int4")

    assert outcome("multibyte", deployment, expect=expect).status == "pass"
