"""gRPC: one bidirectional stream that carries many requests, one after another.

A unary call would do for one answer, but Triton refuses unary calls to models that may send several (UNIMPLEMENTED),
and the front door is such a model. A stub process that dies sends no error to the streams in flight, so every request
has a deadline of its own.

gRPC's stubs are used and not ``tritonclient``'s client: that one allows a single stream per client, drops the id of a
failed request, and can hang when the interpreter exits before it was closed.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

from specdeploy.triton.client.failures import RequestFailed, grpc_failure, malformed_answers, stream_failure
from specdeploy.triton.client.http import host_and_port
from specdeploy.triton.protocol import Chunk, Tensor, decode_chunk, unpack_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

#: Without it the end of a stream whose last response is empty would never be told.
_TELL_THE_END = "triton_enable_empty_final_response"
_FINAL = "triton_final_response"
_JOIN_TIMEOUT_S = 5.0

#: Messages of any size, no proxies, and a server that comes back is found at once.
CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

#: A protobuf message or a gRPC object: their classes are made at run time and have no types.
Untyped: TypeAlias = Any
#: What a reader thread hands over: when, and a response, an exception, or None at the end of the stream.
_Arrival: TypeAlias = tuple[float, Untyped]
#: A response of one request: whether it is the last, when it came, and the message.
_Answer: TypeAlias = tuple[bool, float, Untyped]


class StreamCall(Protocol):
    """A gRPC call in progress: iterate over its responses, or cancel it."""

    def __iter__(self) -> Iterator[Untyped]: ...

    def cancel(self) -> object:
        """End the call at once."""


class Channel(Protocol):
    """Opens bidirectional ``ModelStreamInfer`` calls; the real one is ``GrpcChannel``."""

    def open(self, requests: Iterator[Untyped]) -> StreamCall:
        """Start a call that sends what the iterator yields."""

    def close(self) -> None:
        """Cancel every call and disconnect; a second time does nothing."""


class GrpcChannel:
    """One gRPC connection, made when it is first needed. Messages may have any size; proxies are not used."""

    def __init__(self, url: str) -> None:
        host, port = host_and_port(url, 8001)
        self._target = f"{host}:{port}"
        self._lock = threading.Lock()
        self._channel: Untyped = None
        self._disconnect: Callable[[], object] | None = None
        self._closed = False

    def open(self, requests: Iterator[Untyped]) -> StreamCall:
        """Start a call; see ``Channel``."""
        from tritonclient.grpc import service_pb2_grpc  # noqa: PLC0415  heavy: commands that never connect import us

        call: StreamCall = service_pb2_grpc.GRPCInferenceServiceStub(self._connected()).ModelStreamInfer(requests)
        return call

    def close(self) -> None:
        """Disconnect; see ``Channel``."""
        with self._lock:
            self._channel, self._closed = None, True
            disconnect = self._disconnect
        if disconnect is not None:
            disconnect()

    def _connected(self) -> Untyped:
        import grpc  # type: ignore[import-untyped]  # noqa: PLC0415  heavy, as above

        with self._lock:
            if self._closed:
                raise RequestFailed("connection", "the client is closed")
            if self._channel is None:
                self._channel = grpc.insecure_channel(self._target, options=CHANNEL_OPTIONS)
                # At exit, too, as for the calls; see _Link.
                self._disconnect = weakref.finalize(self, self._channel.close)
            return self._channel


class GrpcStream:
    """Sends requests one after another over one stream, and opens a new stream after a failure.

    Not for several threads: take a session for each.
    """

    def __init__(self, channel: Channel, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._channel = channel
        self._monotonic = monotonic
        self._link: _Link | None = None
        self._count = 0
        self._in_flight: str | None = None

    def send(self, model: str, tensors: Sequence[Tensor], timeout_s: float) -> Iterator[Chunk]:
        """Send a request now and return its chunks as they arrive.

        ``received_s`` of a chunk is taken when the response arrives, whenever the caller fetches it. The unfinished
        answer to an earlier request is abandoned, and cancelled on the server.

        Args:
            model: The front door.

            tensors: The inputs.

            timeout_s: From now to the last chunk.

        Raises:
            RequestFailed: While iterating: the server's error, or ``timeout``, ``connection``, ``protocol``.
        """
        return self._chunks(self._answers(model, tensors, timeout_s))

    def outputs(self, model: str, tensors: Sequence[Tensor], timeout_s: float) -> dict[str, NDArray[Any]]:
        """Send a request to any model and return the outputs of its whole answer by name, the latest of each.

        Args:
            model: Any model of the repository.

            tensors: The inputs.

            timeout_s: From now to the last response.

        Raises:
            RequestFailed: As ``send``.
        """
        outputs: dict[str, NDArray[Any]] = {}
        for _, _, response in self._answers(model, tensors, timeout_s):
            outputs |= read_outputs(response)
        return outputs

    def close(self) -> None:
        """Cancel what is in flight and end the stream; a second time does nothing."""
        link, self._link, self._in_flight = self._link, None, None
        if link is not None:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_link(self) -> _Link:
        if self._link is not None and (self._in_flight or self._link.ended):
            self.close()
        if self._link is None:
            self._link = _Link(self._channel, self._monotonic)
        return self._link

    def _answers(self, model: str, tensors: Sequence[Tensor], timeout_s: float) -> Iterator[_Answer]:
        """Send now; what is returned yields the responses, and ends the stream when they do not end as they should."""
        deadline = self._monotonic() + timeout_s
        self._count += 1
        key = str(self._count)
        link = self._open_link()
        self._in_flight = key
        link.send(build_message(model, tensors, key))
        return self._responses(link, key, deadline)

    def _responses(self, link: _Link, key: str, deadline: float) -> Iterator[_Answer]:
        final = False
        try:
            while not final:
                received_s, response = link.receive(deadline - self._monotonic())
                final = is_final(response, key)
                if final:
                    self._in_flight = None
                yield final, received_s, response
        finally:
            # Failed or abandoned: whatever is still to come must not meet the next request.
            if self._in_flight == key:
                self.close()

    @staticmethod
    def _chunks(answers: Iterator[_Answer]) -> Iterator[Chunk]:
        for final, received_s, response in answers:
            if response.infer_response.outputs:
                yield read_message(response, final=final, received_s=received_s)


class _Link:
    """One stream: a queue out, a thread that reads, a queue in."""

    def __init__(self, channel: Channel, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._outbox: queue.SimpleQueue[Untyped] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()
        self.ended = False
        self._call = channel.open(iter(self._outbox.get, None))
        # A daemon, so that a stream nobody closed cannot keep the interpreter from exiting.
        self._reader = threading.Thread(target=self._read, name="triton-stream", daemon=True)
        self._reader.start()
        # Also runs when the interpreter exits without close(): once it is torn down, gRPC's threads are frozen, and
        # whoever then needs a lock that one of them holds hangs for ever.
        self._end = weakref.finalize(self, _end_call, self._call, self._reader)

    def send(self, message: Untyped) -> None:
        self._outbox.put(message)

    def receive(self, timeout_s: float) -> tuple[float, Untyped]:
        try:
            received_s, item = self._inbox.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            raise RequestFailed("timeout", "no further response arrived before the deadline") from None
        if item is None:
            raise RequestFailed("connection", "the server closed the stream before the answer was complete")
        if isinstance(item, Exception):
            raise call_failure(item) from item
        return received_s, item

    def close(self) -> None:
        self._end()

    def _read(self) -> None:
        last: Exception | None = None
        try:
            for response in self._call:
                self._inbox.put((self._monotonic(), response))
        except Exception as error:  # noqa: BLE001  handed to the thread that waits for the answer
            last = error
        self.ended = True
        self._outbox.put(None)
        self._inbox.put((self._monotonic(), last))


def _end_call(call: StreamCall, reader: threading.Thread) -> None:
    call.cancel()
    reader.join(_JOIN_TIMEOUT_S)


def is_final(response: Untyped, key: str) -> bool:
    """Say whether a response is the request's last, after making sure that it belongs to it.

    Raises:
        RequestFailed: It is an error, or belongs to another request.
    """
    answer = response.infer_response
    if answer.id and answer.id != key:
        raise RequestFailed("protocol", f"a response to request {answer.id} arrived during request {key}")
    if response.error_message:
        raise stream_failure(response.error_message)
    return bool(answer.parameters[_FINAL].bool_param) if _FINAL in answer.parameters else False


def call_failure(error: Exception) -> RequestFailed:
    """Translate what ended a gRPC call: ``grpc.RpcError`` is a call too and carries its status."""
    code = getattr(error, "code", None)
    if code is None:
        return RequestFailed("protocol", f"{type(error).__name__}: {error}")
    return grpc_failure(code().name, str(error.details()))  # type: ignore[attr-defined]  # grpc.Call


def build_message(model: str, tensors: Sequence[Tensor], key: str) -> Untyped:
    """Return the ``ModelInferRequest`` of a request."""
    from tritonclient.grpc import service_pb2  # noqa: PLC0415  heavy, as above

    message = service_pb2.ModelInferRequest(model_name=model, id=key)
    message.parameters[_TELL_THE_END].bool_param = True
    for tensor in tensors:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.data.shape)
        message.raw_input_contents.append(tensor.raw())
    return message


def read_message(response: Untyped, *, final: bool, received_s: float) -> Chunk:
    """Decode the outputs of a ``ModelStreamInferResponse`` of a front door.

    Raises:
        RequestFailed: ``protocol``: they are not what their types and shapes say.
    """
    outputs = read_outputs(response)
    with malformed_answers():
        return decode_chunk(outputs, final=final, received_s=received_s)


def read_outputs(response: Untyped) -> dict[str, NDArray[Any]]:
    """Return the outputs of a ``ModelStreamInferResponse`` by name.

    Raises:
        RequestFailed: As ``read_message``.
    """
    answer = response.infer_response
    with malformed_answers():
        return {
            spec.name: unpack_tensor(spec.name, spec.datatype, spec.shape, raw)
            for spec, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
        }
