"""Each check fails on a deployment that is broken in exactly its way, and a sound deployment passes them all."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from specdeploy.smoke import CHECKS, capabilities
from specdeploy.smoke.probe import Probe
from tests.unit.smoke import test_edges_cancel, test_edges_prompts, test_edges_words
from tests.unit.smoke.deployment import DRAFT, DRAFTS, EXPECT, TARGET, FakeDeployment
from tests.unit.smoke.faults import (
    Fault,
    after_refusal,
    answers,
    both,
    changed_id,
    drop_last_token,
    empty,
    every,
    ids_of,
    ignores_seed,
    ignores_seed_with_logits,
    ignores_stop_words,
    ignores_temperature,
    last,
    leaks_its_beginning,
    leaks_stop_word,
    one_piece,
    outcome,
    over,
    replace,
    require_found,
    setting,
    smoke,
    streams,
    undrafted,
    whole,
    with_drafts,
    without,
)
from tests.unit.smoke.plain_server import PLAIN, plain_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.triton.protocol import Chunk
    from tests.unit.smoke.deployment import Context

#: Checks that are shown to fail elsewhere.
ELSEWHERE = ("lossless-", "golden", "self-draft")


def no_metrics(deployment: FakeDeployment) -> None:
    """Answer with an empty page."""
    deployment.metrics = lambda lines: []


def one_model_unseen(deployment: FakeDeployment) -> None:
    """Leave the target out of the metrics."""
    deployment.metrics = lambda lines: [line for line in lines if f'"{TARGET}"' not in line]


def one_stop_word_only(deployment: FakeDeployment) -> None:
    """Look at the first stop word, and at no other."""

    def change(chunks: list[Chunk], context: Context) -> list[Chunk]:
        words = context.request.stop_words
        if len(words) < 2:
            return chunks
        request = dataclasses.replace(context.request, stop_words=words[1:2])
        return deployment.answer(request, context.model, context.wire, main_thread=True)

    deployment.change = change


FAULTS: tuple[Fault, ...] = (
    ("server-ready", "not live", setting(live=False), "not live"),
    ("server-ready", "not ready", setting(ready=False), "not ready"),
    ("models-ready", "one model missing", setting(not_ready={DRAFT}), DRAFT),
    ("models-ready", "no version", setting(versions=[]), "no version is loaded of ensemble"),
    ("metrics", "an empty page", no_metrics, "lacks nv_inference_request_success of ensemble"),
    ("metrics", "one model is not there", one_model_unseen, "nv_inference_queue_duration_us of tensorrt_llm"),
    ("metrics", "requests are not counted", setting(counts_requests=False), "is 0 before a request and 0 after it"),
    ("stream-early", "held back to the end", setting(held_back=True), "held back, not streamed"),
    ("stream-early", "in one piece", answers(one_piece, streams), "the first of 1 pieces"),
    ("stream-early", "no piece", answers(lambda c: [], both(streams, over("http"))), "ended without a piece"),
    ("metadata", "input missing", without("inputs", "num_draft_tokens"), "input num_draft_tokens is missing"),
    ("metadata", "output missing", without("outputs", "output_ids"), "output output_ids is missing"),
    (
        "metadata",
        "input of another type",
        lambda d: d.inputs.update(max_tokens="INT64"),
        "input max_tokens is INT64, not INT32",
    ),
    ("http-equals-grpc", "other ids over HTTP", answers(changed_id, over("http")), "differ at token"),
    (
        "http-equals-grpc",
        "other text over HTTP",
        answers(lambda c: last(c, text=c[-1].text + " "), over("http")),
        "same token ids, different text",
    ),
    ("http-equals-grpc", "no ids", answers(lambda c: every(c, ids=())), "no token ids"),
    ("http-equals-grpc", "error as 200", setting(http_error_as_200=True), "exactly 1 response"),
    ("http-equals-grpc", "two responses", answers(lambda c: [*c, *c], over("grpc")), "2 responses"),
    *(
        fault
        for check, wire in (("stream-http", "http"), ("stream-grpc", "grpc"))
        for fault in (
            (check, "last token dropped", answers(drop_last_token, streams), "differ at token"),
            (
                check,
                "last token dropped but counted",
                answers(lambda c: last(c, ids=c[-1].ids[:-1]), streams),
                "but sent",
            ),
            (
                check,
                "doubled space in chunks",
                answers(lambda c: every(c[:1], text=c[0].text + " ") + c[1:], streams),
                "same token ids, different text",
            ),
            (
                check,
                "broken character in the Cyrillic prompt",
                answers(
                    lambda c: every(c[:1], text=c[0].text[:-1] + "\ufffd") + c[1:],
                    lambda x: x.request.stream and "Москва" in x.request.prompt,
                ),
                "prompt cyrillic",
            ),
            (check, "every chunk ends", answers(lambda c: every(c, finish_reason="length"), streams), "finish_reason"),
            (check, "no end", answers(lambda c: every(c, finish_reason=""), streams), "finish_reason"),
            (check, "all in one piece", answers(one_piece, streams), "not streamed"),
            (
                check,
                "wrong running count",
                answers(lambda c: every(c, num_output_tokens=1), streams),
                "server counts 1",
            ),
            (check, "other ids than the whole", answers(changed_id, whole), "differ at token"),
            (check, "no answer in pieces", answers(lambda c: [], both(streams, over(wire))), ""),
        )
    ),
    ("stream-http", "empty answers", answers(empty), "the answer is empty"),
    ("stream-grpc", "empty answers", answers(empty), "the answer is empty"),
    ("second-door", "empty answers", answers(empty), "the answer is empty"),
    ("stop-word", "empty answers", answers(empty), "the answer is empty"),
    (
        "second-door",
        "other answer",
        answers(changed_id, lambda x: x.model == "tensorrt_llm_bls"),
        "ensemble and tensorrt_llm_bls",
    ),
    (
        "second-door",
        "no speculation there",
        answers(lambda c: every(c, bypass_reason="requested"), lambda x: x.model == "tensorrt_llm_bls"),
        "bypass_reason 'requested'",
    ),
    (
        "second-door",
        "no speculation there, and no word about it",
        answers(lambda c: every(c, num_spec_steps=0), lambda x: x.model == "tensorrt_llm_bls"),
        "tensorrt_llm_bls does not speculate",
    ),
    ("speculation-on", "every draft accepted", setting(accepts_all=True), "every one of"),
    (
        "speculation-on",
        "no drafts by default",
        answers(lambda c: every(c, num_spec_steps=0, total_draft_tokens=0), with_drafts(None)),
        "a request for 3 drafts gets them, so the deployment's own num_draft_tokens is 0",
    ),
    (
        "speculation-on",
        "no drafts by default, and says so",
        answers(lambda c: every(c, bypass_reason="requested"), with_drafts(None)),
        "the deployment's own num_draft_tokens is 0",
    ),
    (
        "speculation-on",
        "no draft model",
        answers(lambda c: every(c, bypass_reason="no_draft_model")),
        "names no draft model",
    ),
    (
        "speculation-on",
        "the draft fails",
        answers(lambda c: every(c, bypass_reason="draft_failed")),
        "tensorrt_llm_draft is ready but fails",
    ),
    (
        "speculation-on",
        "silently off",
        answers(
            lambda c: every(
                c, num_spec_steps=0, total_draft_tokens=0, total_accepted_draft_tokens=0, histogram=(), bypass_reason=""
            )
        ),
        "a request for 3 drafts gets none either",
    ),
    (
        "speculation-on",
        "off with a reason",
        answers(lambda c: every(c, bypass_reason="draft model not ready")),
        "speculation is off: draft model not ready",
    ),
    ("speculation-on", "no statistics", answers(lambda c: every(c, num_spec_steps=None)), "does not say"),
    ("speculation-on", "draft never asked", setting(counts_drafts=lambda request: False), "counts no request"),
    ("speculation-on", "somebody else is there", setting(moving_counter=True), "does not come to rest"),
    (
        "speculation-on",
        "nothing accepted",
        answers(
            lambda c: last(
                c,
                total_accepted_draft_tokens=0,
                histogram=(c[-1].num_spec_steps,),
                ids=c[-1].ids[: c[-1].num_spec_steps],
            )
        ),
        "none of",
    ),
    (
        "speculation-on",
        "more accepted than drafted",
        answers(lambda c: last(c, total_draft_tokens=(c[-1].total_accepted_draft_tokens or 0) - 1)),
        "no more accepted than drafted",
    ),
    (
        "speculation-on",
        "more drafted than asked for",
        answers(lambda c: last(c, total_draft_tokens=1000)),
        "no more drafted than asked for",
    ),
    (
        "speculation-on",
        "rounds not in the histogram",
        answers(lambda c: last(c, histogram=(0, *c[-1].histogram[1:]))),
        "the histogram counts every round",
    ),
    (
        "speculation-on",
        "accepted tokens not in the histogram",
        answers(lambda c: last(c, histogram=c[-1].histogram[::-1])),
        "the histogram counts every accepted token",
    ),
    (
        "speculation-on",
        "only the last round is told",
        answers(
            lambda c: last(
                c, num_spec_steps=1, total_draft_tokens=3, total_accepted_draft_tokens=3, histogram=(0, 0, 0, 1)
            )
        ),
        "as long as what was accepted",
    ),
    ("control", "no reason", answers(lambda c: every(c, bypass_reason=""), with_drafts(0)), "expected 'requested'"),
    (
        "control",
        "drafts all the same",
        answers(lambda c: every(c, total_draft_tokens=5, num_spec_steps=2), with_drafts(0)),
        "the control drafted 5 tokens",
    ),
    (
        "control",
        "asks the draft and hides it",
        lambda d: setattr(d, "change", lambda c, x: setattr(d, "draft_requests", d.draft_requests + 1) or c),
        "counts 1 requests",
    ),
    ("lossless-greedy", "always lossy", answers(changed_id, with_drafts(1, 3, 7)), "12 of 12 answers differ"),
    ("lossless-greedy", "lossy with long drafts", answers(changed_id, with_drafts(7)), "4 of 12 answers differ"),
    (
        "lossless-greedy",
        "lossy in one script",
        answers(changed_id, lambda x: x.request.num_draft_tokens == 1 and "Москва" in x.request.prompt),
        "1 of 12 answers differ from the target's own; the first, prompt cyrillic with 1 drafts, at token 31",
    ),
    ("lossless-greedy", "answers end early", answers(drop_last_token, with_drafts(3)), "at token 31"),
    ("lossless-greedy", "no ids", answers(lambda c: every(c, ids=())), "no token ids"),
    (
        "short-answers",
        "one token too many",
        answers(lambda c: last(c, ids=(*c[-1].ids, 3)), lambda x: x.request.max_tokens == 1),
        "max_tokens 1 gave",
    ),
    (
        "short-answers",
        "cut to whole rounds",
        answers(lambda c: last(c, ids=c[-1].ids[:4]), lambda x: x.request.max_tokens == 5),
        "max_tokens 5 gave",
    ),
    (
        "short-answers",
        "wrong reason",
        answers(lambda c: last(c, finish_reason="end_id"), lambda x: x.request.max_tokens < 6),
        "finish_reason is 'end_id'",
    ),
    (
        "short-answers",
        "one token too many in a stream",
        answers(lambda c: last(c, ids=(*c[-1].ids, 3)), lambda x: x.request.stream and x.request.max_tokens == 2),
        "max_tokens 2 gave",
    ),
    ("short-answers", "no ids", answers(lambda c: every(c, ids=())), "nothing to cut"),
    ("short-answers", "empty answers", answers(empty), "the answer is empty"),
    ("stop-word", "leaked", leaks_stop_word, "whole answer with the stop word"),
    ("stop-word", "its beginning leaked in the stream", leaks_its_beginning, "streamed answer with the stop word"),
    ("stop-word", "only one of several", one_stop_word_only, "with the stop word among several"),
    (
        "stop-word",
        "something in front of a word at the start",
        answers(lambda c: last(c, text=c[-1].text or " "), lambda x: bool(x.request.stop_words)),
        "with the stop word at its start",
    ),
    (
        "stop-word",
        "not found across two pieces",
        lambda d: setattr(
            d,
            "change",
            lambda c, x: (
                c
                if len(x.request.stop_words) != 1 or len(x.request.stop_words[0]) != 4
                else last(c, text=c[-1].text + x.request.stop_words[0][:2])
            ),
        ),
        "with the stop word across two pieces",
    ),
    ("stop-word", "ignored", ignores_stop_words, "whole answer with the stop word"),
    (
        "stop-word",
        "wrong reason",
        answers(lambda c: last(c, finish_reason="length"), lambda x: bool(x.request.stop_words)),
        "expected 'stop_word'",
    ),
    ("seeds", "seed ignored", ignores_seed, "one seed, sent twice"),
    ("seeds", "seed ignored where the draft's logits are used", ignores_seed_with_logits, "gave 4 different answers"),
    ("seeds", "temperature ignored", ignores_temperature, "is temperature or seed ignored"),
    (
        "seeds",
        "other answer when streamed",
        answers(changed_id, lambda x: x.request.stream and not x.request.greedy),
        "one seed, streamed",
    ),
    ("seeds", "other answer over HTTP", answers(changed_id, over("http")), "one seed, over HTTP"),
    ("parallel-clients", "empty answers", answers(empty), "the answer is empty"),
    ("parallel-clients", "answers mixed up", answers(changed_id, lambda x: not x.main_thread), "among 10 clients"),
    *(
        fault
        for check, rule in (
            ("refuses-wrong-type", "type"),
            ("refuses-wrong-shape", "shape"),
            ("refuses-missing-input", "missing"),
            ("refuses-zero-tokens", "zero"),
            ("refuses-long-prompt", "longer"),
            ("refuses-unknown-model", "model"),
        )
        for fault in (
            (check, "accepted", setting(accepts={rule}), "the request was answered"),
            (
                check,
                "never answered",
                setting(silent=lambda seen, rule=rule: seen == rule),
                "no clear refusal but timeout",
            ),
            (check, "called busy", setting(refusal_text=lambda text: "Exceeds maximum queue size"), "unavailable"),
            (check, "without a word", setting(refusal_text=lambda text: " "), "refused without a word"),
            (check, "server astray afterwards", after_refusal, "before and after the bad request"),
        )
    ),
    (
        "refuses-unknown-input",
        "typo not noticed",
        lambda d: d.inputs.update(num_draft_token="INT32"),
        "was sent, and the server answered",
    ),
)


def test_a_sound_deployment_passes() -> None:
    """Nothing fails where everything is as it should be, and what is skipped is another kind of deployment's."""
    report = smoke(FakeDeployment())

    others = {check.name: (check.status, check.reason) for check in report.checks if check.status != "pass"}
    assert {name for name in others if not name.startswith(ELSEWHERE)} == set()
    assert others.get("self-draft", ("skip",))[0] == "skip"
    assert [check.name for check in report.checks] == list(CHECKS)
    assert all(check.reason for check in report.checks)


