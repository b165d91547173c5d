"""What speculation can gain: tokens per verify step, what a step costs, and the speed-up that follows.

Knows the planning formula of chain drafting and nothing about engines or measurements. The formula is that of
Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding" (2023), section 3.3,
extended by the cost of verifying several tokens at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


def expected_tokens_per_step(acceptance: float, num_draft_tokens: int) -> float:
    """Return the tokens that one verify step yields when each draft is accepted with the same probability.

    ``E = 1 + a + a**2 + ... + a**g = (1 - a**(g + 1)) / (1 - a)``: the drafts up to the first that is refused, and one
    token of the target's own.

    Args:
        acceptance: Probability ``a`` that a draft is accepted, given that the ones before it were; from 0 to 1.

        num_draft_tokens: Drafts per step, ``g``.

    Raises:
        ConfigError: An argument is out of range.
    """
    if not 0 <= acceptance <= 1 or num_draft_tokens < 0:
        raise ConfigError(
            f"acceptance {acceptance} with {num_draft_tokens} drafts has no meaning",
            hint="Acceptance lies between 0 and 1; the number of drafts is not negative.",
        )
    return float(sum(acceptance**position for position in range(num_draft_tokens + 1)))


def tokens_per_step(per_position: Sequence[float]) -> float:
    """Return the tokens that one verify step yields, from measured acceptance by position.

    ``E = 1 + p_1 + ... + p_g`` with ``p_i`` the share of steps that kept the i-th draft.
    """
    return 1.0 + sum(per_position)


def predict_speedup(
    tokens: float, num_draft_tokens: float, *, draft_cost: float, verify_cost: float = 1.0, overhead: float = 0.0
) -> float:
    """Return the speed-up over decoding with the target alone.

    ``speed-up = E / (g * c + v + o)``: a step yields ``E`` tokens, each of which would have cost the target one
    forward pass, and takes ``g`` draft passes, one verification and whatever the loop itself costs.

    Args:
        tokens: Tokens per verify step, ``E``.

        num_draft_tokens: Drafts per step, ``g``; a mean may be a fraction.

        draft_cost: Time of one draft pass divided by that of one target pass over a single token, ``c``.

        verify_cost: Time of one target pass over ``g + 1`` tokens divided by that over one, ``v``. Near 1 while memory
            bandwidth is the limit; it rises with the batch, which is why speculation pays less under load.

        overhead: Time per step spent outside both models, in the same unit, ``o``.

    Raises:
        ConfigError: A step would take no time, or a cost is negative.
    """
    costs = (draft_cost, verify_cost, overhead, num_draft_tokens)
    step = num_draft_tokens * draft_cost + verify_cost + overhead
    if min(costs) < 0 or step <= 0:
        raise ConfigError(
            f"a step of {num_draft_tokens} drafts cannot cost {draft_cost} each, {verify_cost} and {overhead}",
            hint="Costs are relative to one target pass: not negative, and not all zero.",
        )
    return tokens / step


def break_even_draft_cost(
    tokens: float, num_draft_tokens: float, *, verify_cost: float = 1.0, overhead: float = 0.0
) -> float:
    """Return the draft cost ratio at which the speed-up is exactly 1; negative when no draft could be cheap enough.

    Solves ``E = g * c + v + o`` for ``c``.

    Raises:
        ConfigError: Nothing is drafted, so that the draft's cost decides nothing.
    """
    if num_draft_tokens <= 0:
        raise ConfigError(
            f"{num_draft_tokens} drafts per step have no break-even cost", hint="Draft at least one token."
        )
    return (tokens - verify_cost - overhead) / num_draft_tokens
