"""The draft-target loop against slow references on random table models."""

from __future__ import annotations

from collections import Counter

import decoder_loop
import numpy as np
import pytest
from decoder_loop import NO_DRAFT, Answer, DraftTargetLoop, EngineFault, Plan, derive_seed
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from table_engines import TableDraft, TableModel, TableTarget, answer_distribution, greedy_answer

VOCAB = 6
END = 5
PROMPT = np.array([1, 2, 3], np.int32)


def plan(**changes) -> Plan:
    """Return a plan that speculates, with changes."""
    return Plan(**{"max_new_tokens": 12, "num_draft_tokens": 3, "end_id": END, "seed": 7, **changes})


def ids_of(groups) -> list[int]:
    """Return the whole answer."""
    return [token for group in groups for token in group.answer.ids.tolist()]


def right(model):
    """Draft what the target would write."""
    return lambda ids, count: greedy_answer(model, ids, count)


def wrong(model):
    """Draft what the target would never write."""
    return lambda ids, count: [(token + 1) % VOCAB for token in greedy_answer(model, ids, count)]


DRAFTS = {
    "right": right,
    "wrong": wrong,
    "empty": lambda model: lambda ids, count: [],
    "short": lambda model: lambda ids, count: greedy_answer(model, ids, max(count - 1, 1)),
    "longer than asked": lambda model: lambda ids, count: greedy_answer(model, ids, count + 9),
    "first right, then wrong": lambda model: lambda ids, count: [*greedy_answer(model, ids, 1), *[0] * (count - 1)],
}


@pytest.mark.parametrize("kind", DRAFTS)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    drafts=st.integers(1, 9),
    most=st.integers(1, 20),
    least=st.integers(0, 6),
)
def test_greedy_answers_do_not_depend_on_the_draft(kind, seed, drafts, most, least) -> None:
    """Whatever is drafted, the answer is the target's own, token for token."""
    model = TableModel(seed, VOCAB)
    draft = TableDraft(model, choose=DRAFTS[kind](model))
    target = TableTarget(model, end_id=END)

    answer = ids_of(
        DraftTargetLoop(
            PROMPT, plan(max_new_tokens=most, num_draft_tokens=drafts, min_tokens=min(least, most)), draft, target
        )
    )

    assert greedy_answer(model, PROMPT.tolist(), most, END, min(least, most)) == answer


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), slice_tokens=st.integers(0, 5), most=st.integers(1, 20))
def test_the_target_alone_gives_the_same_answer_in_slices_and_in_one_call(seed, slice_tokens, most) -> None:
    """How a control is sliced does not show in its answer."""
    model = TableModel(seed, VOCAB)
    target = TableTarget(model, end_id=END)
    alone = plan(num_draft_tokens=0, slice_tokens=slice_tokens, max_new_tokens=most)

    answer = ids_of(DraftTargetLoop(PROMPT, alone, TableDraft(model), target))

    assert greedy_answer(model, PROMPT.tolist(), most, END) == answer
    if not slice_tokens:
        assert len(target.calls) == 1


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), drafts=st.integers(1, 6), most=st.integers(1, 20))
def test_calls_never_ask_for_more_than_is_left(seed, drafts, most) -> None:
    """Drafts leave room for the target's own token, and every draft is verified against the tokens before it."""
    model, other = TableModel(seed, VOCAB), TableModel(seed + 1, VOCAB)
    draft, target = TableDraft(other), TableTarget(model, end_id=-1)

    list(DraftTargetLoop(PROMPT, plan(max_new_tokens=most, num_draft_tokens=drafts, end_id=-1), draft, target))

    for call in target.calls:
        assert len(call["ids"]) + call["count"] <= PROMPT.size + most
        assert call["count"] == call["drafts"] + 1
    assert all(1 <= call["count"] <= drafts for call in draft.calls)
    assert target.calls[0]["drafts"] == 0


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), longest=st.integers(1, 5), most=st.integers(1, 20), least=st.integers(0, 9))
def test_no_call_of_the_target_alone_is_longer_than_allowed(seed, longest, most, least) -> None:
    """Between two calls a request can be cancelled; how long they are does not show in the answer."""
    model = TableModel(seed, VOCAB)
    target = TableTarget(model, end_id=END)
    alone = plan(num_draft_tokens=0, longest_call=longest, max_new_tokens=most, min_tokens=min(least, most))

    answer = ids_of(DraftTargetLoop(PROMPT, alone, TableDraft(model), target))

    assert greedy_answer(model, PROMPT.tolist(), most, END, min(least, most)) == answer
    assert max(call["count"] for call in target.calls) <= longest


