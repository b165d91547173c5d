"""The input tensors of a request, made into one checked value. Knows the tensor names; does not know Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from tensorrtllm_cpu.faults import RequestRefused
from tensorrtllm_cpu.sampling import SamplingParams
from tensorrtllm_cpu.words import Word, decode_word_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


Tensors: TypeAlias = "Mapping[str, NDArray[Any]]"

#: Inputs that only steer beam search or cache eviction: they cannot change what this engine answers.
_WITHOUT_EFFECT: Final = frozenset({
    "pad_id", "len_penalty", "early_stopping", "beam_search_diversity_rate", "runtime_top_p_min",
    "runtime_top_p_reset_ids", "retention_token_range_starts", "retention_token_range_ends",
    "retention_token_range_priorities", "retention_token_range_durations_ms", "retention_decode_priority",
    "retention_decode_duration_ms",
})  # fmt: skip

_SUPPORTED: Final = frozenset({
    "input_ids", "input_lengths", "request_output_len", "draft_input_ids", "draft_logits", "draft_acceptance_threshold",
    "end_id", "stop_words_list", "bad_words_list", "embedding_bias", "temperature", "runtime_top_k", "runtime_top_p",
    "repetition_penalty", "min_tokens", "presence_penalty", "frequency_penalty", "seed", "return_log_probs",
    "return_generation_logits", "return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens",
    "exclude_input_in_output", "streaming",
})  # fmt: skip

_RETURN_FLAGS: Final = tuple(sorted(name for name in _SUPPORTED if name.startswith("return_")))

#: The smallest repetition penalty: it divides.
_SMALLEST_FACTOR: Final = 1e-6

#: Inputs that are refused unless they hold this value, with which they ask for nothing.
_NEUTRAL: Final[Mapping[str, float]] = {
    "beam_width": 1, "num_return_sequences": 1, "runtime_top_p_decay": 1.0, "return_context_logits": 0, "stop": 0,
    "prompt_vocab_size": 0, "skip_cross_attn_blocks": 0,
}  # fmt: skip

_CURES: Final[Mapping[str, str]] = {
    "beam_width": "send 1 or leave it out",
    "num_return_sequences": "send one request per sequence, each with its own seed",
    "stop": "send it in a request of its own, by the id of the one to cancel",
    "lora": "merge the adapter into the checkpoint and build that",
    "guided": "leave it out, or serve the engine with TensorRT-LLM",
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the loaded engine allows, and the model's defaults."""

    vocab_size: int
    max_seq_len: int
    exclude_input_in_output: bool = False
    decoupled: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class GenerationRequest:
    """One request, checked. ``drafts`` is never longer than one token less than ``max_new_tokens``.

    A draft at the last place could only repeat what the target's own token there says, so it is not looked at.
    ``has_drafts`` says that some were sent. ``draft_logits`` is float32 ``[len(drafts), vocab]``, or has no rows.
    ``seed`` None means fresh randomness.
    """

    prompt: NDArray[np.int32]
    max_new_tokens: int
    sampling: SamplingParams
    draft_logits: NDArray[np.float32]
    has_drafts: bool = False
    drafts: tuple[int, ...] = ()
    acceptance_threshold: float | None = None
    stop_words: tuple[Word, ...] = ()
    seed: int | None = None
    exclude_input_in_output: bool = False
    streaming: bool = False
    return_log_probs: bool = False
    return_generation_logits: bool = False
    return_perf_metrics: bool = False
    return_num_input_tokens: bool = False
    return_num_output_tokens: bool = False


def read_request(tensors: Tensors, limits: Limits) -> GenerationRequest:
    """Return the request that ``tensors`` (by name, with or without the batch dimension) describe.

    Raises:
        RequestRefused: An input is missing, malformed, too long or not supported; the message names it and the cure.
    """
    _refuse_unsupported(tensors)
    prompt = _prompt(tensors, limits)
    room = _room(tensors, len(prompt), limits)
    drafts = _ids(tensors, "draft_input_ids", limits)
    return GenerationRequest(
        prompt=prompt,
        max_new_tokens=room,
        sampling=_sampling(tensors, limits),
        has_drafts=len(drafts) > 0,
        drafts=tuple(drafts[: room - 1].tolist()),
        draft_logits=_draft_logits(tensors, len(drafts), limits)[: room - 1],
        acceptance_threshold=_fraction(tensors, "draft_acceptance_threshold"),
        stop_words=_words(tensors, "stop_words_list", limits),
        seed=_integer(tensors, "seed"),
        exclude_input_in_output=_flag(tensors, "exclude_input_in_output", default=limits.exclude_input_in_output),
        streaming=_streaming(tensors, limits),
        **{name: _flag(tensors, name) for name in _RETURN_FLAGS},
    )


def _refuse_unsupported(tensors: Tensors) -> None:
    """Refuse every input that would change the answer and that this engine would have to ignore."""
    for name, value in tensors.items():
        if name in _SUPPORTED or name in _WITHOUT_EFFECT or value.size == 0:
            continue
        neutral = _NEUTRAL.get(name)
        if neutral is not None and bool((value == neutral).all()):
            continue
        cure = _CURES.get(name) or _CURES.get(name.split("_", maxsplit=1)[0], "leave it out")
        raise RequestRefused(f"the input {name} is not supported by the CPU engine that serves this model; {cure}")


def _streaming(tensors: Tensors, limits: Limits) -> bool:
    """Return whether to answer token by token."""
    streaming = _flag(tensors, "streaming")
    if streaming and not limits.decoupled:
        raise RequestRefused("streaming is only supported in decoupled mode; send streaming false")
    return streaming


