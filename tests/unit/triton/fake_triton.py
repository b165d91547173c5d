"""A Triton without sockets: the transport and the channel of ``TritonClient``, driven by plain functions."""

from __future__ import annotations

import json
import queue
import threading
from typing import TYPE_CHECKING, Any, Self

from tritonclient.grpc import service_pb2

from specdeploy.triton.protocol import NUMPY_TYPES, Tensor, make_tensor, unpack_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class FakeReply:
    """An HTTP answer that comes in the given pieces; a piece that is an exception is raised."""

    def __init__(self, status: int, pieces: Iterable[bytes | Exception]) -> None:
        self.status = status
        self.closed = False
        self._pieces = iter(pieces)

    def read_some(self) -> bytes:
        """Return the next piece."""
        piece = next(self._pieces, b"")
        if isinstance(piece, Exception):
            raise piece
        return piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


def json_reply(value: object, status: int = 200) -> FakeReply:
    """Answer with a JSON body."""
    return FakeReply(status, [json.dumps(value).encode()])


def event_reply(values: Iterable[object], status: int = 200) -> FakeReply:
    """Answer with one server-sent event for each value, as Triton writes them."""
    return FakeReply(status, [b"data: " + json.dumps(value).encode() + b"\n\n" for value in values])


class FakeTransport:
    """Answers HTTP requests with ``handle(method, path, body)`` and remembers them."""

    def __init__(self, handle: Callable[[str, str, Any], FakeReply]) -> None:
        self._handle = handle
        self.sent: list[tuple[str, str, Any]] = []
        self.timeouts: list[float] = []
        self.replies: list[FakeReply] = []

    def send(self, method: str, path: str, body: bytes | None, timeout_s: float) -> FakeReply:
        """Answer one request."""
        value = None if body is None else json.loads(body)
        self.sent.append((method, path, value))
        self.timeouts.append(timeout_s)
        self.replies.append(self._handle(method, path, value))
        return self.replies[-1]


class FakeRpcError(Exception):
    """Looks like ``grpc.RpcError``: it knows its status and details."""

    def __init__(self, status: str, details: str) -> None:
        super().__init__(details)
        self._status, self._details = status, details

    def code(self) -> Any:
        """Return the status."""
        import grpc

        return grpc.StatusCode[self._status]

    def details(self) -> str:
        """Return the message."""
        return self._details


_CANCEL = object()
_END = object()


class FakeCall:
    """A bidirectional call: ``answer(message)`` yields the responses to a request, or None to never answer."""

    def __init__(self, requests: Iterator[Any], answer: Callable[[Any], Iterable[Any] | None]) -> None:
        self._answer = answer
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.cancelled = False
        threading.Thread(target=self._pump, args=(requests,), daemon=True).start()

    def __iter__(self) -> Iterator[Any]:
        while (event := self._events.get()) is not _END:
            if event is _CANCEL:
                raise FakeRpcError("CANCELLED", "Locally cancelled by application!")
            for response in self._answer(event) or ():
                if isinstance(response, Exception):
                    raise response
                yield response

    def cancel(self) -> None:
        """End the call with CANCELLED."""
        self.cancelled = True
        self._events.put(_CANCEL)

    def _pump(self, requests: Iterator[Any]) -> None:
        for request in requests:
            self._events.put(request)
        self._events.put(_END)


class FakeChannel:
    """Opens fake calls and remembers them."""

    def __init__(self, answer: Callable[[Any], Iterable[Any] | None]) -> None:
        self._answer = answer
        self.calls: list[FakeCall] = []
        self.closed = False

    def open(self, requests: Iterator[Any]) -> FakeCall:
        """Start a call."""
        self.calls.append(FakeCall(requests, self._answer))
        return self.calls[-1]

    def close(self) -> None:
        """Cancel every call."""
        self.closed = True
        for call in self.calls:
            call.cancel()


def response(key: str, outputs: Iterable[Tensor], *, final: bool) -> Any:
    """Build a ``ModelStreamInferResponse``."""
    message = service_pb2.ModelStreamInferResponse()
    answer = message.infer_response
    answer.id = key
    answer.parameters["triton_final_response"].bool_param = final
    for tensor in outputs:
        answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.data.shape)
        answer.raw_output_contents.append(tensor.raw())
    return message


def error_response(key: str, text: str) -> Any:
    """Build a response that says that a request failed."""
    message = service_pb2.ModelStreamInferResponse(error_message=text)
    message.infer_response.id = key
    return message


def tensors_of(message: Any) -> list[Tensor]:
    """Read the inputs of a ``ModelInferRequest``."""
    pairs = zip(message.inputs, message.raw_input_contents, strict=True)
    assert all(spec.datatype in NUMPY_TYPES for spec in message.inputs)
    return [
        Tensor(name=spec.name, datatype=spec.datatype, data=unpack_tensor(spec.name, spec.datatype, spec.shape, raw))
        for spec, raw in pairs
    ]


def text_outputs(text: str, ids: Iterable[int] = (), finish_reason: str = "") -> list[Tensor]:
    """Build the outputs of a small response."""
    return [
        make_tensor("text_output", "BYTES", text),
        make_tensor("output_ids", "INT32", list(ids)),
        make_tensor("finish_reason", "BYTES", finish_reason),
    ]


def metadata_of(name: str, inputs: dict[str, str], outputs: dict[str, str]) -> dict[str, Any]:
    """Build the answer of ``GET /v2/models/NAME``."""

    def specs(types: dict[str, str]) -> list[dict[str, Any]]:
        return [{"name": n, "datatype": t, "shape": [-1, 1]} for n, t in types.items()]

    return {
        "name": name,
        "versions": ["1"],
        "platform": "ensemble",
        "inputs": specs(inputs),
        "outputs": specs(outputs),
    }
