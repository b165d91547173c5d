"""The checks of losslessness on a deployment without sockets, with and without an engine that gives logits."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from specdeploy.smoke import CHECKS, CheckResult, Expectations
from specdeploy.smoke.capabilities import ALL, ENGINES
from specdeploy.smoke.checks import losslessness
from specdeploy.smoke.expectations import MORE_PROMPTS
from specdeploy.smoke.lossless_comparisons import rejected
from specdeploy.smoke.lossless_outcome import Outcome
from specdeploy.smoke.lossless_samples import LEAST, Samples, compare, too_few
from specdeploy.smoke.probe import Broken, NotApplicable, Probe, Undecided
from specdeploy.triton.protocol import Chunk, Tensor, make_tensor
from tests.unit.smoke.deployment import DRAFTS, EXPECT, WORDS, Context, FakeDeployment
from tests.unit.triton.fake_triton import error_response, response, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from specdeploy.triton.protocol import GenerateRequest

QUICK = dataclasses.replace(EXPECT, samples=60, check_timeout_s=60.0, request_timeout_s=20.0)
ONE_CANDIDATE = 1e-3


class Deployment(FakeDeployment):
    """Knows that a nucleus of one token leaves no chance, and has engine models that can be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.logits: Callable[[list[int]], list[float]] | None = None
        self.asked: list[list[int]] = []

    def _rounds(self, request: GenerateRequest) -> list[Chunk]:
        if request.top_p is not None and request.top_p < ONE_CANDIDATE:
            request = dataclasses.replace(request, temperature=0.0)
        return super()._rounds(request)

    def respond(self, message: Any, *arguments: Any, **options: Any) -> Iterator[Any] | None:
        """Answer for the models behind the front door, too."""
        if message.model_name == "preprocessing":
            return iter([response(message.id, [make_tensor("INPUT_ID", "INT32", [100, 101])], final=True)])
        if message.model_name == "tensorrt_llm":
            return iter([self._engine(message)])
        return super().respond(message, *arguments, **options)

    def _engine(self, message: Any) -> Any:
        values = {tensor.name: tensor.data.reshape(-1).tolist() for tensor in tensors_of(message)}
        assert values["input_lengths"] == [len(values["input_ids"])]
        assert (values["request_output_len"], values["return_generation_logits"]) == ([1], [True])
        self.asked.append(values["input_ids"])
        if self.logits is None:
            return error_response(message.id, "generation_logits are not available: build with gather_all_token_logits")
        row = make_tensor("x", "FP32", self.logits(values["input_ids"])).data
        output = Tensor(name="generation_logits", datatype="FP32", data=row.reshape(1, 1, 1, -1))
        return response(message.id, [output], final=True)


def ask(deployment: FakeDeployment, check: str, expect: Expectations = QUICK) -> tuple[str, dict[str, Any]]:
    """Run one check; return its line and its details, which can be written as JSON."""
    with deployment.client() as client:
        probe = Probe(client, expect, monotonic=lambda: 0.0, sleep=lambda _: None)
        line: Any = CHECKS[check].run(probe)
    return line, json.loads(json.dumps(line.details))


def failure(deployment: FakeDeployment, check: str, expect: Expectations = QUICK) -> tuple[str, dict[str, Any]]:
    """Run a check that fails; return the reason and the details."""
    with pytest.raises(Broken) as caught:
        ask(deployment, check, expect)
    return str(caught.value), json.loads(json.dumps(caught.value.details))


def changed(
    deployment: FakeDeployment, where: Callable[[Context], bool], position: int = 5, token: int | None = None
) -> None:
    """Change one token of some answers."""

    def change(chunks: list[Chunk], context: Context) -> list[Chunk]:
        chunk = chunks[-1]
        if not where(context) or position >= len(chunk.ids):
            return chunks
        other = (chunk.ids[position] + 1) % len(WORDS) if token is None else token
        return [dataclasses.replace(chunk, ids=(*chunk.ids[:position], other, *chunk.ids[position + 1 :]))]

    deployment.change = change


def drafting(context: Context) -> bool:
    """The answer is drafted by seven."""
    return context.request.num_draft_tokens == 7


def nearly(margin: float, *, second: int = 1) -> Callable[[list[int]], list[float]]:
    """Logits of a target whose best token is that of its greedy answer to the first prompt, the next one its second."""
    answer = Deployment().answer(
        Probe(Deployment().client(), EXPECT, monotonic=lambda: 0.0, sleep=lambda _: None).request(
            max_tokens=EXPECT.max_tokens, drafts=0
        ),
        "ensemble",
        "grpc",
        main_thread=True,
    )
    ids = [token for chunk in answer for token in chunk.ids]

    def logits(known: list[int]) -> list[float]:
        row = [0.0] * (len(WORDS) + 2)
        best = ids[len(known) - 2]
        row[best], row[(best + second) % len(WORDS)] = 20.0, 20.0 - margin
        return row

    return logits


