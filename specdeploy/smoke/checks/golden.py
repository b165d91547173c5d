"""Does it still answer as it did when its answers were written down?"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.errors import CannotDecide
from specdeploy.smoke.capabilities import IDS
from specdeploy.smoke.compare import ending, first_difference
from specdeploy.smoke.golden import GoldenAnswer
from specdeploy.smoke.probe import Broken, NotApplicable
from specdeploy.triton.protocol import Chunk

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.smoke.compare import Difference
    from specdeploy.smoke.expectations import SmokePrompt
    from specdeploy.smoke.golden import Golden
    from specdeploy.smoke.probe import Probe


def golden(probe: Probe) -> str:
    """The answers equal those that ``smoke record`` wrote down, token by token."""
    raise NotApplicable(
        f"there are no recorded answers of {probe.expect.front_door} to compare with: `smoke record` writes them, "
        "--golden FILE compares"
    )


def against(recorded: Golden, *, changed: str = "") -> Callable[[Probe], str]:
    """Return the check ``golden`` for these recorded answers.

    Answers are asked for as clients do, with drafts. Where one differs, the target alone is asked as well, where it can
    be had: it tells a changed target from a speculation that changes the result.

    Args:
        recorded: What the answers must equal.

        changed: What is known to be different since, in words, for the reason.
    """

    def golden_answers(probe: Probe) -> str:
        differences = [found for answer in recorded.answers if (found := _difference(probe, answer, recorded))]
        tokens = sum(len(answer.ids) for answer in recorded.answers)
        if differences:
            raise Broken(_reason(differences, recorded, changed), {"differences": differences})
        return f"{len(recorded.answers)} answers, {tokens} tokens, as recorded {recorded.created}"

    return golden_answers


def record(probe: Probe, prompt: SmokePrompt, *, max_tokens: int) -> GoldenAnswer:
    """Return the greedy answer of the target alone, or of the deployment's own way where that cannot be had.

    Raises:
        CannotDecide: The answer is empty, though the prompt is not: whoever compares with it would learn nothing. Or it
            is another when it is asked for again: a comparison would find a difference that is none.

        RequestFailed: A request failed.
    """
    first, second = (probe.greedy(prompt.text, max_tokens=max_tokens, drafts=probe.alone) for _ in range(2))
    if prompt.text and not (first.text or first.ids):
        raise CannotDecide(
            f"the answer to prompt {prompt.name} is empty: it has neither text nor token ids",
            hint="record nothing until the server answers: `specdeploy smoke --quick` looks closer",
        )
    difference = first_difference(first, second)
    if difference is not None:
        raise CannotDecide(
            f"the greedy answer to prompt {prompt.name} changes from request to request, first at token "
            f"{difference.position}: {list(difference.expected)} became {list(difference.seen)}",
            hint="record on a server that nobody else uses; `specdeploy smoke --only lossless-greedy` looks closer",
        )
    return GoldenAnswer(prompt=prompt, ids=first.ids, text=first.text, finish_reason=first.finish_reason)


def _difference(probe: Probe, answer: GoldenAnswer, recorded: Golden) -> dict[str, Any] | None:
    """Compare one answer; None when it is as recorded."""
    seen = probe.greedy(answer.prompt.text, max_tokens=recorded.max_tokens)
    difference = _parting(probe, answer, seen)
    if difference is None:
        return None
    return {
        "prompt": answer.prompt.name,
        **difference.as_dict(),
        "expected_reason": answer.finish_reason,
        "seen_reason": seen.finish_reason,
        "target_alone": _target_alone(probe, answer, recorded),
    }


def _parting(probe: Probe, answer: GoldenAnswer, seen: Chunk) -> Difference | None:
    """Compare ids and text, or texts alone where one side has no ids, and the ends where both sides tell why."""
    expected = Chunk(text=answer.text, ids=answer.ids)
    ended = answer.finish_reason, seen.finish_reason
    if not probe.can(IDS) or not answer.ids:
        expected, seen = dataclasses.replace(expected, ids=()), dataclasses.replace(seen, ids=())
    difference = first_difference(expected, seen)
    return ending(expected) if difference is None and all(ended) and ended[0] != ended[1] else difference


def _target_alone(probe: Probe, answer: GoldenAnswer, recorded: Golden) -> str:
    """Say whether the target alone answers as recorded: ``as recorded``, ``differs`` or ``not asked``."""
    if probe.alone is None or not recorded.target_alone:
        return "not asked"
    alone = probe.greedy(answer.prompt.text, max_tokens=recorded.max_tokens, drafts=probe.alone)
    return "differs" if _parting(probe, answer, alone) else "as recorded"


def _reason(differences: list[dict[str, Any]], recorded: Golden, changed: str) -> str:
    first = differences[0]
    where = f"at token {first['position']}: {list(first['expected'])} became {list(first['seen'])}"
    if first["expected"] == first["seen"] and first["expected_text"] == first["seen_text"]:
        where = f"in its end: {first['expected_reason']!r} became {first['seen_reason']!r}"
    elif first["expected"] == first["seen"]:
        where = f"in its text: {first['expected_text']!r} became {first['seen_text']!r}"
    blame = {
        "as recorded": "the target alone still answers as recorded, so speculation changes the result",
        "differs": "the target alone differs, too",
        "not asked": "",
    }[first["target_alone"]]
    since = f"since then: {changed}" if changed else ""
    said = f"{len(differences)} of {len(recorded.answers)} answers differ from those recorded {recorded.created}"
    return "; ".join(filter(None, (f"{said}; the first, prompt {first['prompt']}, {where}", blame, since)))
