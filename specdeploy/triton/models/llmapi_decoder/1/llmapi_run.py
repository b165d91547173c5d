"""One request in the engine: steps of the LLM API become verified groups of tokens.

The engine reports on an event loop; text is made in a worker thread, which iterates over a :class:`LlmRun`. While it
waits it keeps asking whether the client has gone, and then aborts the request.

An engine that ignores what it was asked is noticed here: banned tokens and an early end are faults, not answers. Knows
the life of a ``RequestOutput``; knows nothing of Triton and of text.
"""

from __future__ import annotations

import asyncio
import dataclasses
import queue
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from decoder_loop import Answer, EngineFault, Group
from decoder_request import RequestError
from llmapi_acceptance import NO_SPECULATION, NOTHING_KNOWN, read_acceptance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from decoder_stats import Statistics
    from llmapi_acceptance import RequestOutput
    from llmapi_request import LlmRequest

# The LLM API's own class carries no types here.
Completion: TypeAlias = Any

_POLL_S: Final = 0.025
"""How long a worker waits for the engine before it asks again whether the client has gone."""

_REASONS: Final = {"stop": "end_id", "length": "length", "cancelled": "cancelled"}
"""The LLM API's finish reason -> ours. It is given no stop words, so that only the end token makes it stop."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """What one report of the engine adds.

    Attributes:
        ids: The new tokens, an end token included.
        log_probs: The log probability of each, when asked for; none for an end token that the engine does not report.
        finish_reason: Ours, on the last step; else empty.
        statistics: The counts of the request so far.
    """

    ids: tuple[int, ...]
    log_probs: tuple[float, ...] | None
    finish_reason: str
    statistics: Statistics


class LlmRun:
    """Iterates over the groups of one request, once; to be closed, which aborts what is still running.

    ``statistics`` are the counts of the request up to the last group.

    Args:
        request: What is asked for.
        start: Hands the request to the engine; called on the event loop, which the engine's result belongs to.
        loop: The running event loop.
        ended: Asked while waiting, and between steps, why the answer ends where it is; empty where it does not.
    """

    def __init__(
        self,
        request: LlmRequest,
        start: Callable[[], RequestOutput],
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[], str],
    ) -> None:
        self.statistics = NOTHING_KNOWN if request.decoding.engine_speculates else NO_SPECULATION
        self._request = request
        self._start = start
        self._loop = loop
        self._ended = ended
        self._steps: queue.SimpleQueue[Step | Exception] = queue.SimpleQueue()
        self._result: RequestOutput = None
        self._aborted = False
        self._written = 0

    def __iter__(self) -> Iterator[Group]:
        """Yield groups until one carries a finish reason.

        Raises:
            RequestError: The LLM API refuses the request.
            EngineFault: The engine failed, or did not do what it was asked for.
        """
        asyncio.run_coroutine_threadsafe(self._follow(), self._loop)
        reason = ""
        while not reason:
            group = self._next_group()
            reason = group.finish_reason
            if group.answer.ids.size or reason:
                yield group

    def close(self) -> None:
        """Abort the request in the engine unless it has ended."""
        self._loop.call_soon_threadsafe(self._abort)

    def _next_group(self) -> Group:
        step = self._next_step()
        if isinstance(step, str):
            return self._group((), (), step)
        self.statistics = step.statistics
        self._written += len(step.ids)
        self._check(step)
        return self._group(step.ids, step.log_probs, step.finish_reason)

    def _next_step(self) -> Step | str:
        """Wait for a step, or for what ends the answer before it."""
        while not (reason := self._ended()):
            try:
                step = self._steps.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if isinstance(step, Exception):
                raise step
            return step
        return reason

    def _check(self, step: Step) -> None:
        """Refuse to pass on what was not asked for."""
        banned = self._request.banned.intersection(step.ids)
        if banned:
            raise EngineFault(f"the engine answered the banned token {min(banned)}: its sampler ignores bad words")
        least = self._request.decoding.plan.min_tokens
        if step.finish_reason == "end_id" and self._written < least:
            raise EngineFault(f"the engine ended after {self._written} tokens and ignores min_tokens, which is {least}")

    def _group(self, ids: tuple[int, ...], log_probs: tuple[float, ...] | None, finish_reason: str) -> Group:
        wanted = self._request.decoding.return_log_probs
        answer = Answer(
            ids=np.array(ids, np.int32), log_probs=np.array(log_probs or (), np.float32) if wanted else None
        )
        return Group(answer=answer, finish_reason=finish_reason)

    async def _follow(self) -> None:
        """Put every report of the engine into the queue, and what ends them."""
        try:
            if self._aborted:
                return
            self._result = self._start()
            reader = _StepReader(self._request)
            async for result in self._result:
                self._steps.put(reader.read(result))
            self._steps.put(EngineFault("the engine ended the request without a reason"))
        except EngineFault as error:
            self._steps.put(error)
        except Exception as error:  # noqa: BLE001 - the LLM API raises what it likes
            self._steps.put(self._fault(error))

    def _fault(self, error: Exception) -> Exception:
        message = " ".join(str(error).split()) or repr(error)
        # The LLM API checks a request when it is handed over; by the name, since the class has moved between releases.
        refused = self._result is None and (isinstance(error, ValueError) or type(error).__name__ == "RequestError")
        if refused:
            return RequestError(f"the LLM API refuses the request: {message}")
        return EngineFault(f"the engine failed: {message}")

    def _abort(self) -> None:
        self._aborted = True
        if self._result is not None and not self._result.finished:
            self._result.abort()


class _StepReader:
    """Reads what is new in a result that the LLM API updates in place.

    Args:
        request: The request that it answers.
    """

    def __init__(self, request: LlmRequest) -> None:
        self._request = request
        self._seen = 0

    def read(self, result: RequestOutput) -> Step:
        """Return the new step; to be called before the result is awaited again."""
        completion = result.outputs[0]
        ids = tuple(completion.token_ids[self._seen :])
        log_probs = self._log_probs(completion, ids)
        self._seen += len(ids)
        finish_reason = _finish_reason(completion) if result.finished else ""
        end_id = self._request.decoding.plan.end_id
        if finish_reason == "end_id" and end_id >= 0 and ids[-1:] != (end_id,):
            # Engines differ on whether it belongs to the answer (NVIDIA/TensorRT-LLM issue 2190); here it does.
            ids = (*ids, end_id)
            self._seen += 1
        return Step(ids=ids, log_probs=log_probs, finish_reason=finish_reason, statistics=self._statistics(result))

    def _statistics(self, result: RequestOutput) -> Statistics:
        decoding = self._request.decoding
        if not decoding.engine_speculates:
            return NO_SPECULATION
        return read_acceptance(result, tokens=self._seen, longest_draft=decoding.plan.num_draft_tokens)

    def _log_probs(self, completion: Completion, ids: tuple[int, ...]) -> tuple[float, ...] | None:
        if not self._request.decoding.return_log_probs:
            return None
        entries = completion.logprobs[self._seen : self._seen + len(ids)]
        if len(entries) != len(ids):
            raise EngineFault(f"the engine reported {len(entries)} log probabilities for {len(ids)} tokens")
        return tuple(_log_prob(entry, token) for entry, token in zip(entries, ids, strict=True))


def _finish_reason(completion: Completion) -> str:
    reason = completion.finish_reason
    if reason not in _REASONS:
        raise EngineFault(f"the engine ended the request with the reason {reason!r}")
    return _REASONS[reason]


def _log_prob(entry: Any, token: int) -> float:  # noqa: ANN401 - a number, or what is known of several tokens by id
    if isinstance(entry, dict):
        if token not in entry:
            raise EngineFault(f"the engine reported no log probability of its token {token}")
        return float(entry[token].logprob)
    return float(entry)