def test_the_first_token_comes_from_one_target_call_without_drafts() -> None:
    """The first token leaves before the draft has been asked for anything."""
    model = TableModel(3, VOCAB)
    draft, target = TableDraft(model), TableTarget(model)

    first = next(iter(DraftTargetLoop(PROMPT, plan(end_id=-1), draft, target)))

    assert (first.answer.ids.size, first.drafted, draft.calls) == (1, 0, [])


def test_a_right_draft_is_accepted_whole_and_a_wrong_one_not_at_all() -> None:
    """Accepted drafts are those the target agreed with."""
    model = TableModel(3, VOCAB)
    accepted = {}
    for kind in ("right", "wrong"):
        draft = TableDraft(model, choose=DRAFTS[kind](model))
        groups = list(DraftTargetLoop(PROMPT, plan(max_new_tokens=13, end_id=-1), draft, TableTarget(model)))
        accepted[kind] = [(group.drafted, group.accepted) for group in groups]

    assert accepted["right"] == [(0, 0), (3, 3), (3, 3), (3, 3)]
    assert {0} == {number for _, number in accepted["wrong"]}


def test_an_accepted_end_token_counts_as_accepted() -> None:
    """When the answer is cut after a drafted end token, there is no token of the target's own behind it."""
    model = TableModel(3, VOCAB)
    first = greedy_answer(model, PROMPT.tolist(), 3)
    draft = TableDraft(model, choose=right(model))

    groups = list(DraftTargetLoop(PROMPT, plan(end_id=first[2]), draft, TableTarget(model, end_id=first[2])))

    assert groups[-1].finish_reason == "end_id"
    assert (groups[-1].accepted, groups[-1].answer.ids.size) == (2, 2)


def test_an_engine_that_writes_past_the_end_token_is_cut() -> None:
    """Nothing after the end token is part of the answer."""
    model = TableModel(3, VOCAB)
    past = Answer(ids=np.array([4, END, 2], np.int32), log_probs=np.array([-1, -2, -3], np.float32))

    group = next(iter(DraftTargetLoop(PROMPT, plan(num_draft_tokens=0), TableDraft(model), lambda *_, **__: past)))

    assert (group.answer.ids.tolist(), group.finish_reason) == ([4, END], "end_id")
    assert group.answer.log_probs.tolist() == [-1, -2]


def test_min_tokens_is_uniform_within_every_verify_call() -> None:
    """No group crosses the point where the end token becomes possible: not every engine is exact across it."""
    model = TableModel(11, VOCAB)
    draft, target = TableDraft(model), TableTarget(model, end_id=END)

    list(DraftTargetLoop(PROMPT, plan(min_tokens=6, num_draft_tokens=4), draft, target))

    assert all(call["min_tokens"] in {0, call["count"]} for call in target.calls)
    assert target.calls[0]["min_tokens"] == 1


def test_before_min_tokens_drafts_are_matched() -> None:
    """The draft may draw the end token and the target may not: the logits are not those that were drawn from."""
    seen = []

    def target(ids, draft, count, **options) -> Answer:
        seen.append((len(ids) - PROMPT.size, draft.ids.size, draft.logits is None))
        return TableTarget(model, end_id=-1)(ids, draft, count, **options)

    model = TableModel(11, VOCAB)
    list(DraftTargetLoop(PROMPT, plan(min_tokens=6, end_id=-1), TableDraft(model, logits=True), target))

    drafted = [(generated, matched) for generated, drafts, matched in seen if drafts]
    assert {matched for generated, matched in drafted if generated < 6} == {True}
    assert {matched for generated, matched in drafted if generated >= 6} == {False}