@pytest.mark.parametrize("fault", FAULTS, ids=ids_of(FAULTS))
def test_a_broken_deployment_fails(fault: Fault) -> None:
    """The check notices the fault, and says what it saw."""
    require_found(fault)


def test_every_check_is_shown_to_fail() -> None:
    """There is no check that cannot fail."""
    tables = (FAULTS, test_edges_cancel.FAULTS, test_edges_prompts.FAULTS, test_edges_words.FAULTS)
    shown = {fault[0] for table in tables for fault in table}

    assert {name for name in CHECKS if not name.startswith(ELSEWHERE)} - shown == set()


def test_every_check_promises_something() -> None:
    """A check's docstring is what it promises."""
    assert all((check.__doc__ or "").strip().endswith(".") for check in CHECKS.values())


def test_a_difference_is_shown_with_its_surroundings() -> None:
    """The details of a lossy answer hold prompt, draft length, position, and ids and texts of both sides."""
    deployment = FakeDeployment()
    answers(changed_id, with_drafts(7))(deployment)

    (result,) = smoke(deployment, only=["lossless-greedy"]).checks

    first = result.details["differences"][0]
    assert (first["prompt"], first["num_draft_tokens"], first["position"]) == ("code", 7, 31)
    assert first["expected"][:-1] == first["seen"][:-1]
    assert first["seen"][-1] == first["expected"][-1] + 1
    assert first["expected_text"]


