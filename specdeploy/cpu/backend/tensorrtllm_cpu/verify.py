"""Which drafted tokens the target accepts, and the token that follows them. Pure: no engine, no randomness of its own.

Two rules, both exact. By *match*: the target chooses its own token at each position (the most likely one, or a drawn
one) and a draft is accepted while it is that token. By *rejection* (Leviathan et al. 2023, arXiv:2211.17192; Chen et
al. 2023, arXiv:2302.01318): a draft drawn from q is accepted with probability min(1, p/q); the first one that is not is
replaced by a draw from max(0, p - q), rescaled. Either way the emitted tokens are distributed as the target's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tensorrtllm_cpu.sampling import draw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Probabilities = Callable[[int], "NDArray[np.float64]"]
Acceptance = Callable[[float, float], bool]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one verification emits: ``accepted`` drafts and then one token of the target's own."""

    ids: tuple[int, ...]
    accepted: int


def by_match(drafts: Sequence[int], choose: Callable[[int], int]) -> Verdict:
    """Accept drafts while they are the token that the target chooses.

    Args:
        drafts: The drafted ids.
        choose: The target's token at position ``i``, given the drafts before it; asked once per position, in order,
            and never past the first mismatch.
    """
    ids: list[int] = []
    for position, draft in enumerate(drafts):
        ids.append(choose(position))
        if ids[-1] != draft:
            return Verdict(ids=tuple(ids), accepted=position)
    ids.append(choose(len(drafts)))
    return Verdict(ids=tuple(ids), accepted=len(drafts))


def by_rejection(
    drafts: Sequence[int],
    target: Probabilities,
    draft: Probabilities,
    *,
    accept: Acceptance,
    uniform: Callable[[], float],
) -> Verdict:
    """Accept drafts by comparing the two models' probabilities; see the module's text.

    Args:
        drafts: The drafted ids, each drawn from ``draft`` of its position.
        target: p at position ``i``, ``[vocab]``, given the drafts before it.
        draft: q at position ``i``, likewise.
        accept: Whether a draft of target probability p and draft probability q is accepted: ``at_random`` or
            ``above`` a threshold.
        uniform: A fresh random number in [0, 1).
    """
    ids: list[int] = []
    for position, token in enumerate(drafts):
        p, q = target(position), draft(position)
        if q[token] <= 0.0:
            # This token cannot have been drawn from q, so the rule does not apply; matching is exact for any draft.
            ids.append(draw(p, uniform()))
            if ids[-1] != token:
                return Verdict(ids=tuple(ids), accepted=position)
        elif accept(float(p[token]), float(q[token])):
            ids.append(token)
        else:
            ids.append(draw(residual(p, q), uniform()))
            return Verdict(ids=tuple(ids), accepted=position)
    ids.append(draw(target(len(drafts)), uniform()))
    return Verdict(ids=tuple(ids), accepted=len(drafts))


def residual(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return max(0, p - q), not rescaled; p itself where nothing is left, as when a threshold refuses p = q."""
    left = np.maximum(p - q, 0.0)
    return left if left.sum() > 0.0 else p


def at_random(uniform: Callable[[], float]) -> Acceptance:
    """Return the exact rule: accept with probability min(1, p/q)."""
    return lambda p, q: uniform() * q < p


def above(threshold: float) -> Acceptance:
    """Return the relaxed rule of ``draft_acceptance_threshold``: accept when p > threshold * q, without chance.

    This is the test of TensorRT-LLM's external-draft-tokens decoder; it gives up exactness for longer acceptance.
    """
    return lambda p, q: p > threshold * q
