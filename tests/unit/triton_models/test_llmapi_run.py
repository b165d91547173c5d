"""One request's run in the ``llmapi`` model: from the LLM API's results to groups, counts and faults."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3] / "specdeploy" / "triton" / "models" / "llmapi_decoder" / "1"))

from decoder_answer import Response
from decoder_loop import EngineFault
from decoder_outputs import response_outputs
from decoder_request import RequestError, read_request
from decoder_settings import Settings
from decoder_stats import Statistics
from llmapi_acceptance import NO_SPECULATION, NOTHING_KNOWN, read_acceptance
from llmapi_engine import LlmEngine, LoadError, cancel_others
from llmapi_request import LlmRequest
from llmapi_run import LlmRun

if TYPE_CHECKING:
    from collections.abc import Iterator

END = 9
DRAFTS = 3


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own, as the engine's."""
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    asyncio.run_coroutine_threadsafe(cancel_others(), running).result(timeout=10)
    running.call_soon_threadsafe(running.stop)
    thread.join(timeout=10)
    running.close()


def request(*, speculates=True, banned=(), **inputs) -> LlmRequest:
    """Return a request."""
    settings = Settings(
        target_model="m",
        draft_model="",
        engine_speculates="DraftTarget" if speculates else "",
        num_draft_tokens=DRAFTS if speculates else 0,
        max_inflight=1,
        max_seq_len=99,
    )
    tensors = {"input_ids": [1, 2], "request_output_len": [20], "end_id": [END], **inputs}
    arrays = {name: np.array([value]) for name, value in tensors.items()}
    decoding = read_request(arrays, settings, fresh_seed=1)
    return LlmRequest(decoding=decoding, sampling={}, guide={}, streaming=True, banned=frozenset(banned))


class Result:
    """Plays a ``RequestOutput``: grows by one report for each step, or waits for ever after the last."""

    def __init__(self, steps, *, reason="length", failure=None, waits=False, log_probs=None, **attributes) -> None:
        completion = SimpleNamespace(token_ids=[], logprobs=[], finish_reason=None, request_perf_metrics=None)
        self.outputs = [completion]
        self.decoding_iter = 0
        self.finished = False
        self.aborted = threading.Event()
        self._steps = list(steps)
        self._reason = reason
        self._failure = failure
        self._waits = waits
        self._log_probs = log_probs or (lambda token: {token: SimpleNamespace(logprob=-float(token))})
        for name, value in attributes.items():
            setattr(self, name, value)

    def abort(self) -> None:
        """Note it."""
        self.aborted.set()

    def __aiter__(self):
        """Return itself."""
        return self

    async def __anext__(self):
        """Take the next step in, in place."""
        if self.finished:
            raise StopAsyncIteration
        if not self._steps:
            if self._failure:
                raise self._failure
            assert self._waits
            await asyncio.Event().wait()
        step = self._steps.pop(0)
        self.outputs[0].token_ids.extend(step)
        self.outputs[0].logprobs.extend(self._log_probs(token) for token in step)
        self.decoding_iter += 1
        if not self._steps and not self._failure and not self._waits:
            self.finished = True
            self.outputs[0].finish_reason = self._reason
        return self


def never() -> str:
    """Say that the client is still there."""
    return ""


def groups_of(loop, result, asked=None, ended=never) -> list:
    """Run a request to its end."""
    run = LlmRun(asked or request(), lambda: result, loop, ended)
    with contextlib.closing(run):
        return list(run)


def ids_of(groups) -> list[list[int]]:
    """Return the ids by group."""
    return [group.answer.ids.tolist() for group in groups]


def test_each_report_is_a_group(loop) -> None:
    """Groups hold what is new; a report without anything new makes none; the last has the reason."""
    groups = groups_of(loop, Result([[4], [], [5, 6, 7]]))

    assert ids_of(groups) == [[4], [5, 6, 7]]
    assert [group.finish_reason for group in groups] == ["", "length"]


@pytest.mark.parametrize("steps", [[[4], [5, END]], [[4], [5]]])
def test_the_end_token_is_part_of_the_answer(loop, steps) -> None:
    """Whether or not the engine reports it."""
    groups = groups_of(loop, Result(steps, reason="stop"))

    assert ids_of(groups) == [[4], [5, END]]
    assert groups[-1].finish_reason == "end_id"


def test_an_answer_of_nothing_but_an_unreported_end_token(loop) -> None:
    """It is one group with one id."""
    assert ids_of(groups_of(loop, Result([[]], reason="stop"))) == [[END]]


