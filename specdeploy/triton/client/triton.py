"""The client of a deployment: health, metadata, counters, and text over HTTP and gRPC.

Every call has a deadline. Every failure is a ``RequestFailed`` with a stable label. Knows no statistics and no checks.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any, Self

from specdeploy.errors import ConfigError
from specdeploy.triton.client.failures import RequestFailed, http_failure, malformed_answers
from specdeploy.triton.client.http import HttpTransport
from specdeploy.triton.client.replies import read_body, read_chunk, read_events, read_json
from specdeploy.triton.client.stream import GrpcChannel, GrpcStream
from specdeploy.triton.protocol import (
    Chunk,
    GenerateRequest,
    ModelMetadata,
    ModelStatistics,
    Tensor,
    read_metadata,
    read_statistics,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from specdeploy.triton.client.http import Transport
    from specdeploy.triton.client.stream import Channel


class TritonClient:
    """Talks to one deployment; a context manager, to be closed always. Any number of threads may share it.

    ``model`` of a call is the front door that the request goes to, ``timeout_s`` the call's deadline; left out, those
    of the client hold.

    Args:
        http_url: ``host:port`` of the HTTP endpoint.
        grpc_url: ``host:port`` of the gRPC endpoint.
        metrics_url: ``host:port`` of the metrics endpoint; only ``metrics_text`` needs it.
        model: The front door.
        timeout_s: Deadline of a call (seconds).
        transport: Replaces HTTP, in tests.
        channel: Replaces gRPC, in tests.
        monotonic: The clock of deadlines and of ``Chunk.received_s``.
    """

    def __init__(
        self,
        http_url: str,
        grpc_url: str,
        *,
        metrics_url: str | None = None,
        model: str = "ensemble",
        timeout_s: float = 60.0,
        transport: Transport | None = None,
        channel: Channel | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._http: Transport = transport or HttpTransport(http_url, monotonic=monotonic)
        self._channel: Channel = channel or GrpcChannel(grpc_url)
        self._metrics = None if metrics_url is None else HttpTransport(metrics_url, default_port=8002)
        self._input_types: dict[str, dict[str, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is in flight over gRPC and disconnect; a second time does nothing."""
        self._channel.close()

    def live(self, *, timeout_s: float | None = None) -> bool:
        """Whether the server answers at all."""
        return self._is_ok("/v2/health/live", timeout_s)

    def ready(self, *, timeout_s: float | None = None) -> bool:
        """Whether the server takes requests. A dead model process does not change that: only a request shows it."""
        return self._is_ok("/v2/health/ready", timeout_s)

    def model_ready(self, name: str, *, timeout_s: float | None = None) -> bool:
        """Whether a model is loaded."""
        return self._is_ok(f"/v2/models/{name}/ready", timeout_s)

    def server(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the server's name, version and extensions.

        Raises:
            RequestFailed: It cannot be reached or answers with an error.
        """
        return self._get_json("/v2", timeout_s)

    def metadata(self, name: str | None = None, *, timeout_s: float | None = None) -> ModelMetadata:
        """Return a model's inputs and outputs.

        Raises:
            RequestFailed: Unknown model, or no connection.
        """
        body = self._get_json(f"/v2/models/{name or self._model}", timeout_s)
        with malformed_answers():
            return read_metadata(body)

    def model_config(self, name: str | None = None, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return a model's configuration as Triton completed it.

        Raises:
            RequestFailed: Unknown model, or no connection.
        """
        return self._get_json(f"/v2/models/{name or self._model}/config", timeout_s)

    def statistics(self, name: str, *, timeout_s: float | None = None) -> ModelStatistics:
        """Return Triton's own counters of a model.

        Raises:
            RequestFailed: Unknown model, or no connection.
        """
        body = self._get_json(f"/v2/models/{name}/stats", timeout_s)
        with malformed_answers():
            return read_statistics(body, name)

    def every_statistics(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return Triton's own counters of all models, as it writes them.

        Raises:
            RequestFailed: No connection, or an error.
        """
        return self._get_json("/v2/models/stats", timeout_s)

    def metrics_text(self, *, timeout_s: float | None = None) -> str:
        """Return the metrics page in Prometheus' text format.

        Raises:
            ConfigError: The client was made without ``metrics_url``.

            RequestFailed: No connection, or an error.
        """
        if self._metrics is None:
            raise ConfigError("this client does not know the metrics endpoint", hint="Pass metrics_url.")
        with self._metrics.send("GET", "/metrics", None, self._limit(timeout_s)) as reply:
            text = read_body(reply).decode(errors="replace")
        if reply.status != 200:
            raise http_failure(reply.status, text)
        return text

    def generate_http(
        self, request: GenerateRequest, *, model: str | None = None, timeout_s: float | None = None
    ) -> Chunk:
        """Return the whole answer over HTTP ``generate``; ``request.stream`` is set to false.

        Raises:
            ConfigError: The model has no such input, or a value does not fit it.

            RequestFailed: Any failure, including an error inside an answer with status 200.
        """
        body = dataclasses.replace(request, stream=False).to_json(self._inputs(model, timeout_s))
        return self.post_generate(body, model=model, timeout_s=timeout_s)

    def post_generate(
        self, body: Mapping[str, object], *, model: str | None = None, timeout_s: float | None = None
    ) -> Chunk:
        """Send a body to HTTP ``generate`` as it is, without a look at names and types.

        Raises:
            RequestFailed: As ``generate_http``.
        """
        path = f"/v2/models/{model or self._model}/generate"
        with self._http.send("POST", path, json.dumps(body).encode(), self._limit(timeout_s)) as reply:
            outputs = read_json(reply.status, read_body(reply))
        return read_chunk(outputs, final=True, received_s=self._monotonic())

    def stream_http(
        self, request: GenerateRequest, *, model: str | None = None, timeout_s: float | None = None
    ) -> Iterator[Chunk]:
        """Send the request now over HTTP ``generate_stream`` and return its chunks as they arrive.

        ``request.stream`` is set to true. The end of the response is the end of the answer: over HTTP no chunk is
        marked ``final``.

        Raises:
            ConfigError: As ``generate_http``.

            RequestFailed: As ``generate_http``; also while iterating.
        """
        body = dataclasses.replace(request, stream=True).to_json(self._inputs(model, timeout_s))
        path = f"/v2/models/{model or self._model}/generate_stream"
        reply = self._http.send("POST", path, json.dumps(body).encode(), self._limit(timeout_s))
        return read_events(reply, self._monotonic)

    def generate_grpc(
        self, request: GenerateRequest, *, model: str | None = None, timeout_s: float | None = None
    ) -> Chunk:
        """Return the whole answer over a gRPC stream; ``request.stream`` is set to false.

        Raises:
            ConfigError: As ``generate_http``.

            RequestFailed: Any failure; ``protocol`` when there is not exactly one response.
        """
        chunks = list(self._over_grpc(dataclasses.replace(request, stream=False), model, timeout_s))
        if len(chunks) != 1:
            raise RequestFailed("protocol", f"{len(chunks)} responses to a request that does not stream; expected 1")
        return chunks[0]

    def stream_grpc(
        self, request: GenerateRequest, *, model: str | None = None, timeout_s: float | None = None
    ) -> Iterator[Chunk]:
        """Send the request now over a gRPC stream of its own and return its chunks as they arrive.

        ``request.stream`` is set to true. Closing the iterator cancels the request; Triton does not pass that on to a
        step of an ensemble that is in progress.

        Raises:
            ConfigError: As ``generate_http``.

            RequestFailed: Any failure; while iterating.
        """
        return self._over_grpc(dataclasses.replace(request, stream=True), model, timeout_s)

    def send_tensors(
        self, tensors: Sequence[Tensor], *, model: str | None = None, timeout_s: float | None = None
    ) -> Iterator[Chunk]:
        """Send tensors over a gRPC stream as they are, without a look at names and types.

        Raises:
            RequestFailed: As ``stream_grpc``.
        """
        stream = GrpcStream(self._channel, monotonic=self._monotonic)
        return _closing(stream, stream.send(model or self._model, tensors, self._limit(timeout_s)))

    def infer(
        self, model: str, tensors: Sequence[Tensor], *, timeout_s: float | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return the outputs of any model by name, as arrays, without a look at the names and types of the inputs.

        Over a gRPC stream: an engine may be a model of several responses, which Triton answers no other way.

        Raises:
            RequestFailed: As ``stream_grpc``.
        """
        with GrpcStream(self._channel, monotonic=self._monotonic) as stream:
            return stream.outputs(model, tensors, self._limit(timeout_s))

    def session(self, *, model: str | None = None, timeout_s: float | None = None) -> StreamSession:
        """Return a stream that carries many requests, one after another, each with that deadline."""
        stream = GrpcStream(self._channel, monotonic=self._monotonic)
        return StreamSession(self, stream, model=model or self._model, timeout_s=self._limit(timeout_s))

    def encode(
        self, request: GenerateRequest, *, model: str | None = None, timeout_s: float | None = None
    ) -> tuple[Tensor, ...]:
        """Return a request as tensors, checked against the inputs that the model has.

        Raises:
            ConfigError: As ``generate_http``.

            RequestFailed: The model's metadata cannot be had; it is asked for once.
        """
        return request.to_tensors(self._inputs(model, timeout_s))

    def _over_grpc(self, request: GenerateRequest, model: str | None, timeout_s: float | None) -> Iterator[Chunk]:
        tensors = self.encode(request, model=model, timeout_s=timeout_s)
        return self.send_tensors(tensors, model=model, timeout_s=timeout_s)

    def _inputs(self, model: str | None, timeout_s: float | None) -> dict[str, str]:
        name = model or self._model
        if name not in self._input_types:
            self._input_types[name] = self.metadata(name, timeout_s=timeout_s).input_types
        return self._input_types[name]

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s

    def _is_ok(self, path: str, timeout_s: float | None) -> bool:
        try:
            with self._http.send("GET", path, None, self._limit(timeout_s)) as reply:
                read_body(reply)
        except RequestFailed:
            return False
        return reply.status == 200

    def _get_json(self, path: str, timeout_s: float | None) -> dict[str, Any]:
        with self._http.send("GET", path, None, self._limit(timeout_s)) as reply:
            return read_json(reply.status, read_body(reply))


class StreamSession:
    """Many requests over one gRPC stream, one after another: the least overhead for each, as a load test needs.

    A context manager. Not for several threads: take a session for each.
    """

    def __init__(self, client: TritonClient, stream: GrpcStream, *, model: str, timeout_s: float) -> None:
        self._client = client
        self._stream = stream
        self._model = model
        self._timeout_s = timeout_s

    def stream(self, request: GenerateRequest, timeout_s: float | None = None) -> Iterator[Chunk]:
        """Send the request now, ``request.stream`` as it is, and return its chunks as they arrive.

        ``received_s`` of a chunk is when it arrived, however late the caller fetches it. An earlier answer that was
        not read to its end is abandoned, and cancelled on the server. After a failure the next call opens a new stream.

        Raises:
            ConfigError: As ``TritonClient.generate_http``.

            RequestFailed: Any failure; while iterating.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        tensors = self._client.encode(request, model=self._model, timeout_s=limit_s)
        return self._stream.send(self._model, tensors, limit_s)

    def close(self) -> None:
        """Cancel what is in flight and end the stream; a second time does nothing."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _closing(stream: GrpcStream, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    with stream:
        yield from chunks
