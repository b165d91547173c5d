"""Drafts that are looked up in the text: where they are found, and that they change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from decoder_loop import DraftTargetLoop, Plan
from decoder_ngram import NgramDraft
from hypothesis import given
from hypothesis import strategies as st
from table_engines import TableModel, TableTarget, greedy_answer


def draft(ids, count=3, longest=4) -> list[int]:
    """Return what is proposed after a text."""
    return NgramDraft(longest)(np.array(ids, np.int32), count, seed=0).ids.tolist()


@pytest.mark.parametrize(
    ("ids", "proposed"),
    [
        pytest.param([1, 2, 3, 4, 5, 1, 2], [3, 4, 5], id="what followed before"),
        pytest.param([9, 2, 7, 7, 7, 1, 2, 3, 4, 5, 1, 2], [3, 4, 5], id="the longest ending decides"),
        pytest.param([1, 2, 3, 8, 8, 1, 2, 4, 9, 9, 1, 2], [4, 9, 9], id="the latest place with enough after it"),
        pytest.param([5, 5, 5], [5], id="a run goes on as far as it is known"),
        pytest.param([1, 2, 3], [], id="a new ending has no drafts"),
        pytest.param([1], [], id="nor has a single token"),
    ],
)
def test_the_tokens_that_followed_are_proposed(ids, proposed) -> None:
    """The text itself is the draft model."""
    assert draft(ids) == proposed


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 6), st.integers(1, 5))
def test_every_draft_stands_in_the_text_after_its_own_ending(ids, count, longest) -> None:
    """At most as many as asked for, and each proposal is a copy of what stood there."""
    proposed = draft(ids, count, longest)

    assert len(proposed) <= count
    if proposed:
        text = [*ids, *proposed]
        joined = [ids[-1], *proposed]
        assert any(ids[at : at + len(joined)] == joined for at in range(len(ids)))
        assert text[: len(ids)] == ids


@given(st.integers(0, 10**6), st.integers(1, 6), st.lists(st.integers(0, 7), min_size=1, max_size=20))
def test_the_answer_is_the_targets_own(seed, count, prompt) -> None:
    """Whatever is looked up, greedy decoding gives the same ids."""
    model = TableModel(seed, 8)
    plan = Plan(max_new_tokens=25, num_draft_tokens=count, end_id=3, seed=1)
    loop = DraftTargetLoop(np.array(prompt, np.int32), plan, NgramDraft(3), TableTarget(model, end_id=3))

    assert [int(token) for group in loop for token in group.answer.ids] == greedy_answer(model, prompt, 25, 3)
