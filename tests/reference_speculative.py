"""Speculative sampling as the papers write it, slowly and in plain Python.

Algorithm 1 of Leviathan et al. 2023 (arXiv:2211.17192) and Algorithm 2 of Chen et al. 2023 (arXiv:2302.01318).

Imports nothing of ours and no numpy, so that it shares no mistake with what is tested against it. Beyond the papers it
knows what TensorRT-LLM adds: temperature, top-k and top-p shape both distributions alike; a threshold t accepts a draft
when p > t q, without chance; and without the draft's logits a draft is accepted while it is what the target draws.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Distribution = list[float]


def shaped(logits: Sequence[float], *, temperature: float = 1.0, top_k: int = 0, top_p: float = 0.0) -> Distribution:
    """Return the probabilities that a token is drawn with: top-k first, then top-p of what is left; 0 cuts nothing."""
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    kept = ranked[:top_k] if top_k else ranked
    weights = {token: math.exp((logits[token] - logits[ranked[0]]) / temperature) for token in kept}
    total = sum(weights.values())
    nucleus, mass = [], 0.0
    for token in kept:
        nucleus.append(token)
        mass += weights[token] / total
        if 0.0 < top_p < 1.0 and mass >= top_p:
            break
    left = sum(weights[token] for token in nucleus)
    return [weights[token] / left if token in nucleus else 0.0 for token in range(len(logits))]


def sample(weights: Sequence[float], r: float) -> int:
    """Return the token at r (from 0 to 1) of the cumulated weights, which need not sum to 1."""
    reached, total = 0.0, sum(weights)
    for token, weight in enumerate(weights):
        reached += weight
        if weight > 0 and r * total < reached:
            return token
    return max(token for token, weight in enumerate(weights) if weight > 0)


def verify(
    drafts: Sequence[int],
    target: Sequence[Distribution],
    draft: Sequence[Distribution] | None,
    uniform: Callable[[], float],
    *,
    threshold: float | None = None,
) -> list[int]:
    """Return what one verification emits: the accepted drafts, and one token of the target's own.

    Args:
        drafts: x_1 to x_k.
        target: p_1 to p_(k+1), each given the drafts before it.
        draft: q_1 to q_k; None where they are not known.
        uniform: Returns the next random number from 0 to 1.
        threshold: Accepts in place of chance.
    """
    out: list[int] = []
    for i, x in enumerate(drafts):
        p, q = target[i], draft[i] if draft is not None else None
        if q is None or q[x] == 0:
            # x was not drawn from a q that is known: it is accepted when the target itself draws it.
            own = sample(p, uniform())
            out.append(own)
            if own != x:
                return out
            continue
        # Accepted with probability min(1, p / q).
        accepted = uniform() < min(1.0, p[x] / q[x]) if threshold is None else p[x] > threshold * q[x]
        if not accepted:
            # From what p has more than q, rescaled; a threshold can refuse where nothing is left of it.
            rest = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
            return [*out, sample(rest if sum(rest) > 0 else p, uniform())]
        out.append(x)
    return [*out, sample(target[len(drafts)], uniform())]
