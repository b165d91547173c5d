"""Each check fails on a deployment that is broken in exactly its way, and a sound deployment passes them all."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.smoke import CHECKS, SmokeReport, run_smoke
from tests.unit.smoke.deployment import DRAFT, EXPECT, Context, FakeDeployment

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.triton.protocol import Chunk


def smoke(deployment: FakeDeployment, **options: Any) -> SmokeReport:
    """Run the smoke test without waiting between two looks at a counter."""
    expect = options.pop("expect", EXPECT)
    return run_smoke(deployment.client, expect, sleep=lambda seconds: None, **options)


def replace(chunk: Chunk, **fields: Any) -> Chunk:
    """Change a chunk."""
    return dataclasses.replace(chunk, **fields)


def last(chunks: list[Chunk], **fields: Any) -> list[Chunk]:
    """Change the last chunk."""
    return [*chunks[:-1], replace(chunks[-1], **fields)]


def every(chunks: list[Chunk], **fields: Any) -> list[Chunk]:
    """Change every chunk."""
    return [replace(chunk, **fields) for chunk in chunks]


def setting(**attributes: Any) -> Callable[[FakeDeployment], None]:
    """Break a deployment by its attributes."""

    def break_it(deployment: FakeDeployment) -> None:
        for name, value in attributes.items():
            assert hasattr(deployment, name)
            setattr(deployment, name, value)

    return break_it


def answers(
    change: Callable[[list[Chunk]], list[Chunk]], where: Callable[[Context], bool] = lambda context: True
) -> Callable[[FakeDeployment], None]:
    """Break the answers to some requests."""

    def break_it(deployment: FakeDeployment) -> None:
        deployment.change = lambda chunks, context: change(chunks) if where(context) else chunks

    return break_it


def without(kind: str, name: str) -> Callable[[FakeDeployment], None]:
    """Take an input or an output away."""
    return lambda deployment: getattr(deployment, kind).pop(name)


def after_refusal(deployment: FakeDeployment) -> None:
    """Answer wrongly once a request has been refused."""
    deployment.change = lambda chunks, context: last(chunks, ids=(1,)) if deployment.refused else chunks


def ignores_seed(deployment: FakeDeployment) -> None:
    """Sample anew each time."""
    count = itertools.count()
    deployment.change = lambda chunks, context: (
        chunks if context.request.greedy else last(chunks, ids=(next(count), *chunks[-1].ids[1:]))
    )


def ignores_seed_with_logits(deployment: FakeDeployment) -> None:
    """Sample anew each time in rejection sampling only."""
    count = itertools.count()
    deployment.change = lambda chunks, context: (
        last(chunks, ids=(next(count), *chunks[-1].ids[1:]))
        if context.request.extra.get("use_draft_logits")
        else chunks
    )


def ignores_temperature(deployment: FakeDeployment) -> None:
    """Decode every request greedily."""
    deployment.change = lambda chunks, context: (
        chunks
        if context.request.greedy
        else deployment.answer(
            dataclasses.replace(context.request, temperature=0.0), context.model, context.wire, main_thread=True
        )
    )


def leaks_stop_word(deployment: FakeDeployment) -> None:
    """Write the stop word out."""
    deployment.change = lambda chunks, context: (
        last(chunks, text=chunks[-1].text + context.request.stop_words[0]) if context.request.stop_words else chunks
    )


def leaks_its_beginning(deployment: FakeDeployment) -> None:
    """Write the first letter of the stop word before it is known to be one."""
    deployment.change = lambda chunks, context: (
        last(chunks, text=chunks[-1].text + context.request.stop_words[0][0])
        if context.request.stop_words and context.request.stream
        else chunks
    )


def ignores_stop_words(deployment: FakeDeployment) -> None:
    """Go on past a stop word."""
    deployment.change = lambda chunks, context: (
        deployment.answer(
            dataclasses.replace(context.request, stop_words=()), context.model, context.wire, main_thread=True
        )
        if context.request.stop_words
        else chunks
    )


def streams(context: Context) -> bool:
    """The request streams."""
    return context.request.stream


def whole(context: Context) -> bool:
    """The request does not stream."""
    return not context.request.stream


def over(wire: str) -> Callable[[Context], bool]:
    """The request came over this wire."""
    return lambda context: context.wire == wire


def with_drafts(*numbers: int | None) -> Callable[[Context], bool]:
    """The request asked for one of these numbers of drafts."""
    return lambda context: context.request.num_draft_tokens in numbers


def both(*conditions: Callable[[Context], bool]) -> Callable[[Context], bool]:
    """All of these hold."""
    return lambda context: all(condition(context) for condition in conditions)


def one_piece(chunks: list[Chunk]) -> list[Chunk]:
    """Put everything into one response."""
    return last(
        chunks[-1:],
        text="".join(chunk.text for chunk in chunks),
        ids=tuple(token for chunk in chunks for token in chunk.ids),
    )


def changed_id(chunks: list[Chunk]) -> list[Chunk]:
    """Put another token at the end."""
    return last(chunks, ids=(*chunks[-1].ids[:-1], chunks[-1].ids[-1] + 1))


def drop_last_token(chunks: list[Chunk]) -> list[Chunk]:
    """Forget the last token, but not its text."""
    return last(chunks, ids=chunks[-1].ids[:-1], num_output_tokens=(chunks[-1].num_output_tokens or 0) - 1)


# check, what is broken, how, and a part of the reason that must be given
FAULTS: tuple[tuple[str, str, Callable[[FakeDeployment], None], str], ...] = (
    ("server-ready", "not live", setting(live=False), "not live"),
    ("server-ready", "not ready", setting(ready=False), "not ready"),
    ("models-ready", "one model missing", setting(not_ready={DRAFT}), DRAFT),
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
        "speculation-on",
        "silently off",
        answers(
            lambda c: every(
                c, num_spec_steps=0, total_draft_tokens=0, total_accepted_draft_tokens=0, histogram=(), bypass_reason=""
            )
        ),
        "silently off",
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
    ("short-answers", "empty", answers(lambda c: every(c, ids=())), "nothing to cut"),
    ("stop-word", "leaked", leaks_stop_word, "whole answer with the stop word"),
    ("stop-word", "its beginning leaked in the stream", leaks_its_beginning, "streamed answer with the stop word"),
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
    ("parallel-clients", "answers mixed up", answers(changed_id, lambda x: not x.main_thread), "among 4 clients"),
    *(
        fault
        for check, rule in (
            ("refuses-wrong-type", "type"),
            ("refuses-missing-input", "missing"),
            ("refuses-zero-tokens", "zero"),
            ("refuses-long-prompt", "long"),
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
    """Nothing fails and nothing is skipped where everything is as it should be."""
    report = smoke(FakeDeployment())

    assert {check.name: (check.status, check.reason) for check in report.checks if check.status != "pass"} == {}
    assert [check.name for check in report.checks] == list(CHECKS)
    assert all(check.reason for check in report.checks)
    assert report.exit_code == 0


@pytest.mark.parametrize(("check", "fault", "break_it", "reason"), FAULTS, ids=[f"{f[0]}: {f[1]}" for f in FAULTS])
def test_a_broken_deployment_fails(
    check: str, fault: str, break_it: Callable[[FakeDeployment], None], reason: str
) -> None:
    """The check notices the fault, and says what it saw."""
    deployment = FakeDeployment()
    break_it(deployment)

    report = smoke(deployment, only=[check])

    (result,) = report.checks
    assert result.status == "fail"
    assert reason in result.reason
    assert report.exit_code == 1


def test_every_check_is_shown_to_fail() -> None:
    """There is no check that cannot fail."""
    assert {fault[0] for fault in FAULTS} == set(CHECKS)


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
    answers(lambda chunks: every(chunks, text="…"))(deployment)

    assert smoke(deployment, only=["stop-word"]).checks[0].status == "skip"


def test_the_older_name_of_the_seed_is_fine() -> None:
    """A front door of an older release calls it random_seed."""
    deployment = FakeDeployment()
    deployment.inputs["random_seed"] = deployment.inputs.pop("seed")

    report = smoke(deployment, only=["metadata", "seeds"])

    assert [check.status for check in report.checks] == ["pass", "pass"]
