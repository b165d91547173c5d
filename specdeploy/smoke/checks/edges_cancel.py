"""Does a cancelled request give its place back?"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

from specdeploy.smoke.capabilities import ENGINES, GRPC, IDS, STREAM, TRITON
from specdeploy.smoke.compare import require_same
from specdeploy.smoke.probe import Broken, NotApplicable
from specdeploy.triton.protocol import make_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import Chunk

_TRIES: Final = 3
_PAUSE_S: Final = 0.05
#: The target is at rest when so many readings in a row agree: half a second, and some rounds of a slow engine.
_STILL: Final = 10
_STILL_ROUNDS: Final = 5
_READS: Final = 600
_MOST_TOKENS: Final = 1024
_PIECES_READ: Final = 2
#: What the decoder behind an ensemble is called with, and what it answers.
_DECODER_INPUTS: Final = frozenset({"input_ids", "input_lengths", "request_output_len", "end_id", "stream"})
_DECODER_OUTPUTS: Final = frozenset({"text_output", "output_ids"})


def cancellation(probe: Probe) -> str:
    """A streamed request that is cancelled stops asking the target, so that its place is free for others.

    Triton's counter of requests to the target comes to rest before there were enough rounds for the whole answer; what
    is in progress in an engine may end first. A client that was too slow to cancel in time tries again: the request
    must have been decoded to its end in all of three tries before it is said to go on.

    An ensemble passes a cancellation on between its steps only (triton-inference-server/core PR 263), and decoding is
    one step. So the decoder behind it is asked, and not the ensemble, through which every request runs to its end.
    """
    probe.require(TRITON, ENGINES, GRPC, IDS, STREAM)
    if probe.expect.fixed_by:
        raise NotApplicable(
            f"with {probe.expect.fixed_by} an answer is one call of the engine, and Triton does not count its rounds"
        )
    model = _decoder(probe)
    before = probe.greedy()
    said = _require_stop(probe, model, before.ids)
    require_same("before and after a cancelled request", before, probe.greedy())
    return said


def _decoder(probe: Probe) -> str:
    """Return the model behind the ensemble that decodes and answers text.

    Raises:
        NotApplicable: There is none.
    """
    for name in probe.expect.models:
        about = probe.client.metadata(name, timeout_s=probe.timeout_s)
        if about.input_types.keys() >= _DECODER_INPUTS and about.output_types.keys() >= _DECODER_OUTPUTS:
            return name
    raise NotApplicable("no model of the deployment takes token ids and answers text, to be cancelled by itself")


def _require_stop(probe: Probe, model: str, prompt: tuple[int, ...]) -> str:
    target, length = probe.expect.target_model, min(_MOST_TOKENS, probe.expect.max_seq_len // 2)
    # Every round writes one token more than it drafts, at most: fewer rounds than this cannot be the whole answer.
    whole = math.ceil(length / (1 + probe.expect.num_draft_tokens))
    rounds = []
    for _ in range(_TRIES):
        before = probe.settled_count(target)
        round_s = _cancel(_send(probe, model, prompt, length))
        still = max(_STILL, math.ceil(_STILL_ROUNDS * round_s / _PAUSE_S))
        rounds.append(_count_at_rest(probe, before, still) - before)
        if rounds[-1] < whole:
            return f"{target} at rest after {rounds[-1]} requests; the whole answer takes at least {whole}"
    raise Broken(
        f"a cancelled request of {length} tokens to {model} was decoded on to its end, in {_TRIES} of {_TRIES} tries: "
        f"{', '.join(map(str, rounds))} requests to {target}, of which {whole} may be the whole answer",
        {"model": model, "target_requests": rounds, "enough_for_the_whole": whole},
    )


def _send(probe: Probe, model: str, prompt: tuple[int, ...], length: int) -> Iterator[Chunk]:
    """Ask the decoder itself for a long answer that no end token cuts short; its prompt is an earlier answer."""
    tensors = (
        make_tensor("input_ids", "INT32", list(prompt)),
        make_tensor("input_lengths", "INT32", len(prompt)),
        make_tensor("request_output_len", "INT32", length),
        make_tensor("end_id", "INT32", -1),
        make_tensor("stream", "BOOL", value=True),
    )
    return probe.client.send_tensors(tensors, model=model, timeout_s=probe.timeout_s)


def _cancel(chunks: Iterator[Chunk]) -> float:
    """Read a little and hang up; return how long a round takes (seconds).

    Raises:
        NotApplicable: The answer was complete before that.
    """
    read = list(itertools.islice(chunks, _PIECES_READ))
    close = getattr(chunks, "close", None)
    if close is not None:
        close()
    if len(read) < _PIECES_READ or any(chunk.finish_reason for chunk in read):
        raise NotApplicable(f"the answer ends by itself within {_PIECES_READ} pieces, before it can be cancelled")
    first, last = read[0].received_s, read[-1].received_s
    return 0.0 if first is None or last is None else (last - first) / (_PIECES_READ - 1)


def _count_at_rest(probe: Probe, before: int, still: int) -> int:
    """Return the target's count of requests once so many readings in a row agree.

    Raises:
        Broken: It moves on and on: there is more going on than this request, or it is a very long one.
    """
    target, last, agreeing = probe.expect.target_model, before, 0
    for _ in range(_READS):
        probe.wait(_PAUSE_S)
        count = probe.client.statistics(target, timeout_s=probe.timeout_s).success_count
        agreeing = agreeing + 1 if count == last else 0
        last = count
        if agreeing >= still and count > before:
            return count
    raise Broken(
        f"{_READS * _PAUSE_S:g} s after a request was cancelled {target} has had {last - before} requests and does not "
        "come to rest; is somebody else using the server?"
    )
