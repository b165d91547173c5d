"""Whole requests on a table model: verification equals plain decoding, and requests end where they should."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.unit.cpu_backend.table_model import TableEngine, TableModel

PROMPT = [3, 1, 4]


def speculate(
    engine: TableEngine, prompt: list[int], count: int, drafts: list[list[int]], **inputs: object
) -> tuple[list[int], int]:
    """Decode ``count`` tokens in rounds that carry ``drafts`` in turn; return the ids and the number of rounds."""
    got: list[int] = []
    rounds = 0
    while len(got) < count:
        draft = drafts[rounds % len(drafts)]
        sent = {"draft_input_ids": draft} if draft else {}
        new = engine.run(prompt + got, count - len(got), **sent, **inputs).ids
        assert 1 <= len(new) <= (len(draft) + 1 if draft else count)
        got += new
        rounds += 1
    return got, rounds


TOKEN = st.integers(0, 6)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1000),
    prompt=st.lists(TOKEN, min_size=1, max_size=20),
    count=st.integers(1, 12),
    drafts=st.lists(st.lists(TOKEN, max_size=9), min_size=1, max_size=6),
    reuse=st.booleans(),
)
def test_greedy_with_any_drafts_equals_plain_decoding(
    seed: int, prompt: list[int], count: int, drafts: list[list[int]], reuse: bool
) -> None:
    """Right, wrong, no drafts, or more drafts than there is room for: the ids are those of one step at a time."""
    engine = TableEngine(TableModel(seed=seed), slots=1, reuse=reuse)

    ids, _ = speculate(engine, prompt, count, drafts)

    assert ids == engine.model.greedy(prompt, count)
    assert engine.run(prompt, count).ids == ids


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1000), drafts=st.lists(TOKEN, min_size=1, max_size=6), bad=TOKEN, end=TOKEN)
def test_what_depends_on_history_is_the_same_inside_a_verification(
    seed: int, drafts: list[int], bad: int, end: int
) -> None:
    """Penalties, bad words and bias treat a verified token as a plainly decoded one."""
    engine = TableEngine(TableModel(seed=seed))
    inputs = {
        "repetition_penalty": [1.7],
        "frequency_penalty": [0.4],
        "bad_words_list": [[bad, end, bad], [1, 3, -1]],
        "embedding_bias": [0.5, 0, 0, -0.5, 0, 0, 0],
    }
    plain = engine.run(PROMPT, 10, **inputs).ids

    # The first draft is right, so that the ones after it are looked at with a history.
    assert speculate(engine, PROMPT, 10, [[plain[0], *drafts]], **inputs)[0] == plain
    assert bad not in plain


def test_right_drafts_are_all_accepted_in_one_pass() -> None:
    """K right drafts give K + 1 tokens from one forward pass after the prompt's own."""
    engine = TableEngine()
    right = engine.model.greedy(PROMPT, 5)

    job = engine.run(PROMPT, 20, draft_input_ids=right[:4])

    assert job.ids == right
    assert (job.answers[0].accepted, job.answers[0].drafted) == (4, 4)
    assert engine.model.caches[0].passes == [len(PROMPT) + 4]


def test_a_request_with_drafts_is_one_verification() -> None:
    """It ends after its pass although more tokens were allowed, as the C++ backend does."""
    engine = TableEngine()
    wrong = (engine.model.greedy(PROMPT, 1)[0] + 1) % engine.model.vocab

    job = engine.run(PROMPT, 20, draft_input_ids=[wrong, wrong])

    assert job.ids == engine.model.greedy(PROMPT, 1)
    assert (job.answers[0].accepted, job.answers[0].drafted) == (0, 2)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), drafts=st.lists(TOKEN, max_size=6))
def test_sampled_match_uses_the_seed_as_plain_sampling_does(seed: int, drafts: list[int]) -> None:
    """One random number per token: the tokens of a verification are the first ones of the plain run with that seed."""
    engine = TableEngine()
    sampled = {"runtime_top_p": [1.0], "temperature": [1.3], "seed": np.array([seed], np.uint64)}
    plain = engine.run(PROMPT, 8, **sampled).ids

    verified = engine.run(PROMPT, 8, draft_input_ids=drafts or None, **sampled).ids

    assert plain[: len(verified)] == verified
    assert engine.run(PROMPT, 8, **sampled).ids == plain


def test_without_a_seed_runs_differ() -> None:
    """No seed means fresh randomness, not seed 0."""
    engine = TableEngine(TableModel(spread=0.1))

    assert len({tuple(engine.run(PROMPT, 12, runtime_top_p=[1.0]).ids) for _ in range(5)}) > 1


