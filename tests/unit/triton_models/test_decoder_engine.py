"""The engines as callables over a stub of Triton: what is asked for, and what becomes of what goes wrong."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
import triton_stub

triton_stub.install()

from decoder_engine import TritonDraft, TritonTarget  # noqa: E402 - imports Triton's module
from decoder_loop import NO_DRAFT, EngineFault  # noqa: E402
from decoder_request import read_request  # noqa: E402
from decoder_settings import Settings  # noqa: E402
from decoder_watch import CallWatch, TakenOverError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from decoder_request import DecodeRequest

IDS = np.array([1, 2, 3], np.int32)
VOCAB = 5


@pytest.fixture(autouse=True)
def nothing_loaded() -> Iterator[None]:
    """Each test loads the models that it needs."""
    triton_stub.MODELS.clear()
    triton_stub.REQUESTS.clear()
    return


def settings(**changes) -> Settings:
    """Return a pair's settings."""
    values = {"target_model": "target", "draft_model": "draft", "num_draft_tokens": 2}
    return Settings(**{**values, "max_inflight": 2, "max_seq_len": 32, "stand_in": True, **changes})


def request(deployment: Settings, **tensors) -> DecodeRequest:
    """Read a sampled request."""
    values = {"input_ids": IDS, "request_output_len": [8], "end_id": [4], "top_p": [0.9], **tensors}
    return read_request({name: np.array([value]) for name, value in values.items()}, deployment, fresh_seed=7)


def draft(deployment: Settings | None = None, *, in_time=lambda call: call(), **tensors) -> TritonDraft:
    """Return a draft engine."""
    deployment = deployment or settings()
    return TritonDraft(deployment, request(deployment, **tensors), "id", in_time)


def answers(ids: list[int], logits: np.ndarray | None = None):
    """Return a model that always answers the same."""
    outputs = {"output_ids": np.array([[ids]], np.int32), "sequence_length": np.array([[len(ids)]], np.int32)}
    return lambda _: outputs if logits is None else {**outputs, "generation_logits": logits[None, None]}


def test_the_draft_writes_on_after_an_end_token() -> None:
    """Its probabilities stay the model's own: no least length, and no end token that could stop it."""
    triton_stub.MODELS["draft"] = answers([1, 2], np.zeros((2, VOCAB), np.float32))
    proposed = draft()(IDS, 2, seed=5)

    (asked,) = triton_stub.REQUESTS
    assert (asked.inputs["end_id"].tolist(), "min_tokens" in asked.inputs) == ([[-1]], False)
    assert (proposed.ids.tolist(), proposed.logits.shape) == ([1, 2], (2, VOCAB))


def test_with_fast_logits_what_the_draft_answers_is_handed_on_unread() -> None:
    """One row that says where the target finds the logits, whatever the number of drafts."""
    where = np.arange(3, dtype=np.float32)[None]
    triton_stub.MODELS["draft"] = answers([1, 2], where)
    triton_stub.MODELS["target"] = answers([1])
    deployment = settings(fast_logits=True)
    proposed = draft(deployment)(IDS, 2, seed=5)
    TritonTarget(deployment, request(deployment), "id")(IDS, proposed, 3, seed=5, min_tokens=0)

    assert triton_stub.REQUESTS[1].inputs["draft_logits"].tolist() == [where.tolist()]
    assert triton_stub.REQUESTS[1].inputs["draft_input_ids"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (None, "engine 'draft' failed: Model draft is not ready"),
        (answers([1, 2], np.zeros((1, VOCAB), np.float32)), "1 rows of logits for 2 tokens"),
        (lambda _: int("out of memory"), "engine 'draft' failed: .*out of memory"),
    ],
    ids=["unloaded", "too few logits", "error"],
)
def test_a_draft_that_is_gone_or_wrong_is_a_fault(model, said) -> None:
    """The loop goes on without it; the message names the model and what it said."""
    if model:
        triton_stub.MODELS["draft"] = model

    with pytest.raises(EngineFault, match=said):
        draft()(IDS, 2, seed=5)


def test_a_draft_that_has_not_answered_earlier_calls_is_a_fault() -> None:
    """As one that answers with an error is; what was taken over meanwhile is none, and goes through."""
    watch, end, lost = CallWatch(most=1), threading.Event(), threading.Event()
    triton_stub.MODELS["draft"] = lambda _: end.wait() and {}
    hangs = draft(in_time=lambda call: watch(call, lambda _: lost.set(), 0.01))

    def hang() -> None:
        with pytest.raises(TakenOverError):
            hangs(IDS, 2, seed=5)

    thread = threading.Thread(target=hang)
    thread.start()
    assert lost.wait(60)
    with pytest.raises(EngineFault, match="engine 'draft' has not answered 1 earlier calls"):
        hangs(IDS, 2, seed=5)
    end.set()
    thread.join(60)
    watch.close()


def test_a_draft_of_nothing_is_no_draft() -> None:
    """No tokens, no logits, no fault."""
    triton_stub.MODELS["draft"] = answers([], np.zeros((0, 0), np.float32))

    assert draft()(IDS, 2, seed=5).ids.size == 0


def test_the_target_is_sent_drafts_only_where_there_are_some() -> None:
    """An undrafted call has neither of the two tensors."""
    triton_stub.MODELS["target"] = answers([4])
    TritonTarget(settings(), request(settings()), "id")(IDS, NO_DRAFT, 1, seed=5, min_tokens=1)

    (asked,) = triton_stub.REQUESTS
    assert {"draft_input_ids", "draft_logits"}.isdisjoint(asked.inputs)
    assert asked.inputs["min_tokens"].tolist() == [[1]]
