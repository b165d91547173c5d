"""Asks the engine model of the target directly: which two tokens are the best after these ids?

The front door cannot be asked, because it takes text, and text does not say which tokens it came from. The prompt's ids
are those that the ``preprocessing`` model makes of it, as for every request.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdeploy.smoke.margins import top_two
from specdeploy.triton.client import RequestFailed
from specdeploy.triton.client.failures import grpc_failure, malformed_answers, stream_failure
from specdeploy.triton.client.stream import build_message
from specdeploy.triton.protocol import make_tensor, unpack_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from specdeploy.smoke.margins import TopTwo
    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.client import TritonClient
    from specdeploy.triton.protocol import Tensor

    Outputs = dict[str, NDArray[Any]]

_PREPROCESSING: Final = "preprocessing"
_FINAL: Final = "triton_final_response"


class NoLogits(Exception):
    """The engine does not say; the message is why."""


class TargetLogits:
    """The target's own opinion of the next token, one request of one token each.

    Args:
        probe: Its client reaches the engine.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._prompts: dict[str, tuple[int, ...]] = {}

    def after(self, prompt: str, ids: Sequence[int]) -> TopTwo:
        """Return the two best tokens after a prompt and the first tokens of its answer.

        Raises:
            NoLogits: The engine was not built to give logits, or cannot be asked.
        """
        try:
            best = top_two(self._logits((*self._ids_of(prompt), *ids)))
        except RequestFailed as error:
            raise NoLogits(error.said) from error
        if best is None:
            raise NoLogits("what it answers as logits are none: was the engine built to gather them?")
        return best

    def _ids_of(self, prompt: str) -> tuple[int, ...]:
        if prompt not in self._prompts:
            query = (make_tensor("QUERY", "BYTES", prompt), make_tensor("REQUEST_OUTPUT_LEN", "INT32", 1))
            outputs = self._infer(_PREPROCESSING, query)
            self._prompts[prompt] = tuple(_wanted(outputs, "INPUT_ID").reshape(-1).tolist())
        return self._prompts[prompt]

    def _logits(self, ids: tuple[int, ...]) -> NDArray[Any]:
        tensors = (
            make_tensor("input_ids", "INT32", ids),
            make_tensor("input_lengths", "INT32", len(ids)),
            make_tensor("request_output_len", "INT32", 1),
            make_tensor("return_generation_logits", "BOOL", value=True),
        )
        logits = _wanted(self._infer(self._probe.expect.target_model, tensors), "generation_logits")
        return np.asarray(logits.reshape(-1, logits.shape[-1])[0])

    def _infer(self, model: str, tensors: Sequence[Tensor]) -> Outputs:
        return infer(self._probe.client, model, tensors, self._probe.timeout_s)


def infer(client: TritonClient, model: str, tensors: Sequence[Tensor], timeout_s: float) -> Outputs:
    """Send tensors to any model over a gRPC stream and return all outputs of its answer by name.

    Over a stream, since an engine model may be one that sends several responses, which Triton answers no other way.

    Raises:
        RequestFailed: The model's error, or ``timeout``, ``connection``, ``protocol``.
    """
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    call = client._channel.open(iter(requests.get, None))  # noqa: SLF001 - the client has no such call for any model
    timer = threading.Timer(timeout_s, call.cancel)
    timer.daemon = True
    timer.start()
    requests.put(build_message(model, tensors, "1"))
    try:
        return _outputs(call)
    except RequestFailed:
        raise
    except Exception as error:
        code = getattr(error, "code", None)
        if code is None:
            raise RequestFailed("protocol", f"{type(error).__name__}: {error}") from error
        if code().name == "CANCELLED":
            raise RequestFailed("timeout", f"{model} did not answer within {timeout_s:g} s") from error
        raise grpc_failure(code().name, str(error.details())) from error  # type: ignore[attr-defined]  # grpc.Call
    finally:
        timer.cancel()
        requests.put(None)
        call.cancel()


def _outputs(responses: Any) -> Outputs:  # noqa: ANN401 - protobuf's classes have no types
    outputs: Outputs = {}
    for response in responses:
        if response.error_message:
            raise stream_failure(response.error_message)
        outputs.update(_tensors(response.infer_response))
        if _is_final(response.infer_response):
            return outputs
    return outputs


def _is_final(answer: Any) -> bool:  # noqa: ANN401
    return bool(_FINAL in answer.parameters and answer.parameters[_FINAL].bool_param)


def _tensors(answer: Any) -> Iterator[tuple[str, NDArray[Any]]]:  # noqa: ANN401
    with malformed_answers():
        for spec, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
            yield spec.name, unpack_tensor(spec.name, spec.datatype, spec.shape, raw)


def _wanted(outputs: Outputs, name: str) -> NDArray[Any]:
    value = outputs.get(name)
    if value is None or not value.size:
        raise NoLogits(f"it answers without {name}; it has {', '.join(outputs) or 'nothing'}")
    return np.asarray(value)
