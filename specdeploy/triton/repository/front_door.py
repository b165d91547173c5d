"""The front door: which inputs `ensemble` and `tensorrt_llm_bls` take, and where each of them goes.

Knows the names that clients of a TensorRT-LLM release send, and the one name that our models use for each. Does not
know what the decoder makes of them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.triton.pbtxt import Tensor
from specdeploy.triton.tensors import release_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

# Ours beside NVIDIA's.
_OWN: Final = (Tensor(name="return_decode_trace", data_type="TYPE_BOOL", dims=(1,), optional=True),)
# Our models use the newest names; clients of an older release send the older ones.
_NEWEST_RELEASE: Final = "1"
#: Name in an older release -> its newest one.
NEWER_NAMES: Final = {
    "min_length": "min_tokens",
    "random_seed": "seed",
    "return_kv_cache_reuse_stats": "return_perf_metrics",
}
# Inputs of models that also read pictures, films or a decoder prompt; none of our profiles serves such a model.
_NOT_TEXT: Final = frozenset(
    {"decoder_text_input", "image_input", "image_bytes_input", "image_url_input", "video_bytes_input"}
)
# Front-door name -> input of `preprocessing`, which turns it into something else.
TO_PREPROCESSING: Final = {
    "text_input": "QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
}
# Of those, the decoder also sees the text itself: it echoes the prompt when asked, and stops at words, not at ids.
_ALSO_TO_DECODER: Final = ("text_input", "stop_words")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrontDoor:
    """Inputs of the two ensembles.

    Args:
        inputs: What clients send, in the order of NVIDIA's templates.
        to_decoder: Decoder input -> front-door input, for those that pass ``preprocessing`` by.
    """

    inputs: tuple[Tensor, ...]
    to_decoder: Mapping[str, str]


def front_door(release: str) -> FrontDoor:
    """Return the front door for clients of *release*.

    Raises:
        ConfigError: The tensors of *release* are not known.
    """
    inputs = _union(release)
    passed_by = [t.name for t in inputs if t.name not in TO_PREPROCESSING or t.name in _ALSO_TO_DECODER]
    return FrontDoor(inputs=inputs, to_decoder={NEWER_NAMES.get(name, name): name for name in passed_by})


def decoder_options() -> tuple[Tensor, ...]:
    """Return the optional inputs that the decoder takes straight from the front door, under their newest names."""
    return tuple(tensor for tensor in _union(_NEWEST_RELEASE) if tensor.name not in TO_PREPROCESSING)


def _union(release: str) -> tuple[Tensor, ...]:
    """Return the inputs of both templates, each once, and ours; a row by itself needs no reshape and is not ragged."""
    models = release_tensors(release).models
    found: dict[str, Tensor] = {}
    for tensor in (*models["ensemble"].inputs, *models["tensorrt_llm_bls"].inputs):
        if tensor.name not in _NOT_TEXT:
            plain = dataclasses.replace(tensor, reshape=None, allow_ragged_batch=False)
            # Also text_input and max_tokens, which NVIDIA's templates require: `preprocessing` misses them by name,
            # where Triton only counts and may not answer at all.
            found.setdefault(tensor.name, dataclasses.replace(plain, optional=True))
    return (*found.values(), *_OWN)
