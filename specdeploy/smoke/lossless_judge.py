"""Is a first difference a matter of numerics or a bug? The target's own logits decide, or else a second try does."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from specdeploy.smoke.capabilities import ENGINES, GRPC
from specdeploy.smoke.compare import first_difference
from specdeploy.smoke.lossless_engine import NoLogits, TargetLogits
from specdeploy.smoke.margins import is_tie, tie_margin

if TYPE_CHECKING:
    from specdeploy.smoke.margins import TopTwo
    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import Chunk, GenerateRequest

#: ``tie``: two tokens as good as each other, and either is right. ``divergence``: a bug. ``unstable``: the target alone
#: does not agree with itself there, once other requests run beside it. ``not judged``: others were found to be bugs.
Kind: TypeAlias = Literal["tie", "divergence", "unstable", "not judged"]

#: How often the target alone is asked again, when it gives no logits.
_TRIES: Final = 3
#: An answer may end by a token that is not handed out.
_END: Final = "end_id"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a difference is.

    Args:
        kind: See ``Kind``.

        why: What was seen that makes it so.

        threshold: Margin below which two tokens are a tie.

        best: The target's two best tokens there; None when it gives no logits.
    """

    kind: Kind
    why: str
    threshold: float
    best: TopTwo | None = None


class Judge:
    """Judges first differences between the target alone and the answers with drafts.

    Args:
        probe: Reaches the engine of the target, and the front door.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._threshold = tie_margin(probe.expect.target_precision, probe.expect.tie_margin)
        self._engine = TargetLogits(probe)
        self._without_logits = "" if {ENGINES, GRPC} <= probe.expect.capabilities else "it cannot be asked directly"

    def judge(self, request: GenerateRequest, control: Chunk, seen: Chunk, position: int) -> Verdict:
        """Say what the difference at ``position`` is.

        Args:
            request: What the target alone was asked.

            control: Its answer.

            seen: The answer with drafts.

            position: Of the first token that differs.
        """
        if control.ids == seen.ids:
            return self._verdict("divergence", "the token ids are the same, and the texts differ")
        if not self._without_logits:
            try:
                return self._by_logits(request, control, seen, position)
            except NoLogits as error:
                self._without_logits = str(error)
        return self._by_repetition(request, control, position)

    def _by_logits(self, request: GenerateRequest, control: Chunk, seen: Chunk, position: int) -> Verdict:
        best = self._engine.after(request.prompt, control.ids[:position])
        near = f"the target's two best tokens are {best.margin:.3g} apart"
        tokens = [chunk.ids[position] for chunk in (control, seen) if position < len(chunk.ids)]
        complete = all(position < len(chunk.ids) or chunk.finish_reason == _END for chunk in (control, seen))
        if not complete:
            return self._verdict("divergence", "one answer is shorter without an end token", best)
        if is_tie(best, tokens, self._threshold):
            return self._verdict("tie", near, best)
        if not set(tokens) <= set(best.ids):
            strange = ", ".join(str(token) for token in tokens if token not in best.ids)
            return self._verdict("divergence", f"{strange} is none of the target's two best tokens", best)
        return self._verdict("divergence", f"{near}, which is more than {self._threshold:g}", best)

    def _by_repetition(self, request: GenerateRequest, control: Chunk, position: int) -> Verdict:
        """Let the target alone answer again, among others: the flip test."""
        others = [dataclasses.replace(request, prompt=prompt.text) for prompt in self._probe.expect.prompts]
        for size in range(1, _TRIES + 1):
            again = self._among(request, others[:size])
            difference = first_difference(control, again)
            if difference is not None and difference.position <= position:
                why = f"the target alone differs from itself at token {difference.position} among {size} other requests"
                return self._verdict("unstable", why)
        why = f"no logits ({self._without_logits}), and the target alone repeats itself among other requests"
        return self._verdict("divergence", why)

    def _among(self, request: GenerateRequest, others: list[GenerateRequest]) -> Chunk:
        with ThreadPoolExecutor(len(others) + 1) as pool:
            beside = [pool.submit(self._probe.whole, other) for other in others]
            answer = pool.submit(self._probe.whole, request).result()
            for future in beside:
                future.result()
        return answer

    def _verdict(self, kind: Kind, why: str, best: TopTwo | None = None) -> Verdict:
        return Verdict(kind=kind, why=why, threshold=self._threshold, best=best)
