"""A Triton model that stands in for an engine: a table model behind the C++ backend's tensors, answering at once.

Copied into a test's repository as ``model.py``, beside ``decoder_loop.py`` and ``table_engines.py``. The first token of
a prompt steers it: after ``@`` the draft fails, after ``#`` the target, and ``~`` makes each call take 50 ms; the
draft's take as many seconds as the parameter ``pause_s`` says, where it is there.
"""

from __future__ import annotations

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils
from decoder_loop import NO_DRAFT, Draft, EngineFault
from table_engines import TableDraft, TableModel, TableTarget

WARMUP_TOKENS = 8


class TritonPythonModel:
    """The model as Triton's Python backend calls it."""

    def initialize(self, args) -> None:
        """Read which engine this is."""
        values = {key: entry["string_value"] for key, entry in json.loads(args["model_config"])["parameters"].items()}
        self._is_draft = args["model_name"].endswith("_draft")
        self._model = TableModel(5, int(values["vocab_size"]), 2.0, doubt=0.35 if self._is_draft else 0.0)
        self._fails, self._slow = int(values["fails"]), int(values["slow"])
        # A test may have a draft that hangs.
        self._pause_s = float(values.get("pause_s", 0.05)) if self._is_draft else 0.05
        # Drafts that were looked up have no logits.
        self._by_match = bool(values.get("by_match"))
        # What an engine that drafts on its own answers of one call, whatever it was.
        self._reports = {"total_draft_tokens": 4, "total_accepted_draft_tokens": 1} if values.get("reports") else {}

    def execute(self, requests) -> list:
        """Answer each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        tensors = {tensor.name(): tensor.as_numpy().reshape(-1) for tensor in request.inputs()}
        if tensors.get("stop", [False])[0]:
            # What is under way here ends by itself.
            return pb_utils.InferenceResponse([])
        if tensors["input_ids"][0] == self._slow:
            time.sleep(self._pause_s)
        try:
            outputs = self._outputs(tensors)
        except EngineFault as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        wanted = request.requested_output_names()
        # As NVIDIA's backend: without these two there is no answer.
        assert {"output_ids", "sequence_length"} <= set(wanted)
        outputs["sequence_length"] = np.array([[outputs["output_ids"].shape[-1]]], np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, outputs[name]) for name in wanted if name in outputs])

    def _outputs(self, tensors):
        ids = tensors["input_ids"]
        if ids[0] == self._fails:
            raise EngineFault("out of memory, says the test")
        # Only the warm-up request of the repository does without.
        assert tensors.get("exclude_input_in_output", [ids.size == WARMUP_TOKENS])[0]
        sampled = "runtime_top_p" in tensors
        seed = int(tensors.get("seed", tensors.get("random_seed"))[0]) if sampled else 0
        count = int(tensors["request_output_len"][0])
        if self._is_draft:
            assert tensors.get("end_id", [-1])[0] == -1
            draft = TableDraft(self._model, sampled=sampled, logits=True)(ids, count, seed=seed)
            return {"output_ids": draft.ids[None, None], "generation_logits": draft.logits[None, None]}
        target = TableTarget(self._model, end_id=int(tensors.get("end_id", [-1])[0]), sampled=sampled)
        drafts = NO_DRAFT
        if "draft_input_ids" in tensors:
            logits = tensors.get("draft_logits")
            rows = None if logits is None else logits.reshape(tensors["draft_input_ids"].size, -1)
            drafts = Draft(ids=tensors["draft_input_ids"], logits=rows)
            assert (rows is not None) == (sampled and not self._by_match)
        least = int(tensors.get("min_tokens", tensors.get("min_length", [0]))[0])
        answer = target(ids, drafts, count, seed=seed, min_tokens=least)
        probabilities = np.full((1, 1, answer.ids.size), -0.5, np.float32)
        reports = {name: np.array([[count]], np.int32) for name, count in self._reports.items()}
        return {"output_ids": answer.ids[None, None], "output_log_probs": probabilities, **reports}
