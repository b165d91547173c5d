"""A streaming server whose answers have known times: each prompt says what it is answered, when, and what breaks.

It is a process with an event loop of its own and speaks Triton's ``generate_stream``, OpenAI's chat completions and,
where it is asked to, gRPC. A chat that is no script, as a client's first question whether anybody is there, is answered
at once and not noted. It notes when it got each request and when it wrote each event, on the monotonic clock,
which all processes of a machine share. The notes are the truth: a busy machine makes answers late, and notes no less.

Run as ``python -m tests.timed_server [grpc]``: prints its port, and that of gRPC; at the end of its input it prints the
notes and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.prompts import Prompt, PromptSet
from specdeploy.triton.protocol import CHUNK_OUTPUTS, FRONT_DOOR_INPUTS, make_tensor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

ROOT: Final = Path(__file__).parents[1]
MODEL: Final = "timed"
INPUT_TOKENS: Final = 9
_STOP_S: Final = 30.0
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_END: Final = b"0\r\n\r\n"
_WAIT: Final = "/wait/"
#: Closing a socket with this option sends RST.
_RESET: Final = struct.pack("ii", 1, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Script:
    """What a request is answered, and when.

    Args:
        name: Of the request.

        gaps_ms: When each write comes: so long after the one before, the first so long after the request.

        tokens: Of each write, how many tokens each of its events holds.

        histogram: Entry j is the number of verify steps that accepted exactly j drafts.

        torn_ms: Half of the last event of each write is written when it is due, and the other half so much later.

        tail_ms: An event without tokens follows so long after the last one, with the reason and the totals. Without
            it these are in the last event that has tokens.

        freeze_ms: The whole server writes nothing for so long from this request on.

        fault: What happens after ``fault_after`` writes, one of ``FAULTS`` or an HTTP status; nothing if empty.

        fault_after: As above.
    """

    name: str
    gaps_ms: tuple[float, ...] = (1.0,)
    tokens: tuple[tuple[int, ...], ...] = ((1,),)
    histogram: tuple[int, ...] = ()
    torn_ms: float = 0.0
    tail_ms: float = 0.0
    freeze_ms: float = 0.0
    fault: str = ""
    fault_after: int = 0

    @property
    def output_tokens(self) -> int:
        """Length of the whole answer."""
        return sum(map(sum, self.tokens))

    @property
    def counts(self) -> tuple[int, int, int]:
        """Verify steps, drafted tokens and accepted ones."""
        steps = sum(self.histogram)
        accepted = sum(number * count for number, count in enumerate(self.histogram))
        return steps, steps * max(len(self.histogram) - 1, 0), accepted

    def prompt(self) -> Prompt:
        """Return the prompt that asks for it."""
        return Prompt(id=self.name, category="timed", text=json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, text: str) -> Script:
        """Read a prompt."""
        told = json.loads(text)
        told["tokens"] = tuple(map(tuple, told["tokens"]))
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in told.items()})


def prompts(scripts: Iterable[Script]) -> PromptSet:
    """Return the prompts that ask for these answers."""
    return PromptSet(name="timed", prompts=tuple(script.prompt() for script in scripts))


@dataclasses.dataclass(kw_only=True)
class Truth:
    """What the server did with a request.

    Args:
        received_s: When it had read the request.

        event_s: When it wrote each event that has tokens; its last byte, where it was torn.

        tokens: Of each of these events.

        late_s: How long after its time each of them was written.
    """

    received_s: float
    event_s: list[float] = dataclasses.field(default_factory=list)
    tokens: list[int] = dataclasses.field(default_factory=list)
    late_s: list[float] = dataclasses.field(default_factory=list)


class TimedServer:
    """The running server."""

    def __init__(self, process: subprocess.Popen[str], port: int, grpc_port: int | None) -> None:
        self._process = process
        self.url = f"127.0.0.1:{port}"
        self.grpc_url = f"127.0.0.1:{grpc_port}"

    def wait(self, requests: int) -> None:
        """Return once it has got so many requests."""
        with urllib.request.urlopen(f"http://{self.url}{_WAIT}{requests}", timeout=_STOP_S) as answer:
            answer.read()

    def truth(self) -> dict[str, Truth]:
        """Stop it and return what it did, by name of the request; the first time, where it got one twice."""
        notes, _ = self._process.communicate(timeout=_STOP_S)
        return {name: Truth(**values) for name, values in reversed(json.loads(notes))}


@contextlib.contextmanager
def timed_server(*, grpc: bool = False) -> Iterator[TimedServer]:
    """Run the server for the time of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.timed_server", *(["grpc"] if grpc else [])],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port, grpc_port = json.loads(process.stdout.readline())
        yield TimedServer(process, port, grpc_port)
    finally:
        process.kill()
        process.wait(_STOP_S)
        process.stdin.close()
        process.stdout.close()