def test_log_probabilities_are_the_tokens_own(loop) -> None:
    """Taken from what is reported by id, or as they are; an end token that is not reported has none."""
    asked = request(speculates=False, return_log_probs=[True])
    by_id = groups_of(loop, Result([[4], [5, 6]], reason="stop"), asked)
    plain = groups_of(loop, Result([[4], [5, 6]], log_probs=lambda token: -0.5 * token), asked)

    assert [group.answer.log_probs.tolist() for group in by_id] == [[-4.0], [-5.0, -6.0]]
    assert [group.answer.log_probs.tolist() for group in plain] == [[-2.0], [-2.5, -3.0]]


@pytest.mark.parametrize(
    ("result", "asked", "message"),
    [
        (Result([[4]], reason="timeout"), {}, "ended the request with the reason 'timeout'"),
        (Result([[4]], failure=RuntimeError("CUDA\n error")), {}, "the engine failed: CUDA error"),
        (Result([[4]], failure=ValueError("late")), {}, "the engine failed: late"),
        (Result([[4], [5]]), {"banned": [5]}, "answered the banned token 5"),
        (Result([[4], [5]], reason="stop"), {"min_tokens": [8]}, "ended after 3 tokens and ignores min_tokens"),
        (
            Result([[4]], log_probs=lambda _: {7: None}),
            {"speculates": False, "return_log_probs": [True]},
            "no log probability of its token 4",
        ),
    ],
)
def test_an_engine_that_does_not_do_as_asked_is_a_fault(loop, result, asked, message) -> None:
    """The answer is an error then, and what still runs is aborted."""
    with pytest.raises(EngineFault, match=message):
        groups_of(loop, result, request(**asked))

    assert result.finished or result.aborted.wait(timeout=10)


class RequestRefused(RuntimeError):
    """Called as the LLM API calls it."""


RequestRefused.__name__ = "RequestError"


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("best_of\nis wrong"), RequestError, "the LLM API refuses the request: best_of is wrong"),
        (RequestRefused("too long"), RequestError, "refuses the request: too long"),
        (RuntimeError("LLM is shutting down"), EngineFault, "the engine failed: LLM is shutting down"),
    ],
)
def test_what_the_llm_api_refuses_is_the_clients_error(loop, error, kind, message) -> None:
    """When it is handed over; everything else, and everything later, is the engine's."""

    def start():
        raise error

    with pytest.raises(kind, match=message):
        list(LlmRun(request(), start, loop, never))


def test_the_result_belongs_to_the_event_loop(loop) -> None:
    """It is made there, as the LLM API wants."""
    seen = []

    def start():
        seen.append(asyncio.get_running_loop())
        return Result([[4]])

    list(LlmRun(request(), start, loop, never))

    assert seen == [loop]


@pytest.mark.parametrize("reason", ["cancelled", "timeout"])
def test_what_ends_a_request_while_the_engine_is_silent_ends_the_run(loop, reason) -> None:
    """The run asks while it waits; the last group says so, and the engine is told."""
    result = Result([[4]], waits=True)
    first = threading.Event()

    run = LlmRun(request(), lambda: result, loop, lambda: reason if first.is_set() else "")
    with contextlib.closing(run):
        groups = iter(run)
        assert next(groups).answer.ids.tolist() == [4]
        first.set()
        rest = list(groups)

    assert [(group.answer.ids.size, group.finish_reason) for group in rest] == [(0, reason)]
    assert result.aborted.wait(timeout=10)


def test_a_run_that_is_closed_early_is_aborted(loop) -> None:
    """As after a stop word; one that has ended is not."""
    early, whole = Result([[4]], waits=True), Result([[4]])
    with contextlib.closing(LlmRun(request(), lambda: early, loop, never)) as run:
        next(iter(run))
    groups_of(loop, whole)

    assert early.aborted.wait(timeout=10)
    assert not whole.aborted.is_set()


def test_a_server_without_tensorrt_llm_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, which is what the server's log shows of a model that does not load."""
    # Absent for certain: folders of that name lie where other tests look for modules.
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)

    with pytest.raises(LoadError, match=r"^tensorrt_llm cannot be imported by the server's Python: .+"):
        LlmEngine({"model": "anything"})


def counted(accepted: int, drafted: int) -> SimpleNamespace:
    """Return perf metrics of a completion."""
    section = SimpleNamespace(total_accepted_draft_tokens=accepted, total_draft_tokens=drafted, acceptance_rate=0.0)
    return SimpleNamespace(speculative_decoding=section)


