"""Speculative decoding with a draft and a target engine: the Triton model.

``execute`` hands each request to a worker thread, so that one instance decodes several requests at once; a worker calls
the engines, each call a request of its own to their models. Whether the model is decoupled or not, it answers through
each request's response sender; if it is not, no answer is streamed. This file is the glue to Triton; what is decided is
in its ``decoder_*`` siblings, which know nothing of Triton but for ``decoder_engine``.
"""

from __future__ import annotations

import json
import secrets
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import triton_python_backend_utils as pb_utils
from decoder_answer import respond
from decoder_batch import row_of
from decoder_breaker import DraftBreaker
from decoder_deadline import DeadlineCaller
from decoder_engine import TritonDraft, TritonTarget
from decoder_loop import DraftTargetLoop, EngineFault
from decoder_metrics import DraftMetrics
from decoder_ngram import NgramDraft
from decoder_outputs import response_outputs
from decoder_policy import DraftPolicy
from decoder_reply import Reply
from decoder_request import RequestError, read_request
from decoder_settings import is_decoupled, read_settings
from decoder_text import Vocabulary
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from decoder_answer import Response
    from decoder_engine import InferenceRequest
    from decoder_loop import DraftEngine, Pace
    from decoder_request import DecodeRequest


class TritonPythonModel:
    """The model as Triton's Python backend calls it."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the parameters and the tokenizer, and start the workers."""
        config = json.loads(args["model_config"])
        self._settings = read_settings(config.get("parameters", {}), decoupled=is_decoupled(config))
        self._outputs = {output["name"] for output in config["output"]}
        folder = Path(args["model_repository"], args["model_version"], self._settings.tokenizer_dir)
        self._vocabulary = Vocabulary(Tokenizer.from_file(str(folder / "tokenizer.json")))
        self._workers = ThreadPoolExecutor(self._settings.max_inflight, thread_name_prefix="decode")
        self._free = threading.BoundedSemaphore(self._settings.max_inflight)
        self._breaker = DraftBreaker()
        self._in_time = DeadlineCaller(self._settings.draft_timeout_ms / 1000, most=2 * self._settings.max_inflight)
        self._metrics = DraftMetrics(args)
        self._policy = DraftPolicy(adaptive=self._settings.adaptive, schedule=self._settings.draft_len_schedule)
        if self._settings.stand_in:
            pb_utils.Logger.log_warn("the engines of this deployment are CPU stand-ins for TensorRT-LLM's")

    def execute(self, requests: Sequence[InferenceRequest]) -> None:
        """Hand each request to a worker, waiting for a free one, so that what waits does so in Triton's own queue."""
        for request in requests:
            reply, rows = _reply(request, streams=self._settings.decoupled)
            for row in range(rows):
                self._free.acquire()
                self._workers.submit(self._serve, request, reply, row)

    def finalize(self) -> None:
        """End the workers; Triton unloads a model only when its requests are answered."""
        self._workers.shutdown(wait=True)
        self._in_time.close()

    def _serve(self, request: InferenceRequest, reply: Reply, row: int) -> None:
        """Answer one text of a request, whatever happens; the request gets exactly one final response."""
        try:
            self._decode(request, reply, row)
        except RequestError as error:
            reply.fail(str(error), pb_utils.TritonError.INVALID_ARG)
        except EngineFault as error:
            reply.fail(str(error), pb_utils.TritonError.INTERNAL)
        except Exception as error:  # noqa: BLE001 - a bug of ours must not leave the client waiting
            pb_utils.Logger.log_error(traceback.format_exc())
            reply.fail(f"the decoder failed: {error!r}", pb_utils.TritonError.INTERNAL)
        finally:
            self._free.release()

    def _decode(self, request: InferenceRequest, reply: Reply, row: int) -> None:
        inputs = row_of({tensor.name(): tensor.as_numpy() for tensor in request.inputs()}, row)
        decoding = read_request(inputs, self._settings, fresh_seed=secrets.randbits(64))
        self._refuse_undeclared(decoding)
        if decoding.plan.num_draft_tokens and not self._breaker.allows():
            decoding = decoding.without_drafts("draft_unavailable")
        with self._metrics.running(), self._policy.request(pinned=decoding.pinned) as pace:
            self._answer(request, reply, row, decoding, pace)

    def _answer(self, request: InferenceRequest, reply: Reply, row: int, decoding: DecodeRequest, pace: Pace) -> None:
        wanted = set(request.requested_output_names())
        name = request.request_id()
        draft, target = self._draft(decoding, name), TritonTarget(self._settings, decoding, name)
        loop = DraftTargetLoop(decoding.prompt_ids, decoding.plan, draft, target, pace)
        for response in respond(loop, decoding, self._vocabulary, reply.cancelled):
            if response.final:
                self._note(loop, response)
            outputs = response_outputs(response, num_input_tokens=decoding.prompt_ids.size, batch_index=row)
            # The stub may not free a tensor that nobody asked for: only wanted ones are made.
            made = {name: make() for name, make in outputs.items() if name in wanted}
            reply.send(row, made, final=response.final)

    def _draft(self, decoding: DecodeRequest, request_id: str) -> DraftEngine:
        if self._settings.ngram_size:
            return NgramDraft(self._settings.ngram_size)
        return TritonDraft(self._settings, decoding, request_id, self._in_time)

    def _note(self, loop: DraftTargetLoop, last: Response) -> None:
        """Count what a request's drafts came to, before its client can know that it is answered."""
        self._metrics.add(last.statistics, last.bypass_reason)
        self._metrics.add_seconds(draft_s=loop.draft_s, target_s=loop.target_s)
        if loop.draft_failure:
            self._breaker.failed()
            self._metrics.draft_failed()
            pb_utils.Logger.log_warn(f"the target finished a request alone: {loop.draft_failure}")
        elif last.statistics.drafted:
            self._breaker.worked()
        self._metrics.draft_left_alone(alone=self._breaker.is_open)

    def _refuse_undeclared(self, decoding: DecodeRequest) -> None:
        """Refuse what this deployment's configuration has no output for."""
        for name in decoding.pass_through:
            if name not in self._outputs:
                raise RequestError(f"return_{name} is not offered: this deployment has no output {name!r}")


def _reply(request: InferenceRequest, *, streams: bool) -> tuple[Reply, int]:
    """Return the way back to a request's client, and how many texts it sent; what is missing is noticed later."""
    inputs = {tensor.name(): tensor for tensor in request.inputs()}
    rows = int(inputs["input_ids"].shape()[0]) if "input_ids" in inputs else 1
    stream = streams and rows > 1 and "stream" in inputs and bool(inputs["stream"].as_numpy().any())
    return Reply(request.get_response_sender(), rows=rows, stream=stream), rows
