"""Recorded answers: their file, whether they can be compared, and what a difference says."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.errors import CannotDecide, ConfigError
from specdeploy.smoke import Expectations, SmokePrompt
from specdeploy.smoke.capabilities import ALL, CONTROL, IDS
from specdeploy.smoke.checks import golden as golden_check
from specdeploy.smoke.golden import (
    Golden,
    GoldenAnswer,
    answers_digest,
    other_engines,
    parse_golden,
    prompts_digest,
    require_fits,
    tokenizer_fingerprint,
)
from specdeploy.smoke.probe import Probe
from specdeploy.smoke.report import plain
from specdeploy.smoke.runner import Asked, SmokeRun
from tests.unit.smoke.deployment import EXPECT, FakeDeployment
from tests.unit.smoke.faults import empty

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.smoke import CheckResult
    from specdeploy.triton.protocol import Chunk
    from tests.unit.smoke.deployment import Context

PROMPTS = EXPECT.prompts


def probe_of(deployment: FakeDeployment, expect: Expectations = EXPECT) -> Probe:
    """Return what a check works with."""
    return Probe(deployment.client(), expect, monotonic=lambda: 0.0, sleep=lambda seconds: None)


def recorded(deployment: FakeDeployment | None = None, expect: Expectations = EXPECT, **changes: Any) -> Golden:
    """Record the answers of a deployment."""
    probe = probe_of(deployment or FakeDeployment(), expect)
    with probe.client:
        answers = tuple(golden_check.record(probe, prompt, max_tokens=12) for prompt in PROMPTS)
    golden = Golden(
        created="2026-01-31T10:20:30+00:00",
        deployment={"name": "tiny", "engines": {"target": "a" * 64, "draft": "b" * 64}},
        tokenizer="sha256:" + "1" * 64,
        prompt_set="smoke",
        max_tokens=12,
        target_alone=True,
        answers=answers,
    )
    return dataclasses.replace(golden, **changes)


def compare(
    deployment: FakeDeployment, golden: Golden, *, expect: Expectations = EXPECT, changed: str = ""
) -> CheckResult:
    """Run the check ``golden`` alone."""
    asked = {"golden": Asked(run=golden_check.against(golden, changed=changed))}
    (result,) = SmokeRun(deployment.client, expect, asked=asked).of(["golden"]).checks
    return result


def changed_at(position: int, applies: Callable[[Context], bool]) -> Callable[[list[Chunk], Context], list[Chunk]]:
    """Return a fault: another token at a position of answers that are not streamed."""

    def change(chunks: list[Chunk], context: Context) -> list[Chunk]:
        if not applies(context):
            return chunks
        (chunk,) = chunks
        ids = (*chunk.ids[:position], chunk.ids[position] + 1, *chunk.ids[position + 1 :])
        return [dataclasses.replace(chunk, ids=ids)]

    return change


def test_a_file_is_read_as_it_was_written() -> None:
    """Nothing is lost between recording and comparing, and the document is plain JSON."""
    golden = recorded()

    text = json.dumps(golden.as_dict())

    assert parse_golden(text, source="golden.json") == golden
    assert golden.prompts == PROMPTS
    assert all(len(answer.ids) == 12 for answer in golden.answers)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda document: document.update(kind="smoke"), "holds no recorded answers"),
        (lambda document: document.update(schema_version="2.0"), "schema_version '2.0'"),
        (lambda document: document.pop("created"), "created is None; expected str"),
        (lambda document: document.update(answers=[]), "holds no answer"),
        (lambda document: document.update(answers=[1]), r"answers\[0\] is int, not an object"),
        (lambda document: document.update(answers={}), "answers is {}; expected list"),
        (lambda document: document.update(max_tokens=0), "max_tokens is 0; expected 1 or more"),
        (lambda document: document.update(max_tokens=True), "max_tokens is True; expected 1 or more"),
        (lambda document: document["answers"][1].update(output_ids=[1, "2"]), r"answers\[1\]: output_ids"),
        (lambda document: document["answers"][1].pop("text_output"), r"answers\[1\]: text_output is None"),
        (lambda document: document["answers"][1].update(text_input="another"), "prompts_digest differs"),
        (lambda document: document.pop("answers_digest"), "answers_digest is None; expected str"),
        (lambda document: document.update(max_tokens=5000), "was edited after recording, or is damaged"),
        (lambda document: document.update(max_tokens=10**30), "was edited after recording, or is damaged"),
        (lambda document: document.update(target_alone=False), "answers_digest differs"),
        (lambda document: document["answers"][0].update(output_ids=[]), "answers_digest differs"),
        (lambda document: document["answers"][0].update(text_output="other"), "answers_digest differs"),
        (lambda document: document["answers"][0].update(finish_reason="nonsense"), "answers_digest differs"),
    ],
)
def test_a_damaged_file_is_the_users_to_mend(damage: Callable[[dict[str, Any]], object], said: str) -> None:
    """Whatever is wrong with the file is named, with file and key, and how to record anew; the exit code is 2."""
    document = recorded().as_dict()
    damage(document)

    with pytest.raises(ConfigError, match=said) as caught:
        parse_golden(json.dumps(document), source="golden.json")

    assert "golden.json" in caught.value.message
    assert "smoke record" in caught.value.hint
    assert caught.value.exit_code == 2


def test_the_digest_is_that_of_the_document() -> None:
    """Whoever changes answers on purpose can say so: with the digest of what they are now the file is read."""
    document = recorded().as_dict()
    document["answers"][0]["output_ids"][7] += 1
    document["answers_digest"] = answers_digest(document)

    assert parse_golden(json.dumps(document), source="golden.json").answers[0] != recorded().answers[0]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_what_is_no_such_file_is_refused(text: str) -> None:
    """Something else in the file is an error of the user, not a crash."""
    with pytest.raises(ConfigError, match=r"golden\.json"):
        parse_golden(text, source="golden.json")


def test_answers_of_another_tokenizer_are_not_compared() -> None:
    """Ids of two tokenizers mean different texts; where one is not known, nothing is refused."""
    golden = recorded()

    with pytest.raises(ConfigError, match="another tokenizer: sha256:111"):
        require_fits(golden, source="golden.json", tokenizer="sha256:" + "2" * 64)
    require_fits(golden, source="golden.json", tokenizer=golden.tokenizer)
    require_fits(golden, source="golden.json", tokenizer="")
    require_fits(dataclasses.replace(golden, tokenizer=""), source="golden.json", tokenizer="sha256:2")


def test_answers_to_other_prompts_are_not_compared() -> None:
    """The prompts that are asked for must be those that were recorded; the first that differs is named."""
    golden = recorded()

    require_fits(golden, source="golden.json", prompts=PROMPTS)
    with pytest.raises(ConfigError, match="it has 4, and 1 are asked for"):
        require_fits(golden, source="golden.json", prompts=PROMPTS[:1])
    other = (PROMPTS[0], SmokePrompt(name="verse", text="Two roads"), *PROMPTS[2:])
    with pytest.raises(ConfigError, match="number 2, 'prose' there and 'verse' here"):
        require_fits(golden, source="golden.json", prompts=other)


def test_a_tokenizer_is_known_by_its_content() -> None:
    """Order of keys and white space do not make another tokenizer; a token more does."""
    one = tokenizer_fingerprint('{"model": {"vocab": {"a": 0}}, "version": "1.0"}')

    assert one == tokenizer_fingerprint('{"version":"1.0",\n"model":{"vocab":{"a":0}}}')
    assert one != tokenizer_fingerprint('{"version": "1.0", "model": {"vocab": {"a": 0, "b": 1}}}')
    assert prompts_digest(PROMPTS) != prompts_digest(PROMPTS[::-1])


def test_other_engines_are_named() -> None:
    """A difference may come from an engine that was built anew: which, is said by role and key."""
    golden = recorded()

    assert other_engines(golden, {"target": "a" * 64, "draft": "b" * 64}) == ""
    assert other_engines(golden, {"target": "a" * 64, "draft": "c" * 64}) == f"draft {'b' * 12} -> {'c' * 12}"
    assert other_engines(dataclasses.replace(golden, deployment={}), {"target": "x"}) == ""


def test_the_same_deployment_passes() -> None:
    """Answers with drafts equal those of the target alone."""
    result = compare(FakeDeployment(), recorded())

    assert result.status == "pass"
    assert result.reason == "4 answers, 48 tokens, as recorded 2026-01-31T10:20:30+00:00"


def test_a_changed_target_is_told_from_changed_speculation() -> None:
    """The token and its position are named, and whether the target alone has changed as well."""
    golden = recorded()
    both, drafted = FakeDeployment(), FakeDeployment()
    both.change = changed_at(5, lambda context: True)
    drafted.change = changed_at(5, lambda context: context.request.num_draft_tokens != 0)

    changed, lossy = (compare(deployment, golden, changed="other engines") for deployment in (both, drafted))

    first = changed.details["differences"][0]
    assert (changed.status, len(changed.details["differences"])) == ("fail", 4)
    assert (first["prompt"], first["position"], first["target_alone"]) == ("code", 5, "differs")
    assert (
        f"the first, prompt code, at token 5: {list(first['expected'])} became {list(first['seen'])}" in changed.reason
    )
    assert "the target alone differs, too" in changed.reason
    assert changed.reason.endswith("since then: other engines")
    assert lossy.details["differences"][0]["target_alone"] == "as recorded"
    assert "so speculation changes the result" in lossy.reason


def test_a_shorter_answer_is_a_difference() -> None:
    """An answer that ends early differs at its end."""
    deployment = FakeDeployment()
    deployment.change = lambda chunks, context: [dataclasses.replace(chunks[0], ids=chunks[0].ids[:-1])]

    result = compare(deployment, recorded())

    assert result.status == "fail"
    assert result.details["differences"][0]["position"] == 11


def test_an_answer_that_ends_for_another_reason_is_a_difference() -> None:
    """The same tokens with another end are not the recorded answer; a server that tells no reason is not held to it."""
    golden, other, silent = recorded(), FakeDeployment(), FakeDeployment()
    other.change = lambda chunks, context: [dataclasses.replace(chunks[0], finish_reason="end_id")]
    silent.change = lambda chunks, context: [dataclasses.replace(chunks[0], finish_reason="")]

    result = compare(other, golden)

    assert result.status == "fail"
    assert "the first, prompt code, in its end: 'length' became 'end_id'" in result.reason
    assert compare(silent, golden).status == "pass"


def test_an_empty_answer_is_not_recorded() -> None:
    """Whoever compared with it would learn nothing; only the empty prompt may have an empty answer."""
    deployment = FakeDeployment()
    deployment.accepts = {"empty"}
    deployment.change = lambda chunks, context: empty(chunks)
    probe = probe_of(deployment)

    with probe.client:
        with pytest.raises(CannotDecide, match="the answer to prompt code is empty"):
            golden_check.record(probe, PROMPTS[0], max_tokens=12)
        nothing = golden_check.record(probe, SmokePrompt(name="nothing", text=""), max_tokens=12)

    assert (nothing.ids, nothing.text) == ((), "")


def test_what_no_file_can_hold_is_written_out_and_read_again() -> None:
    """Half of a surrogate pair is kept as its escape; the file is still the one that was recorded."""
    golden = recorded()
    odd = SmokePrompt(name="odd", text="a\ud800")
    golden = dataclasses.replace(golden, answers=(dataclasses.replace(golden.answers[0], prompt=odd, text="b\udfff"),))

    read = parse_golden(json.dumps(plain(golden.as_dict())), source="golden.json")

    assert read.answers[0].text == "b\\udfff"


def test_without_ids_texts_are_compared() -> None:
    """A server that tells no ids is held to the recorded text."""
    golden, deployment = recorded(), FakeDeployment()
    expect = dataclasses.replace(EXPECT, capabilities=ALL - {IDS})
    deployment.change = lambda chunks, context: [dataclasses.replace(chunks[0], ids=())]

    assert compare(deployment, golden, expect=expect).status == "pass"

    deployment.change = lambda chunks, context: [dataclasses.replace(chunks[0], ids=(), text="other")]
    result = compare(deployment, golden, expect=expect)

    assert result.status == "fail"
    assert "in its text:" in result.reason


@pytest.mark.parametrize(
    "expect",
    [
        dataclasses.replace(EXPECT, fixed_by="medusa", draft_model=None),
        dataclasses.replace(EXPECT, capabilities=ALL - {CONTROL}),
    ],
)
def test_where_the_target_cannot_be_had_alone_nothing_is_said_of_it(expect: Expectations) -> None:
    """An engine that always drafts is recorded and compared in its own way."""
    golden, deployment = recorded(expect=expect), FakeDeployment()

    assert compare(deployment, golden, expect=expect).status == "pass"

    deployment.change = changed_at(0, lambda context: True)
    result = compare(deployment, golden, expect=expect)

    assert result.details["differences"][0]["target_alone"] == "not asked"
    assert "target alone" not in result.reason


def test_an_answer_that_changes_from_request_to_request_is_not_recorded() -> None:
    """Whoever compared with it would find differences that are none: exit code 3, with prompt and position."""
    deployment, calls = FakeDeployment(), iter(range(100))
    deployment.change = changed_at(3, lambda context: next(calls) % 2 == 1)

    with pytest.raises(CannotDecide, match="prompt code changes from request to request, first at token 3"):
        recorded(deployment)


def test_without_a_file_the_check_is_skipped() -> None:
    """It says how to make one."""
    deployment = FakeDeployment()
    (result,) = SmokeRun(deployment.client, EXPECT).of(["golden"]).checks

    assert result.status == "skip"
    assert "smoke record" in result.reason


def test_an_answer_is_kept_with_its_end() -> None:
    """The recorded answer says why it ended."""
    assert recorded().answers[0] == GoldenAnswer(
        prompt=PROMPTS[0],
        ids=recorded().answers[0].ids,
        text=recorded().answers[0].text,
        finish_reason="length",
    )
