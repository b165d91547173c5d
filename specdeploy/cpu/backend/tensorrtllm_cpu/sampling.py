"""From logits to a token: adjust, then the most likely token, or one drawn from what is left after truncation.

Pure NumPy; randomness comes in as a number in [0, 1). The order of the steps and the meaning of each parameter are
those of TensorRT-LLM's decoder: bias, temperature, the penalties (over prompt and generated tokens alike), minimum
length, bad words, top-k, top-p. The distribution made here is the one that tokens are drawn from *and* the one that
rejection sampling compares, so that speculation cannot differ from plain decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tensorrtllm_cpu.faults import RequestRefused
from tensorrtllm_cpu.words import Word, forbidden_next

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplingParams:
    """How tokens are chosen for one request; the defaults are greedy decoding.

    ``top_k`` 0 and ``top_p`` 0 mean "not set". ``min_tokens`` keeps ``end_id`` away from that many first new tokens.
    ``embedding_bias`` is float32 ``[vocab]``, added to the logits.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    end_id: int | None = None
    bad_words: tuple[Word, ...] = ()
    embedding_bias: NDArray[np.float32] | None = None

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken: the default, ``top_k`` 1 or ``temperature`` 0."""
        return self.temperature == 0.0 or self.top_k == 1 or (self.top_k == 0 and self.top_p == 0.0)

    @property
    def penalised(self) -> bool:
        """Whether tokens that occurred already are treated differently."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def adjusts(self) -> bool:
        """Whether the logits may be changed at all before a token is chosen."""
        scaled = not self.greedy and self.temperature != 1.0
        bounded = self.min_tokens > 0 and self.end_id is not None
        return scaled or self.penalised or bounded or bool(self.bad_words) or self.embedding_bias is not None


def adjust(
    logits: NDArray[np.float32], history: NDArray[np.int32], generated: int, params: SamplingParams
) -> NDArray[np.float32]:
    """Return the logits that a token is chosen by; ``logits`` itself, not a copy, when nothing changes.

    Args:
        logits: ``[vocab]``, as the engine gave them.
        history: All ids before the token to choose, prompt included.
        generated: How many of them are new.
        params: What to apply.

    Raises:
        RequestRefused: No token is left to choose.
    """
    if not params.adjusts:
        return logits
    adjusted = logits.astype(np.float32, copy=True)
    if params.embedding_bias is not None:
        adjusted += params.embedding_bias
    if not params.greedy:
        adjusted /= np.float32(params.temperature)
    if params.penalised:
        _penalise(adjusted, history, params)
    if params.end_id is not None and generated < params.min_tokens:
        adjusted[params.end_id] = -np.inf
    if params.bad_words:
        adjusted[forbidden_next(history, params.bad_words)] = -np.inf
    if not np.isfinite(adjusted.max()):
        raise RequestRefused("bad words, bias and min_tokens together forbid every token; allow at least one")
    return adjusted


def _penalise(logits: NDArray[np.float32], history: NDArray[np.int32], params: SamplingParams) -> None:
    """Apply repetition, presence and frequency penalties in place to every id that is in ``history``."""
    seen, counts = np.unique(history, return_counts=True)
    values = logits[seen]
    repetition = np.float32(params.repetition_penalty)
    values = np.where(values < 0, values * repetition, values / repetition)
    logits[seen] = values - np.float32(params.presence_penalty) - counts.astype(np.float32) * params.frequency_penalty


def most_likely(adjusted: NDArray[np.float32]) -> int:
    """Return the id of the highest logit, the lowest id of several equal ones."""
    return int(adjusted.argmax())


def distribution(adjusted: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    """Return the probabilities ``[vocab]`` that a token is drawn from: softmax, cut to top-k, then to top-p, rescaled.

    A token of exactly the probability at the edge is kept or dropped by its id, lowest first, so the result is the same
    on every machine. Greedy decoding is all mass on the most likely token.
    """
    vocab = len(adjusted)
    if params.greedy:
        return _spread(np.ones(1), np.array([most_likely(adjusted)]), vocab)
    if not 0 < params.top_k < vocab:
        return _cut_to_mass(_softmax(adjusted), params.top_p)
    kept = _highest(adjusted, params.top_k)
    return _spread(_cut_to_mass(_softmax(adjusted[kept]), params.top_p), kept, vocab)


def _spread(values: NDArray[np.float64], ids: NDArray[np.intp], vocab: int) -> NDArray[np.float64]:
    """Return ``[vocab]`` with ``values`` at ``ids`` and zero elsewhere."""
    whole = np.zeros(vocab)
    whole[ids] = values
    return whole


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return probabilities; the exponentials are taken in the engine's precision, their sum in a higher one."""
    weights: NDArray[np.float64] = np.exp(logits - logits.max()).astype(np.float64)
    weights /= weights.sum()
    return weights


def _highest(logits: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Return the ids of the ``count`` highest logits, of equal ones the lowest."""
    edge = np.partition(logits, len(logits) - count)[len(logits) - count]
    above = np.flatnonzero(logits > edge)
    return np.concatenate([above, np.flatnonzero(logits == edge)[: count - len(above)]])


def _cut_to_mass(probabilities: NDArray[np.float64], mass: float) -> NDArray[np.float64]:
    """Return the fewest, most likely tokens that hold at least ``mass``, rescaled to 1; 0 and 1 cut nothing.

    Of n tokens, those below ``(1 - mass) / n`` hold less than ``1 - mass`` together and are never needed, so only the
    others are sorted: usually a few hundred of a large vocabulary.
    """
    if not 0.0 < mass < 1.0:
        return probabilities
    candidates = np.flatnonzero(probabilities >= (1.0 - mass) / len(probabilities))
    order = candidates[np.argsort(-probabilities[candidates], kind="stable")]
    last = int(np.searchsorted(np.cumsum(probabilities[order]), mass, side="left"))
    kept = order[: last + 1]
    values = probabilities[kept]
    return _spread(values / values.sum(), kept, len(probabilities))


def draw(weights: NDArray[np.float64], uniform: float) -> int:
    """Return the id at ``uniform`` (in [0, 1)) of the cumulated ``weights``, which need not sum to 1.

    A weight of zero is never drawn.
    """
    cumulated = np.cumsum(weights)
    total = cumulated[-1]
    chosen = int(np.searchsorted(cumulated, uniform * total, side="right"))
    # Rounding can put `uniform * total` on the total itself; the last id that has weight is meant then.
    return min(chosen, int(np.searchsorted(cumulated, total, side="left")))


def log_probability(adjusted: NDArray[np.float32], token: int) -> float:
    """Return the log-softmax of ``token``, before top-k and top-p; minus infinity for a banned token."""
    highest = float(adjusted.max())
    return float(adjusted[token]) - highest - float(np.log(np.exp(adjusted - highest).sum(dtype=np.float64)))