@pytest.mark.parametrize("slice_tokens", [0, 2])
def test_a_failing_draft_leaves_the_answer_to_the_target(slice_tokens) -> None:
    """The request is finished correctly, and says that the draft failed."""
    model = TableModel(3, VOCAB)
    draft = TableDraft(model, choose=right(model))
    draft.fails_at = 2
    loop = DraftTargetLoop(PROMPT, plan(end_id=-1, slice_tokens=slice_tokens), draft, TableTarget(model))

    groups = list(loop)

    assert greedy_answer(model, PROMPT.tolist(), 12) == ids_of(groups)
    assert [group.draft_failed for group in groups[:2]] == [False, False]
    assert all(group.draft_failed and not group.drafted for group in groups[2:])
    assert (loop.draft_failure, len(draft.calls)) == ("the draft is gone", 2)


class Left(Exception):
    """A draft whose iterator is left: it hangs, and comes back when another one has gone on."""


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), hangs_at=st.integers(1, 6), slice_tokens=st.integers(0, 3))
def test_another_iterator_goes_on_where_one_was_left_with_the_draft(seed, hangs_at, slice_tokens) -> None:
    """Nothing is missing and nothing comes twice, and what the draft took is told once."""
    model, ticks = TableModel(seed, VOCAB), iter(range(1000))
    draft = TableDraft(model, choose=wrong(model))
    calls = []

    def hanging(ids, count, *, seed):
        calls.append(count)
        if len(calls) == hangs_at:
            raise Left
        return draft(ids, count, seed=seed)

    pace = Told()
    asked = plan(end_id=-1, slice_tokens=slice_tokens)
    loop = DraftTargetLoop(PROMPT, asked, hanging, TableTarget(model), pace, clock=lambda: float(next(ticks)))
    before = []
    with pytest.raises(Left):
        _each(loop, before)
    loop.lose_draft("it hangs")
    after = list(loop)

    assert ids_of([*before, *after]) == greedy_answer(model, PROMPT.tolist(), 12)
    assert len(calls) == hangs_at
    assert loop.draft_failure == "it hangs"
    assert [group.draft_s for group in after] == [1.0] + [0.0] * (len(after) - 1)
    assert loop.draft_s == hangs_at * 1.0
    assert pace.begun == pace.ended + pace.lost
    assert pace.lost == 1


def _each(loop, seen):
    """Keep what comes before an iterator breaks off."""
    for group in loop:
        seen.append(group)


class Told:
    """A pace that drafts as much as there is room for, and counts."""

    reason = ""

    def __init__(self) -> None:
        self.begun = self.ended = self.lost = 0

    def begin(self, longest) -> int:
        """Begin a round."""
        self.begun += 1
        return longest

    def end(self, **_) -> None:
        """End it."""
        self.ended += 1

    def failed(self) -> None:
        """Lose it."""
        self.lost += 1


def refusing(target: TableTarget, ids=None):
    """Return an engine that refuses every call with drafts, or answers them with *ids*."""

    def call(given, draft, count, **options) -> Answer:
        if not draft.ids.size:
            return target(given, draft, count, **options)
        if ids is None:
            raise EngineFault("draft_logits has another vocabulary")
        return Answer(ids=np.array(ids, np.int32))

    return call


@pytest.mark.parametrize("ids", [None, [], [1] * 9], ids=["refused", "nothing", "too much"])
def test_drafts_that_the_target_cannot_verify_do_not_fail_the_request(ids) -> None:
    """The target is asked again alone, finishes the answer, and the draft is what failed."""
    model = TableModel(3, VOCAB)
    draft = TableDraft(model)
    loop = DraftTargetLoop(PROMPT, plan(end_id=-1), draft, refusing(TableTarget(model), ids))

    groups = list(loop)

    assert greedy_answer(model, PROMPT.tolist(), 12) == ids_of(groups)
    assert (len(draft.calls), groups[-1].draft_failed) == (1, True)
    assert "its drafts were not verified" in loop.draft_failure


