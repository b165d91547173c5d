"""From verified groups of tokens to the responses of one request, streamed or in one piece.

Every response carries the statistics of the whole request so far, and the last one says why the answer ended. A
streamed answer is one response for each group; joined, their texts and ids are those of the single response of the
same request. Knows nothing of Triton and of how the groups came about.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from decoder_perf import PerfCounter
from decoder_stats import ReportCounter, Statistics, StepCounter
from decoder_text import TextWriter
from decoder_trace import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy.typing as npt
    from decoder_loop import Answer, Floats, Group, Ids
    from decoder_request import DecodeRequest
    from decoder_text import Vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Response:
    """One response.

    Attributes:
        texts: The new text; further entries are the texts of further sequences (beams).
        ids: The new token ids [n].
        log_probs: Their log probabilities [n], when asked for.
        cum_log_prob: Sum of the log probabilities of all ids so far; None when not asked for.
        num_output_tokens: Ids of the whole answer so far.
        finish_reason: ``stop_word``, ``end_id``, ``length``, ``cancelled`` or ``timeout`` on the last response, else
            empty.
        bypass_reason: Why the target is alone; empty when speculating.
        statistics: Counts of the whole request so far.
        extras: Output tensors of the target that pass through.
        trace: The rounds of this response; None when not asked for.
        measured: What the target's engine has measured of the whole request so far, by output.
    """

    texts: tuple[str, ...]
    ids: Ids
    log_probs: Floats | None
    cum_log_prob: float | None
    num_output_tokens: int
    finish_reason: str
    bypass_reason: str
    statistics: Statistics
    extras: tuple[tuple[str, npt.NDArray[np.generic]], ...] = ()
    trace: tuple[Mapping[str, Any], ...] | None = None
    measured: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def final(self) -> bool:
        """Whether this is the request's last response."""
        return bool(self.finish_reason)


def respond(
    groups: Iterable[Group], request: DecodeRequest, vocabulary: Vocabulary, ended: Callable[[], str]
) -> Iterator[Response]:
    """Yield the responses of a request; the last one, and only that, is final.

    Args:
        groups: The verified groups, made one at a time as they are asked for.
        request: The request that they answer.
        vocabulary: The tokenizer of both engines.
        ended: Asked before each group why the answer ends before it; empty where it does not.
    """
    return AnswerWriter(request, vocabulary).responses(groups, ended)


