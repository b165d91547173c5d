"""Speculative decoding with a draft and a target engine: the Triton model.

``execute`` hands each request to a worker thread, so that one instance decodes several requests at once; a worker calls
the engines, each call a request of its own to their models. A worker whose draft hangs loses its request to another
one, which finishes it with the target alone. Whether the model is decoupled or not, it answers through each request's
response sender; if it is not, no answer is streamed. This file is the glue to Triton; what is decided is in its
``decoder_*`` siblings, which know nothing of Triton but for ``decoder_engine`` and ``decoder_reply``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import secrets
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

import triton_python_backend_utils as pb_utils
from decoder_answer import AnswerWriter
from decoder_batch import row_of
from decoder_breaker import DraftBreaker
from decoder_engine import TritonDraft, TritonTarget
from decoder_loop import DraftTargetLoop, EngineFault
from decoder_metrics import DraftMetrics
from decoder_ngram import NgramDraft
from decoder_otlp import SpanExporter, traces_endpoint
from decoder_outputs import response_outputs
from decoder_perf import PERF_METRICS
from decoder_policy import DraftPolicy
from decoder_reply import Reply, time_limit_s
from decoder_request import RequestError, read_request
from decoder_settings import SettingsError, is_decoupled, read_settings
from decoder_spans import TextSpans, read_context
from decoder_stop import CallStopper
from decoder_text import Vocabulary
from decoder_text_in import as_ids, texts_of
from decoder_watch import CallWatch, DeadlineError, TakenOverError
from decoder_workers import Workers
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from decoder_answer import Response
    from decoder_loop import DraftEngine
    from decoder_reply import InferenceRequest
    from decoder_request import DecodeRequest

    T = TypeVar("T")


_READ_S: Final = 10.0
"""Longest time that the preprocessing model may take for one text; it takes a few milliseconds."""

_NO_SPANS = TextSpans(None, lambda _: None, models={})


class _Text:
    """One text of a request on its way to its answer: of one worker at a time, and whole between two groups."""

    def __init__(self, request: InferenceRequest, reply: Reply, row: int, spans: TextSpans) -> None:
        self.request = request
        self.reply = reply
        self.row = row
        self.spans = spans
        # Ended when the text is answered, on whatever thread that is.
        self.held = contextlib.ExitStack()
        self.held.callback(spans.end)
        # From here on: once it is read.
        self.begun = False
        self.num_input_tokens: int
        self.loop: DraftTargetLoop
        self.writer: AnswerWriter

    def fail(self, message: str, code: int) -> None:
        """Answer the request, of which this is a text, with an error."""
        self.spans.fail(message)
        self.reply.fail(message, code)

    def end(self) -> None:
        """Let go of everything: the draft's engine knows the text, so that nothing of it would be freed by itself."""
        self.held.close()
        if self.begun:
            del self.loop, self.writer
            self.begun = False


