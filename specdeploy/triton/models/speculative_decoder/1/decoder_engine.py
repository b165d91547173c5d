"""The two engines as callables, over requests that Triton passes on to their models; each call is one.

Knows the engines' tensors; knows nothing of the loop and of the client's request beyond what it was given to pass on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from decoder_ask import ask
from decoder_loop import Answer, Draft, EngineFault
from decoder_stop import StoppedError
from decoder_watch import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from decoder_loop import Ids
    from decoder_request import DecodeRequest, Tensor
    from decoder_settings import Settings

    UntilEnded: TypeAlias = Callable[
        [Callable[[], dict[str, Tensor]], Callable[[], None]], tuple[dict[str, Tensor], str]
    ]

# What an engine that drafts on its own says of one call.
_REPORTED: Final = ("total_draft_tokens", "total_accepted_draft_tokens")
_TRUE: Final = np.ones((1, 1), np.bool_)
# NVIDIA's backend fails a request that does not ask for both of these.
_ALWAYS: Final = ("output_ids", "sequence_length")


class _Engine:
    """One engine model as one request calls it.

    Args:
        model: Name of the Triton model.
        inputs: Tensors that every call of the request carries.
        outputs: Names of the outputs that are asked for.
        request_id: By which the engine knows the call, and its log names it; no other call under way has it.
        names: Our name of an input -> the engine's, where they differ.
        optional: Names of outputs that are asked for and may be missing.
    """

    def __init__(
        self,
        model: str,
        inputs: Mapping[str, Tensor],
        outputs: tuple[str, ...],
        request_id: str,
        names: Mapping[str, str],
        optional: tuple[str, ...] = (),
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._outputs = outputs
        self._asked = (*outputs, *optional)
        self._request_id = request_id
        self._names = names

    def stop(self) -> None:
        """End the call that is under way, if there is one: its engine knows it by its id.

        As the C++ backend wants it: the inputs that every request has, which are not read, and an answer without any.
        """
        required = {"input_ids": 0, "input_lengths": 1, "request_output_len": 1}
        tensors = {name: _scalar(value, np.int32) for name, value in required.items()}
        ask(self._model, {**tensors, "stop": _TRUE}, _ALWAYS, request_id=self._request_id)

    def call(self, ids: Ids, count: int, more: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Ask for ``count`` tokens after ``ids`` and return the outputs by name.

        Raises:
            EngineFault: The model is not there, or answered with an error or without an output.
        """
        tensors = {
            "input_ids": ids.reshape(1, -1),
            "input_lengths": _scalar(ids.size, np.int32),
            "request_output_len": _scalar(count, np.int32),
            **self._inputs,
            **more,
        }
        theirs = {self._names.get(name, name): value for name, value in tensors.items()}
        answer = ask(self._model, theirs, self._asked, request_id=self._request_id)
        missing = sorted(set(self._outputs) - answer.keys())
        if missing:
            raise EngineFault(f"engine {self._model!r} answered without {', '.join(missing)}")
        return answer


class TritonDraft:
    """The draft engine of one request; see ``decoder_loop.DraftEngine``.

    Args:
        settings: Those of the deployment.
        request: What is decoded.
        request_id: The client's id of the request.
        in_time: Makes the calls: a draft that hangs must not take the request with it.
    """

    def __init__(
        self,
        settings: Settings,
        request: DecodeRequest,
        request_id: str,
        in_time: Callable[[Callable[[], dict[str, Tensor]]], dict[str, Tensor]],
    ) -> None:
        self._model = settings.draft_model
        self._in_time = in_time
        self._sampled = request.sampled
        self._with_logits = request.use_draft_logits
        self._fast_logits = settings.fast_logits
        # end_id -1 lets the draft write on after an end token, so that its probabilities are the model's own. Forcing
        # a full draft with min_tokens instead would take the end token out of them: tokens would be drawn from other
        # probabilities than the logits say, and rejection sampling would no longer be exact.
        inputs = {**request.draft_inputs, **_common(request, end_id=-1)}
        if self._with_logits:
            inputs["return_generation_logits"] = _TRUE
        outputs = (*_ALWAYS, "generation_logits") if self._with_logits else _ALWAYS
        self._engine = _Engine(settings.draft_model, inputs, outputs, request_id, settings.engine_input_names)

    def __call__(self, ids: Ids, count: int, *, seed: int) -> Draft:
        """Propose ``count`` tokens that continue ``ids``."""
        tensors = self._call(ids, count, _seed(seed) if self._sampled else {})
        proposed = tensors["output_ids"].reshape(-1)
        if not (self._with_logits and proposed.size):
            return Draft(ids=proposed)
        logits = tensors["generation_logits"]
        logits = logits.reshape(-1, logits.shape[-1])
        if self._fast_logits:
            # Not logits, but where the target finds them.
            return Draft(ids=proposed, logits=logits)
        if len(logits) < proposed.size:
            raise EngineFault(f"the draft engine answered {len(logits)} rows of logits for {proposed.size} tokens")
        return Draft(ids=proposed, logits=logits[: proposed.size])

    def _call(self, ids: Ids, count: int, more: Mapping[str, Tensor]) -> dict[str, Tensor]:
        try:
            return self._in_time(lambda: self._engine.call(ids, count, more))
        except DeadlineError as error:
            raise EngineFault(f"engine {self._model!r} {error}") from error


