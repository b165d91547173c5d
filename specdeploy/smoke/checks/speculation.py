"""Is speculation really on, by the answer's own statistics and by Triton's counters; and off when asked?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdeploy.smoke.probe import Broken, NotApplicable

if TYPE_CHECKING:
    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import Chunk


def speculation_on(probe: Probe) -> str:
    """The draft model is asked, some of its tokens are accepted, and the counts fit together.

    An acceptance of nothing at all over every prompt is a fault, too: broken logits look like that (TensorRT-LLM PR
    5146), and so does a draft that was fed something else than the target.
    """
    before = _draft_requests(probe)
    answers = [probe.greedy(prompt.text) for prompt in probe.expect.prompts]
    asked = _draft_requests(probe) - before
    for prompt, answer in zip(probe.expect.prompts, answers, strict=True):
        _require_on(f"prompt {prompt.name}", answer)
        # Only with a draft model is every round known: a text may have nothing to look up, and an engine keeps its
        # rounds to itself.
        if probe.expect.draft_model is not None:
            _require_sound(f"prompt {prompt.name}", answer, probe.expect.num_draft_tokens)
    drafted = sum(answer.total_draft_tokens or 0 for answer in answers)
    accepted = sum(answer.total_accepted_draft_tokens or 0 for answer in answers)
    if probe.expect.draft_model is None:
        return _without_draft_model(probe, drafted, accepted)
    steps = sum(answer.num_spec_steps or 0 for answer in answers)
    if not asked:
        raise Broken(f"Triton counts no request to {probe.expect.draft_model}, but the answers claim {steps} rounds")
    if not accepted:
        raise Broken(f"none of {drafted} drafted tokens was accepted: is the draft fed what the target sees?")
    return f"{accepted} of {drafted} drafted tokens accepted, length {1 + accepted / steps:.2f}, {asked} draft requests"


def control(probe: Probe) -> str:
    """``num_draft_tokens`` 0 decodes with the target alone, says ``requested``, and leaves the draft model in peace."""
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


def _draft_requests(probe: Probe) -> int:
    """Return how many requests the draft model has answered; 0 where there is none."""
    return 0 if probe.expect.draft_model is None else probe.settled_count(probe.expect.draft_model)


def _without_draft_model(probe: Probe, drafted: int, accepted: int) -> str:
    if not probe.expect.fixed_by:
        return f"{accepted} of {drafted} tokens that were looked up in the text accepted"
    if not drafted:
        raise NotApplicable(f"{probe.expect.fixed_by} does not say what it drafted: see whether it is faster")
    if not accepted:
        raise Broken(f"none of the {drafted} tokens that {probe.expect.fixed_by} drafted was accepted")
    return f"{accepted} of {drafted} tokens that {probe.expect.fixed_by} drafted accepted"


def _require_on(what: str, answer: Chunk) -> None:
    if answer.bypass_reason:
        raise Broken(f"{what}: speculation is off: {answer.bypass_reason}", {"bypass_reason": answer.bypass_reason})


def _require_sound(what: str, answer: Chunk, num_draft_tokens: int) -> None:
    """Hold the counts to what they mean: S rounds, D drafted, A accepted, h[j] rounds that accepted exactly j."""
    steps, drafted, accepted = answer.num_spec_steps, answer.total_draft_tokens, answer.total_accepted_draft_tokens
    if steps is None or drafted is None or accepted is None:
        raise Broken(f"{what}: the answer does not say how many tokens were drafted and accepted")
    if not steps or not drafted:
        raise Broken(f"{what}: speculation is silently off: {steps} rounds, {drafted} drafted tokens")
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