def test_a_target_that_fails_with_and_without_drafts_is_the_one_that_failed() -> None:
    """The error is that of the call without drafts."""
    calls = []

    def target(_ids, draft, _count, **_options) -> Answer:
        calls.append(draft.ids.size)
        if len(calls) == 1:
            return Answer(ids=np.array([1], np.int32))
        raise EngineFault(f"call {len(calls)} failed")

    with pytest.raises(EngineFault, match="call 3 failed"):
        list(DraftTargetLoop(PROMPT, plan(), TableDraft(TableModel(1, VOCAB)), target))
    assert calls == [0, 3, 0]


@pytest.mark.parametrize("ids", [[], [1] * 5], ids=["nothing", "too much"])
def test_a_target_that_answers_what_was_not_asked_is_a_fault(ids) -> None:
    """An engine that echoes the prompt or answers nothing is named, not looped over."""
    answer = Answer(ids=np.array(ids, np.int32))
    loop = DraftTargetLoop(PROMPT, plan(), TableDraft(TableModel(1, VOCAB)), lambda *_, **__: answer)

    with pytest.raises(EngineFault, match=f"answered {len(ids)} tokens where 1 to 1"):
        list(loop)


def test_a_short_answer_of_a_request_that_cannot_be_continued_is_a_fault() -> None:
    """A second call would start a grammar anew, so the answer is refused instead of bent."""
    answer = Answer(ids=np.array([1, 2], np.int32))
    alone = plan(num_draft_tokens=0, restartable=False)

    with pytest.raises(EngineFault, match="2 of 12 tokens"):
        list(DraftTargetLoop(PROMPT, alone, TableDraft(TableModel(1, VOCAB)), lambda *_, **__: answer))


@settings(max_examples=60)
@given(seed=st.integers(0, 2**64 - 1))
def test_seeds_of_one_request_are_all_different_and_fit_the_tensor(seed) -> None:
    """No two calls of a request draw the same numbers, and the seeds are the same next time."""
    seeds = [derive_seed(seed, number, role) for number in range(50) for role in (0, 1)]

    assert len(seeds) == len(set(seeds))
    assert all(0 <= value < 2**64 for value in seeds)
    assert seeds == [derive_seed(seed, number, role) for number in range(50) for role in (0, 1)]


# Sampling. 3 tokens of a vocabulary of 4 make at most 64 answers, whose probabilities are known exactly.

SAMPLES = 4000
SMALL = 4


def p_value(*, broken: str = "", logits: bool = True, drafts: int = 2, end_is_kept: bool = True) -> float:
    """Return the chi-square p-value of many sampled answers against the target's exact distribution.

    Without drafts they come in slices of two tokens.
    """
    model, other = TableModel(21, SMALL, scale=1.2), TableModel(22, SMALL, scale=1.2)
    prompt, end = np.array([1, 2], np.int32), 3
    whole = answer_distribution(model, prompt.tolist(), 3, end)
    expected = {answer if end_is_kept else tuple(id_ for id_ in answer if id_ != end): p for answer, p in whole.items()}
    counts: Counter = Counter()
    for seed in range(SAMPLES):
        request = plan(
            max_new_tokens=3, num_draft_tokens=drafts, slice_tokens=2, end_id=end, seed=seed, end_is_kept=end_is_kept
        )
        draft = TableDraft(other, sampled=True, logits=logits)
        target = TableTarget(model, end_id=end, sampled=True, broken=broken)
        target = target if end_is_kept else without(end, target)
        counts[tuple(ids_of(DraftTargetLoop(prompt, request, draft, target)))] += 1
    frequent = [answer for answer, p in expected.items() if p * SAMPLES >= 5]
    seen = [*(counts[answer] for answer in frequent), SAMPLES - sum(counts[answer] for answer in frequent)]
    due = [*(expected[answer] * SAMPLES for answer in frequent)]
    return float(chisquare(seen, [*due, SAMPLES - sum(due)]).pvalue)


@pytest.mark.parametrize("logits", [True, False], ids=["rejection sampling", "token match"])
def test_sampled_answers_have_the_targets_distribution(logits) -> None:
    """Drafts of another model change nothing about how often each answer comes."""
    assert p_value(logits=logits) > 1e-3