@pytest.mark.parametrize(("precision", "expected"), [("fp32", False), ("int8", True)])
def test_numerics_are_mentioned_where_they_are_possible(precision: str, expected: bool) -> None:
    """With a target of lower precision a difference may be a near-tie, and the reason says so."""
    deployment = FakeDeployment()
    answers(changed_id, with_drafts(7))(deployment)

    report = smoke(deployment, only=["lossless-greedy"], expect=dataclasses.replace(EXPECT, target_precision=precision))

    assert expected == ("may be numerics" in report.checks[0].reason)


def test_one_front_door_is_enough() -> None:
    """A deployment without a second door skips that check and says why."""
    report = smoke(FakeDeployment(), only=["second-door"], expect=dataclasses.replace(EXPECT, second_door=None))

    assert (report.checks[0].status, report.checks[0].reason) == ("skip", "the deployment has one front door")


def test_an_answer_without_words_cannot_show_stop_words() -> None:
    """The stop word is taken from the answer; where there is none the check says so."""
    deployment = FakeDeployment()
    answers(lambda chunks: every(chunks, text=" "))(deployment)

    assert smoke(deployment, only=["stop-word"]).checks[0].status == "skip"


def test_the_older_name_of_the_seed_is_fine() -> None:
    """A front door of an older release calls it random_seed."""
    deployment = FakeDeployment()
    deployment.inputs["random_seed"] = deployment.inputs.pop("seed")

    report = smoke(deployment, only=["metadata", "seeds"])

    assert [check.status for check in report.checks] == ["pass", "pass"]


