"""Requests of several texts: rows, joined outputs, and the one final response, over a stub of Triton."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import triton_stub

triton_stub.install()

from decoder_batch import joined, row_of  # noqa: E402 - beside modules that import Triton's
from decoder_reply import Reply, time_limit_s  # noqa: E402 - imports Triton's module
from decoder_request import RequestError  # noqa: E402
from preprocessing_words import stacked  # noqa: E402

IDS = np.array([[3, 4, 5], [6, 7, 0]], np.int32)


def test_a_row_keeps_its_batch_dimension() -> None:
    """It looks like a request of one text."""
    row = row_of({"input_ids": IDS, "seed": np.array([[1], [2]], np.uint64)}, 1)

    assert (row["input_ids"].tolist(), row["seed"].tolist()) == ([[6, 7, 0]], [[2]])


def test_rows_of_different_lengths_are_filled_up() -> None:
    """Ids with 0, texts with nothing, in every dimension behind the first."""
    texts = [np.array([[b"a"]], object), np.array([[b"b", b"c"]], object)]
    probabilities = [np.array([[[-1.0, -2.0]]], np.float32), np.array([[[-3.0]]], np.float32)]
    batch = joined(
        [
            {"output_ids": IDS[:1], "text_output": texts[0], "output_log_probs": probabilities[0]},
            {"output_ids": IDS[1:, :2], "text_output": texts[1], "output_log_probs": probabilities[1]},
        ]
    )

    assert batch["output_ids"].tolist() == IDS.tolist()
    assert batch["output_ids"].dtype == np.int32
    assert batch["text_output"].tolist() == [[b"a", b""], [b"b", b"c"]]
    assert batch["output_log_probs"].tolist() == [[[-1.0, -2.0]], [[-3.0, 0.0]]]


def test_an_output_that_a_row_does_not_have_is_left_out() -> None:
    """Absent is not zero."""
    count = np.array([[3]], np.int32)

    assert list(joined([{"num_spec_steps": count, "output_ids": IDS[:1]}, {"output_ids": IDS[1:]}])) == ["output_ids"]


def test_padding_of_tokenized_rows_says_that_it_is_padding() -> None:
    """Ids with the padding token, words with 0 whose end is -1, a missing bias with 0."""
    words = [np.array([[[1, 2], [2, -1]]], np.int32), np.array([[[0], [-1]]], np.int32)]
    bias = [np.empty((1, 0), np.float32), np.ones((1, 2), np.float32)]

    assert stacked("INPUT_ID", [IDS[:1], IDS[1:, :1]], 9).tolist() == [[3, 4, 5], [6, 9, 9]]
    assert stacked("BAD_WORDS_IDS", words, 9).tolist() == [[[1, 2], [2, -1]], [[0, 0], [-1, -1]]]
    assert stacked("EMBEDDING_BIAS", bias, 9).tolist() == [[0, 0], [1, 1]]
    assert stacked("REQUEST_OUTPUT_LEN", [IDS[:1, :1], IDS[1:, :1]], 9).tolist() == [[3], [6]]


class Sender:
    """Keeps what is sent; nobody is asked for anything after the final response."""

    def __init__(self) -> None:
        self.sent: list[tuple] = []
        self.gone = False

    def send(self, response, flags) -> None:
        """Keep a response."""
        assert not (self.sent and self.sent[-1][1])
        self.sent.append((response, bool(flags)))

    def is_cancelled(self) -> bool:
        """Say whether the client has gone."""
        return self.gone

    def ids(self) -> list:
        """Return the ids of all responses."""
        return [response.outputs["output_ids"].tolist() for response, _ in self.sent]


def piece(*ids: int) -> dict[str, np.ndarray]:
    """Return the outputs of a row."""
    return {"output_ids": np.array([ids], np.int32)}


def test_a_request_that_is_not_streamed_gets_one_response_of_all_rows_in_their_order() -> None:
    """Whichever row is finished first."""
    sender = Sender()
    reply = Reply(sender, rows=2)
    reply.send(1, piece(6, 7), final=True)
    assert not sender.sent
    reply.send(0, piece(3), final=True)

    assert (sender.ids(), [final for _, final in sender.sent]) == ([[[3, 0], [6, 7]]], [True])


def test_texts_leave_as_one_list() -> None:
    """Whatever their shape in here: NVIDIA's clients decode the first entry."""
    sender = Sender()
    Reply(sender).send(0, {"text_output": np.array([[b"a", b"b"]], object), **piece(3)}, final=True)

    assert sender.sent[0][0].outputs["text_output"].tolist() == [b"a", b"b"]


