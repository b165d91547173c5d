"""Is it the same answer by whatever way it is fetched, and does a streamed one come as it is decoded?"""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING

from specdeploy.smoke.capabilities import GRPC, IDS, STREAM, STREAM_END
from specdeploy.smoke.compare import require_content, require_ids, require_same
from specdeploy.smoke.probe import Broken, NotApplicable
from specdeploy.triton.protocol import join_chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import Chunk, GenerateRequest

_LONG_ANSWER = 32
_EARLY = 0.5
_TRIES = 3
#: What decoding takes of a long answer's time; of less than this share nothing can be told.
_EVIDENT = 0.2
#: Pieces that come within less than this share of the answer's time came at once.
_SPREAD = 0.05


@dataclasses.dataclass(frozen=True)
class _Timing:
    """When a long streamed answer came, and how long a short one takes (seconds).

    Args:
        short_s: An answer of one token.

        first_s: Until the first piece.

        last_s: Until the last piece.

        pieces: Their number.
    """

    short_s: float
    first_s: float
    last_s: float
    pieces: int

    @property
    def share(self) -> float:
        """The share of the time that had gone when the first piece came."""
        return self.first_s / self.last_s if self.last_s > 0 else 1.0


def http_equals_grpc(probe: Probe) -> str:
    """HTTP generate and gRPC give the same text and the same token ids."""
    probe.require(GRPC, IDS)
    tokens = 0
    prompts = (probe.expect.prompts[0], probe.expect.prompts[-1])
    for prompt in prompts:
        request = probe.request(prompt.text)
        over_http, over_grpc = probe.whole_http(request), probe.whole(request)
        require_ids(f"HTTP generate, prompt {prompt.name}", over_http)
        require_same(f"HTTP generate and gRPC, prompt {prompt.name}", over_http, over_grpc)
        tokens += len(over_grpc.ids)
    return f"{tokens} tokens, prompts {prompts[0].name} and {prompts[1].name}"


def stream_http(probe: Probe) -> str:
    """The pieces of HTTP generate_stream, joined, are the answer of HTTP generate; exactly one says that it is last."""
    probe.require(STREAM)
    return _stream_equals_whole(probe, "HTTP generate_stream", probe.streamed_http, probe.whole_http)


def stream_grpc(probe: Probe) -> str:
    """The pieces of a gRPC stream, joined, are the answer without streaming; exactly one says that it is last."""
    probe.require(GRPC, STREAM)
    return _stream_equals_whole(probe, "gRPC stream", probe.streamed, probe.whole)


def stream_early(probe: Probe) -> str:
    """The pieces of a long streamed answer come while the rest is being decoded.

    An answer that is held back until it is complete comes all at once, at the end of its time. So a first piece in the
    first half of that time is enough, in any of three tries, since a busy machine may delay one. A long prefill or a
    far network delays them all; then the pieces must be spread over half of the time that decoding takes, which is what
    a long answer takes more than one of a single token. Where it hardly takes more, nothing can be told. Clocks of two
    machines are not compared: a time begins when the answer before has arrived.
    """
    probe.require(STREAM)
    said = [_require_early(probe, "HTTP", probe.whole_http, probe.streamed_http)]
    if probe.can(GRPC):
        said.append(_require_early(probe, "gRPC", probe.whole, probe.streamed))
    return "; ".join(said)


def second_door(probe: Probe) -> str:
    """The other name of the front door gives the same answer, with speculation on."""
    door = probe.expect.second_door
    if door is None:
        raise NotApplicable("the deployment has one front door")
    first = probe.greedy()
    require_content(probe.expect.front_door, first)
    call = probe.client.generate_grpc if probe.can(GRPC) else probe.client.generate_http
    second = call(probe.request(), model=door, timeout_s=probe.timeout_s)
    require_same(f"{probe.expect.front_door} and {door}", first, second)
    if first.bypass_reason != second.bypass_reason:
        raise Broken(f"{door} decodes differently: bypass_reason {second.bypass_reason!r}, not {first.bypass_reason!r}")
    if first.num_spec_steps and not second.num_spec_steps:
        raise Broken(f"{door} does not speculate: no round, where {probe.expect.front_door} has {first.num_spec_steps}")
    return door


def _require_early(
    probe: Probe,
    what: str,
    whole: Callable[[GenerateRequest], Chunk],
    streamed: Callable[[GenerateRequest], list[Chunk]],
) -> str:
    request = probe.request(max_tokens=max(2, min(_LONG_ANSWER, probe.expect.max_seq_len // 2)))
    tries = []
    for _ in range(_TRIES):
        started, before = (whole(probe.request(max_tokens=1)) for _ in range(2))
        tries.append(_timing(probe, what, (started, before), streamed(request)))
        if tries[-1].share < _EARLY:
            return f"{what}: the first of {tries[-1].pieces} pieces after {tries[-1].share:.0%} of the time"
    whole_s = min(timing.last_s for timing in tries)
    decoding_s = whole_s - min(timing.short_s for timing in tries)
    spread_s = statistics.median(timing.last_s - timing.first_s for timing in tries)
    if spread_s >= max(_EARLY * decoding_s, _SPREAD * whole_s):
        return f"{what}: {tries[-1].pieces} pieces within {1e3 * spread_s:.1f} ms, after a long wait for the first"
    if decoding_s < _EVIDENT * whole_s:
        raise NotApplicable(
            f"{what}: an answer of {request.max_tokens} tokens takes {1e3 * whole_s:.1f} ms, hardly more than one of a "
            "single token: whether it is held back cannot be told"
        )
    raise Broken(
        f"{what}: in {_TRIES} of {_TRIES} tries the first of {tries[-1].pieces} pieces came after half of the time "
        f"({', '.join(f'{timing.share:.0%}' for timing in tries)}), and all within {1e3 * spread_s:.1f} ms, though "
        f"they take {1e3 * decoding_s:.1f} ms to decode: the answer is held back, not streamed",
        {"shares": [timing.share for timing in tries], "pieces": tries[-1].pieces},
    )


def _timing(probe: Probe, what: str, short: tuple[Chunk, Chunk], pieces: list[Chunk]) -> _Timing:
    """Return how long two short answers, one after the other, and then a streamed one took.

    Raises:
        NotApplicable: The client does not say when a piece arrived, or the answer is too short.
    """
    if not pieces:
        raise Broken(f"{what}: a streamed answer ended without a piece")
    started_s, before_s = short[0].received_s, short[1].received_s
    first_s, last_s = pieces[0].received_s, pieces[-1].received_s
    if started_s is None or before_s is None or first_s is None or last_s is None:
        raise NotApplicable("the client does not say when a piece arrived")
    if len(pieces) == 1 and len(pieces[0].ids or pieces[0].text) <= probe.expect.num_draft_tokens + 1:
        raise NotApplicable(f"the answer is too short to be streamed: {pieces[0].text!r}")
    return _Timing(
        short_s=before_s - started_s, first_s=first_s - before_s, last_s=last_s - before_s, pieces=len(pieces)
    )


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
        if probe.can(STREAM_END):
            _require_one_end(f"{what}, prompt {prompt.name}", chunks)
        if probe.can(IDS):
            _require_growth(f"{what}, prompt {prompt.name}", chunks, probe.expect.num_draft_tokens)
        expected = whole(request)
        require_content(f"the whole answer, prompt {prompt.name}", expected)
        require_same(f"{what} and the whole answer, prompt {prompt.name}", expected, join_chunks(chunks))
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