def test_a_draft_that_is_the_target_accepts_nearly_everything() -> None:
    """Where the draft is the target, full acceptance is right, and half of it is not."""
    expect = dataclasses.replace(EXPECT, self_draft=True)
    alike, other = FakeDeployment(), FakeDeployment()
    alike.accepts_all = True

    assert outcome("self-draft", alike, expect=expect).status == "pass"
    assert outcome("speculation-on", alike, expect=expect).status == "pass"
    failed = outcome("self-draft", other, expect=expect)
    assert failed.status == "fail"
    assert "at least 90% should be" in failed.reason
    assert outcome("self-draft", other).status == "skip"


def test_a_draft_model_that_is_down_is_named() -> None:
    """Speculation that is off because a model did not load is told so."""
    deployment = FakeDeployment()
    deployment.not_ready = {DRAFT}
    answers(lambda c: every(c, num_spec_steps=0, total_draft_tokens=0))(deployment)

    assert f"{DRAFT} is not ready" in outcome("speculation-on", deployment).reason


def test_a_first_piece_that_is_late_once_is_no_fault() -> None:
    """A busy machine may hold up one answer; the next one shows that it is streamed."""
    deployment = FakeDeployment()
    deployment.held_back = True
    streamed = []

    def recover(chunks: list[Chunk], context: Context) -> list[Chunk]:
        if context.request.stream:
            deployment.held_back = not streamed
            streamed.append(context)
        return chunks

    deployment.change = recover

    assert outcome("stream-early", deployment).status == "pass"
    # One for HTTP, one more, and one for gRPC.
    assert len(streamed) == 3