class Triton:
    """The events of ``generate_stream``."""

    def begin(self) -> bytes:
        """Return what is written before the first token."""
        return b""

    def events(self, script: Script) -> Iterator[list[dict[str, Any]]]:
        """Yield the events of each write."""
        done, writes = 0, [list(tokens) for tokens in script.tokens]
        for number, write in enumerate(writes, start=1):
            events = []
            for tokens in write:
                events.append(self._event(range(done, done + tokens), done + tokens))
                done += tokens
            if number == len(writes) and not script.tail_ms:
                self._conclude(events[-1], script)
            yield events

    def tail(self, script: Script) -> dict[str, Any]:
        """Return the event without tokens."""
        event = self._event(range(0), script.output_tokens)
        self._conclude(event, script)
        return event

    def end(self, script: Script) -> bytes:
        """Return what follows the last event."""
        return b""

    def error(self, words: str) -> dict[str, Any]:
        """Return an error as it is told."""
        return {"error": words}

    def _event(self, ids: range, total: int) -> dict[str, Any]:
        return {
            "model_name": "ensemble",
            "model_version": "1",
            "text_output": "".join(f" t{number}" for number in ids),
            "output_ids": list(ids),
            "num_input_tokens": INPUT_TOKENS,
            "num_output_tokens": total,
            "finish_reason": "",
        }

    def _conclude(self, event: dict[str, Any], script: Script) -> None:
        steps, drafted, accepted = script.counts
        event |= {
            "finish_reason": "length",
            "num_spec_steps": steps,
            "total_draft_tokens": drafted,
            "total_accepted_draft_tokens": accepted,
            "spec_decode_acceptance_histogram": list(script.histogram),
        }


class OpenAI(Triton):
    """The events of a chat, with the fields that vLLM adds: ids, and what was drafted."""

    def begin(self) -> bytes:
        """Return the event that names the role, which comes as soon as the request is there."""
        return _frame(self._chunk({"role": "assistant", "content": ""}))

    def end(self, script: Script) -> bytes:
        """Return the numbers and the mark of the end."""
        steps, drafted, accepted = script.counts
        speculative = {
            "num_spec_steps": steps,
            "num_draft_tokens": drafted,
            "num_accepted_draft_tokens": accepted,
            "acceptance_histogram": list(script.histogram),
        }
        usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": script.output_tokens}
        last = {"choices": [], "usage": usage, "metrics": {"speculative_decoding": speculative}}
        return _frame(last) + _chunk(b"data: [DONE]\n\n")

    def error(self, words: str) -> dict[str, Any]:
        """Return an error as it is told."""
        return {"error": {"message": words, "type": "server_error"}}

    def _event(self, ids: range, total: int) -> dict[str, Any]:
        return self._chunk({"content": "".join(f" t{number}" for number in ids)}, list(ids))

    def _conclude(self, event: dict[str, Any], script: Script) -> None:
        event["choices"][0]["finish_reason"] = "length"

    def _chunk(self, delta: dict[str, Any], ids: Sequence[int] = ()) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": None, "token_ids": list(ids)}
        return {"id": "chat-1", "object": "chat.completion.chunk", "model": MODEL, "choices": [choice]}


class Server:
    """What all connections share."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Truth]] = []
        self.frozen_until_s = 0.0
        self.listener: asyncio.Server | None = None
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def when(self, number: int, call: Callable[[], None]) -> None:
        """Call once so many requests have come."""
        self._waiting.append((number, call))
        self._tell()

    def _tell(self) -> None:
        for wanted in [wanted for wanted in self._waiting if wanted[0] <= len(self.notes)]:
            self._waiting.remove(wanted)
            wanted[1]()

    def take(self, script: Script, received_s: float) -> Truth:
        """Note a request."""
        truth = Truth(received_s=received_s)
        self.notes.append((script.name, truth))
        if script.freeze_ms:
            self.frozen_until_s = truth.received_s + script.freeze_ms / 1e3
        self._tell()
        return truth


class Connection(asyncio.Protocol):
    """One connection over HTTP."""

    _transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._unread = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer a request when it is complete."""
        now_s = time.monotonic()
        self._unread += data
        head, blank, body = self._unread.partition(b"\r\n\r\n")
        _, found, length = head.lower().partition(b"\r\ncontent-length:")
        size = int(length.partition(b"\r\n")[0]) if found else 0
        if not blank or len(body) < size:
            return
        self._unread = body[size:]
        path = head.split(b" ", 2)[1].decode()
        if path == "/v1/completions":
            self._respond(404, OpenAI().error("there is no such route"))
        elif head.startswith(b"POST "):
            self._answer(json.loads(body[:size]), now_s)
        elif path.startswith(_WAIT):
            self._server.when(int(path.removeprefix(_WAIT)), lambda: self._respond(200, {}))
        else:
            self._respond(200, _about(path))

    def _answer(self, asked: dict[str, Any], received_s: float) -> None:
        chat = "messages" in asked
        text = _said(asked["messages"][0]) if chat else asked["text_input"]
        script = Script.read(text) if text.startswith("{") else Script(name="")
        truth = self._server.take(script, received_s) if script.name else Truth(received_s=received_s)
        _Answer(self._server, self._transport, truth, script, OpenAI() if chat else Triton()).begin()

    def _respond(self, status: int, value: object) -> None:
        self._transport.write(_sized(status, value))


