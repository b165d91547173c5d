"""The model class that Triton's Python stub drives: tensors in, jobs to the scheduler, tensors out.

The only module that knows Triton. ``execute`` answers nothing itself: it returns at once and every request is answered
through its response sender from the scheduler's thread, so that one instance runs many requests at a time, whether the
model is decoupled or not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import triton_python_backend_utils as pb_utils
from tensorrtllm_cpu.engine import SlotPool
from tensorrtllm_cpu.faults import EngineUnusable, RequestRefused
from tensorrtllm_cpu.inputs import Limits, read_request
from tensorrtllm_cpu.outputs import to_tensors
from tensorrtllm_cpu.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tensorrtllm_cpu.generation import Answer
    from tensorrtllm_cpu.inputs import GenerationRequest

_FINAL: Final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """One engine behind the tensors of the TensorRT-LLM backend; the name is Triton's convention."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the engine and start the scheduler.

        Raises:
            TritonModelException: The engine or the configuration is not usable; the message says what to do.
        """
        self._name = args["model_name"]
        try:
            self._limits, pool = _load(json.loads(args["model_config"]), Path(args["model_repository"]))
        except EngineUnusable as error:
            raise pb_utils.TritonModelException(f"{self._name} (CPU stand-in for TensorRT-LLM): {error}") from error
        self._scheduler = Scheduler(pool)
        self._scheduler.start()
        pb_utils.Logger.log_warn(
            f"{self._name}: this is specdeploy's CPU stand-in for the TensorRT-LLM backend, not TensorRT-LLM itself. "
            f"Vocabulary {self._limits.vocab_size}, at most {self._limits.max_seq_len} tokens per sequence."
        )

    def execute(self, requests: Sequence[Any]) -> None:
        """Hand each request to the scheduler, or refuse it; answers nothing itself."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
                if "stop" in tensors and tensors["stop"].any():
                    self._stop(request.request_id())
                    sender.send(pb_utils.InferenceResponse([]), flags=_FINAL)
                    continue
                parsed = read_request(tensors, self._limits)
            except Exception as error:  # noqa: BLE001 - an escaping error would fail the other requests of the call
                _send_error(sender, error)
                continue
            self._scheduler.submit(_TritonJob(self._name, request, parsed, sender), request.request_id())

    def _stop(self, name: str) -> None:
        """End the requests that have this id, as the C++ backend does for a request with ``stop``."""
        if not name:
            raise RequestRefused("Trying to stop a request but request ID is not provided")
        self._scheduler.stop(name)

    def finalize(self) -> None:
        """Stop the scheduler."""
        self._scheduler.close()


def _load(config: Mapping[str, Any], model_dir: Path) -> tuple[Limits, SlotPool]:
    """Load the engine that ``config`` names."""
    from tensorrtllm_cpu.genai import GenaiModel  # noqa: PLC0415 - the engine's library is only needed, and loaded, here
    from tensorrtllm_cpu.settings import read_settings  # noqa: PLC0415

    settings = read_settings(config, model_dir)
    model = GenaiModel(settings.engine_dir, settings.max_seq_len)
    limits = Limits(
        vocab_size=model.vocab_size,
        max_seq_len=model.max_seq_len,
        exclude_input_in_output=settings.exclude_input_in_output,
        decoupled=settings.decoupled,
    )
    pool = SlotPool(
        model.new_cache, count=settings.max_sequences, capacity=model.max_seq_len, reuse=settings.reuse_kv_cache
    )
    return limits, pool


class _TritonJob:
    """A request that Triton waits for; a ``Job``.

    Holds on to the request until it is answered: its input tensors live in memory that Triton takes back then.
    """

    def __init__(self, model: str, request: Any, parsed: GenerationRequest, sender: Any) -> None:  # noqa: ANN401 - Triton's objects
        self.request = parsed
        self._model = model
        self._triton = request
        self._sender = sender
        self._wanted = frozenset(request.requested_output_names())

    def cancelled(self) -> bool:
        """Ask Triton whether the caller went away."""
        return bool(self._triton.is_cancelled())

    def respond(self, answer: Answer, *, final: bool) -> None:
        """Send the outputs that the caller asked for."""
        try:
            arrays = to_tensors(self.request, answer, self._wanted)
            # Older stubs free a tensor without Python's lock; `tensors` keeps them alive until they are sent.
            tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
            self._sender.send(pb_utils.InferenceResponse(tensors), flags=_FINAL if final else 0)
        except Exception as error:  # noqa: BLE001 - this runs on the scheduler's thread, which serves the others too
            _send_error(self._sender, error)

    def fail(self, error: Exception) -> None:
        """Send an error."""
        _send_error(self._sender, error)

    def abandon(self) -> None:
        """Send the end that Triton expects for a cancelled request."""
        pb_utils.Logger.log_verbose(f"{self._model}: a request was cancelled, id {self._triton.request_id()!r}")
        _send_error(self._sender, pb_utils.TritonError("the request was cancelled", pb_utils.TritonError.CANCELLED))


def _send_error(sender: Any, error: Any) -> None:  # noqa: ANN401 - Triton's objects
    """Answer a request with an error; a sender that is closed already only leaves a line in the log."""
    if isinstance(error, RequestRefused):
        error = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
    elif isinstance(error, Exception):
        pb_utils.Logger.log_error(f"the CPU engine failed: {error!r}")
        error = pb_utils.TritonError(f"the CPU engine failed: {error!r}", pb_utils.TritonError.INTERNAL)
    try:
        sender.send(pb_utils.InferenceResponse(error=error), flags=_FINAL)
    except Exception as failure:  # noqa: BLE001 - nobody is left to be told
        pb_utils.Logger.log_error(f"a response could not be sent: {failure!r}")
