"""Responses: streamed or in one piece, the same answer with the same statistics."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from decoder_answer import respond
from decoder_loop import Answer, DraftTargetLoop, Group
from decoder_request import read_request
from decoder_settings import Settings
from decoder_text import Vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st
from table_engines import TableDraft, TableModel, TableTarget
from tokenizers_for_tests import byte_level

SETTINGS = Settings(target_model="t", draft_model="d", num_draft_tokens=3, max_inflight=1, max_seq_len=512)
PROMPT = "the quick"


@functools.cache
def vocabulary() -> Vocabulary:
    """Return the byte-level vocabulary."""
    return Vocabulary(byte_level())


def encode(text: str) -> list[int]:
    """Return the ids of a text."""
    return byte_level().encode(text, add_special_tokens=False).ids


def request(**inputs):
    """Read a request with the given inputs."""
    tensors = {
        "input_ids": np.array([encode(PROMPT)], np.int32),
        "request_output_len": np.array([[64]], np.int32),
        "text_input": np.array([[PROMPT.encode()]], object),
        **{name: np.array([value]) for name, value in inputs.items()},
    }
    return read_request(tensors, SETTINGS, fresh_seed=1)


def never() -> str:
    """Say that the client is still there."""
    return ""


def groups_of(text: str, sizes: list[int], *, finish: str = "length", **fields) -> list[Group]:
    """Cut the ids of a text into groups of the given sizes, each as if all but its last token were accepted drafts."""
    ids, groups = encode(text), []
    for size in [*sizes, len(ids)]:
        taken, ids = ids[:size], ids[size:]
        if taken:
            answer = Answer(ids=np.array(taken, np.int32))
            reason = "" if ids else finish
            drafted = min(size - 1, 3) if groups else 0
            group = Group(answer=answer, drafted=drafted, accepted=drafted, finish_reason=reason, **fields)
            groups.append(group)
    return groups


TEXT = "brown 😀 fox. stop here, and on"


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 4), max_size=20), stops=st.sampled_from([[], [b"stop"], [b"op h"], [b"zzz"]]))
def test_streamed_pieces_join_to_the_single_response(sizes, stops) -> None:
    """Texts, ids, reason, and the statistics of the last piece are those of the answer in one piece."""
    wanted = {"stop_words": np.array(stops, object)} if stops else {}
    (whole,) = respond(groups_of(TEXT, sizes), request(**wanted), vocabulary(), never)
    pieces = list(respond(groups_of(TEXT, sizes), request(stream=[True], **wanted), vocabulary(), never))

    assert whole.texts == ("".join(piece.texts[0] for piece in pieces),)
    assert whole.ids.tolist() == [token for piece in pieces for token in piece.ids.tolist()]
    assert (whole.finish_reason, whole.statistics) == (pieces[-1].finish_reason, pieces[-1].statistics)
    assert whole.num_output_tokens == pieces[-1].num_output_tokens == whole.ids.size
    assert [piece.final for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_each_group_leaves_before_the_next_one_is_made() -> None:
    """Streaming does not wait: the first response is out when one group exists."""
    made = []

    def groups():
        for group in groups_of(TEXT, [1, 2]):
            made.append(group)
            yield group

    next(respond(groups(), request(stream=[True]), vocabulary(), never))

    assert len(made) == 1


def test_a_stop_word_ends_the_request_and_no_further_group_is_made() -> None:
    """The answer ends with the token that completed the word, which is not shown."""
    groups = groups_of(TEXT, [1] * 50)
    left = iter(groups)

    (whole,) = respond(left, request(stop_words=np.array([b"stop"], object)), vocabulary(), never)

    assert (whole.finish_reason, whole.texts[0]) == ("stop_word", TEXT.split("stop", maxsplit=1)[0])
    assert byte_level().decode(whole.ids.tolist()).endswith("stop")
    assert len(list(left)) == len(groups) - whole.ids.size


@pytest.mark.parametrize("reason", ["cancelled", "timeout"])
def test_a_request_that_is_cut_off_ends_with_what_it_has(reason) -> None:
    """Between two groups the client is asked for; its last response says why there is no more."""
    asked = iter(["", "", reason])

    pieces = list(respond(groups_of(TEXT, [1] * 50), request(stream=[True]), vocabulary(), lambda: next(asked)))

    assert [piece.finish_reason for piece in pieces] == ["", "", reason]
    assert (pieces[-1].ids.size, pieces[-1].num_output_tokens) == (0, 2)


def test_the_prompt_comes_first_when_it_is_asked_for() -> None:
    """With exclude_input_in_output false the first text begins with the prompt, once."""
    asked = {"exclude_input_in_output": [False]}

    (whole,) = respond(groups_of(" fox", [1, 1]), request(**asked), vocabulary(), never)
    pieces = list(respond(groups_of(" fox", [1, 1]), request(stream=[True], **asked), vocabulary(), never))

    assert whole.texts[0] == PROMPT + " fox" == "".join(piece.texts[0] for piece in pieces)
    assert pieces[0].texts[0].startswith(PROMPT)


def test_a_failed_draft_is_the_bypass_reason() -> None:
    """From the failure on, every response says so."""
    groups = groups_of(TEXT, [1, 1], draft_failed=True)

    assert {"draft_failed"} == {r.bypass_reason for r in respond(groups, request(), vocabulary(), never)}


def test_log_probabilities_follow_the_ids() -> None:
    """One for each answered id, cut with them at a stop word, and their sum so far."""
    ids = np.array(encode("a stop b"), np.int32)
    values = -np.arange(1, ids.size + 1, dtype=np.float32)
    group = Group(answer=Answer(ids=ids, log_probs=values), finish_reason="length")
    asked = request(return_log_probs=[True], stop_words=np.array([b"stop"], object))

    (whole,) = respond([group], asked, vocabulary(), never)

    assert whole.log_probs.tolist() == values[: whole.ids.size].tolist()
    assert whole.cum_log_prob == pytest.approx(values[: whole.ids.size].sum())


def test_further_beams_are_further_texts() -> None:
    """A request with beams gets every sequence's text, best first."""
    other = np.array(encode(" dog"), np.int32)
    answer = Answer(ids=np.array(encode(" fox"), np.int32), others=(other,))

    (whole,) = respond([Group(answer=answer, finish_reason="length")], request(beam_width=[2]), vocabulary(), never)

    assert whole.texts == (" fox", " dog")


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), most=st.integers(1, 30), drafts=st.integers(0, 6))
def test_the_loop_streamed_and_not_agree(seed, most, drafts) -> None:
    """End to end over table engines: grouping by acceptance never shows in the joined answer."""
    model, other = TableModel(seed, 48), TableModel(seed + 1, 48)
    answers = []
    for stream in (False, True):
        asked = request(stream=[stream], num_draft_tokens=[drafts], request_output_len=[most], end_id=[7])
        loop = DraftTargetLoop(np.array([1, 2], np.int32), asked.plan, TableDraft(other), TableTarget(model, end_id=7))
        pieces = list(respond(loop, asked, vocabulary(), never))
        joined = [token for piece in pieces for token in piece.ids.tolist()]
        answers.append(("".join(piece.texts[0] for piece in pieces), joined, pieces[-1].finish_reason))

    assert answers[0] == answers[1]