def test_a_long_wait_for_the_first_piece_is_not_held_back() -> None:
    """After a long prefill, or over a far network, pieces that come one after another are streamed."""
    deployment = FakeDeployment()
    deployment.prefill_s = 0.15

    result = outcome("stream-early", deployment)

    assert result.status == "pass"
    assert "after a long wait for the first" in result.reason


@pytest.mark.parametrize(("prefill_s", "status"), [(0.05, "fail"), (0.5, "skip")])
def test_what_is_held_back_is_found_as_far_as_it_shows(prefill_s: float, status: str) -> None:
    """Pieces that come all at once fail, unless decoding takes hardly any of the time: then nothing can be told."""
    deployment = FakeDeployment()
    deployment.held_back = True
    deployment.prefill_s = prefill_s

    result = outcome("stream-early", deployment)

    assert result.status == status
    assert ("cannot be told" in result.reason) == (status == "skip")


def others_answer(chunks: list[Chunk], context: Context, deployment: FakeDeployment) -> list[Chunk]:
    """Answer another prompt."""
    prompts = [prompt.text for prompt in EXPECT.prompts]
    if context.main_thread or context.request.prompt != prompts[0]:
        return chunks
    request = dataclasses.replace(context.request, prompt=prompts[1])
    return deployment.answer(request, context.model, context.wire, main_thread=True)