@pytest.mark.parametrize(("logits", "drafts"), [(True, 2), (False, 2), (True, 0)])
def test_they_have_it_where_the_engine_leaves_the_end_token_out(logits, drafts) -> None:
    """What ended is not asked to go on: it would draw once more whether to end."""
    assert p_value(logits=logits, drafts=drafts, end_is_kept=False) > 1e-3


@pytest.mark.parametrize("broken", ["accepts all", "resamples from p"])
def test_a_wrong_acceptance_rule_would_be_noticed(broken) -> None:
    """The test above has the power to tell a right rule from a wrong one."""
    assert p_value(broken=broken) < 1e-6


@pytest.mark.parametrize(
    "same", [lambda seed, _round, _role: seed, lambda seed, number, _role: derive_seed(seed, number, 0)]
)
def test_seeds_that_correlate_draft_and_target_would_be_noticed(same, monkeypatch) -> None:
    """Draft and target must not draw the same numbers: the answers would no longer have the target's distribution."""
    monkeypatch.setattr(decoder_loop, "derive_seed", same)

    assert p_value() < 1e-6


def test_no_draft_is_nothing() -> None:
    """The placeholder carries no token."""
    assert NO_DRAFT.ids.size == 0


def without(end: int, target: TableTarget):
    """Return an engine that leaves the end token out of its answers, as NVIDIA's does."""

    def call(*args, **options) -> Answer:
        answer = target(*args, **options)
        return Answer(ids=answer.ids[answer.ids != end])

    return call


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    drafts=st.integers(0, 6),
    most=st.integers(1, 20),
    slice_tokens=st.integers(0, 5),
    restartable=st.booleans(),
)
def test_an_engine_that_leaves_the_end_token_out_ends_all_the_same(
    seed, drafts, most, slice_tokens, restartable
) -> None:
    """The answer is the target's own without its last token, and says that it ended and not that it was cut."""
    model = TableModel(seed, VOCAB)
    asked = plan(
        max_new_tokens=most,
        num_draft_tokens=drafts if restartable else 0,
        slice_tokens=slice_tokens if restartable else 0,
        restartable=restartable,
        end_is_kept=False,
    )
    groups = list(DraftTargetLoop(PROMPT, asked, TableDraft(model), without(END, TableTarget(model, end_id=END))))

    whole = greedy_answer(model, PROMPT.tolist(), most, END)
    assert ids_of(groups) == [token for token in whole if token != END]
    assert groups[-1].finish_reason == ("end_id" if END in whole else "length")


def test_without_an_end_token_nothing_is_a_fault() -> None:
    """An engine that cannot have ended has failed."""
    empty = Answer(ids=np.empty(0, np.int32))
    loop = DraftTargetLoop(
        PROMPT, plan(end_id=-1, end_is_kept=False), TableDraft(TableModel(1, VOCAB)), lambda *_, **__: empty
    )

    with pytest.raises(EngineFault, match="answered 0 tokens where 1 to 1"):
        list(loop)


@pytest.mark.parametrize("restartable", [True, False])
@pytest.mark.parametrize(
    ("count", "ids", "reason"),
    [(12, [], "timeout"), (12, [1, 2], "timeout"), (12, [1, END], "end_id"), (2, [1, 2], "length")],
)
def test_a_call_that_was_stopped_ends_the_answer_with_what_it_has(count, ids, reason, restartable) -> None:
    """However little that is, and unless it is the whole answer anyhow; no other call is made."""
    calls = []

    def target(_ids, _draft, count, **_options) -> Answer:
        calls.append(count)
        return Answer(ids=np.array(ids, np.int32), stopped="timeout")

    asked = plan(max_new_tokens=count, num_draft_tokens=0, restartable=restartable)
    groups = list(DraftTargetLoop(PROMPT, asked, TableDraft(TableModel(1, VOCAB)), target))

    assert calls == [count]
    assert [(group.answer.ids.tolist(), group.finish_reason) for group in groups] == [(ids, reason)]
