"""Requests that bring text instead of token ids: the preprocessing model is asked for what the front door would send.

So a client can ask this model for itself, with the inputs of the front door. It answers the same, and sees what no
ensemble passes on: that its client is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from decoder_ask import ask
from decoder_request import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from decoder_request import Tensor

# Triton's own classes carry no types.
InferenceRequest: TypeAlias = Any

_NEWER: Final = {
    "min_length": "min_tokens",
    "random_seed": "seed",
    "return_kv_cache_reuse_stats": "return_perf_metrics",
}
"""Name that clients of an older release send -> ours."""

_SENT: Final = {
    "text_input": "QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
}
"""The front door's name of an input -> that of the preprocessing model."""

_TAKEN: Final = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}
"""Its output -> our name of an input."""

_WORDS: Final = ("bad_words", "embedding_bias_words", "embedding_bias_weights")

_OF_IDS: Final = ("input_lengths", "request_output_len", "bad_words_list", "embedding_bias")

_REFUSAL: Final = "REFUSAL"
"""Its output in place of all others: why the request is wrong. An error would come without its code."""

Outputs: TypeAlias = "dict[str, Tensor]"


def texts_of(request: InferenceRequest) -> int:
    """Return how many texts a request sent; what is missing is noticed when they are read."""
    shapes = {tensor.name(): tensor.shape() for tensor in request.inputs()}
    first = shapes.get("input_ids") or shapes.get("text_input") or (1,)
    return int(first[0])


def as_ids(
    tensors: Mapping[str, Tensor], model: str, request_id: str, in_time: Callable[[Callable[[], Outputs]], Outputs]
) -> Outputs:
    """Return a request's inputs with token ids, under our names.

    Args:
        tensors: What was sent, of one text.
        model: The preprocessing model, asked where there is text alone; empty is none.
        request_id: By which the preprocessing model knows the request.
        in_time: Makes the call to it: one that hangs must not keep its caller for ever.

    Raises:
        RequestError: An input is missing, or does not go with the others.
        EngineFault: The preprocessing model did not answer.
    """
    inputs = {_NEWER.get(name, name): tensor for name, tensor in tensors.items()}
    if "input_ids" in inputs or "text_input" not in inputs or not model:
        return _with_length(inputs)
    unheeded = [name for name in _OF_IDS if name in inputs]
    if unheeded:
        raise RequestError(
            f"{', '.join(unheeded)}: goes with input_ids; with text_input send max_tokens, and words as text"
        )
    sent = {name: inputs.pop(name) for name in _SENT if name in inputs}
    return {**inputs, **in_time(lambda: _ask(model, sent, request_id)), "text_input": sent["text_input"]}


def _with_length(inputs: Outputs) -> Outputs:
    """Return inputs that bring ids, or nothing; ``max_tokens`` says the same as ``request_output_len``."""
    words = [name for name in _WORDS if name in inputs]
    if words:
        raise RequestError(f"{', '.join(words)}: words go with text_input; with input_ids send their ids")
    if "input_ids" in inputs and not inputs["input_ids"].size:
        raise RequestError("input_ids is empty; the prompt needs at least one token")
    if "input_ids" in inputs and "input_lengths" not in inputs:
        # Rows of a batch are filled up to the longest, and padding is no prompt.
        raise RequestError("input_lengths is missing; input_ids need it")
    if "max_tokens" in inputs:
        inputs.setdefault("request_output_len", inputs.pop("max_tokens"))
    return inputs


def _ask(model: str, sent: Mapping[str, Tensor], request_id: str) -> Outputs:
    tensors = {_SENT[name]: value for name, value in sent.items()}
    tensors["REFUSAL_AS_OUTPUT"] = np.ones((1, 1), np.bool_)
    outputs = ask(model, tensors, [*_TAKEN, _REFUSAL], request_id=request_id, kind="model")
    if _REFUSAL in outputs:
        raise RequestError(outputs[_REFUSAL].reshape(-1)[0].decode())
    return {ours: outputs[name] for name, ours in _TAKEN.items()}
