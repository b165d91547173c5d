"""Our load generator as a program, and no more around it than a load test needs: requests out, records' numbers in.

* ``python -m tests.bench.load_client closed PORT REQUESTS CONCURRENCY``: every request follows the end of another.
* ``python -m tests.bench.load_client open PORT REQUESTS RATE``: requests are sent at random times, RATE a second; how
  late each of them was is printed, too.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from typing import TYPE_CHECKING

from specdeploy.bench.observation import Observation
from specdeploy.bench.wire.codec import OpenAICodec
from specdeploy.bench.wire.http import HttpWire
from specdeploy.openai import Dialect, ServerAddress
from specdeploy.triton.protocol import GenerateRequest
from tests.bench.null_server import MODEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdeploy.bench.wire.call import Reply

REQUEST = GenerateRequest(prompt="word " * 50, max_tokens=128)
TIMEOUT_S = 120.0


async def closed_loop(wire: HttpWire, payloads: Sequence[bytes], concurrency: int) -> list[Reply]:
    """Send requests, so many at a time, and return the replies in the order in which they ended."""
    replies: list[Reply] = []
    left = iter(payloads)
    ended = asyncio.Event()

    def start() -> None:
        payload = next(left, None)
        if payload is not None:
            wire.start(payload, TIMEOUT_S, done)

    def done(reply: Reply) -> None:
        replies.append(reply)
        start()
        if len(replies) == len(payloads):
            ended.set()

    for _ in range(concurrency):
        start()
    await ended.wait()
    return replies


async def open_loop(wire: HttpWire, payloads: Sequence[bytes], due_s: Sequence[float]) -> list[tuple[float, Reply]]:
    """Send each request at its time (seconds from now); return when it was due, and its reply."""
    replies: list[tuple[float, Reply]] = []
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    begun_s = loop.time() + 0.1

    def start(payload: bytes, at_s: float) -> None:
        if loop.time() < at_s:
            loop.call_soon(start, payload, at_s)
            return
        wire.start(payload, TIMEOUT_S, lambda reply: done(at_s, reply))

    def done(at_s: float, reply: Reply) -> None:
        replies.append((at_s, reply))
        if len(replies) == len(payloads):
            ended.set()

    for payload, after_s in zip(payloads, due_s, strict=True):
        # The loop sleeps in whole milliseconds and rounds up: it is woken one early and goes round until it is time.
        loop.call_at(begun_s + after_s - 0.001, start, payload, begun_s + after_s)
    await ended.wait()
    return replies


def tokens_of(codec: OpenAICodec, replies: Sequence[Reply]) -> int:
    """Decode every reply as a load test does, and return how many tokens the server has counted."""
    tokens = 0
    for reply in replies:
        answer = codec.decode(reply, REQUEST)
        if answer.fault is not None:
            raise answer.fault
        seen = Observation()
        for chunk in answer.chunks:
            seen.add(chunk, chunk.received_s or 0.0)
        tokens += seen.fields()["output_tokens"]  # type: ignore[operator]
    return tokens


async def main(kind: str, port: int, requests: int, load: float) -> None:
    """Run one of the two loops, and print what came of it as JSON."""
    address = ServerAddress(host=f"127.0.0.1:{port}", tls=False)
    codec = OpenAICodec(address, model=MODEL, dialect=Dialect(chat=True, ids=False))
    payloads = [codec.prepare(REQUEST) for _ in range(requests)]
    wire = HttpWire(address.host)
    if kind == "closed":
        await wire.open(int(load))
        replies = await closed_loop(wire, payloads, int(load))
        print(json.dumps({"tokens": tokens_of(codec, replies)}))
    else:
        waits = random.Random(0)
        times = list(itertools.accumulate(waits.expovariate(load) for _ in payloads))
        await wire.open(int(load))
        sent = await open_loop(wire, payloads, times)
        late = [reply.sent_s - at_s for at_s, reply in sent]
        print(json.dumps({"tokens": tokens_of(codec, [reply for _, reply in sent]), "late_s": late}))
    await wire.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