ONE_PROMPT = dataclasses.replace(QUICK, prompts=QUICK.prompts[:1])


def test_a_sound_deployment_is_lossless() -> None:
    """All three pass and say how much they compared."""
    for check in ("lossless-greedy", "lossless-batch", "lossless-sampled"):
        line, details = ask(Deployment(), check)
        assert "answers" in line
        assert details["differences"] == []
        assert details["rejected_drafts"] > 0
        assert details["kinds"] == {}


def test_what_a_check_returns_is_a_line_with_details() -> None:
    """It can be put into a report, copied and written as JSON like any other line, and keeps its details."""
    line = Outcome("18 answers", {"compared": 18})
    result = CheckResult(name="lossless-greedy", status="pass", duration_s=0.1, reason=line)

    assert line == "18 answers"
    assert json.dumps(dataclasses.asdict(result)["reason"]) == '"18 answers"'
    assert copy.deepcopy(line).details == {"compared": 18}


def test_two_equal_tokens_are_a_tie() -> None:
    """The target's own logits say that either token is right: no failure, and the record holds all there is to know."""
    deployment = Deployment()
    deployment.logits = nearly(0.0005)
    changed(deployment, drafting)

    line, details = ask(deployment, "lossless-greedy", ONE_PROMPT)

    (tie,) = details["differences"]
    assert "1 tie (33%: numerics)" in line
    assert (tie["kind"], tie["prompt"], tie["num_draft_tokens"], tie["position"]) == ("tie", "code", 7, 5)
    assert tie["margin"] == pytest.approx(0.0005, abs=1e-5)
    assert tie["threshold"] == 0.001
    assert [token for token, _ in tie["best"]] == [tie["expected_id"], tie["seen_id"]]
    assert tie["expected_token"] == WORDS[tie["expected_id"]]
    assert tie["context"]


def test_the_engine_is_asked_for_the_position_that_differs() -> None:
    """It gets the prompt's ids and the answer up to there, once."""
    deployment = Deployment()
    deployment.logits = nearly(0.0)
    changed(deployment, drafting)
    ask(deployment, "lossless-greedy", ONE_PROMPT)

    (ids,) = deployment.asked
    assert ids[:2] == [100, 101]
    assert len(ids) == 2 + 5


@pytest.mark.parametrize(
    ("margin", "second", "words"),
    [
        (0.5, 1, "the target's two best tokens are 0.5 apart, which is more than 0.001"),
        (0.0, 2, "is none of the target's two best tokens"),
    ],
)
def test_another_token_is_a_divergence(margin: float, second: int, words: str) -> None:
    """A clear best token that is passed over is a bug, and so is one that the target does not think of."""
    deployment = Deployment()
    deployment.logits = nearly(margin, second=second)
    changed(deployment, drafting)

    reason, details = failure(deployment, "lossless-greedy", ONE_PROMPT)

    assert words in reason
    assert "1 of 3 answers differ from the target's own; the first, prompt code with 7 drafts, at token 5" in reason
    assert details["kinds"] == {"divergence": 1}


def test_the_configured_margin_decides() -> None:
    """What is a divergence by the precision is a tie where the configuration says so."""
    deployment = Deployment()
    deployment.logits = nearly(0.5)
    changed(deployment, drafting)

    line, _ = ask(deployment, "lossless-greedy", dataclasses.replace(ONE_PROMPT, tie_margin=0.6))

    assert "1 tie (" in line


def test_a_lost_token_is_no_tie() -> None:
    """An answer that is shorter without an end token has lost something, however near the two best tokens are."""
    deployment = Deployment()
    deployment.logits = nearly(0.0)
    deployment.change = lambda chunks, context: (
        [dataclasses.replace(chunks[-1], ids=chunks[-1].ids[:-1])] if drafting(context) else chunks
    )

    reason, _ = failure(deployment, "lossless-greedy", ONE_PROMPT)

    assert "shorter without an end token" in reason


def test_without_logits_a_target_that_repeats_itself_shows_a_divergence() -> None:
    """The flip test: the target alone gives the same answer among other requests, so the drafts made the difference."""
    deployment = Deployment()
    changed(deployment, drafting)

    reason, details = failure(deployment, "lossless-greedy", ONE_PROMPT)

    assert "repeats itself among other requests" in reason
    assert "gather_all_token_logits" in reason
    assert details["differences"][0]["margin"] is None


