"""Tiny language models whose probabilities are a table, and engines over them, written from the papers and slow.

The next token depends on the last two. Acceptance follows Leviathan et al. 2023, section 2.3 (rejection sampling on the
draft's probabilities) or a plain match of tokens; ``broken`` names a wrong rule that a test of the distribution must
catch.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from decoder_loop import NO_DRAFT, Answer, Draft, EngineFault

if TYPE_CHECKING:
    from collections.abc import Callable


class TableModel:
    """Logits by the last two tokens, drawn from a seed.

    Args:
        seed: Of the table.
        vocab: Number of tokens.
        scale: Spread of the logits: the higher, the surer the model.
        doubt: How much of another table is mixed in, which makes a draft that agrees often with the model without it.
    """

    def __init__(self, seed: int, vocab: int, scale: float = 1.5, doubt: float = 0.0) -> None:
        self.vocab = vocab
        self._seed = seed
        self._scale = scale
        self._doubt = doubt
        self._rows: dict[tuple[int, int], np.ndarray] = {}

    def logits(self, context) -> np.ndarray:
        """Return the logits after a context."""
        padded = (0, 0, *context[-2:])
        pair = (int(padded[-2]), int(padded[-1]))
        if pair not in self._rows:
            own, other = (np.random.default_rng([self._seed, which, *pair]).normal(size=self.vocab) for which in (0, 1))
            self._rows[pair] = self._scale * (own + self._doubt * other)
        return self._rows[pair]

    def probabilities(self, context, *, banned: int = -1) -> np.ndarray:
        """Return the probabilities after a context, without the banned token."""
        weights = np.exp(self.logits(context))
        if banned >= 0:
            weights[banned] = 0
        return weights / weights.sum()


def greedy_answer(model: TableModel, prompt, max_tokens: int, end_id: int = -1, min_tokens: int = 0) -> list[int]:
    """Decode one token at a time, as the definition says."""
    answer: list[int] = []
    while len(answer) < max_tokens and not (answer and answer[-1] == end_id):
        banned = end_id if len(answer) < min_tokens else -1
        answer.append(int(model.probabilities([*prompt, *answer], banned=banned).argmax()))
    return answer


def answer_distribution(model: TableModel, prompt, max_tokens: int, end_id: int) -> dict[tuple[int, ...], float]:
    """Return the exact probability of every answer, by multiplying through the tree of tokens."""
    found: dict[tuple[int, ...], float] = {}
    for tokens in itertools.product(range(model.vocab), repeat=max_tokens):
        length = tokens.index(end_id) + 1 if end_id in tokens else max_tokens
        answer = tokens[:length]
        if answer not in found:
            steps = (model.probabilities([*prompt, *answer[:i]])[answer[i]] for i in range(length))
            found[answer] = float(np.prod(list(steps)))
    return found


class TableDraft:
    """A draft engine; ``choose`` replaces what the model would propose."""

    def __init__(
        self, model: TableModel, *, sampled: bool = False, logits: bool = False, choose: Callable | None = None
    ) -> None:
        self._model = model
        self._sampled = sampled
        self._logits = logits
        self._choose = choose
        self.calls: list[dict] = []
        self.fails_at = -1

    def __call__(self, ids, count, *, seed) -> Draft:
        """Propose as ``decoder_loop.DraftEngine`` says."""
        self.calls.append({"ids": ids.tolist(), "count": count, "seed": seed})
        if len(self.calls) == self.fails_at:
            raise EngineFault("the draft is gone")
        if self._choose:
            return Draft(ids=np.asarray(self._choose(ids.tolist(), count), np.int32))
        random = np.random.default_rng(seed)
        context = ids.tolist()
        for _ in range(count):
            p = self._model.probabilities(context)
            context.append(int(random.choice(p.size, p=p)) if self._sampled else int(p.argmax()))
        proposed = np.array(context[ids.size :], np.int32)
        rows = [self._model.logits(context[: ids.size + i]) for i in range(count)]
        return Draft(ids=proposed, logits=np.array(rows, np.float32) if self._logits else None)


class TableTarget:
    """A target engine: verifies in one call, or decodes; greedy or sampled."""

    def __init__(self, model: TableModel, *, end_id: int = -1, sampled: bool = False, broken: str = "") -> None:
        self._model = model
        self._end_id = end_id
        self._sampled = sampled
        self._broken = broken
        self.calls: list[dict] = []

    def __call__(self, ids, draft, count, *, seed, min_tokens) -> Answer:
        """Answer as ``decoder_loop.TargetEngine`` says."""
        self.calls.append({"ids": ids.tolist(), "drafts": draft.ids.size, "count": count, "min_tokens": min_tokens})
        random = np.random.default_rng(seed)
        tokens: list[int] = []
        while len(tokens) < count and not (tokens and tokens[-1] == self._end_id):
            context = [*ids.tolist(), *tokens]
            p = self._model.probabilities(context, banned=self._end_id if len(tokens) < min_tokens else -1)
            at = len(tokens)
            if at >= draft.ids.size:
                tokens.append(self._pick(p, random))
                if draft is not NO_DRAFT:
                    break
                continue
            token, accepted = self._verify(p, draft, at, random)
            tokens.append(token)
            if not accepted:
                break
        return Answer(ids=np.array(tokens, np.int32))

    def _pick(self, p, random) -> int:
        return int(random.choice(p.size, p=p)) if self._sampled else int(p.argmax())

    def _verify(self, p, draft, at, random) -> tuple[int, bool]:
        proposed = int(draft.ids[at])
        if draft.logits is None:
            token = self._pick(p, random)
            return token, token == proposed
        weights = np.exp(draft.logits[at].astype(np.float64))
        q = weights / weights.sum()
        if self._broken == "accepts all" or random.random() < p[proposed] / q[proposed]:
            return proposed, True
        residual = p if self._broken == "resamples from p" else np.maximum(p - q, 0)
        return int(random.choice(p.size, p=residual / residual.sum())), False
