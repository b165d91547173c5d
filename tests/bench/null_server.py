"""An OpenAI-compatible server that costs nothing: every chat is answered with the same tokens, one event at a time.

Run as ``python -m tests.bench.null_server TOKENS INTERVAL_MS``; says its port on a line of its own. Each event is a
write of its own, INTERVAL_MS after the one before it, so that a client's reads are those of a real server.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

MODEL = "null-model"
_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: null\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def answer(tokens: int) -> list[bytes]:
    """Return the chunks of an answer, as vLLM words them: role, one event for each token, reason, usage, end."""
    about = {"id": f"chatcmpl-{'5f' * 16}", "object": "chat.completion.chunk", "created": 1750000000, "model": MODEL}

    def event(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**about, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}

    usage = {"prompt_tokens": 50, "completion_tokens": tokens, "total_tokens": 50 + tokens}
    events = [
        event({"role": "assistant", "content": ""}),
        *(event({"content": f" word{number % 10}"}) for number in range(tokens - 1)),
        event({"content": " end"}, "length"),
        {**about, "choices": [], "usage": usage},
    ]
    framed = [json.dumps(value, separators=(",", ":")).encode() for value in events]
    chunks = [b"data: " + data + b"\n\n" for data in [*framed, b"[DONE]"]]
    return [*(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks), b"0\r\n\r\n"]


class NullServer(asyncio.Protocol):
    """One connection."""

    _transport: asyncio.Transport

    def __init__(self, chunks: list[bytes], interval_s: float) -> None:
        self._chunks = [*chunks[:-2], chunks[-2] + chunks[-1]]
        self._interval_s = interval_s
        self._unread = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self._unread += data
        while request := self._request():
            if request.startswith(b"POST "):
                self._transport.write(_HEAD)
                self._write(0, self._loop.time())
            else:
                self._tell(request.split(b" ", 2)[1])

    def _request(self) -> bytes:
        head, blank, rest = self._unread.partition(b"\r\n\r\n")
        _, found, length = head.lower().partition(b"\r\ncontent-length:")
        size = int(length.partition(b"\r\n")[0]) if found else 0
        if not blank or len(rest) < size:
            return b""
        self._unread = rest[size:]
        return head

    def _tell(self, path: bytes) -> None:
        known = {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "nobody"}]}
        body = json.dumps(known if path.endswith(b"/models") else {"status": "ok"}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)

    def _write(self, number: int, due_s: float) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(self._chunks[number])
        if number + 1 < len(self._chunks):
            due_s += self._interval_s
            self._loop.call_at(due_s, self._write, number + 1, due_s)


async def main(tokens: int, interval_s: float) -> None:
    """Serve until the process is ended."""
    chunks = answer(tokens)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NullServer(chunks, interval_s), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]) / 1e3))