def test_without_logits_a_target_that_flips_is_unstable() -> None:
    """Where it does not even agree with itself, nothing can be told, and that is said instead of a failure."""
    deployment = Deployment()
    controls = itertools.count()
    changed(deployment, lambda x: drafting(x) or (x.request.num_draft_tokens == 0 and next(controls) > 0))

    line, details = ask(deployment, "lossless-greedy", ONE_PROMPT)

    assert "1 unstable" in line
    assert "differs from itself at token 5" in details["differences"][0]["why"]


def test_an_engine_that_cannot_be_asked_is_not() -> None:
    """Without that capability no request goes to the engine."""
    deployment = Deployment()
    deployment.logits = nearly(0.0)
    changed(deployment, drafting)

    failure(deployment, "lossless-greedy", dataclasses.replace(ONE_PROMPT, capabilities=ALL - {ENGINES}))

    assert deployment.asked == []


def test_zeros_are_no_logits() -> None:
    """An engine that was not built to gather logits may answer zeros, which would make a tie of everything."""
    deployment = Deployment()
    deployment.logits = lambda ids: [0.0] * 12
    changed(deployment, drafting)

    reason, _ = failure(deployment, "lossless-greedy", ONE_PROMPT)

    assert "built to gather them" in reason


def test_after_some_bugs_the_rest_is_counted_and_not_judged() -> None:
    """A broken deployment is told quickly."""
    deployment = Deployment()
    deployment.logits = nearly(0.5)
    changed(deployment, lambda x: x.request.num_draft_tokens != 0)

    reason, details = failure(deployment, "lossless-greedy")

    assert "12 of 12 answers differ" in reason
    assert details["kinds"] == {"divergence": 3, "not judged": 9}
    assert len(deployment.asked) == 3


def test_more_prompts_are_compared_where_they_fit() -> None:
    """Other kinds are asked with the usual number of drafts, where the engine has room for them."""
    line, details = ask(
        Deployment(), "lossless-greedy", dataclasses.replace(QUICK, max_seq_len=2048, more_prompts=MORE_PROMPTS[:1])
    )

    assert details["compared"] == 4 * 3 + 1
    assert "13 answers of up to 32 tokens" in line


def test_a_slow_server_is_asked_for_fewer_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three prompts, and the first at all lengths, are the least; that others are left out for want of time is said."""
    monkeypatch.setattr(losslessness, "_GREEDY_BUDGET_S", 0.0)

    line, details = ask(Deployment(), "lossless-greedy")

    assert details["compared"] == 5
    assert "(cyrillic, more draft lengths left out: the server is slow)" in line


def test_an_answer_that_changes_in_company_is_found() -> None:
    """What is right alone and wrong at once fails the check for batches, and not the other."""
    deployment = Deployment()
    changed(deployment, lambda x: not x.main_thread and x.request.num_draft_tokens == DRAFTS)

    ask(deployment, "lossless-greedy")
    reason, _ = failure(deployment, "lossless-batch")

    assert "4 of 8 answers differ" in reason
    assert "(among 8 requests)" in reason


def test_drafts_that_pass_unverified_show_without_chance() -> None:
    """When one token alone can be drawn, one wrong token fails the check before any distribution is compared."""
    deployment = Deployment()
    changed(deployment, lambda x: x.request.top_p is not None and x.request.num_draft_tokens is None)

    reason, details = failure(deployment, "lossless-sampled")

    assert "with a single token to draw" in reason
    assert details["sampled"]["tests"] == []


def test_another_distribution_fails() -> None:
    """With drafts every second answer has one and the same token at position 1: the p-value and the place are told."""
    deployment = Deployment()
    changed(
        deployment,
        lambda x: (
            x.request.top_k is not None
            and x.request.num_draft_tokens is None
            and zlib.crc32(str(x.request.seed).encode()) % 2 == 0
        ),
        position=1,
        token=0,
    )

    reason, details = failure(deployment, "lossless-sampled")

    assert "distributed otherwise" in reason
    assert "token 1, p = " in reason
    worst = min(details["sampled"]["tests"], key=lambda test: test["adjusted_p_value"])
    assert worst["position"] == 1
    assert worst["adjusted_p_value"] <= 0.01
    assert sum(worst["control"]) == sum(worst["drafted"]) == 60


@pytest.mark.parametrize(("samples", "words"), [(2, "no p-value below"), (6, "however large")])
def test_too_few_samples_are_undecided(samples: int, words: str) -> None:
    """So few answers could not fail even the worst deployment, and that is never a pass."""
    with pytest.raises(Undecided, match=words):
        ask(Deployment(), "lossless-sampled", dataclasses.replace(QUICK, samples=samples))


def test_no_choice_is_undecided() -> None:
    """Where every sampled answer is the same, there is no distribution to compare."""
    deployment = Deployment()
    changed(deployment, lambda x: x.request.top_k is not None, position=1, token=0)
    before = deployment.change
    deployment.change = lambda chunks, context: [
        dataclasses.replace(chunk, ids=(*chunk.ids[:1], 0, 0, *chunk.ids[3:])) if context.request.top_k else chunk
        for chunk in before(chunks, context)
    ]

    with pytest.raises(Undecided, match="the same tokens"):
        ask(deployment, "lossless-sampled")


def test_no_samples_are_no_comparison() -> None:
    """A configuration that asks for none gets none, with the reason."""
    with pytest.raises(NotApplicable, match=r"smoke\.samples is 0"):
        ask(Deployment(), "lossless-sampled", dataclasses.replace(QUICK, samples=0))


def test_every_sampled_request_has_a_seed_of_its_own() -> None:
    """Answers that share random numbers would not be independent."""
    deployment = Deployment()
    seeds = []
    deployment.change = lambda chunks, context: seeds.append(context.request.seed) or chunks  # type: ignore[func-returns-value]

    ask(deployment, "lossless-sampled")

    sampled = [seed for seed in seeds if seed is not None]
    assert len(sampled) == len(set(sampled)) > 2 * 60


def test_time_that_is_over_ends_the_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow server gives the least number of answers, for one prompt, and the report says how many there were."""
    monkeypatch.setattr(losslessness, "_BUDGET_S", 0.0)

    _, details = ask(Deployment(), "lossless-sampled", dataclasses.replace(QUICK, samples=500))

    tests = details["sampled"]["tests"]
    assert {test["prompt"] for test in tests} == {tests[0]["prompt"]}
    assert all(test["samples"] == [LEAST, LEAST] for test in tests)
    assert details["sampled"]["samples_wanted"] == 500


