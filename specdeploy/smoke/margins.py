"""How near two logits must be to count as equal, by the precision that the target computes in.

Speculation verifies several tokens in one pass, and plain decoding one: the sums of a matrix product are then taken in
another order, and the last digits of the logits differ. Where the two best tokens are as near as those digits, either
may win, and neither answer is wrong (vLLM says so of its own speculation: lossless in theory, not to the last bit).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

#: Logits of the best tokens of language models are mostly between 16 and 32. There, neighbouring numbers are 2**-3
#: apart in bfloat16 (8 bits of significand) and 2**-6 in float16 (11 bits). Two logits that are rounded one step apart
#: each, in opposite directions, move by two steps.
_BF16: Final = 2 * 2.0**-3
_FP16: Final = 2 * 2.0**-6
#: Neighbours in float32 are 2e-6 apart there, and what differs is not the last rounding but the sums of all layers:
#: up to 7e-5 between passes of 1 and of 2 to 8 tokens (SmolLM2-135M, CPU engine; 60 positions).
_FP32: Final = 1e-3
#: Activations that are quantised, too: one that falls on the other side of a step moves by the whole step.
_QUANTISED: Final = 2 * _BF16
#: The CPU engine quantises activations as it goes: up to 0.93 between the passes above at int8.
_CPU_QUANTISED: Final = 1.0

#: Precision of the weights, as the configuration names it -> logits that are this near are a tie. Weights that are
#: quantised alone are computed with in bfloat16 or float16.
TIE_MARGINS: Final[Mapping[str, float]] = {
    "fp32": _FP32,
    "fp16": _FP16,
    "bf16": _BF16,
    "int8": _CPU_QUANTISED,
    "int4": _CPU_QUANTISED,
    "int8_wo": _BF16,
    "int4_wo": _BF16,
    "int4_awq": _BF16,
    "fp8": _QUANTISED,
    "int8_sq": _QUANTISED,
    "w4a8_awq": _QUANTISED,
    "nvfp4": _QUANTISED,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopTwo:
    """The target's two most likely tokens at one position.

    Args:
        ids: The most likely one first.

        logits: Of the two, as the engine gave them.
    """

    ids: tuple[int, int]
    logits: tuple[float, float]

    @property
    def margin(self) -> float:
        """How much likelier the first is; the log of the ratio of their probabilities."""
        return self.logits[0] - self.logits[1]

    def as_list(self) -> list[list[Any]]:
        """Return plain data: id and logit of each."""
        return [[token, logit] for token, logit in zip(self.ids, self.logits, strict=True)]


def tie_margin(precision: str, override: float = 0.0) -> float:
    """Return how near the two best logits must be to be a tie.

    Args:
        precision: Of the target's weights; one that is not known counts as bfloat16.

        override: What the configuration says instead; 0 says nothing.
    """
    return override or TIE_MARGINS.get(precision, _BF16)


def top_two(logits: NDArray[Any]) -> TopTwo | None:
    """Return the two best of ``logits`` ``[vocab]``, of equal ones the lower id first.

    Returns:
        None where they are no logits: an engine that was not built to give them may answer zeros.
    """
    row = np.asarray(logits, np.float64).reshape(-1)
    if row.size < 2 or not np.isfinite(row.max()) or np.isnan(row).any() or row.max() == row.min():
        return None
    first = int(row.argmax())
    others = row.copy()
    others[first] = -np.inf
    second = int(others.argmax())
    return TopTwo(ids=(first, second), logits=(float(row[first]), float(row[second])))


def is_tie(best: TopTwo, tokens: Collection[int], threshold: float) -> bool:
    """Say whether the tokens that differ are the two best, and as good as each other.

    Args:
        best: What the target says at their position.

        tokens: The two; one alone where the other answer ended, as an end token is not always handed out.

        threshold: From :func:`tie_margin`.
    """
    return bool(tokens) and set(tokens) <= set(best.ids) and best.margin <= threshold
