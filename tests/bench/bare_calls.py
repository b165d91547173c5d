"""A Triton model that calls both engines in turn and does nothing else: what the decoder's rounds are measured against.

Copied into the benchmark's repository as ``model.py``; the seconds of ``rounds`` pairs of calls are its answer.
"""

from __future__ import annotations

import time

import numpy as np
import triton_python_backend_utils as pb_utils

_TRUE = np.ones((1, 1), np.bool_)


def _call(model: str, ids: np.ndarray, count: int, **more: np.ndarray) -> np.ndarray:
    tensors = {
        "input_ids": ids.reshape(1, -1),
        "input_lengths": np.full((1, 1), ids.size, np.int32),
        "request_output_len": np.full((1, 1), count, np.int32),
        "end_id": np.full((1, 1), -1, np.int32),
        "exclude_input_in_output": _TRUE,
        **more,
    }
    inputs = [pb_utils.Tensor(name, value) for name, value in tensors.items()]
    # NVIDIA's backend wants to be asked for both.
    outputs = ["output_ids", "sequence_length"]
    response = pb_utils.InferenceRequest(model_name=model, requested_output_names=outputs, inputs=inputs).exec()
    (found,) = (tensor for tensor in response.output_tensors() if tensor.name() == "output_ids")
    return found.as_numpy().reshape(-1)


class TritonPythonModel:
    """The model as Triton's Python backend calls it."""

    def execute(self, requests) -> list:
        """Answer each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        ids, rounds, drafts = (tensor.as_numpy().reshape(-1) for tensor in request.inputs())
        started = time.perf_counter()
        for _ in range(int(rounds[0])):
            proposed = _call("tensorrt_llm_draft", ids, int(drafts[0]))
            _call("tensorrt_llm", ids, proposed.size + 1, draft_input_ids=proposed.reshape(1, -1))
        taken = np.array([time.perf_counter() - started])
        return pb_utils.InferenceResponse([pb_utils.Tensor("seconds", taken)])