class TritonTarget:
    """The target engine of one request; see ``decoder_loop.TargetEngine``.

    Args:
        settings: Those of the deployment.
        request: What is decoded.
        request_id: By which the engine knows the request's calls.
        measured: Names of what the engine is to measure of each call, as far as it does.
        until_ended: Makes a call, and has it stopped once nobody waits for it: returns what it came to, and why it was
            stopped; raises StoppedError. Left out, calls take as long as they take.
    """

    def __init__(
        self,
        settings: Settings,
        request: DecodeRequest,
        request_id: str,
        measured: tuple[str, ...] = (),
        until_ended: UntilEnded | None = None,
    ) -> None:
        self._until_ended = until_ended or _as_it_comes
        self._sampled = request.sampled
        self._reports = settings.engine_reports
        self._log_probs = request.return_log_probs
        self._pass_through = request.pass_through
        inputs = {**request.target_inputs, **_common(request, end_id=request.plan.end_id)}
        # Several sequences are padded to the longest; a single one is not.
        self._beams = "beam_width" in inputs or "num_return_sequences" in inputs
        outputs = [*_ALWAYS, *self._pass_through]
        outputs += ["output_log_probs"] if self._log_probs else []
        outputs += [*_REPORTED] if self._reports else []
        self._measured = measured
        if self._reports or measured:
            inputs["return_perf_metrics"] = _TRUE
        names = settings.engine_input_names
        self._engine = _Engine(settings.target_model, inputs, tuple(outputs), request_id, names, measured)

    def __call__(self, ids: Ids, draft: Draft, count: int, *, seed: int, min_tokens: int) -> Answer:
        """Verify ``draft`` after ``ids``, or without a draft decode up to ``count`` tokens."""
        more = _seed(seed) if self._sampled else {}
        if min_tokens:
            more["min_tokens"] = _scalar(min_tokens, np.int32)
        if draft.ids.size:
            more["draft_input_ids"] = draft.ids.reshape(1, -1)
            if draft.logits is not None:
                more["draft_logits"] = draft.logits[np.newaxis]
        try:
            tensors, stopped = self._until_ended(lambda: self._engine.call(ids, count, more), self._engine.stop)
        except StoppedError as error:
            nothing = np.empty(0, np.float32) if self._log_probs else None
            return Answer(ids=np.empty(0, np.int32), log_probs=nothing, stopped=str(error))
        return self._answer(tensors, stopped)

    def _answer(self, tensors: Mapping[str, Tensor], stopped: str) -> Answer:
        rows = tensors["output_ids"].reshape(-1, tensors["output_ids"].shape[-1])
        first, *others = _trimmed(rows, tensors["sequence_length"]) if self._beams else rows
        log_probs = None
        if self._log_probs:
            log_probs = tensors["output_log_probs"].reshape(len(rows), -1)[0][: first.size]
        return Answer(
            ids=first,
            log_probs=log_probs,
            others=tuple(others),
            extras=tuple((name, tensors[name]) for name in self._pass_through),
            reported=self._reported(tensors),
            measured={name: int(tensors[name].reshape(-1)[0]) for name in self._measured if name in tensors},
            stopped=stopped,
        )

    def _reported(self, tensors: Mapping[str, Tensor]) -> tuple[int, int] | None:
        if not self._reports:
            return None
        drafted, accepted = (int(tensors[name].reshape(-1)[0]) for name in _REPORTED)
        return drafted, accepted


def _as_it_comes(call: Callable[[], dict[str, Tensor]], _stop: Callable[[], None]) -> tuple[dict[str, Tensor], str]:
    """Make a call."""
    return call(), ""


def _common(request: DecodeRequest, *, end_id: int) -> dict[str, Tensor]:
    common = {"end_id": _scalar(end_id, np.int32), "exclude_input_in_output": _TRUE}
    if request.pad_id is not None:
        common["pad_id"] = _scalar(request.pad_id, np.int32)
    return common


def _scalar(value: int, dtype: type[np.generic]) -> Tensor:
    return np.full((1, 1), value, dtype)


def _seed(seed: int) -> dict[str, Tensor]:
    return {"seed": _scalar(seed, np.uint64)}


def _trimmed(rows: Tensor, lengths: Tensor) -> list[Tensor]:
    return [row[:length] for row, length in zip(rows, lengths.reshape(-1), strict=True)]
