"""The decoder's loop over CPU engines: sampled answers where draft and target may not choose among the same tokens."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from scipy.stats import chisquare

from tests.unit.cpu_backend.table_model import TableEngine, TableModel

sys.path.append(str(Path(__file__).parents[3] / "specdeploy" / "triton" / "models" / "speculative_decoder" / "1"))

from decoder_loop import Answer, Draft, DraftTargetLoop, Plan  # lies where Triton wants it

VOCAB, END, TOKENS, TOP_K = 4, 3, 3, 2
PROMPT = np.array([1, 2], np.int32)
SAMPLES = 800
HOW = {"runtime_top_k": [TOP_K]}


class Drafting:
    """A draft engine as the decoder calls it, which is always as ready to end as to go on."""

    def __init__(self) -> None:
        model = TableModel(seed=2, vocab=VOCAB, spread=0.2)
        model.table[:, :, END] = model.table[:, :, :END].max(axis=-1)
        self._engine = TableEngine(model)
        self.logits = np.empty((0, VOCAB), np.float32)

    def __call__(self, ids, count, *, seed) -> Draft:
        """Propose."""
        asked = {"return_generation_logits": [True], "seed": np.array([seed], np.uint64), **HOW}
        (answer,) = self._engine.run(ids.tolist(), count, **asked).answers
        self.logits = np.stack(answer.logits)
        return Draft(ids=answer.ids, logits=self.logits)


class Verifying:
    """A target engine as the decoder calls it; *smuggled* gives it the logits that the loop keeps back."""

    def __init__(self, smuggled: Drafting | None = None) -> None:
        self._engine = TableEngine(TableModel(seed=1, vocab=VOCAB, spread=0.5))
        self._smuggled = smuggled

    def __call__(self, ids, draft, count, *, seed, min_tokens) -> Answer:
        """Verify, or decode."""
        sent = {"seed": np.array([seed], np.uint64), "end_id": [END], "min_tokens": [min_tokens], **HOW}
        logits = self._smuggled.logits if self._smuggled else draft.logits
        if draft.ids.size:
            sent["draft_input_ids"] = draft.ids
            if logits is not None:
                sent["draft_logits"] = logits
        return Answer(ids=np.array(self._engine.run(ids.tolist(), count, **sent).ids, np.int32))


def expected() -> dict[tuple[int, ...], float]:
    """Return the chance of every answer that the target alone would write; the end token may not come."""
    model = TableModel(seed=1, vocab=VOCAB, spread=0.5)

    def chance(ids: list[int], token: int) -> float:
        row = model.row(ids).astype(np.float64)
        row[END] = -np.inf
        weights = np.where(row >= np.sort(row)[-TOP_K], np.exp(row), 0.0)
        return float(weights[token] / weights.sum())

    answers = {}
    for answer in itertools.product(range(VOCAB), repeat=TOKENS):
        ids = [PROMPT.tolist() + list(answer[:at]) for at in range(TOKENS)]
        answers[answer] = float(np.prod([chance(before, token) for before, token in zip(ids, answer, strict=True)]))
    return {answer: chance for answer, chance in answers.items() if chance}


def p_value(*, smuggle: bool) -> float:
    """Return the chi-square p-value of many answers; 0 where one came that cannot be."""
    plan = Plan(max_new_tokens=TOKENS, num_draft_tokens=2, end_id=END, seed=0, min_tokens=TOKENS)
    draft = Drafting()
    target = Verifying(draft if smuggle else None)
    seen: Counter = Counter()
    for seed in range(SAMPLES):
        groups = DraftTargetLoop(PROMPT, dataclasses.replace(plan, seed=seed), draft, target)
        seen[tuple(token for group in groups for token in group.answer.ids.tolist())] += 1
    due = expected()
    if not seen.keys() <= due.keys():
        return 0.0
    return float(chisquare([seen[answer] for answer in due], [SAMPLES * chance for chance in due.values()]).pvalue)


def test_before_min_tokens_sampled_answers_have_the_targets_distribution() -> None:
    """The draft draws the end token among its two likeliest, the target looks for two others: tokens are matched."""
    assert p_value(smuggle=False) > 1e-3


def test_the_drafts_logits_would_bend_it() -> None:
    """The test above has the power to notice: rejection sampling on those logits is not exact here."""
    assert p_value(smuggle=True) < 1e-6
