"""The output tensors of an answer, by name, in the shapes of the C++ backend for a batch of one and one beam."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from numpy.typing import NDArray
    from tensorrtllm_cpu.generation import Answer
    from tensorrtllm_cpu.inputs import GenerationRequest

#: The unit of the KV cache counters; TensorRT-LLM's default block size. Our caches have no blocks of their own.
TOKENS_PER_BLOCK: Final = 64
_REQUIRED: Final = ("output_ids", "sequence_length")


def to_tensors(request: GenerationRequest, answer: Answer, wanted: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return the outputs that are ``wanted`` by the caller and that the request asked to be made.

    Raises:
        ValueError: The caller leaves one out that the C++ backend fails without.
    """
    missing = [name for name in _REQUIRED if name not in wanted]
    if missing:
        raise ValueError(f"{missing[0]} tensor must be present in list of output tensors")
    return {name: make(request, answer) for name, make in _available(request) if name in wanted}


def _available(request: GenerationRequest) -> Iterator[tuple[str, Callable[[GenerationRequest, Answer], NDArray[Any]]]]:
    """Yield the outputs that this request has."""
    yield from _ALWAYS.items()
    for flag, makers in _ON_REQUEST.items():
        if getattr(request, flag):
            yield from makers.items()


def _output_ids(request: GenerationRequest, answer: Answer) -> NDArray[np.int32]:
    """``[1, 1, n]``; with the prompt in front unless it is excluded. Streamed answers hold the new ids only."""
    whole = request.exclude_input_in_output or request.streaming
    ids = answer.ids if whole else np.concatenate([request.prompt, answer.ids])
    return np.ascontiguousarray(ids, np.int32).reshape(1, 1, -1)


def _sequence_length(request: GenerationRequest, answer: Answer) -> NDArray[np.int32]:
    """``[1, 1]``: the ids in ``output_ids``."""
    prompt = 0 if request.exclude_input_in_output or request.streaming else len(request.prompt)
    return _int(prompt + len(answer.ids))


def _acceptance_rate(_: GenerationRequest, answer: Answer) -> NDArray[np.float32]:
    """``[1, 1]``; 0 without drafts, as the C++ backend reports it."""
    return np.full((1, 1), answer.accepted / answer.drafted if answer.drafted else 0.0, np.float32)


def _blocks(tokens: int) -> int:
    """Blocks that hold ``tokens``."""
    return -(-tokens // TOKENS_PER_BLOCK)


def _total_blocks(request: GenerationRequest, answer: Answer) -> int:
    """Blocks of the whole sequence."""
    return _blocks(len(request.prompt) + answer.generated)


def _int(value: int) -> NDArray[np.int32]:
    """``[1, 1]`` INT32."""
    return np.full((1, 1), value, np.int32)


def _ns(value: int) -> NDArray[np.int64]:
    """``[1, 1]`` INT64."""
    return np.full((1, 1), value, np.int64)


_ALWAYS: Final[Mapping[str, Callable[[GenerationRequest, Answer], NDArray[Any]]]] = {
    "output_ids": _output_ids,
    "sequence_length": _sequence_length,
    "batch_index": lambda _request, _answer: _int(0),
    "sequence_index": lambda _request, _answer: _int(0),
}

_ON_REQUEST: Final[Mapping[str, Mapping[str, Callable[[GenerationRequest, Answer], NDArray[Any]]]]] = {
    "return_log_probs": {
        "cum_log_probs": lambda _, answer: np.full((1, 1), answer.cumulative_log_prob, np.float32),
        "output_log_probs": lambda _, answer: np.asarray(answer.log_probs, np.float32).reshape(1, 1, -1),
    },
    "return_generation_logits": {"generation_logits": lambda _, answer: np.stack(answer.logits)[None, None]},
    "return_num_input_tokens": {"num_input_tokens": lambda request, _: _int(len(request.prompt))},
    "return_num_output_tokens": {"num_output_tokens": lambda _, answer: _int(answer.generated)},
    "return_perf_metrics": {
        "kv_cache_alloc_new_blocks": lambda request, answer: _int(
            _total_blocks(request, answer) - answer.reused_tokens // TOKENS_PER_BLOCK
        ),
        "kv_cache_reused_blocks": lambda _, answer: _int(answer.reused_tokens // TOKENS_PER_BLOCK),
        "kv_cache_alloc_total_blocks": lambda request, answer: _int(_total_blocks(request, answer)),
        "arrival_time_ns": lambda _, answer: _ns(answer.times.arrival_ns),
        "first_scheduled_time_ns": lambda _, answer: _ns(answer.times.scheduled_ns),
        "first_token_time_ns": lambda _, answer: _ns(answer.times.first_token_ns),
        "last_token_time_ns": lambda _, answer: _ns(answer.times.last_token_ns),
        "acceptance_rate": _acceptance_rate,
        "total_accepted_draft_tokens": lambda _, answer: _int(answer.accepted),
        "total_draft_tokens": lambda _, answer: _int(answer.drafted),
    },
}
