"""The trace of a request: every round once, streamed or not, with what it drafted and why it did not."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from decoder_answer import respond
from decoder_loop import Answer, DraftTargetLoop, Group
from decoder_outputs import response_outputs
from decoder_request import read_request
from decoder_settings import Settings
from decoder_stats import StepCounter
from decoder_text import Vocabulary
from table_engines import TableDraft, TableModel, TableTarget
from tokenizers_for_tests import byte_level

DOCUMENT = Path(__file__).parents[3] / "docs" / "decoder.md"
SETTINGS = Settings(target_model="t", draft_model="d", num_draft_tokens=3, max_inflight=1, max_seq_len=512)
VOCAB = byte_level().get_vocab_size()
PROMPT = byte_level().encode("the quick").ids


def request(settings: Settings = SETTINGS, **inputs):
    """Read a request with the given inputs that asks for its trace."""
    tensors = {
        "input_ids": np.array([PROMPT], np.int32),
        "request_output_len": np.array([[20]], np.int32),
        "return_decode_trace": np.array([[True]]),
        **{name: np.array([value]) for name, value in inputs.items()},
    }
    return read_request(tensors, settings, fresh_seed=1)


def loop(asked, *, fails_at: int = -1) -> DraftTargetLoop:
    """Return the groups of two table models that agree often, on a clock by which every call takes a second."""
    model = TableModel(5, VOCAB, 2.0)
    draft = TableDraft(TableModel(5, VOCAB, 2.0, doubt=0.35))
    draft.fails_at = fails_at
    ticks = itertools.count()
    return DraftTargetLoop(asked.prompt_ids, asked.plan, draft, TableTarget(model), clock=lambda: float(next(ticks)))


def traced(asked, groups) -> tuple[list[dict], list]:
    """Return the rounds of all responses as a client reads them, and the responses."""
    responses = list(respond(groups, asked, Vocabulary(byte_level()), lambda: False))
    texts = [response_outputs(response, num_input_tokens=1)["decode_trace"]().item() for response in responses]
    return [entry for text in texts for entry in json.loads(text)], responses


@pytest.mark.parametrize("stream", [False, True])
def test_the_rounds_add_up_to_the_answer(stream) -> None:
    """Their ids are the answer's, and their counts those of the statistics; a streamed response has its own rounds."""
    asked = request(stream=[stream])
    groups = loop(asked)
    rounds, responses = traced(asked, groups)
    counter = StepCounter(asked.longest_draft)
    for entry in rounds:
        assert entry["draft_ids"][: entry["accepted"]] == entry["output_ids"][: entry["accepted"]]
        assert bool(entry["draft_ids"]) == (not entry["no_draft"])
        if entry["draft_ids"]:
            counter.record(drafted=len(entry["draft_ids"]), accepted=entry["accepted"])

    assert [entry["round"] for entry in rounds] == list(range(len(rounds)))
    assert len(responses) == (len(rounds) if stream else 1)
    assert [token for entry in rounds for token in entry["output_ids"]] == [
        token for response in responses for token in response.ids.tolist()
    ]
    assert counter.snapshot() == responses[-1].statistics
    assert {(entry["draft_s"], entry["target_s"]) for entry in rounds[1:-1]} == {(1.0, 1.0)}
    assert [sum(entry[key] for entry in rounds) for key in ("draft_s", "target_s")] == [groups.draft_s, groups.target_s]
    assert (rounds[0]["no_draft"], rounds[0]["draft_s"]) == ("first_token", 0.0)


def test_a_failed_draft_has_its_seconds_and_its_reason() -> None:
    """The round in which it failed is one of the target alone."""
    asked = request()
    rounds, _ = traced(asked, loop(asked, fails_at=2))

    assert [(entry["no_draft"], entry["draft_s"]) for entry in rounds] == [
        ("first_token", 0.0),
        ("", 1.0),
        ("draft_failed", 1.0),
    ]


def test_a_request_that_does_not_draft_says_why() -> None:
    """By its bypass reason, and where the text has nothing to look up by that."""
    asked = request(num_draft_tokens=[0])
    assert {entry["no_draft"] for entry in traced(asked, loop(asked))[0]} == {"requested"}

    found = [Group(answer=Answer(ids=np.array([65 + i], np.int32)), draft_s=1.0 * (i == 1)) for i in range(3)]
    found.append(Group(answer=Answer(ids=np.array([68], np.int32)), finish_reason="length"))
    reasons = [entry["no_draft"] for entry in traced(request(), found)[0]]
    assert reasons == ["first_token", "nothing_drafted", "no_room", "no_room"]


def test_an_engine_that_drafts_on_its_own_tells_what_it_tells() -> None:
    """Its drafts are not known, and neither is what it accepted, unless it says so: absent, not zero."""
    settings = Settings(target_model="t", draft_model="", num_draft_tokens=0, max_inflight=1, max_seq_len=512)
    asked = request(Settings(**{**vars(settings), "engine_speculates": "medusa"}))
    answers = [Answer(ids=np.array([65], np.int32), reported=told) for told in ((4, 1), None)]
    groups = [Group(answer=answers[0]), Group(answer=answers[1], finish_reason="length")]

    assert [(entry["draft_ids"], entry["accepted"]) for entry in traced(asked, groups)[0]] == [(None, 1), (None, None)]


def test_nobody_else_has_one() -> None:
    """Nothing is kept of a request that does not ask."""
    asked = request(return_decode_trace=[False])
    (response,) = respond(loop(asked), asked, Vocabulary(byte_level()), lambda: False)

    assert response.trace is None
    assert "decode_trace" not in response_outputs(response, num_input_tokens=1)


def test_the_page_shows_a_trace_as_it_is() -> None:
    """Its example has the keys of a real one, in their order."""
    (block,) = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    asked = request()

    assert [list(entry) for entry in json.loads(block)] == [list(entry) for entry in traced(asked, loop(asked))[0][:2]]
