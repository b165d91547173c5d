"""Is it the same answer by whatever way it is fetched?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdeploy.smoke.compare import require_ids, require_same
from specdeploy.smoke.probe import Broken, NotApplicable
from specdeploy.triton.protocol import join_chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import Chunk, GenerateRequest


def http_equals_grpc(probe: Probe) -> str:
    """HTTP generate and gRPC give the same text and the same token ids."""
    request = probe.request()
    over_http, over_grpc = probe.whole_http(request), probe.whole(request)
    require_ids("HTTP generate", over_http)
    require_same("HTTP generate and gRPC", over_http, over_grpc)
    return f"{len(over_grpc.ids)} tokens, {over_grpc.text[:40]!r}"


def stream_http(probe: Probe) -> str:
    """The pieces of HTTP generate_stream, joined, are the answer of HTTP generate; exactly one says that it is last."""
    return _stream_equals_whole(probe, "HTTP generate_stream", probe.streamed_http, probe.whole_http)


def stream_grpc(probe: Probe) -> str:
    """The pieces of a gRPC stream, joined, are the answer without streaming; exactly one says that it is last."""
    return _stream_equals_whole(probe, "gRPC stream", probe.streamed, probe.whole)


def second_door(probe: Probe) -> str:
    """The other name of the front door gives the same answer, with speculation on."""
    door = probe.expect.second_door
    if door is None:
        raise NotApplicable("the deployment has one front door")
    first = probe.greedy()
    second = probe.client.generate_grpc(probe.request(), model=door, timeout_s=probe.timeout_s)
    require_same(f"{probe.expect.front_door} and {door}", first, second)
    if first.bypass_reason != second.bypass_reason:
        raise Broken(f"{door} decodes differently: bypass_reason {second.bypass_reason!r}, not {first.bypass_reason!r}")
    return door


def _stream_equals_whole(
    probe: Probe,
    what: str,
    streamed: Callable[[GenerateRequest], list[Chunk]],
    whole: Callable[[GenerateRequest], Chunk],
) -> str:
    pieces = 0
    prompts = (probe.expect.prompts[0], probe.expect.prompts[-1])
    for prompt in prompts:
        request = probe.request(prompt.text)
        chunks = streamed(request)
        pieces += len(chunks)
        _require_one_end(f"{what}, prompt {prompt.name}", chunks)
        _require_growth(f"{what}, prompt {prompt.name}", chunks, probe.expect.num_draft_tokens)
        require_same(f"{what} and the whole answer, prompt {prompt.name}", whole(request), join_chunks(chunks))
    return f"{pieces} pieces, prompts {prompts[0].name} and {prompts[1].name}"


def _require_one_end(what: str, chunks: list[Chunk]) -> None:
    """Exactly one response says why the answer ended, and it is the last; the transport agrees where it speaks."""
    ends = [index for index, chunk in enumerate(chunks) if chunk.finish_reason]
    if ends != [len(chunks) - 1]:
        raise Broken(
            f"{what}: {len(ends)} of {len(chunks)} responses carry a finish_reason; exactly the last should",
            {"finish_reasons": [chunk.finish_reason for chunk in chunks]},
        )
    early = [index for index, chunk in enumerate(chunks[:-1]) if chunk.final]
    if early:
        raise Broken(f"{what}: response {early[0]} of {len(chunks)} is marked final")


def _require_growth(what: str, chunks: list[Chunk], num_draft_tokens: int) -> None:
    """Tokens come a round at a time, and the server's count of them is right at every step."""
    total = 0
    for index, chunk in enumerate(chunks):
        total += len(chunk.ids)
        if chunk.num_output_tokens is not None and chunk.num_output_tokens != total:
            raise Broken(
                f"{what}: after response {index} the server counts {chunk.num_output_tokens} tokens, but sent {total}"
            )
    if len(chunks) == 1 and total > num_draft_tokens + 1:
        raise Broken(f"{what}: {total} tokens came in one piece: the answer is not streamed")
