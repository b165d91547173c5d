"""From a response to its output tensors, each made only when it is wanted.

Numbers leave as numbers, and a count that the engine does not give has no tensor: absent is not zero. Knows the names
and shapes of the front door's outputs; knows nothing of Triton's classes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from decoder_trace import trace_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    from decoder_answer import Response
    from decoder_request import Tensor
    from decoder_stats import Statistics

    Outputs: TypeAlias = Mapping[str, Callable[[], Tensor]]


def response_outputs(response: Response, *, num_input_tokens: int, batch_index: int = 0) -> Outputs:
    """Return the outputs of one response by name; the batch dimension of 1 is in front."""
    return {
        "text_output": partial(_texts, *response.texts),
        "output_ids": partial(_row, response.ids, np.int32),
        "sequence_length": partial(_row, [response.ids.size], np.int32),
        "finish_reason": partial(_texts, response.finish_reason),
        "bypass_reason": partial(_texts, response.bypass_reason),
        "num_input_tokens": partial(_row, [num_input_tokens], np.int32),
        "num_output_tokens": partial(_row, [response.num_output_tokens], np.int32),
        "batch_index": partial(_row, [batch_index], np.int32),
        "sequence_index": partial(_row, [0], np.int32),
        **{name: partial(np.asarray, value) for name, value in response.extras},
        **{name: partial(_row, [value], _perf_type(name)) for name, value in response.measured.items()},
        **_statistics_outputs(response.statistics),
        **_log_prob_outputs(response),
        **({} if response.trace is None else {"decode_trace": partial(_trace, response.trace)}),
    }


def as_sent(name: str, tensor: Tensor) -> Tensor:
    """Return an output as clients get it: texts have one dimension, further sequences behind the first, row after row.

    So they come from NVIDIA's ``postprocessing``, whatever ``dims`` says, and its clients decode ``text_output[0]``.
    """
    return tensor.reshape(-1) if name == "text_output" else tensor


def _statistics_outputs(statistics: Statistics) -> Outputs:
    known = {
        "total_accepted_draft_tokens": statistics.accepted,
        "total_draft_tokens": statistics.drafted,
        "num_spec_steps": statistics.steps,
    }
    outputs = {name: partial(_row, [count], np.int32) for name, count in known.items() if count is not None}
    if statistics.acceptance_rate is not None:
        outputs["acceptance_rate"] = partial(_row, [statistics.acceptance_rate], np.float32)
    if statistics.histogram is not None:
        outputs["spec_decode_acceptance_histogram"] = partial(_row, statistics.histogram, np.int32)
    return outputs


def _log_prob_outputs(response: Response) -> Outputs:
    if response.log_probs is None or response.cum_log_prob is None:
        return {}
    return {
        "output_log_probs": partial(_row, [response.log_probs], np.float32),
        "cum_log_probs": partial(_row, [response.cum_log_prob], np.float32),
    }


def _perf_type(name: str) -> npt.DTypeLike:
    """Return the type of a measurement: times have 64 bits."""
    return np.int64 if name.endswith("_ns") else np.int32


def _trace(rounds: Sequence[Mapping[str, Any]]) -> Tensor:
    return _texts(trace_text(rounds))


def _row(values: npt.ArrayLike, dtype: npt.DTypeLike) -> Tensor:
    return np.asarray([values], dtype)


def _texts(*texts: str) -> Tensor:
    """Encode strings [1, n]."""
    return np.array([[text.encode() for text in texts]], np.object_)