def test_a_stream_of_several_rows_ends_with_the_last_of_them() -> None:
    """Each row's responses leave as they come; a row's last one is not the request's."""
    sender = Sender()
    reply = Reply(sender, rows=2, stream=True)
    reply.send(1, piece(6), final=False)
    reply.send(0, piece(3), final=True)
    reply.send(1, piece(7), final=True)

    assert (sender.ids(), [final for _, final in sender.sent]) == ([[[6]], [[3]], [[7]]], [False, False, True])


@pytest.mark.parametrize("stream", [False, True])
def test_one_row_that_fails_ends_the_request_once(stream) -> None:
    """The others are as good as cancelled, and what they still send is dropped."""
    sender = Sender()
    reply = Reply(sender, rows=3, stream=stream)
    reply.fail("the target is gone", 1)
    reply.fail("the target is gone", 1)
    reply.send(0, piece(1), final=True)

    assert [final for _, final in sender.sent] == [True]
    assert sender.sent[0][0].error().message() == "the target is gone"
    assert reply.ended() == "cancelled"


def test_the_server_is_not_asked_for_every_token_whether_a_request_is_cancelled() -> None:
    """Asking costs a tenth of a short round."""
    sender = Sender()
    reply = Reply(sender)
    assert reply.ended() == ""
    sender.gone = True

    assert reply.ended() == ""


def test_all_texts_of_a_request_end_when_one_has_heard_that_it_is_cancelled() -> None:
    """They need not ask, each in its turn."""
    sender = Sender()
    sender.gone = True
    reply = Reply(sender, rows=3)

    assert [reply.ended() for _ in range(3)] == ["cancelled"] * 3


class Asking:
    """As much of Triton's request as says how long it may take."""

    def __init__(self, timeout: int = 0, parameters: str = "") -> None:
        self._timeout, self._parameters = timeout, parameters

    def timeout(self) -> int:
        """Return Triton's own, in microseconds."""
        return self._timeout

    def parameters(self) -> str:
        """Return the request's parameters as JSON."""
        return self._parameters


@pytest.mark.parametrize(
    ("request_", "seconds"),
    [
        (Asking(), math.inf),
        (Asking(parameters="{}"), math.inf),
        (Asking(1_500_000), 1.5),
        (Asking(parameters='{"timeout": 250000, "other": "text"}'), 0.25),
        (Asking(2_000_000, '{"timeout": 1}'), 2.0),
    ],
)
def test_a_request_says_how_long_it_may_take(request_, seconds) -> None:
    """As Triton's own number, or as a parameter."""
    assert time_limit_s(request_) == seconds


@pytest.mark.parametrize("wrong", ['"1s"', "-1", "true", "1.5", "null", "[]"])
def test_a_time_limit_that_is_none_is_refused(wrong) -> None:
    """With the value."""
    with pytest.raises(RequestError, match=r"timeout is .*whole number of microseconds"):
        time_limit_s(Asking(parameters=f'{{"timeout": {wrong}}}'))


def test_a_negative_time_limit_of_grpc_is_refused() -> None:
    """It arrives as a very large number."""
    with pytest.raises(RequestError, match="timeout is 18446744073709551615"):
        time_limit_s(Asking(2**64 - 1))


def test_nobody_is_asked_after_the_final_response() -> None:
    """Which another row may send at any moment: Triton 2.51 would die of the question."""
    asked = threading.Event()

    class Slow(Sender):
        """Takes a while to say whether its client has gone, and must not have ended meanwhile."""

        def is_cancelled(self) -> bool:
            """Ask."""
            asked.set()
            threading.Event().wait(0.05)
            assert not self.sent
            return False

    slow = Slow()
    reply = Reply(slow, rows=2)
    failing = threading.Thread(target=lambda: asked.wait(60) and reply.fail("refused", 1))
    failing.start()
    assert reply.ended() == ""
    failing.join(60)
    assert (len(slow.sent), reply.ended()) == (1, "cancelled")


def test_a_request_whose_time_is_up_ends() -> None:
    """Whoever waits for it."""
    reply = Reply(Sender())
    reply.limit(3600.0)
    assert reply.ended() == ""
    reply.limit(0.0)

    assert reply.ended() == "timeout"
