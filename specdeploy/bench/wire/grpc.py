"""gRPC for a load test: one bidirectional stream for each request at a time, used again for the next one.

Responses are kept as the messages that they are and decoded after the end. gRPC for asyncio costs a little less CPU
time per response than a thread for each stream does, and several times as much as HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.wire.codec import Answer, arrivals, collect
from specdeploy.bench.wire.exchange import Exchange, Exchanges
from specdeploy.triton.client.failures import RequestFailed, socket_failures
from specdeploy.triton.client.http import host_and_port
from specdeploy.triton.client.replies import SizeLimit
from specdeploy.triton.client.stream import CHANNEL_OPTIONS, build_message, call_failure, is_final, read_message
from specdeploy.triton.protocol import FRONT_DOOR_INPUTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from specdeploy.bench.wire.call import Done, Reply
    from specdeploy.triton.client.stream import Untyped
    from specdeploy.triton.protocol import Chunk, GenerateRequest


#: A server that is there ends its streams at once.
_FAREWELL_S: Final = 0.5


class GrpcCodec:
    """Triton's ``ModelStreamInfer``; a ``Codec`` whose payloads are ``ModelInferRequest`` messages.

    Args:
        model: The front door.

        inputs: The inputs that the front door has: name -> Triton data type.

        streams: Whether it can answer in pieces; without, each answer is one response.
    """

    def __init__(self, *, model: str, inputs: Mapping[str, str] = FRONT_DOOR_INPUTS, streams: bool = True) -> None:
        self._model = model
        self._inputs = inputs
        self._streams = streams
        self._keys = itertools.count(1)

    def prepare(self, request: GenerateRequest) -> Untyped:
        """Return the message of a request; see ``Codec``."""
        request = dataclasses.replace(request, stream=request.stream and self._streams)
        return build_message(self._model, request.to_tensors(self._inputs), str(next(self._keys)))

    def decode(self, reply: Reply, request: GenerateRequest) -> Answer:  # noqa: ARG002 - as in Codec
        """Read a reply; see ``Codec``."""
        return collect(_chunks(reply))


class GrpcWire(Exchanges):
    """A ``Wire`` to one Triton; its payloads are ``ModelInferRequest`` messages.

    Args:
        url: ``host:port`` of the gRPC endpoint.

        monotonic: The clock of replies.
    """

    def __init__(self, url: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(monotonic)
        host, port = host_and_port(url, 8001)
        shown = f"[{host}]" if ":" in host else host
        self._address = f"{shown}:{port}"
        self._channel: Untyped = None
        self._stub: Untyped = None
        self._idle: list[_Stream] = []
        self._streams: set[_Stream] = set()

    @property
    def address(self) -> str:
        """Where it connects to, host:port."""
        return self._address

    async def open(self, connections: int, timeout_s: float = 30.0) -> None:
        """Connect and begin that many streams; see ``Wire``."""
        self._connect()
        with socket_failures(self.address):
            async with asyncio.timeout(timeout_s):
                await self._channel.channel_ready()
        while len(self._streams) < connections:
            self._idle.append(self._begin())

    def start(self, payload: Any, timeout_s: float, done: Done) -> Exchange:  # noqa: ANN401 - a protobuf message
        """Send a request; see ``Wire``."""
        if not self._closed:
            # First, so that what it takes is no part of the request.
            self._connect()
        exchange = self._take(payload, timeout_s, done)
        while self._idle:
            stream = self._idle.pop()
            if stream.usable:
                stream.send(exchange)
                return exchange
            stream.abort()
        exchange.reply.opened = True
        self._begin().send(exchange)
        return exchange

    async def close(self) -> None:
        """Cancel what is in flight and disconnect; see ``Wire``."""
        self._closed = True
        self.cancel_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await asyncio.gather(*(stream.finish() for stream in self._streams), return_exceptions=True)
        for stream in tuple(self._streams):
            stream.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What holds the channel keeps gRPC's poller alive.
        self._idle.clear()
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close()

    def put_back(self, stream: _Stream) -> None:
        """Take a stream over which another request can be sent."""
        self._idle.append(stream)

    def lost(self, stream: _Stream) -> None:
        """Take note that a stream is no more."""
        self._streams.discard(stream)

    def _begin(self) -> _Stream:
        stream = _Stream(self, self._stub.ModelStreamInfer())
        self._streams.add(stream)
        return stream

    def _connect(self) -> None:
        if self._channel is not None:
            return
        import grpc.aio  # type: ignore[import-untyped]  # noqa: PLC0415  heavy: commands that never connect import us
        from tritonclient.grpc import service_pb2_grpc  # noqa: PLC0415  as above

        self._channel = grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)


class _Stream:
    """One call of ``ModelStreamInfer``, which carries one request at a time."""

    def __init__(self, wire: GrpcWire, call: Untyped) -> None:
        self._wire = wire
        self._call = call

    @property
    def usable(self) -> bool:
        return not self._call.done()

    def send(self, exchange: Exchange) -> None:
        exchange.link = self
        self._wire.spawn(self._carry(exchange))

    async def finish(self) -> None:
        """Let the server end the call.

        What gRPC tells of one that was cancelled may come when its loop is closed. A later loop of this process gets
        it then, since they share a poller, and prints an error.
        """
        await self._call.done_writing()
        await self._call.code()
        await self._call.initial_metadata()

    def abort(self) -> None:
        self._wire.lost(self)
        self._call.cancel()

    async def _carry(self, exchange: Exchange) -> None:
        try:
            await self._exchange(exchange)
        except RequestFailed as fault:
            exchange.fail(fault)
        except asyncio.CancelledError:
            # The call was cancelled, and the request with it; or the loop ends.
            exchange.cancel()
        except Exception as error:  # noqa: BLE001  whatever gRPC raises ends this request and no other
            exchange.fail(call_failure(error))
        else:
            self._wire.put_back(self)
            exchange.end(self._wire.monotonic())

    async def _exchange(self, exchange: Exchange) -> None:
        import grpc.aio  # noqa: PLC0415  heavy, as above

        call, reply, key, final, limit = self._call, exchange.reply, exchange.payload.id, False, SizeLimit()
        await call.write(exchange.payload)
        while not final:
            response = await call.read()
            now_s = self._wire.monotonic()
            if response is grpc.aio.EOF:
                raise RequestFailed("connection", "the server closed the stream before the answer was complete")
            limit.events(response.ByteSize(), 1)
            final = is_final(response, key)
            reply.events.append(response)
            reply.arrived_s.append(now_s)
            self._wire.received += 1


def _chunks(reply: Reply) -> Iterator[Chunk]:
    for response, received_s in arrivals(reply):
        if response.infer_response.outputs:
            final = is_final(response, response.infer_response.id)
            yield read_message(response, final=final, received_s=received_s)