def test_clients_of_a_quantised_target_may_see_a_tie_but_not_each_other() -> None:
    """Where the size of a batch may turn a near-tie, another end is no fault, and another's answer is one."""
    tied, mixed_up = FakeDeployment(), FakeDeployment()
    answers(changed_id, lambda x: not x.main_thread)(tied)
    mixed_up.change = lambda chunks, context: others_answer(chunks, context, mixed_up)
    expect = dataclasses.replace(EXPECT, target_precision="int8")

    assert outcome("parallel-clients", tied, expect=expect).status == "pass"
    assert "among 10 clients, prompt code" in outcome("parallel-clients", mixed_up, expect=expect).reason


SHORT_OF_ITS_OWN = (
    ("empty", empty, "the answer is empty"),
    (
        "cut short without a word about it",
        lambda c: last(c, ids=c[-1].ids[:-1], text=c[-1].text[:-3]),
        "ends in its midst",
    ),
    (
        "cut short after another token",
        lambda c: [replace(c[0], ids=(*c[0].ids[:-1], 77)), *every(c[1:-1]), *last(c[-1:], ids=())],
        "no end token says why",
    ),
    ("another end", lambda c: last(c, finish_reason="end_id"), "finish_reason 'length' became 'end_id'"),
    ("no end", lambda c: last(changed_id(c), finish_reason=""), "finish_reason 'length' became ''"),
    (
        "garbage",
        lambda c: [replace(x, ids=(99,) * len(x.ids), text="!") for x in c],
        "with another beginning",
    ),
)


@pytest.mark.parametrize(
    ("break_it", "reason"), [case[1:] for case in SHORT_OF_ITS_OWN], ids=[case[0] for case in SHORT_OF_ITS_OWN]
)
def test_whatever_the_precision_no_client_gets_less_than_alone(
    break_it: Callable[[list[Chunk]], list[Chunk]], reason: str
) -> None:
    """A near-tie is no reason for an answer that is empty, ends early, or begins otherwise for most."""
    deployment = FakeDeployment()
    answers(break_it, lambda x: not x.main_thread)(deployment)

    result = outcome("parallel-clients", deployment, expect=dataclasses.replace(EXPECT, target_precision="int8"))

    assert result.status == "fail"
    assert reason in result.reason


def test_after_a_near_tie_an_answer_may_end_by_itself() -> None:
    """An end token that comes after another token is the other answer's own end."""
    deployment = FakeDeployment()
    answers(
        lambda c: every([replace(c[0], ids=(*c[0].ids[:-1], 77), text=" other", finish_reason="end_id")]),
        lambda x: not x.main_thread and len(x.request.prompt) % 2 == 0,
    )(deployment)

    result = outcome("parallel-clients", deployment, expect=dataclasses.replace(EXPECT, target_precision="int8"))

    assert result.status == "pass", result


@pytest.mark.parametrize("check", ["stream-http", "short-answers", "stop-word", "multibyte", "parallel-clients"])
def test_a_server_that_answers_nothing_passes_nothing(check: str) -> None:
    """Without text and without ids there is nothing to compare: two empty answers are not the same answer."""
    able = frozenset({capabilities.STREAM})
    expect = dataclasses.replace(PLAIN, capabilities=able)
    deployment = FakeDeployment()
    answers(empty)(deployment)

    result = outcome(check, deployment, client=plain_client(able), expect=expect)

    assert result.status == "fail"
    assert "empty" in result.reason


@pytest.mark.parametrize(("length", "status"), [(1, "pass"), (DRAFTS + 2, "fail")])
def test_a_short_answer_without_text_is_part_of_a_character_at_most(length: int, status: str) -> None:
    """Without ids, one token may show no text yet; several must."""
    able = frozenset[str]()
    expect = dataclasses.replace(PLAIN, capabilities=able)
    deployment = FakeDeployment()
    answers(lambda c: every(c, text=""), lambda x: x.request.max_tokens == length)(deployment)

    assert outcome("short-answers", deployment, client=plain_client(able), expect=expect).status == status


REPEATING = "1, 2, 3,"


@pytest.mark.parametrize(("looked_up", "status"), [(True, "pass"), (False, "fail")])
def test_what_is_looked_up_in_the_text_is_asked_for_where_there_is_something(looked_up: bool, status: str) -> None:
    """Prompts may have nothing to look up; one that repeats itself has, and nothing drafted there is a fault."""
    expect = dataclasses.replace(EXPECT, draft_model=None)
    deployment = FakeDeployment()
    answers(undrafted, lambda x: not (looked_up and x.request.prompt.startswith(REPEATING)))(deployment)

    result = outcome("speculation-on", deployment, expect=expect)

    assert result.status == status
    assert ("silently off" in result.reason) == (status == "fail")