def test_rejection_sampling_of_whole_requests_has_the_targets_distribution() -> None:
    """With temperature and top-k on both sides, the first two tokens are distributed as plain sampling writes them."""
    target, draft = TableEngine(TableModel(seed=1, vocab=4)), TableEngine(TableModel(seed=2, vocab=4))
    how = {"runtime_top_k": [3], "temperature": [1.5]}
    prompt = [1, 2]

    def pair(trial: int) -> tuple[int, ...]:
        out: list[int] = []
        while len(out) < 2:
            seed = {"seed": np.array([2 * trial + len(out)], np.uint64)}
            drafted = draft.run(prompt + out, 2, return_generation_logits=[True], **how, **seed).answers[0]
            sent = {"draft_input_ids": drafted.ids, "draft_logits": np.stack(drafted.logits)}
            salt = {"seed": np.array([10**6 + 2 * trial + len(out)], np.uint64)}
            out += target.run(prompt + out, 3, **sent, **how, **salt).ids
        return tuple(out[:2])

    def chances(ids: list[int]) -> np.ndarray:
        scaled = target.model.row(ids).astype(np.float64) / 1.5
        weights = np.where(scaled >= np.sort(scaled)[-3], np.exp(scaled), 0.0)
        return weights / weights.sum()

    trials = 3000
    expected = {(a, b): trials * chances(prompt)[a] * chances([*prompt, a])[b] for a in range(4) for b in range(4)}
    possible = [cell for cell, count in expected.items() if count > 0]
    seen = Counter(pair(trial) for trial in range(trials))

    assert set(seen) <= set(possible)
    assert stats.chisquare([seen[c] for c in possible], [expected[c] for c in possible]).pvalue > 1e-3


def test_draft_acceptance_threshold_reaches_the_verification() -> None:
    """At threshold 0 every draft that the target could write is accepted."""
    engine = TableEngine()
    logits = np.zeros((3, engine.model.vocab), np.float32)
    drafts = {"draft_input_ids": [0, 0, 0], "draft_logits": logits, "runtime_top_p": [1.0]}

    job = engine.run(PROMPT, 8, **drafts, draft_acceptance_threshold=[0.0])

    assert job.answers[0].accepted == 3


def test_the_end_id_ends_a_request_and_is_its_last_id() -> None:
    """Also in the middle of accepted drafts; what was drafted behind it is dropped and not counted as accepted."""
    engine = TableEngine(TableModel(seed=3))
    plain = engine.model.greedy(PROMPT, 6)
    end = plain[2]
    assert end not in plain[:2]

    assert engine.run(PROMPT, 6, end_id=[end]).ids == plain[:3]
    verified = engine.run(PROMPT, 6, end_id=[end], draft_input_ids=plain[:5])
    assert verified.ids == plain[:3]
    assert verified.answers[0].accepted == 3


def test_an_end_id_of_minus_one_ends_nothing() -> None:
    """-1 is the templates' way to say that no token ends the answer."""
    engine = TableEngine()

    assert len(engine.run(PROMPT, 9, end_id=[-1]).ids) == 9


def test_a_stop_word_ends_a_request_also_across_rounds() -> None:
    """A stop sequence whose beginning came in with the prompt of a later round still stops."""
    engine = TableEngine(TableModel(seed=3))
    plain = engine.model.greedy(PROMPT, 6)
    stop = {"stop_words_list": [plain[1:3], [2, -1]]}

    assert engine.run(PROMPT, 6, **stop).ids == plain[:3]
    assert engine.run(PROMPT + plain[:2], 4, **stop).ids == plain[2:3]


def test_min_tokens_counts_the_tokens_of_the_request() -> None:
    """The end id is held off inside a verification too."""
    engine = TableEngine(TableModel(seed=3))
    plain = engine.model.greedy(PROMPT, 3)
    held = {"end_id": [plain[2]], "min_tokens": [3]}

    ids = engine.run(PROMPT, 6, **held).ids

    assert ids[:2] == plain[:2]
    assert ids[2] != plain[2]
    assert engine.run(PROMPT, 6, draft_input_ids=plain, **held).ids == ids[:3]


def test_long_prompts_are_fed_in_chunks_and_the_drafts_with_the_last() -> None:
    """No pass is longer than a chunk and the drafts; the answer is that of one pass."""
    engine = TableEngine(chunk=8)
    prompt = [token % 7 for token in range(30)]
    right = engine.model.greedy(prompt, 4)

    assert engine.run(prompt, 10, draft_input_ids=right[:3]).ids == right
    assert engine.model.caches[0].passes == [8, 8, 8, 9]


def test_log_probs_and_logits_come_with_the_ids_they_belong_to() -> None:
    """One log probability and one row of raw logits per id, in plain decoding and in verification alike."""
    engine = TableEngine(TableModel(seed=8))
    wanted = {"return_log_probs": [True], "return_generation_logits": [True]}
    plain = engine.run(PROMPT, 4, **wanted).answers[0]
    verified = engine.run(PROMPT, 4, draft_input_ids=plain.ids[:3], **wanted).answers[0]

    assert verified.log_probs == pytest.approx(plain.log_probs)
    assert verified.cumulative_log_prob == pytest.approx(sum(plain.log_probs))
    np.testing.assert_array_equal(np.stack(verified.logits), np.stack(plain.logits))
    np.testing.assert_array_equal(plain.logits[0], engine.model.row(PROMPT))


def test_streaming_answers_hold_each_new_id_once() -> None:
    """A streaming request is answered after every pass that emits; joined the answers are the whole."""
    engine = TableEngine()

    job = engine.run(PROMPT, 5, streaming=[True], return_log_probs=[True])

    assert [len(answer.ids) for answer in job.answers] == [1, 1, 1, 1, 1]
    assert [len(answer.log_probs) for answer in job.answers] == [1, 1, 1, 1, 1]
    assert job.ids == engine.model.greedy(PROMPT, 5)
    assert job.ended == 1
