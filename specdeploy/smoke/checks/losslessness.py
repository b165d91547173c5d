"""Does speculation leave the result alone: token by token without chance, and in distribution with it?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from specdeploy.smoke.budget import Budget
from specdeploy.smoke.compare import require_ids
from specdeploy.smoke.lossless_comparisons import Case, Comparisons, rejected
from specdeploy.smoke.lossless_outcome import Outcome
from specdeploy.smoke.lossless_samples import LEAST, TEMPERATURE, TOP_K, Sampler, Samples, compare, too_few
from specdeploy.smoke.probe import Broken, NotApplicable, Undecided

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specdeploy.smoke.expectations import Expectations, SmokePrompt
    from specdeploy.smoke.lossless_samples import NextTokenTest
    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import Chunk, GenerateRequest

_LONG_DRAFT: Final = 7
#: Seconds after which `lossless-greedy` asks for no further answer beyond the least that it needs.
_GREEDY_BUDGET_S: Final = 4.0
_LEAST_PROMPTS: Final = 3
#: All at once share one server, and each has the time of a single request.
_BATCH_TOKENS: Final = 8
#: A nucleus that holds the most likely token and no other: sampling without chance.
_ONE_CANDIDATE: Final = 1e-6
#: Rejected drafts after which a rule that lets 2 % of them through has shown itself 95 times of 100.
_ENOUGH_REJECTIONS: Final = 150
#: So many near-ties, and this share of all answers, are nothing unusual.
_FEW_TIES: Final = 3
_TIES_SHARE: Final = 0.3
_MOST_ROUNDS: Final = 24
#: A shortened prompt keeps so many words.
_LEAST_WORDS: Final = 2
#: What `lossless-sampled` takes of a run (seconds), and the part of it that goes to answers without chance.
_BUDGET_S: Final = 12.0
_WITHOUT_CHANCE_SHARE: Final = 0.2
#: The parts of the check's own limit that it uses at most, however slow the server is.
_SHARE: Final = 0.7
_SAMPLED_PROMPTS: Final = 2


def lossless_greedy(probe: Probe) -> str:
    """Greedy token ids with drafts equal those of the target alone, for prompts of several kinds and draft lengths.

    A first difference where the target's two best tokens are as good as each other is a tie, and no failure.
    """
    comparisons, lengths, left_out = Comparisons(probe), _lengths(probe.expect), dict[str, None]()
    budget, most = Budget(min(_GREEDY_BUDGET_S, probe.expect.check_timeout_s * _SHARE)), probe.expect.max_tokens
    controls: dict[str, tuple[GenerateRequest, Chunk]] = {}
    for prompt, drafts, needed in _greedy_order(probe.expect, lengths):
        if budget.over and not needed:
            left_out[prompt.name if drafts == probe.expect.num_draft_tokens else "more draft lengths"] = None
            continue
        if prompt.name not in controls:
            control_request = probe.request(prompt.text, max_tokens=most, drafts=0)
            controls[prompt.name] = control_request, _required(prompt, probe.whole(control_request))
        request = probe.request(prompt.text, max_tokens=most, drafts=drafts)
        case = Case(prompt=prompt.name, drafts=drafts, company="alone", request=request)
        comparisons.add(case, *controls[prompt.name], probe.whole(request))
    slow = f" ({', '.join(left_out)} left out: the server is slow)" if left_out else ""
    return _concluded(comparisons, f"of up to {most} tokens{slow}", lengths)


def lossless_batch(probe: Probe) -> str:
    """Greedy answers to all prompts at once, with drafts of two lengths each, equal those of the target alone."""
    comparisons, prompts = Comparisons(probe), probe.expect.prompts
    lengths, size = _batch_lengths(probe.expect), min(probe.expect.max_tokens, _BATCH_TOKENS)
    control_requests = {prompt.name: probe.request(prompt.text, max_tokens=size, drafts=0) for prompt in prompts}
    controls = {prompt.name: _required(prompt, probe.whole(control_requests[prompt.name])) for prompt in prompts}
    cases = [
        Case(
            prompt=prompt.name,
            drafts=drafts,
            company=f"among {len(prompts) * len(lengths)} requests",
            request=probe.request(prompt.text, max_tokens=size, drafts=drafts),
        )
        for drafts in lengths
        for prompt in prompts
    ]
    with ThreadPoolExecutor(len(cases)) as pool:
        answers = list(pool.map(lambda case: probe.whole(case.request), cases))
    for case, answer in zip(cases, answers, strict=True):
        comparisons.add(case, control_requests[case.prompt], controls[case.prompt], answer)
    return _concluded(comparisons, f"of up to {size} tokens at once", lengths)


def lossless_sampled(probe: Probe) -> str:
    """Sampled answers with drafts are distributed as those of the target alone.

    First without chance: when only the most likely token may be drawn, the answers must be equal token by token, and
    every draft that had to be rejected is a trial of the acceptance rule. Then with chance: next-token counts at two
    positions, compared by permutation tests that together fail a lossless deployment with probability alpha at most.
    """
    if not probe.expect.samples:
        raise NotApplicable("no samples are asked for (smoke.samples is 0)")
    seconds = min(_BUDGET_S, probe.expect.check_timeout_s * _SHARE)
    budget, longest = Budget(seconds), Budget(probe.expect.check_timeout_s * _SHARE)
    options = _verification(probe)
    comparisons, worst = _without_chance(
        probe, Sampler(probe, options, part=0), Budget(seconds * _WITHOUT_CHANCE_SHARE)
    )
    # Its seeds do not depend on how much the first part had time for.
    sampler = Sampler(probe, options, part=1)
    tests = _with_chance(probe, sampler, worst, (budget, longest)) if not comparisons.lossy else ()
    details = comparisons.details() | {"sampled": _sampled_details(probe, tests)}
    if comparisons.lossy:
        raise Broken(f"with a single token to draw, {comparisons.failure()}", details)
    _require_alike(tests, probe.expect.alpha, details)
    size = tests[0].counts.sizes[0]
    fewer = f" of {probe.expect.samples}: the server is slow" if size < probe.expect.samples else ""
    line = (
        f"{size} sampled answers on each side{fewer}, p = {min(test.adjusted for test in tests):.2g}: {_power(tests)}; "
        f"{comparisons.success('without chance')}"
    )
    return Outcome(line, details)


def _without_chance(probe: Probe, sampler: Sampler, budget: Budget) -> tuple[Comparisons, list[SmokePrompt]]:
    """Compare answers for which one token alone can be drawn; return the prompts, too, most rejected drafts first.

    Each round drops a word more from the beginning of every prompt: what follows is another answer, with other drafts.
    The first goes from prompt to prompt, so that a slow server is asked for a few only.
    """
    comparisons, rejections = Comparisons(probe), dict.fromkeys(probe.expect.prompts, 0)
    for number, prompts in _rounds(probe.expect.prompts):
        texts = {prompt: text for prompt in prompts if (text := _without_words(prompt.text, number))}
        controls = {prompt: _one_candidate(probe, sampler, text, drafts=0) for prompt, text in texts.items()}
        drafted = {prompt: _one_candidate(probe, sampler, text, drafts=None) for prompt, text in texts.items()}
        answers = sampler.answers([*controls.values(), *drafted.values()])
        for index, (prompt, request) in enumerate(drafted.items()):
            control, seen = _required(prompt, answers[index]), answers[len(texts) + index]
            case = Case(prompt=_shortened(prompt, number), drafts=None, company="one candidate", request=request)
            comparisons.add(case, controls[prompt], control, seen)
            rejections[prompt] += rejected(seen, probe.expect.num_draft_tokens)
        few = comparisons.compared < min(_SAMPLED_PROMPTS, len(rejections))
        if comparisons.lossy or not texts or comparisons.trials >= _ENOUGH_REJECTIONS or (budget.over and not few):
            break
    return comparisons, sorted(rejections, key=lambda prompt: -rejections[prompt])


def _rounds(prompts: tuple[SmokePrompt, ...]) -> Iterator[tuple[int, tuple[SmokePrompt, ...]]]:
    """Yield the number of a round and prompts that belong to it."""
    yield from ((0, (prompt,)) for prompt in prompts)
    yield from ((number, prompts) for number in range(1, _MOST_ROUNDS))


def _one_candidate(probe: Probe, sampler: Sampler, text: str, *, drafts: int | None) -> GenerateRequest:
    length = probe.expect.max_tokens
    return sampler.request(text, drafts=drafts, max_tokens=length, temperature=TEMPERATURE, top_p=_ONE_CANDIDATE)


def _without_words(text: str, count: int) -> str:
    """Return a text less its first words; nothing when too few would be left."""
    if not count:
        return text
    parts = text.split(maxsplit=count)
    return parts[count] if len(text.split()) - count >= _LEAST_WORDS else ""


def _shortened(prompt: SmokePrompt, count: int) -> str:
    return f"{prompt.name}, less {count} words" if count else prompt.name


def _with_chance(
    probe: Probe, sampler: Sampler, prompts: Sequence[SmokePrompt], budgets: tuple[Budget, Budget]
) -> tuple[NextTokenTest, ...]:
    """Compare distributions where most drafts are rejected: elsewhere a wrong rule has little to get wrong."""
    budget, longest = budgets
    least, least_s = min(LEAST, probe.expect.samples), 0.0
    samples: list[Samples] = []
    for prompt in prompts[:_SAMPLED_PROMPTS]:
        left_s = budget.left_s
        if samples and left_s < least_s:
            break
        taken = sampler.take(
            prompt.name,
            prompt.text,
            probe.expect.samples,
            lambda count: longest.over or (budget.over and count >= LEAST),
        )
        if not samples or len(taken.control) >= least:
            samples.append(taken)
            # What the least of another prompt will take, so that none is begun which there is no time to end.
            least_s = (left_s - budget.left_s) * least / len(taken.control)
    return compare(samples, probe.expect.alpha)


def _power(tests: Sequence[NextTokenTest]) -> str:
    """Say what would have been found, and where nothing could be."""
    distances = [test.detectable for test in tests if test.detectable is not None]
    blind = len(tests) - len(distances)
    words = f"a distance of {max(distances):.2f} would have been found 4 times of 5"
    return f"{words}, by {len(distances)} of {len(tests)} comparisons" if blind else words


def _require_alike(tests: Sequence[NextTokenTest], alpha: float, details: dict[str, Any]) -> None:
    different = [test for test in tests if test.adjusted <= alpha]
    if different:
        first = min(different, key=lambda test: test.adjusted)
        reason = (
            f"sampled answers with drafts are distributed otherwise than those of the target alone: prompt "
            f"{first.prompt}, token {first.position}, p = {first.adjusted:.2g} (Holm, level {alpha:g}), "
            f"total-variation distance {first.counts.distance:.2f}, {first.counts.sizes[0]} answers on each side"
        )
        raise Broken(reason, details)
    missing = too_few(tests, alpha)
    if missing:
        size = tests[0].counts.sizes[0] if tests else 0
        raise Undecided(f"{missing} ({size} answers on each side; raise smoke.samples or take another prompt)", details)


def _sampled_details(probe: Probe, tests: Sequence[NextTokenTest]) -> dict[str, Any]:
    return {
        "samples_wanted": probe.expect.samples,
        "alpha": probe.expect.alpha,
        "temperature": TEMPERATURE,
        "top_k": TOP_K,
        "tests": [test.as_dict() for test in tests],
    }


def _verification(probe: Probe) -> dict[str, object]:
    """Ask for rejection sampling on the draft's probabilities where there is a draft model: the harder rule."""
    if probe.expect.draft_model is None or not probe.has_input("use_draft_logits"):
        return {}
    return {"use_draft_logits": True}