@pytest.mark.parametrize("everything", [True, False])
def test_a_server_that_looks_up_drafts_what_repeats_itself(everything: bool) -> None:
    """Where nothing else was drafted, everything accepted there is as it should be; a server may also tell nothing."""
    expect = dataclasses.replace(EXPECT, draft_model=None, fixed_by="the server")
    deployment = FakeDeployment()
    deployment.accepts_all = True
    answers(undrafted, lambda x: not (everything and x.request.prompt.startswith(REPEATING)))(deployment)

    assert outcome("speculation-on", deployment, expect=expect).status == ("pass" if everything else "skip")


@pytest.mark.parametrize("fixed_by", ["", "the server"])
@pytest.mark.parametrize(("drafted", "accepted"), [(-3, 0), (-3, -5), (3, 9), (0, 1), (5, -1)])
def test_impossible_counts_are_no_pass(fixed_by: str, drafted: int, accepted: int) -> None:
    """More accepted than drafted, or less than nothing, is a fault without a draft model, too."""
    expect = dataclasses.replace(EXPECT, draft_model=None, fixed_by=fixed_by)
    deployment = FakeDeployment()
    answers(lambda c: last(c, total_draft_tokens=drafted, total_accepted_draft_tokens=accepted))(deployment)

    result = outcome("speculation-on", deployment, expect=expect)

    assert result.status == "fail"
    assert "impossible statistics" in result.reason


def test_without_a_metrics_endpoint_there_is_nothing_to_see() -> None:
    """A server that was started without metrics is not held to them."""
    result = outcome("metrics", FakeDeployment(), expect=dataclasses.replace(EXPECT, metrics=False))

    assert (result.status, result.reason) == ("skip", "the server was started without a metrics endpoint")


@pytest.mark.parametrize("check", [name for name in CHECKS if not name.startswith(("lossless-", "golden"))])
@pytest.mark.parametrize(
    "more",
    [
        (),
        (capabilities.STREAM,),
        (capabilities.STREAM, capabilities.IDS),
        (capabilities.STREAM, capabilities.STREAM_END),
    ],
    ids=["text", "stream", "ids", "ends"],
)
def test_another_kind_of_server_is_never_a_crash(check: str, more: tuple[str, ...]) -> None:
    """A server with HTTP and text alone passes what it can be asked, and the rest is skipped with the reason."""
    able = frozenset(more)
    result = outcome(
        check, FakeDeployment(), client=plain_client(able), expect=dataclasses.replace(PLAIN, capabilities=able)
    )

    assert result.status in {"pass", "skip"}, result
    assert result.reason


def test_a_triton_without_our_decoder_is_asked_what_it_can_do() -> None:
    """A front door without statistics, control and engines passes the rest."""
    able = capabilities.ALL - {capabilities.COUNTS, capabilities.CONTROL, capabilities.ENGINES}
    deployment = FakeDeployment()
    for name in ("acceptance_rate", "num_spec_steps", "total_draft_tokens"):
        deployment.outputs.pop(name)
    del deployment.inputs["num_draft_tokens"]
    expect = dataclasses.replace(EXPECT, capabilities=able)

    report = smoke(deployment, expect=expect)

    assert {check.name: check.reason for check in report.checks if check.status == "fail"} == {}
    assert {"metadata", "end-id", "min-tokens", "seeds"} <= {c.name for c in report.checks if c.status == "pass"}


@pytest.mark.parametrize(("pinned", "asked"), [(False, None), (True, EXPECT.num_draft_tokens)])
def test_of_a_deployment_that_adapts_a_number_of_drafts_is_asked_for(pinned: bool, asked: int | None) -> None:
    """How much it drafts otherwise is its own affair, and no fault; the control stays one."""
    expect = dataclasses.replace(EXPECT, pinned=pinned)
    probe = Probe(FakeDeployment().client(), expect, monotonic=lambda: 0.0, sleep=lambda _: None)
    with probe.client:
        requests = [probe.request(), probe.request(drafts=0), probe.request(drafts=2)]

    assert [request.num_draft_tokens for request in requests] == [asked, 0, 2]
