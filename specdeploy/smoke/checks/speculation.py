"""Is speculation really on, by the answer's own statistics and by Triton's counters; and off when asked?"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from specdeploy.smoke.capabilities import CONTROL, COUNTS, ENGINES, TRITON
from specdeploy.smoke.probe import Broken, NotApplicable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import Chunk

_LONGER = 4
#: Repeats itself, so that there is something to look up for whoever drafts from the text.
_REPEATING = "1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2,"
_SELF_ACCEPTANCE = 0.9


@dataclasses.dataclass(frozen=True)
class _Sum:
    """The counts of several answers together."""

    steps: int
    drafted: int
    accepted: int


def speculation_on(probe: Probe) -> str:
    """The draft is asked, some of its tokens are accepted and some are not, and the counts fit together.

    Both extremes are faults. Nothing accepted over every prompt: broken logits look like that (TensorRT-LLM PR 5146),
    and so does a draft that was fed something else than the target. Everything accepted, over longer answers too: the
    draft is the target, or the rule accepts whatever it is given. The second is as it should be for a deployment that
    drafts with its target (``self_draft``). A text may have nothing to look up; where nothing was drafted without a
    draft model, a prompt that repeats itself is asked, too.
    """
    probe.require(COUNTS)
    before = _draft_requests(probe)
    answers = [probe.greedy(prompt.text, max_tokens=probe.expect.max_tokens) for prompt in probe.expect.prompts]
    asked = _draft_requests(probe) - before
    for prompt, answer in zip(probe.expect.prompts, answers, strict=True):
        _require_on(probe, f"prompt {prompt.name}", answer)
        # Only with a draft model is every round known: a text may have nothing to look up, and an engine keeps its
        # rounds to itself.
        if probe.expect.draft_model is not None:
            _require_sound(probe, f"prompt {prompt.name}", answer)
        _require_possible(f"prompt {prompt.name}", answer)
    total = _sum(answers)
    if probe.expect.draft_model is None:
        return _without_draft_model(probe, total)
    if not asked and _counts_draft_requests(probe):
        raise Broken(
            f"Triton counts no request to {probe.expect.draft_model}, but the answers claim {total.steps} rounds"
        )
    if not total.accepted:
        raise Broken(f"none of {total.drafted} drafted tokens was accepted: is the draft fed what the target sees?")
    _require_a_rejection(probe, total)
    length = 1 + total.accepted / total.steps
    return f"{total.accepted} of {total.drafted} drafted tokens accepted, length {length:.2f}, {asked} draft requests"


def self_draft(probe: Probe) -> str:
    """Where the draft is the target itself, at least 90 % of the drafted tokens are accepted.

    Both then choose the same token wherever the choice is clear. What is left are numerics: the draft computes one
    position at a time and the target several at once, and rounding may turn a near-tie. One turned token in a hundred,
    which is much, costs the rest of its round: 4 % of what is drafted with 8 drafts a round. A draft with other weights
    or another prompt is far below 90 %.
    """
    probe.require(COUNTS)
    if not probe.expect.self_draft:
        raise NotApplicable("the draft is not the target itself (smoke.self_draft is false)")
    answers = [probe.greedy(prompt.text, max_tokens=probe.expect.max_tokens) for prompt in probe.expect.prompts]
    for prompt, answer in zip(probe.expect.prompts, answers, strict=True):
        _require_possible(f"prompt {prompt.name}", answer)
    total = _sum(answers)
    if not total.drafted:
        raise Broken("nothing was drafted")
    share = total.accepted / total.drafted
    seen = f"{total.accepted} of {total.drafted} drafted tokens accepted ({share:.1%})"
    if share < _SELF_ACCEPTANCE:
        raise Broken(
            f"{seen}; of a draft that is the target at least {_SELF_ACCEPTANCE:.0%} should be: is it the same "
            "checkpoint in the same precision, and does it see the same prompt?",
            dataclasses.asdict(total),
        )
    return seen


def control(probe: Probe) -> str:
    """``num_draft_tokens`` 0 decodes with the target alone, says ``requested``, and leaves the draft model in peace."""
    probe.require(CONTROL, COUNTS)
    before = _draft_requests(probe)
    answer = probe.greedy(drafts=0)
    asked = _draft_requests(probe) - before
    if answer.bypass_reason != "requested":
        raise Broken(f"bypass_reason is {answer.bypass_reason!r}; expected 'requested'")
    if answer.total_draft_tokens or answer.num_spec_steps:
        raise Broken(f"the control drafted {answer.total_draft_tokens} tokens in {answer.num_spec_steps} rounds")
    if asked:
        raise Broken(
            f"Triton counts {asked} requests to {probe.expect.draft_model} during the control; nobody else should use "
            "the server meanwhile"
        )
    return f"{len(answer.ids)} tokens from the target alone"


def _sum(answers: Sequence[Chunk]) -> _Sum:
    return _Sum(
        steps=sum(answer.num_spec_steps or 0 for answer in answers),
        drafted=sum(answer.total_draft_tokens or 0 for answer in answers),
        accepted=sum(answer.total_accepted_draft_tokens or 0 for answer in answers),
    )


def _counts_draft_requests(probe: Probe) -> bool:
    return probe.expect.draft_model is not None and probe.can(TRITON) and probe.can(ENGINES)


def _draft_requests(probe: Probe) -> int:
    """Return how many requests the draft model has answered; 0 where there is none that Triton counts."""
    model = probe.expect.draft_model
    return probe.settled_count(model) if model is not None and _counts_draft_requests(probe) else 0


def _without_draft_model(probe: Probe, total: _Sum) -> str:
    repeating = not total.drafted
    if repeating:
        total = _looked_up_in_a_repetition(probe)
    seen = f"{total.accepted} of {total.drafted}"
    if not probe.expect.fixed_by:
        return f"{seen} tokens that were looked up in the text accepted"
    if not total.accepted:
        raise Broken(f"none of the {total.drafted} tokens that {probe.expect.fixed_by} drafted was accepted")
    # Whoever looks up what repeats itself is right every time.
    if not repeating:
        _require_a_rejection(probe, total)
    return f"{seen} tokens that {probe.expect.fixed_by} drafted accepted"


def _looked_up_in_a_repetition(probe: Probe) -> _Sum:
    """Return the counts of the answer to a prompt that repeats itself.

    Raises:
        Broken: Nothing is drafted there either.

        NotApplicable: The same, of a server that may keep to itself what it drafts.
    """
    answer = probe.greedy(_REPEATING, max_tokens=probe.expect.max_tokens)
    _require_on(probe, "a prompt that repeats itself", answer)
    _require_possible("a prompt that repeats itself", answer)
    total = _sum([answer])
    if not total.drafted and probe.expect.fixed_by:
        raise NotApplicable(
            f"{probe.expect.fixed_by} does not say that it drafted anything, for a prompt that repeats itself either: "
            "see whether it is faster"
        )
    if not total.drafted:
        raise Broken(
            "speculation is silently off: nothing was looked up in the text, of any prompt and of one that repeats "
            f"itself ({_REPEATING!r})"
        )
    return total


def _require_a_rejection(probe: Probe, total: _Sum) -> None:
    """Fail when every draft of every answer is accepted, and of longer answers, too; one that is rejected is enough."""
    if total.accepted < total.drafted or probe.expect.self_draft:
        return
    length = max(probe.expect.max_tokens, min(_LONGER * probe.expect.max_tokens, probe.expect.max_seq_len // 2))
    answers: list[Chunk] = []
    # The last prompts first: a draft is most often wrong in a script that it has seen little of.
    for prompt in reversed(probe.expect.prompts):
        answers.append(probe.greedy(prompt.text, max_tokens=length))
        longer = _sum(answers)
        if longer.accepted < longer.drafted:
            return
    raise Broken(
        f"every one of {total.drafted + longer.drafted} drafted tokens was accepted, on every step of every prompt: "
        "the draft is the target itself (then set smoke.self_draft), or the rule accepts whatever it is given",
        dataclasses.asdict(longer),
    )


def _require_on(probe: Probe, what: str, answer: Chunk) -> None:
    if answer.bypass_reason:
        raise Broken(
            f"{what}: speculation is off: {answer.bypass_reason}{_explained(probe, answer.bypass_reason)}",
            {"bypass_reason": answer.bypass_reason},
        )


def _explained(probe: Probe, reason: str) -> str:
    """Say what a bypass reason means for a request that asked for nothing special."""
    if _draft_is_down(probe):
        return f" ({probe.expect.draft_model} is not ready)"
    meanings = {
        "requested": " (no request asked for that: the deployment's own num_draft_tokens is 0, in the parameters of "
        "its decoder's config.pbtxt)",
        "no_draft_model": " (the decoder's config.pbtxt names no draft model: the parameter "
        "tensorrt_llm_draft_model_name is missing, empty or a placeholder)",
        "draft_failed": f" ({probe.expect.draft_model} is ready but fails: see the server's log)",
        "draft_unavailable": f" ({probe.expect.draft_model} failed several requests in a row, and it is left "
        "alone for up to a minute at a time: see the server's log)",
    }
    return meanings.get(reason, "")


def _why_silently_off(probe: Probe) -> str:
    """Say why nothing was drafted though the answer gives no reason."""
    if _draft_is_down(probe):
        return f"{probe.expect.draft_model} is not ready"
    drafts = probe.expect.num_draft_tokens
    if not probe.can(CONTROL) or probe.expect.fixed_by:
        return "the answer does not say why"
    if probe.greedy(drafts=drafts).total_draft_tokens:
        return f"a request for {drafts} drafts gets them, so the deployment's own num_draft_tokens is 0"
    return f"a request for {drafts} drafts gets none either: does the decoder name {probe.expect.draft_model}?"


def _draft_is_down(probe: Probe) -> bool:
    model = probe.expect.draft_model
    return (
        model is not None
        and _counts_draft_requests(probe)
        and not probe.client.model_ready(model, timeout_s=probe.timeout_s)
    )


def _require_possible(what: str, answer: Chunk) -> None:
    """Fail when more was accepted than drafted, or less than nothing; what an answer does not say is not judged."""
    drafted, accepted = answer.total_draft_tokens or 0, answer.total_accepted_draft_tokens or 0
    if not 0 <= accepted <= drafted or (answer.num_spec_steps or 0) < 0:
        counts = {
            "num_spec_steps": answer.num_spec_steps,
            "total_draft_tokens": answer.total_draft_tokens,
            "total_accepted_draft_tokens": answer.total_accepted_draft_tokens,
        }
        raise Broken(
            f"{what}: impossible statistics (no more accepted than drafted, and no less than 0): {counts}", counts
        )


def _require_sound(probe: Probe, what: str, answer: Chunk) -> None:
    """Hold the counts to what they mean: S rounds, D drafted, A accepted, h[j] rounds that accepted exactly j."""
    num_draft_tokens = probe.expect.num_draft_tokens
    steps, drafted, accepted = answer.num_spec_steps, answer.total_draft_tokens, answer.total_accepted_draft_tokens
    if steps is None or drafted is None or accepted is None:
        raise Broken(f"{what}: the answer does not say how many tokens were drafted and accepted")
    if not steps or not drafted:
        why = _why_silently_off(probe)
        raise Broken(f"{what}: speculation is silently off: {steps} rounds, {drafted} drafted tokens; {why}")
    histogram = answer.histogram
    rules = {
        "no more accepted than drafted": accepted <= drafted,
        "no more drafted than asked for": steps <= drafted <= num_draft_tokens * steps,
        "the histogram counts every round": sum(histogram) == steps,
        "the histogram counts every accepted token": sum(j * n for j, n in enumerate(histogram)) == accepted,
        "as long as what was accepted and added by the target": _length_fits(answer, num_draft_tokens),
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        counts = {
            "num_spec_steps": steps,
            "total_draft_tokens": drafted,
            "total_accepted_draft_tokens": accepted,
            "histogram": list(histogram),
            "output_tokens": len(answer.ids),
        }
        raise Broken(f"{what}: impossible statistics ({'; '.join(broken)}): {counts}", counts)


def _length_fits(answer: Chunk, num_draft_tokens: int) -> bool:
    """Each round writes what it accepted and one token of the target.

    The end may cut the last round, and a token may come from a round without drafts at either end of the answer.
    """
    written = (answer.num_spec_steps or 0) + (answer.total_accepted_draft_tokens or 0)
    return written - num_draft_tokens - 1 <= len(answer.ids) <= written + 2
