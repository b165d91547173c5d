"""A Triton model that stands in for an engine and costs nothing but the time that it is told to take.

Copied into the benchmark's repository as ``model.py``. One instance serves all calls at once, as an engine with
in-flight batching does: an answer is due ``delay_ms`` after its call, however many others wait. The token at a position
is a function of the position, and every fifth draft is wrong.
"""

from __future__ import annotations

import json
import queue
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FIRST, TOKENS, WRONG_EVERY = 40, 50, 5
_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def tokens(start: int, count: int) -> np.ndarray:
    """Return the target's tokens at *count* positions from *start* on."""
    return (FIRST + np.arange(start, start + count) % TOKENS).astype(np.int32)


class TritonPythonModel:
    """The model as Triton's Python backend calls it."""

    def initialize(self, args) -> None:
        """Read which engine this is, and how long it takes."""
        parameters = json.loads(args["model_config"])["parameters"]
        self._delay_s = float(parameters["delay_ms"]["string_value"]) / 1e3
        self._is_draft = args["model_name"].endswith("_draft")
        self._due = queue.SimpleQueue()
        # All calls take equally long, so they are due in the order in which they came.
        threading.Thread(target=self._serve, daemon=True).start()

    def execute(self, requests) -> None:
        """Answer at once, or note when the answer is due."""
        for request in requests:
            sender = request.get_response_sender()
            tensors = {tensor.name(): tensor.as_numpy().reshape(-1) for tensor in request.inputs()}
            ids = self._ids(tensors)
            if self._delay_s:
                # The request is kept: it holds what the sender answers to.
                self._due.put((time.monotonic() + self._delay_s, sender, ids, request))
            else:
                _send(sender, ids)

    def _serve(self) -> None:
        while True:
            due_s, sender, ids, _ = self._due.get()
            time.sleep(max(due_s - time.monotonic(), 0.0))
            _send(sender, ids)

    def _ids(self, tensors) -> np.ndarray:
        start, count = tensors["input_ids"].size, int(tensors["request_output_len"][0])
        mine = tokens(start, count)
        if self._is_draft:
            mine[(start + np.arange(count)) % WRONG_EVERY == 0] = FIRST + TOKENS
            return mine
        drafts = tensors.get("draft_input_ids")
        if drafts is None:
            return mine
        wrong = np.flatnonzero(drafts != mine[: drafts.size])
        accepted = int(wrong[0]) if wrong.size else drafts.size
        return mine[: accepted + 1]


def _send(sender, ids: np.ndarray) -> None:
    answer = [
        pb_utils.Tensor("output_ids", ids[None, None]),
        pb_utils.Tensor("sequence_length", np.array([[ids.size]], np.int32)),
    ]
    sender.send(pb_utils.InferenceResponse(answer), flags=_FINAL)
