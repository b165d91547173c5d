"""Speculative decoding inside ``tensorrt_llm.LLM``: the Triton model of the ``llmapi`` profile.

The front door's ``speculative_decoder`` like the model of the other profiles, with the same inputs and
outputs. ``execute`` hands each request to a worker thread, which turns the engine's tokens into responses while the
engine decodes all requests at once. This file is the glue to Triton; what is decided is in its ``llmapi_*`` siblings,
and in the ``decoder_*`` ones that it shares with the other model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import triton_python_backend_utils as pb_utils
from decoder_answer import respond
from decoder_loop import EngineFault
from decoder_metrics import DraftMetrics
from decoder_outputs import response_outputs
from decoder_reply import Reply, time_limit_s
from decoder_request import RequestError
from decoder_settings import SettingsError, is_decoupled
from decoder_text import Vocabulary
from decoder_text_in import as_ids
from llmapi_engine import LlmEngine, LoadError
from llmapi_request import read_llm_request
from llmapi_run import LlmRun
from llmapi_settings import MODEL_YAML, read_deployment
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from decoder_text_in import Outputs
    from llmapi_settings import Deployment

# Triton's own classes carry no types.
InferenceRequest: TypeAlias = Any


class TritonPythonModel:
    """The model as Triton's Python backend calls it."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read what is deployed, load the engine, and start the workers."""
        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"], args["model_version"])
        try:
            self._deployment = _read_deployment(config, folder)
            settings = self._deployment.settings
            tokenizer = Tokenizer.from_file(str(folder / settings.tokenizer_dir / "tokenizer.json"))
            self._engine = LlmEngine(self._deployment.arguments)
        except (OSError, SettingsError, LoadError) as error:
            raise pb_utils.TritonModelException(str(error)) from error
        self._vocabulary = Vocabulary(tokenizer)
        self._penalties = self._deployment.applies_penalties(self._engine.version)
        self._workers = ThreadPoolExecutor(settings.max_inflight, thread_name_prefix="decode")
        self._free = threading.BoundedSemaphore(settings.max_inflight)
        self._metrics = DraftMetrics(args)
        pb_utils.Logger.log_info(f"TensorRT-LLM {self._engine.version} serves up to {settings.max_inflight} requests")

    def execute(self, requests: Sequence[InferenceRequest]) -> None:
        """Hand each request to a worker, waiting for a free one, so that what waits does so in Triton's own queue."""
        for request in requests:
            self._free.acquire()
            self._workers.submit(self._serve, request, Reply(request.get_response_sender()))

    def finalize(self) -> None:
        """End the workers, then the engine; Triton unloads a model only when its requests are answered."""
        self._workers.shutdown(wait=True)
        self._engine.shutdown()

    def _serve(self, request: InferenceRequest, reply: Reply) -> None:
        """Answer one request, whatever happens, with exactly one final response."""
        try:
            self._decode(request, reply)
        except RequestError as error:
            reply.fail(str(error), pb_utils.TritonError.INVALID_ARG)
        except EngineFault as error:
            reply.fail(str(error), pb_utils.TritonError.INTERNAL)
        except Exception as error:  # noqa: BLE001 - a bug of ours must not leave the client waiting
            pb_utils.Logger.log_error(traceback.format_exc())
            reply.fail(f"the decoder failed: {error!r}", pb_utils.TritonError.INTERNAL)
        finally:
            self._free.release()

    def _decode(self, request: InferenceRequest, reply: Reply) -> None:
        sent = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        reply.limit(time_limit_s(request))
        inputs = as_ids(sent, self._deployment.settings.preprocessing_model, request.request_id(), _at_once)
        asked = read_llm_request(inputs, self._deployment, penalties=self._penalties, fresh_seed=secrets.randbits(63))
        wanted = set(request.requested_output_names())
        run = LlmRun(asked, self._engine.starter(asked), self._engine.loop, reply.ended)
        with self._metrics.running(), contextlib.closing(run):
            for response in respond(run, asked.decoding, self._vocabulary, _never):
                counted = dataclasses.replace(response, statistics=run.statistics)
                if response.final:
                    self._metrics.add(run.statistics, response.bypass_reason)
                made = response_outputs(counted, num_input_tokens=asked.decoding.prompt_ids.size)
                # The stub may not free a tensor that nobody asked for: only wanted ones are made.
                reply.send(0, {name: make() for name, make in made.items() if name in wanted}, final=response.final)


def _read_deployment(config: Mapping[str, Any], folder: Path) -> Deployment:
    parameters = config.get("parameters", {})
    name = parameters.get("model_yaml", {"string_value": MODEL_YAML})["string_value"]
    document = (folder / name).read_text(encoding="utf-8")
    return read_deployment(parameters, document, folder.parents[1], decoupled=is_decoupled(config))


def _at_once(call: Callable[[], Outputs]) -> Outputs:
    """Make a call; here a preprocessing model that hangs keeps a worker."""
    return call()


def _never() -> str:
    """Say that nothing ends the answer: the run itself asks, also while it waits."""
    return ""