def test_an_answer_that_ended_counts_as_a_token() -> None:
    """Drafts that make answers end early are another distribution."""
    samples = Samples(prompt="code", control=((1, 2, 3),) * 60, drafted=((1, 2, 3),) * 30 + ((1,),) * 30)

    tests = compare([samples], 0.01)

    assert [test.counts.tokens for test in tests] == [(2, -1), (3, -1)]
    assert all(test.adjusted < 0.01 for test in tests)
    assert too_few(tests, 0.01) == ""


@pytest.mark.parametrize(
    ("histogram", "steps", "drafted", "expected"),
    [((2, 1, 0, 5), 8, 24, 3), ((2, 1, 0, 5), 8, 22, 2), ((0, 0, 0, 5), 5, 14, 0), ((), 0, 0, 0)],
)
def test_rejections_are_counted_low(histogram: tuple[int, ...], steps: int, drafted: int, expected: int) -> None:
    """Each round short of a full draft rejected one, but the last may have been short by itself."""
    answer = Chunk(text="", histogram=histogram, num_spec_steps=steps, total_draft_tokens=drafted)

    assert rejected(answer, 3) == expected


def test_the_same_drafts_rejected_again_are_no_further_trial() -> None:
    """Of each prompt the answer with the most rejected drafts counts, and every answer is on record."""
    _, details = ask(Deployment(), "lossless-greedy")

    of_prompt: dict[str, int] = {}
    for case in details["cases"]:
        of_prompt[case["prompt"]] = max(of_prompt.get(case["prompt"], 0), case["rejected_drafts"])
    assert len(details["cases"]) == details["compared"]
    assert details["different_rejected_drafts"] == sum(of_prompt.values()) < details["rejected_drafts"]


def test_sampling_without_chance_takes_other_texts_each_time() -> None:
    """A round that repeated the one before would prove nothing more: each drops a word more from the prompts."""
    deployment = Deployment()
    prompts: list[str] = []
    deployment.change = lambda chunks, context: (
        prompts.append(context.request.prompt) or chunks if context.request.top_k is None else chunks  # type: ignore[func-returns-value]
    )

    _, details = ask(deployment, "lossless-sampled")

    asked = [(case["prompt"], case["num_draft_tokens"]) for case in details["cases"]]
    assert len(asked) == len(set(asked))
    assert all(prompts.count(prompt) == 2 for prompt in prompts)


def test_too_many_ties_are_undecided() -> None:
    """A rule that takes the target's second-best token wherever it is near looks like numerics, answer by answer."""
    deployment = Deployment()
    deployment.logits = nearly(0.0)
    changed(deployment, lambda x: x.request.num_draft_tokens != 0)
    again = dataclasses.replace(ONE_PROMPT, prompts=ONE_PROMPT.prompts * 4)

    with pytest.raises(Undecided, match="near-ties"):
        ask(deployment, "lossless-greedy", again)