def _concluded(comparisons: Comparisons, which: str, lengths: Sequence[int]) -> str:
    if comparisons.lossy:
        raise Broken(comparisons.failure(), comparisons.details())
    ties = comparisons.kinds["tie"] + comparisons.kinds["unstable"]
    if ties > max(_FEW_TIES, _TIES_SHARE * comparisons.compared):
        reason = (
            f"{ties} of {comparisons.compared} answers differ from the target's own at near-ties: more than numerics "
            "explain easily, and a rule that takes the second-best token looks like that, too"
        )
        raise Undecided(reason, comparisons.details())
    line = f"{comparisons.success(which)}, drafts of {', '.join(map(str, lengths))}"
    return Outcome(line, comparisons.details())


def _required(prompt: SmokePrompt, answer: Chunk) -> Chunk:
    require_ids(f"prompt {prompt.name}", answer)
    return answer


def _lengths(expect: Expectations) -> list[int]:
    most = expect.max_draft_tokens or _LONG_DRAFT
    return sorted({1, expect.num_draft_tokens, min(_LONG_DRAFT, most)})


def _greedy_order(expect: Expectations, lengths: Sequence[int]) -> Iterator[tuple[SmokePrompt, int, bool]]:
    """Yield what is compared, by prompt and draft length, and whether it is part of the least that tells something.

    Every length, and the usual length with several kinds of text; then the other kinds, then the other lengths.
    """
    usual = expect.num_draft_tokens
    others = [length for length in lengths if length != usual]
    least = expect.prompts[:_LEAST_PROMPTS]
    yield from ((prompt, usual, True) for prompt in least)
    yield from ((expect.prompts[0], length, True) for length in others)
    yield from ((prompt, usual, False) for prompt in _prompts(expect)[len(least) :])
    yield from ((prompt, length, False) for prompt in expect.prompts[1:] for length in others)


def _batch_lengths(expect: Expectations) -> list[int]:
    """Return the usual length and another, so that rounds of several lengths meet in one batch."""
    longest = max(_lengths(expect))
    return sorted({expect.num_draft_tokens, longest if longest != expect.num_draft_tokens else 1})


def _prompts(expect: Expectations) -> tuple[SmokePrompt, ...]:
    """Return the usual prompts and those others that fit: no tokenizer makes more tokens than there are bytes."""
    room = expect.max_seq_len - expect.max_tokens
    return (*expect.prompts, *(prompt for prompt in expect.more_prompts if len(prompt.text.encode()) < room))