def result_of(*, metrics=None, iterations=0, **attributes) -> SimpleNamespace:
    """Return a result that says this much of its speculation."""
    return SimpleNamespace(
        outputs=[SimpleNamespace(request_perf_metrics=metrics)], decoding_iter=iterations, **attributes
    )


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        (result_of(), NOTHING_KNOWN),
        (result_of(iterations=8), Statistics(steps=None, drafted=None, accepted=12, histogram=None)),
        (result_of(iterations=20), Statistics(steps=None, drafted=None, accepted=0, histogram=None)),
        (
            result_of(metrics=counted(0, 0), iterations=8),
            Statistics(steps=None, drafted=None, accepted=12, histogram=None),
        ),
        (
            result_of(metrics=counted(13, 21), iterations=8),
            Statistics(steps=None, drafted=21, accepted=13, histogram=None),
        ),
        (
            result_of(spec_dec_totals=(30, 60), per_pos_drafted=[20] * 3 + [0], per_pos_accepted=[12, 12, 6, 0]),
            Statistics(steps=20, drafted=60, accepted=30, histogram=(8, 0, 6, 6)),
        ),
        (
            result_of(spec_dec_totals=(3, 15), per_pos_drafted=[5], per_pos_accepted=[3]),
            Statistics(steps=5, drafted=15, accepted=3, histogram=(2, 3, 0, 0)),
        ),
    ],
)
def test_counts_are_read_where_the_release_has_them(result, wanted) -> None:
    """From the best place that says something; what nothing says is None."""
    assert read_acceptance(result, tokens=20, longest_draft=DRAFTS) == wanted


@pytest.mark.parametrize("accepted", [[12, 13, 5], [12, 12, 7]])
def test_positions_that_do_not_add_up_are_not_believed(accepted) -> None:
    """The totals stand, the histogram stays unknown."""
    result = result_of(spec_dec_totals=(30, 60), per_pos_drafted=[20, 20, 20], per_pos_accepted=accepted)

    assert read_acceptance(result, tokens=50, longest_draft=DRAFTS) == Statistics(
        steps=None, drafted=60, accepted=30, histogram=None
    )


def test_an_unreported_end_token_counts_as_a_token(loop) -> None:
    """Three iterations with four tokens accepted one draft."""
    run = LlmRun(request(), lambda: Result([[4], [5, 6], []], reason="stop"), loop, never)
    list(run)

    assert run.statistics.accepted == 1


def test_without_speculation_the_counts_are_true_zeros(loop) -> None:
    """Nothing was drafted, which is known."""
    run = LlmRun(request(speculates=False), lambda: Result([[4], [5]]), loop, never)
    list(run)

    assert run.statistics == NO_SPECULATION


def response(statistics: Statistics) -> Response:
    """Return a response."""
    return Response(
        texts=("é",),
        ids=np.array([4, 5], np.int32),
        log_probs=None,
        cum_log_prob=None,
        num_output_tokens=7,
        finish_reason="length",
        bypass_reason="",
        statistics=statistics,
    )


def test_outputs_are_typed_and_shaped_as_the_front_door_declares() -> None:
    """A batch dimension of 1 in front; whole numbers INT32, the ratio FP32, texts bytes."""
    statistics = Statistics(steps=5, drafted=15, accepted=3, histogram=(2, 3, 0, 0))
    made = {name: make() for name, make in response_outputs(response(statistics), num_input_tokens=2).items()}

    whole = {name: array.tolist() for name, array in made.items() if array.dtype == np.int32}
    assert whole == {
        "output_ids": [[4, 5]],
        "sequence_length": [[2]],
        "total_accepted_draft_tokens": [[3]],
        "total_draft_tokens": [[15]],
        "num_spec_steps": [[5]],
        "spec_decode_acceptance_histogram": [[2, 3, 0, 0]],
        "num_input_tokens": [[2]],
        "num_output_tokens": [[7]],
        "batch_index": [[0]],
        "sequence_index": [[0]],
    }
    assert made["acceptance_rate"].dtype == np.float32
    assert made["acceptance_rate"].item() == pytest.approx(0.2)
    assert made["text_output"].tolist() == [["é".encode()]]


def test_what_is_not_known_has_no_output() -> None:
    """Absent is not zero."""
    statistics = Statistics(steps=None, drafted=None, accepted=3, histogram=None)
    names = response_outputs(response(statistics), num_input_tokens=2).keys()

    assert "total_accepted_draft_tokens" in names
    assert not names & {
        "acceptance_rate",
        "total_draft_tokens",
        "num_spec_steps",
        "spec_decode_acceptance_histogram",
        "output_log_probs",
        "cum_log_probs",
    }