class _Answer:
    """One answer over HTTP, on its way."""

    def __init__(
        self, server: Server, transport: asyncio.Transport, truth: Truth, script: Script, dialect: Triton
    ) -> None:
        self._server = server
        self._transport = transport
        self._script = script
        self._dialect = dialect
        self._loop = asyncio.get_running_loop()
        self._truth = truth
        self._steps = self._plan()

    def begin(self) -> None:
        """Write what needs no waiting, and go on with what does."""
        script = self._script
        if script.fault and not script.fault_after and script.fault not in _IN_A_STREAM:
            self._break()
            return
        self._transport.write(_HEAD + self._dialect.begin())
        self._next()

    def _plan(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Yield what is to be done, and when."""
        script, due_s = self._script, self._truth.received_s
        writes = enumerate(zip(script.gaps_ms, script.tokens, self._dialect.events(script), strict=True))
        for number, (gap_ms, tokens, events) in writes:
            if script.fault and number == script.fault_after:
                yield due_s, self._break
                return
            due_s += gap_ms / 1e3
            whole, last = [_frame(event) for event in events[:-1]], _frame(events[-1])
            if script.torn_ms:
                half = len(last) // 2
                yield due_s, _call(self._write, due_s, tokens[:-1], b"".join(whole) + last[:half])
                due_s += script.torn_ms / 1e3
                yield due_s, _call(self._write, due_s, tokens[-1:], last[half:])
            else:
                yield due_s, _call(self._write, due_s, tokens, b"".join(whole) + last)
        if script.tail_ms:
            yield due_s + script.tail_ms / 1e3, _call(self._transport.write, _frame(self._dialect.tail(script)))
        yield due_s, lambda: self._transport.write(self._dialect.end(script) + _END)

    def _next(self) -> None:
        step = next(self._steps, None)
        if step is not None:
            self._loop.call_at(max(step[0], self._server.frozen_until_s), self._do, *step)

    def _do(self, due_s: float, action: Callable[[], None]) -> None:
        if self._transport.is_closing():
            return
        if time.monotonic() < self._server.frozen_until_s:
            self._loop.call_at(self._server.frozen_until_s, self._do, due_s, action)
            return
        action()
        self._next()

    def _write(self, due_s: float, tokens: Sequence[int], data: bytes) -> None:
        now_s = time.monotonic()
        self._transport.write(data)
        _note(self._truth, now_s, tokens, now_s - due_s)

    def _break(self) -> None:
        fault = self._script.fault
        if fault.isdecimal():
            self._transport.write(_sized(int(fault), self._dialect.error(f"scripted {fault}")))
        else:
            FAULTS[fault](self)

    def _garbage(self) -> None:
        self._transport.write(b"\x16\x03\x01\x02 220 not the server you look for\r\n\r\n")

    def _error(self) -> None:
        self._transport.write(_frame(self._dialect.error("scripted error")) + _END)

    def _not_json(self) -> None:
        self._transport.write(_chunk(b'data: {"text_output": nothing}\n\n') + _END)

    def _cut(self) -> None:
        self._transport.write(_chunk(b'data: {"text_output": ') + _END)

    def _ended(self) -> None:
        self._transport.write(_END)

    def _close(self) -> None:
        self._transport.close()

    def _reset(self) -> None:
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def _hang(self) -> None:
        pass

    def _deaf(self) -> None:
        assert self._server.listener is not None
        self._server.listener.close()
        self._transport.close()

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


#: ``garbage``: no HTTP. ``error``: an error in a stream, whose status is 200. ``not-json``: an event that is no JSON.
#: ``cut``: the stream ends within an event. ``ended``: it ends without a reason. ``close``: the connection does.
#: ``reset``: by RST. ``hang``: nothing more comes. ``deaf``: nobody listens on the port any more. ``die``: SIGKILL.
FAULTS: Final[dict[str, Callable[[Any], None]]] = {
    "garbage": _Answer._garbage,
    "error": _Answer._error,
    "not-json": _Answer._not_json,
    "cut": _Answer._cut,
    "ended": _Answer._ended,
    "close": _Answer._close,
    "reset": _Answer._reset,
    "hang": _Answer._hang,
    "deaf": _Answer._deaf,
    "die": _Answer._die,
}
_IN_A_STREAM: Final = frozenset({"error", "not-json", "cut", "ended"})


def _call(function: Callable[..., None], *arguments: object) -> Callable[[], None]:
    return lambda: function(*arguments)


def _note(truth: Truth, now_s: float, tokens: Sequence[int], late_s: float) -> None:
    truth.event_s += [now_s] * len(tokens)
    truth.tokens += tokens
    truth.late_s += [late_s] * len(tokens)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _frame(event: dict[str, Any]) -> bytes:
    return _chunk(b"data: %s\n\n" % json.dumps(event).encode())


def _sized(status: int, value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 %d Scripted\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        *(status, len(body)),
        body,
    )


def _said(message: dict[str, Any]) -> str:
    """Return the text of a message: its content, or the only part of it."""
    content = message["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


def _about(path: str) -> dict[str, Any]:
    """Answer what a client asks before it sends anything."""
    if path == "/v1/models":
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "nobody"}]}
    if path == "/v2":
        return {"name": "triton", "version": "2.51.0", "extensions": []}
    inputs = [{"name": name, "datatype": kind, "shape": [-1, 1]} for name, kind in FRONT_DOOR_INPUTS.items()]
    return {"name": "ensemble", "versions": ["1"], "platform": "ensemble", "inputs": inputs, "outputs": []}


async def _serve_grpc(server: Server) -> tuple[Any, int]:
    """Answer ``ModelStreamInfer`` on a free port; without tears and freezes; faults are ``die`` and errors."""
    import grpc.aio
    from tritonclient.grpc import service_pb2_grpc

    class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
        async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
            async for request in requests:
                received_s = time.monotonic()
                names = [spec.name for spec in request.inputs]
                (text,) = _bytes_of(request.raw_input_contents[names.index("text_input")])
                script = Script.read(text.decode())
                async for message in _messages(request.id, script, server.take(script, received_s)):
                    yield message

    listener = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(), listener)
    port = listener.add_insecure_port("127.0.0.1:0")
    await listener.start()
    return listener, port


async def _messages(key: str, script: Script, truth: Truth) -> AsyncIterator[Any]:
    """Yield the responses to a request when they are due."""
    due_s = truth.received_s
    writes = zip(script.gaps_ms, script.tokens, Triton().events(script), strict=True)
    for number, (gap_ms, tokens, events) in enumerate(writes):
        if script.fault and number == script.fault_after:
            yield _broken(key, script.fault)
            return
        due_s += gap_ms / 1e3
        messages = [_response(key, event) for event in events]
        await asyncio.sleep(due_s - time.monotonic())
        for count, message in zip(tokens, messages, strict=True):
            now_s = time.monotonic()
            _note(truth, now_s, [count], now_s - due_s)
            yield message
    if script.tail_ms:
        await asyncio.sleep(due_s + script.tail_ms / 1e3 - time.monotonic())
        yield _response(key, Triton().tail(script))
    yield _response(key, {}, final=True)


def _response(key: str, event: dict[str, Any], *, final: bool = False) -> Any:
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelStreamInferResponse()
    answer = message.infer_response
    answer.id = key
    answer.parameters["triton_final_response"].bool_param = final
    for name in event.keys() & CHUNK_OUTPUTS.keys():
        tensor = make_tensor(name, CHUNK_OUTPUTS[name], event[name])
        answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.data.shape)
        answer.raw_output_contents.append(tensor.raw())
    return message


def _broken(key: str, fault: str) -> Any:
    from tritonclient.grpc import service_pb2

    if fault == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    message = service_pb2.ModelStreamInferResponse(error_message=f"scripted {fault}")
    message.infer_response.id = key
    return message


def _bytes_of(raw: bytes) -> Iterator[bytes]:
    """Yield the elements of a BYTES tensor: each has its length in front."""
    while raw:
        (size,) = struct.unpack_from("<I", raw)
        yield raw[4 : 4 + size]
        raw = raw[4 + size :]


async def main(*, grpc: bool) -> None:
    """Serve until the input ends."""
    server, loop = Server(), asyncio.get_running_loop()
    over = asyncio.Event()
    server.listener = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=1024)
    port = server.listener.sockets[0].getsockname()[1]
    grpc_listener, grpc_port = await _serve_grpc(server) if grpc else (None, None)
    loop.add_reader(sys.stdin.fileno(), over.set)
    print(json.dumps([port, grpc_port]), flush=True)
    await over.wait()
    loop.remove_reader(sys.stdin.fileno())
    if grpc_listener is not None:
        await grpc_listener.stop(1.0)
    print(json.dumps([[name, dataclasses.asdict(truth)] for name, truth in server.notes]))


if __name__ == "__main__":
    asyncio.run(main(grpc="grpc" in sys.argv[1:]))