class AnswerWriter:
    """What has been written of one answer so far.

    Args:
        request: The request that is answered.
        vocabulary: The tokenizer of both engines.
    """

    def __init__(self, request: DecodeRequest, vocabulary: Vocabulary) -> None:
        self._request = request
        self._vocabulary = vocabulary
        self._prompt = request.prompt_ids.tolist()
        self._writer = self._new_writer()
        self._steps = StepCounter(request.longest_draft)
        # Counts in place of the steps where the engine drafts on its own.
        self._reports = ReportCounter() if request.engine_speculates else None
        self._perf = PerfCounter()
        self._echo = request.prompt_text
        self._written = 0
        self._cum_log_prob = 0.0
        self._bypass_reason = request.bypass_reason
        # Why the target has been alone so far, where that may change.
        self._pause = ""
        self._tracer = Tracer(engine_speculates=request.engine_speculates) if request.return_decode_trace else None
        # Of an answer that leaves in one piece.
        self._pieces: list[Response] = []

    def responses(self, groups: Iterable[Group], ended: Callable[[], str]) -> Iterator[Response]:
        """Yield responses until one is final; another call goes on where an iterator of an earlier one was left.

        Args:
            groups: The verified groups, made one at a time as they are asked for.
            ended: Asked before each group why the answer ends before it; empty where it does not.
        """
        iterator, streams = iter(groups), self._request.stream
        response = None
        while response is None or not response.final:
            reason = ended()
            response = self._cut_off(reason) if reason else self._absorb(next(iterator))
            if streams:
                yield response
            else:
                self._pieces.append(response)
        if not streams:
            yield _joined(self._pieces)

    def lose_draft(self) -> None:
        """Say from now on that the target goes on alone, since the draft failed."""
        self._bypass_reason = "draft_failed"

    def _new_writer(self) -> TextWriter:
        return TextWriter(self._vocabulary, self._prompt, self._request.stop_words)

    def _absorb(self, group: Group) -> Response:
        if self._reports is not None:
            self._reports.record(group.answer.reported)
        elif group.drafted:
            self._steps.record(drafted=group.drafted, accepted=group.accepted)
        self._perf.record(group.answer.measured)
        self._pause = group.pause
        if group.draft_failed:
            self.lose_draft()
        answer = group.answer
        piece = self._writer.add(answer.ids.tolist())
        text = piece.text + (self._writer.finish() if group.finish_reason and not piece.stopped else "")
        log_probs = self._log_probs(answer, piece.used)
        return self._response(
            texts=(self._with_echo(text), *(self._whole_text(ids) for ids in answer.others)),
            ids=answer.ids[: piece.used],
            log_probs=log_probs,
            finish_reason="stop_word" if piece.stopped else group.finish_reason,
            extras=answer.extras,
            rounds=(group,),
        )

    def _cut_off(self, reason: str) -> Response:
        return self._response(
            texts=(self._with_echo(self._writer.finish()),),
            ids=np.empty(0, np.int32),
            log_probs=np.empty(0, np.float32) if self._request.return_log_probs else None,
            finish_reason=reason,
            extras=(),
            rounds=(),
        )

    def _response(
        self,
        *,
        texts: tuple[str, ...],
        ids: Ids,
        log_probs: Floats | None,
        finish_reason: str,
        extras: tuple[tuple[str, npt.NDArray[np.generic]], ...],
        rounds: tuple[Group, ...],
    ) -> Response:
        self._written += ids.size
        statistics = (self._reports or self._steps).snapshot()
        return Response(
            texts=texts,
            ids=ids,
            log_probs=log_probs,
            cum_log_prob=self._cum_log_prob if self._request.return_log_probs else None,
            num_output_tokens=self._written,
            finish_reason=finish_reason,
            bypass_reason=self._bypass_reason or ("" if statistics.drafted else self._pause),
            statistics=statistics,
            extras=extras,
            trace=self._trace(rounds),
            measured=self._perf.snapshot(),
        )

    def _trace(self, rounds: tuple[Group, ...]) -> tuple[Mapping[str, Any], ...] | None:
        if self._tracer is None:
            return None
        return tuple(self._tracer.entry(group, self._bypass_reason) for group in rounds)

    def _log_probs(self, answer: Answer, used: int) -> Floats | None:
        if answer.log_probs is None:
            return None
        kept = answer.log_probs[:used]
        self._cum_log_prob += float(kept.sum(dtype=np.float64))
        return kept

    def _with_echo(self, text: str) -> str:
        """Put the prompt in front of the first text, where the request asks for it."""
        echo, self._echo = self._echo, ""
        return echo + text

    def _whole_text(self, ids: Ids) -> str:
        """Write a further sequence, which comes in one piece."""
        writer = self._new_writer()
        piece = writer.add(ids.tolist())
        return self._request.prompt_text + piece.text + ("" if piece.stopped else writer.finish())


def _joined(responses: list[Response]) -> Response:
    """Make one response of all of them."""
    last = responses[-1]
    if len(responses) == 1:
        return last
    first_text = "".join(response.texts[0] for response in responses)
    log_probs = [response.log_probs for response in responses if response.log_probs is not None]
    return dataclasses.replace(
        last,
        texts=(first_text, *last.texts[1:]),
        ids=np.concatenate([response.ids for response in responses]),
        log_probs=np.concatenate(log_probs) if log_probs else None,
        trace=None if last.trace is None else tuple(entry for response in responses for entry in response.trace or ()),
    )