def _prompt(tensors: Tensors, limits: Limits) -> NDArray[np.int32]:
    """Return the ids of the prompt, without padding."""
    ids = _ids(tensors, "input_ids", limits)
    length = _integer(tensors, "input_lengths")
    if length is None:
        raise RequestRefused("the input input_lengths is missing; send the number of ids in input_ids")
    if not 1 <= length <= len(ids):
        raise RequestRefused(
            f"input_lengths is {length} and input_ids holds {len(ids)} ids; send a prompt and its length"
        )
    return ids[:length]


def _room(tensors: Tensors, prompt: int, limits: Limits) -> int:
    """Return the number of tokens to generate at most."""
    wanted = _integer(tensors, "request_output_len")
    if wanted is None or wanted < 1:
        raise RequestRefused(f"request_output_len is {wanted}; send the number of new tokens, at least 1")
    if prompt + wanted > limits.max_seq_len:
        raise RequestRefused(
            f"prompt length + number of requested output tokens ({prompt} + {wanted}) exceeds maximum sequence length "
            f"({limits.max_seq_len}); shorten the prompt or lower request_output_len"
        )
    return wanted


def _sampling(tensors: Tensors, limits: Limits) -> SamplingParams:
    """Return how tokens are chosen."""
    end_id = _integer(tensors, "end_id")
    return SamplingParams(
        temperature=_at_least(tensors, "temperature", 0.0, default=1.0),
        top_k=int(_at_least(tensors, "runtime_top_k", 0, default=0)),
        top_p=_fraction(tensors, "runtime_top_p") or 0.0,
        repetition_penalty=_at_least(tensors, "repetition_penalty", _SMALLEST_FACTOR, default=1.0),
        presence_penalty=_at_least(tensors, "presence_penalty", -np.inf, default=0.0),
        frequency_penalty=_at_least(tensors, "frequency_penalty", -np.inf, default=0.0),
        min_tokens=int(_at_least(tensors, "min_tokens", 0, default=0)),
        end_id=end_id if end_id is not None and 0 <= end_id < limits.vocab_size else None,
        bad_words=_words(tensors, "bad_words_list", limits),
        embedding_bias=_embedding_bias(tensors, limits),
    )


def _embedding_bias(tensors: Tensors, limits: Limits) -> NDArray[np.float32] | None:
    """Return the bias on the logits, or None where there is none."""
    bias = tensors.get("embedding_bias")
    if bias is None or not bias.any():
        return None
    if bias.size != limits.vocab_size:
        raise RequestRefused(
            f"embedding_bias has {bias.size} values and the engine's vocabulary {limits.vocab_size}; send one per id"
        )
    return bias.reshape(-1).astype(np.float32)


def _draft_logits(tensors: Tensors, drafts: int, limits: Limits) -> NDArray[np.float32]:
    """Return a copy of the draft model's logits, one row per draft; no rows when they were not sent."""
    logits = tensors.get("draft_logits")
    if logits is None or logits.size == 0:
        return np.empty((0, limits.vocab_size), np.float32)
    if logits.shape[-1] != limits.vocab_size or logits.size != drafts * limits.vocab_size:
        raise RequestRefused(
            f"draft_logits has shape {list(logits.shape)} for {drafts} draft tokens and a vocabulary of "
            f"{limits.vocab_size}; send [{drafts}, {limits.vocab_size}]: both models need the same vocabulary"
        )
    return logits.reshape(drafts, -1).astype(np.float32, copy=True)


def _words(tensors: Tensors, name: str, limits: Limits) -> tuple[Word, ...]:
    """Return a word list; empty when it was not sent."""
    return decode_word_list(name, tensors[name], vocab_size=limits.vocab_size) if name in tensors else ()


def _ids(tensors: Tensors, name: str, limits: Limits) -> NDArray[np.int32]:
    """Return a copy of token ids; empty when they were not sent."""
    if name not in tensors:
        return np.empty(0, np.int32)
    ids = tensors[name].reshape(-1).astype(np.int32, copy=True)
    outside = (ids < 0) | (ids >= limits.vocab_size)
    if outside.any():
        wrong = int(ids[outside][0])
        raise RequestRefused(f"{name} holds the id {wrong}; the engine's vocabulary has {limits.vocab_size} ids from 0")
    return ids


def _flag(tensors: Tensors, name: str, *, default: bool = False) -> bool:
    """Return a boolean."""
    value = _single(tensors, name)
    return default if value is None else bool(value)


def _integer(tensors: Tensors, name: str) -> int | None:
    """Return a whole number, or None when it was not sent."""
    value = _single(tensors, name)
    return None if value is None else int(value)


def _at_least(tensors: Tensors, name: str, lowest: float, *, default: float) -> float:
    """Return a finite number that is not below ``lowest``."""
    value = _single(tensors, name)
    if value is None:
        return default
    if not np.isfinite(value) or value < lowest:
        raise RequestRefused(f"{name} is {value}; send a finite number of at least {lowest}")
    return float(value)


def _fraction(tensors: Tensors, name: str) -> float | None:
    """Return a number from 0 to 1, or None when it was not sent."""
    value = _single(tensors, name)
    if value is not None and not 0.0 <= value <= 1.0:
        raise RequestRefused(f"{name} is {value}; send a number from 0 to 1")
    return None if value is None else float(value)


def _single(tensors: Tensors, name: str) -> float | None:
    """Return the one element of an input as NumPy has it, or None when it was not sent."""
    value = tensors.get(name)
    if value is None or value.size == 0:
        return None
    if value.size != 1:
        raise RequestRefused(f"{name} has {value.size} values; send one, and one sequence per request")
    element: float = value.reshape(-1)[0]
    return element