class TritonPythonModel:
    """The model as Triton's Python backend calls it."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the parameters and the tokenizer, and start the workers."""
        config = json.loads(args["model_config"])
        self._settings = read_settings(config.get("parameters", {}), decoupled=is_decoupled(config))
        self._outputs = {output["name"] for output in config["output"]}
        self._measured = tuple(name for name in PERF_METRICS if name in self._outputs)
        folder = Path(args["model_repository"], args["model_version"], self._settings.tokenizer_dir)
        self._vocabulary = Vocabulary(Tokenizer.from_file(str(folder / "tokenizer.json")))
        self._workers = Workers()
        self._free = threading.BoundedSemaphore(self._settings.max_inflight)
        self._breaker = DraftBreaker()
        self._watch = CallWatch(most=self._settings.max_inflight)
        self._stopper = CallStopper()
        self._process, self._numbers = secrets.token_hex(4), itertools.count()
        self._reading = CallWatch(most=self._settings.max_inflight)
        self._metrics = DraftMetrics(args)
        self._policy = DraftPolicy(adaptive=self._settings.adaptive, schedule=self._settings.draft_len_schedule)
        self._spans = _span_exporter(self._settings.otlp_traces_endpoint)
        if self._settings.stand_in:
            pb_utils.Logger.log_warn("the engines of this deployment are CPU stand-ins for TensorRT-LLM's")

    def execute(self, requests: Sequence[InferenceRequest]) -> None:
        """Hand each request to a worker, waiting for a free one, so that what waits does so in Triton's own queue."""
        for request in requests:
            reply, rows = _reply(request, streams=self._settings.decoupled)
            for row, spans in enumerate(self._spans_of(request, rows)):
                self._free.acquire()
                self._start(_Text(request=request, reply=reply, row=row, spans=spans))

    def finalize(self) -> None:
        """End the workers; Triton unloads a model only when its requests are answered."""
        self._workers.close()
        self._watch.close()
        self._reading.close()
        self._stopper.close()
        if self._spans is not None:
            self._spans.close()

    def _spans_of(self, request: InferenceRequest, rows: int) -> list[TextSpans]:
        """Return the spans of each text: they begin here, and there are none where Triton does not trace."""
        if self._spans is None:
            return [_NO_SPANS] * rows
        parent = read_context(request.trace().get_context())
        models = {"target": self._settings.target_model, "draft": self._settings.draft_model or "ngram"}
        return [TextSpans(parent, self._spans.add, models=models) for _ in range(rows)]

    def _start(self, text: _Text) -> None:
        self._workers.submit(functools.partial(self._serve, text))

    def _serve(self, text: _Text) -> None:
        """Answer one text of a request, whatever happens; the request gets exactly one final response."""
        # What another worker has taken over is answered, and ended, there.
        with contextlib.suppress(TakenOverError):
            self._answer(text)
            self._end(text)

    def _end(self, text: _Text) -> None:
        text.end()
        self._free.release()

    def _answer(self, text: _Text) -> None:
        try:
            if not text.begun:
                self._begin(text)
            self._go_on(text)
        except TakenOverError:
            raise
        except RequestError as error:
            text.fail(str(error), pb_utils.TritonError.INVALID_ARG)
        except EngineFault as error:
            self._note_failed_draft(text)
            text.fail(str(error), pb_utils.TritonError.INTERNAL)
        except Exception as error:  # noqa: BLE001 - a bug of ours must not leave the client waiting
            pb_utils.Logger.log_error(traceback.format_exc())
            text.fail(f"the decoder failed: {error!r}", pb_utils.TritonError.INTERNAL)

    def _begin(self, text: _Text) -> None:
        # Engines know a call by its id: two clients, or two texts of one request, may have the same.
        name = f"{text.request.request_id()}#{self._process}.{next(self._numbers)}"
        text.reply.limit(time_limit_s(text.request))
        sent = row_of({tensor.name(): tensor.as_numpy() for tensor in text.request.inputs()}, text.row)
        inputs = as_ids(sent, self._settings.preprocessing_model, name, functools.partial(self._tokenized, text))
        decoding = read_request(inputs, self._settings, fresh_seed=secrets.randbits(64))
        self._refuse_undeclared(decoding)
        if decoding.plan.num_draft_tokens and not self._breaker.allows():
            decoding = decoding.without_drafts("draft_unavailable")
        text.held.enter_context(self._metrics.running())
        pace = text.held.enter_context(self._policy.request(pinned=decoding.pinned))
        measured = self._measured if decoding.return_perf_metrics else ()
        until_ended = functools.partial(self._until_ended, text)
        target = TritonTarget(self._settings, decoding, name, measured, until_ended)
        text.writer = AnswerWriter(decoding, self._vocabulary)
        text.loop = DraftTargetLoop(decoding.prompt_ids, decoding.plan, self._draft(text, decoding, name), target, pace)
        text.num_input_tokens = decoding.prompt_ids.size
        text.begun = True

    def _go_on(self, text: _Text) -> None:
        wanted = set(text.request.requested_output_names())
        for response in text.writer.responses(text.spans.rounds(text.loop), text.reply.ended):
            if response.final:
                self._note(text, response)
            outputs = response_outputs(response, num_input_tokens=text.num_input_tokens, batch_index=text.row)
            # The stub may not free a tensor that nobody asked for: only wanted ones are made.
            made = {name: make() for name, make in outputs.items() if name in wanted}
            text.reply.send(text.row, made, final=response.final)

    def _draft(self, text: _Text, decoding: DecodeRequest, request_id: str) -> DraftEngine:
        if self._settings.ngram_size:
            return NgramDraft(self._settings.ngram_size)
        return TritonDraft(self._settings, decoding, request_id, functools.partial(self._in_time, text))

    def _tokenized(self, text: _Text, call: Callable[[], T]) -> T:
        """Make the call to the preprocessing model, if anybody waits for it, as long as it may take."""
        ended = text.reply.ended()
        if ended:
            raise RequestError(f"the request ended before it was read: {ended}")
        try:
            return self._reading(call, functools.partial(self._give_up, text), min(_READ_S, text.reply.left_s()))
        except DeadlineError as error:
            raise EngineFault(f"model {self._settings.preprocessing_model!r} {error}") from error

    def _give_up(self, text: _Text, why: str) -> None:
        """Answer a request whose worker waits for the preprocessing model, and may do so for ever."""
        text.fail(f"model {self._settings.preprocessing_model!r} {why}", pb_utils.TritonError.INTERNAL)
        self._end(text)

    def _until_ended(self, text: _Text, call: Callable[[], T], stop: Callable[[], None]) -> tuple[T, str]:
        """Make a call to the target, and have it stopped when nobody waits for the answer any more."""
        return self._stopper(call, text.reply.ended, stop)

    def _in_time(self, text: _Text, call: Callable[[], T]) -> T:
        """Make a call to the draft, as long as it and the request may take."""
        limit_s = min(self._settings.draft_timeout_ms / 1000, text.reply.left_s())
        return self._watch(call, functools.partial(self._take_over, text), limit_s)

    def _take_over(self, text: _Text, why: str) -> None:
        """Have another worker go on with a request whose worker waits for the draft, and may do so for ever."""
        # Where the request's own time is up, it ends, and the draft has not failed.
        if text.reply.left_s() > 0:
            text.loop.lose_draft(f"engine {self._settings.draft_model!r} {why}")
            text.writer.lose_draft()
        try:
            self._start(text)
        except RuntimeError as error:
            # No thread can be started, and this one is needed.
            self._note_failed_draft(text)
            text.fail(f"nobody can go on with the request: {error}", pb_utils.TritonError.INTERNAL)
            self._end(text)

    def _note(self, text: _Text, last: Response) -> None:
        """Count what a request's drafts came to, before its client can know that it is answered."""
        text.spans.note(last, num_input_tokens=text.num_input_tokens, batch_index=text.row)
        self._metrics.add(last.statistics, last.bypass_reason)
        self._metrics.add_seconds(draft_s=text.loop.draft_s, target_s=text.loop.target_s)
        if not self._note_failed_draft(text) and last.statistics.drafted:
            self._breaker.worked()
        self._metrics.draft_left_alone(alone=self._breaker.is_open)

    def _note_failed_draft(self, text: _Text) -> bool:
        """Count the draft's failure, if it has failed, whatever became of the request then; say whether it has."""
        if not (text.begun and text.loop.draft_failure):
            return False
        self._breaker.failed()
        self._metrics.draft_failed()
        pb_utils.Logger.log_warn(f"the target went on with a request alone: {text.loop.draft_failure}")
        return True

    def _refuse_undeclared(self, decoding: DecodeRequest) -> None:
        """Refuse what this deployment's configuration has no output for."""
        for name in decoding.pass_through:
            if name not in self._outputs:
                raise RequestError(f"return_{name} is not offered: this deployment has no output {name!r}")


def _span_exporter(parameter: str) -> SpanExporter | None:
    """Return what sends spans; an environment that says nothing useful is none of a deployment's business."""
    try:
        endpoint = traces_endpoint(parameter, os.environ)
    except SettingsError as error:
        if parameter:
            raise
        pb_utils.Logger.log_warn(f"no spans are sent: {error}")
        return None
    return SpanExporter(endpoint, os.environ, pb_utils.Logger.log_warn) if endpoint else None


def _reply(request: InferenceRequest, *, streams: bool) -> tuple[Reply, int]:
    """Return the way back to a request's client, and how many texts it sent."""
    inputs = {tensor.name(): tensor for tensor in request.inputs()}
    rows = texts_of(request)
    stream = streams and rows > 1 and "stream" in inputs and bool(inputs["stream"].as_numpy().any())
    return Reply(request.get_response_sender(), rows=rows, stream=stream), rows
