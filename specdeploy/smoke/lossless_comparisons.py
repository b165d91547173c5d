"""Compares answers with drafts to the target's own, and keeps what differed, of which kind, and how much was tried."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from specdeploy.smoke.compare import first_difference
from specdeploy.smoke.lossless_judge import Judge, Verdict
from specdeploy.smoke.permutation import excused_share
from specdeploy.triton.client import RequestFailed

if TYPE_CHECKING:
    from specdeploy.smoke.compare import Difference
    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import Chunk, GenerateRequest

#: Bugs that are looked at closely; the rest are told without.
_MOST_BUGS: Final = 3
#: Differences whose tokens are shown as text, which takes requests of its own.
_MOST_TEXTS: Final = 6
_CONTEXT: Final = 80


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One answer with drafts and how it was asked for.

    Args:
        prompt: Name of the prompt.

        drafts: Drafts in each round; 0 is the target alone again, in other company; None is the deployment's number.

        company: What ran beside it, such as ``alone``.

        request: What was asked.
    """

    prompt: str
    drafts: int | None
    company: str
    request: GenerateRequest


class Comparisons:
    """What a check compared.

    Args:
        probe: Judges differences.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._judge = Judge(probe)
        self._precision = probe.expect.target_precision
        self._usual = probe.expect.num_draft_tokens
        self.compared = 0
        self.rejections = 0
        self.cases: list[dict[str, Any]] = []
        self._of_prompt: dict[str, int] = {}
        self.differences: list[dict[str, Any]] = []

    @property
    def kinds(self) -> Counter[str]:
        """How many differences of each kind."""
        return Counter(difference["kind"] for difference in self.differences)

    @property
    def lossy(self) -> int:
        """Differences that are no numerics."""
        return self.kinds["divergence"] + self.kinds["not judged"]

    @property
    def trials(self) -> int:
        """Rejected drafts that are surely different ones, at least.

        The same prompt once more, with other draft lengths or in other company, mostly rejects the same drafts at the
        same places: a rule that decides by what it sees decides the same again. So of each prompt the answer with the
        most counts alone.
        """
        return sum(self._of_prompt.values())

    def add(self, case: Case, control_request: GenerateRequest, control: Chunk, seen: Chunk) -> None:
        """Compare an answer with that of the target alone."""
        self.compared += 1
        count = rejected(seen, self._usual if case.drafts is None else case.drafts)
        self.rejections += count
        self._of_prompt[case.request.prompt] = max(self._of_prompt.get(case.request.prompt, 0), count)
        self.cases.append({"prompt": case.prompt, "num_draft_tokens": case.drafts, "rejected_drafts": count})
        difference = first_difference(control, seen)
        if difference is None:
            return
        if self.kinds["divergence"] >= _MOST_BUGS:
            verdict = Verdict(kind="not judged", why="others were judged already", threshold=0.0)
        else:
            verdict = self._judge.judge(control_request, control, seen, difference.position)
        texts = self._texts(case, control_request, control, seen, difference.position)
        self.differences.append(_record(case, difference, verdict, control, seen) | texts)

    def details(self) -> dict[str, Any]:
        """Return plain data for the report."""
        return {
            "compared": self.compared,
            "kinds": dict(self.kinds),
            "cases": self.cases,
            "rejected_drafts": self.rejections,
            "different_rejected_drafts": self.trials,
            "excused_share": excused_share(self.trials),
            "differences": self.differences,
        }

    def failure(self) -> str:
        """Say what differs; only where something does that is no numerics."""
        bugs = [difference for difference in self.differences if difference["kind"] in {"divergence", "not judged"}]
        first = bugs[0]
        with_drafts = "" if first["num_draft_tokens"] is None else f" with {first['num_draft_tokens']} drafts"
        company = "" if first["company"] == "alone" else f" ({first['company']})"
        reason = (
            f"{len(bugs)} of {self.compared} answers differ from the target's own; the first, prompt {first['prompt']}"
            f"{with_drafts}{company}, at token {first['position']}: {first['expected']} became {first['seen']}; "
            f"{first['why']}"
        )
        if first["margin"] is not None or self._precision == "fp32":
            return reason
        return f"{reason}. With a {self._precision} target this may be numerics: two tokens nearly as likely"

    def success(self, which: str) -> str:
        """Say how much was compared, what was numerics, and how much a wrong acceptance rule could still hide.

        Args:
            which: What kind of answers, behind their number.
        """
        return ", ".join(filter(None, (f"{self.compared} answers {which}", self._numerics(), self._acceptance())))

    def _numerics(self) -> str:
        ties, unstable = self.kinds["tie"], self.kinds["unstable"]
        words = [f"{ties} {'tie' if ties == 1 else 'ties'}"] if ties else []
        words += [f"{unstable} unstable"] if unstable else []
        share = (ties + unstable) / self.compared
        return f"{' and '.join(words)} ({share:.0%}: numerics)" if words else ""

    def _acceptance(self) -> str:
        if not self.trials:
            return ""
        drafts = "1 draft" if self.trials == 1 else f"{self.trials} different drafts"
        return (
            f"{drafts} rejected (at 95 % confidence, letting {excused_share(self.trials):.1%} through would have shown)"
        )

    def _texts(
        self, case: Case, control_request: GenerateRequest, control: Chunk, seen: Chunk, position: int
    ) -> dict[str, str]:
        if len(self.differences) >= _MOST_TEXTS:
            return {"expected_token": "", "seen_token": ""}
        return {
            "expected_token": self._token(control_request, control, position),
            "seen_token": self._token(case.request, seen, position),
        }

    def _token(self, request: GenerateRequest, answer: Chunk, position: int) -> str:
        """Return what one token adds to the text; nothing where a shorter answer is not the beginning of it."""
        if position >= len(answer.ids):
            return ""
        texts = []
        for length in (position, position + 1):
            text = self._beginning(request, answer, length)
            if text is None:
                return ""
            texts.append(text)
        return texts[1].removeprefix(texts[0])

    def _beginning(self, request: GenerateRequest, answer: Chunk, length: int) -> str | None:
        if not length:
            return ""
        try:
            shorter = self._probe.whole(dataclasses.replace(request, max_tokens=length))
        except RequestFailed:
            return None
        return shorter.text if shorter.ids == answer.ids[:length] else None


def rejected(answer: Chunk, drafts: int) -> int:
    """Return how many drafts were rejected, at least: each round that accepted fewer than it could rejected one.

    The last round may have had fewer drafts, as many as the answer had room for, and have accepted all of them.
    """
    short = sum(answer.histogram[:drafts])
    full = (answer.num_spec_steps or 0) * drafts == (answer.total_draft_tokens or 0)
    return short if full else max(short - 1, 0)


def _record(case: Case, difference: Difference, verdict: Verdict, control: Chunk, seen: Chunk) -> dict[str, Any]:
    best = verdict.best
    return {
        "prompt": case.prompt,
        "num_draft_tokens": case.drafts,
        "company": case.company,
        "kind": verdict.kind,
        "why": verdict.why,
        "position": difference.position,
        "expected_id": _at(control, difference.position),
        "seen_id": _at(seen, difference.position),
        "margin": None if best is None else best.margin,
        "threshold": verdict.threshold,
        "best": None if best is None else best.as_list(),
        "context": _context(control.text, seen.text),
        "expected": list(difference.expected),
        "seen": list(difference.seen),
        "expected_text": difference.expected_text,
        "seen_text": difference.seen_text,
    }


def _at(answer: Chunk, position: int) -> int | None:
    return answer.ids[position] if position < len(answer.ids) else None


def _context(left: str, right: str) -> str:
    """Return the end of what both texts begin with."""
    both = min(len(left), len(right))
    end = next((i for i in range(both) if left[i] != right[i]), both)
    return left[max(end - _CONTEXT, 0) : end]
