"""Text to token ids: the Triton model in front of the decoder.

Answers each request by itself; one that is wrong gets its error and leaves the others alone. Triton does not notice a
missing input as long as the number of inputs is plausible, so what must be there is checked here. Between models an
error loses its code, so a caller that sends ``REFUSAL_AS_OUTPUT`` is told in words what its client did wrong.
"""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils
from preprocessing_words import RequestError, embedding_bias, stacked, word_list
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Tensor: TypeAlias = npt.NDArray[Any]

# Triton's own classes carry no types.
InferenceRequest: TypeAlias = Any
InferenceResponse: TypeAlias = Any


class TritonPythonModel:
    """The model as Triton's Python backend calls it."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the parameters and the tokenizer."""
        config = json.loads(args["model_config"])
        values = {key: entry["string_value"] for key, entry in config.get("parameters", {}).items()}
        folder = Path(args["model_repository"], args["model_version"], values.get("tokenizer_dir", "tokenizer"))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        # A tokenizer.json may ask for both; a prompt is neither cut nor filled up.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._add_special_tokens = values.get("add_special_tokens", "true").lower() == "true"
        self._end_id = int(values.get("end_id") or -1)
        self._pad_id = int(values.get("pad_id") or self._end_id)
        self._vocab_size = int(values.get("vocab_size") or self._tokenizer.get_vocab_size(with_added_tokens=True))

    def execute(self, requests: Sequence[InferenceRequest]) -> list[InferenceResponse]:
        """Answer each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: InferenceRequest) -> InferenceResponse:
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        in_words = bool(np.any(tensors.pop("REFUSAL_AS_OUTPUT", False)))
        try:
            outputs = self._outputs(tensors)
        except RequestError as error:
            if in_words:
                refusal = pb_utils.Tensor("REFUSAL", np.array([[str(error).encode()]], np.object_))
                return pb_utils.InferenceResponse([refusal])
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
        except Exception as error:  # noqa: BLE001 - one request's bug must not take the others with it
            pb_utils.Logger.log_error(traceback.format_exc())
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(f"preprocessing failed: {error!r}", pb_utils.TritonError.INTERNAL)
            )
        wanted = set(request.requested_output_names())
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, value) for name, value in outputs.items() if name in wanted]
        )

    def _outputs(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs of a request, which may be of several texts."""
        count = max((len(tensor) for tensor in tensors.values()), default=1)
        rows = [self._row({name: tensor[row : row + 1] for name, tensor in tensors.items()}) for row in range(count)]
        return {name: stacked(name, [row[name] for row in rows], self._pad_id) for name in rows[0]}

    def _row(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        ids = self._prompt_ids(tensors)
        return {
            "INPUT_ID": ids,
            "REQUEST_INPUT_LEN": np.array([[ids.size]], np.int32),
            "REQUEST_OUTPUT_LEN": _output_length(tensors),
            "BAD_WORDS_IDS": word_list(_texts(tensors, "BAD_WORDS_DICT"), self._encode),
            "STOP_WORDS_IDS": word_list(_texts(tensors, "STOP_WORDS_DICT"), self._encode),
            "EMBEDDING_BIAS": embedding_bias(
                _texts(tensors, "EMBEDDING_BIAS_WORDS"),
                _values(tensors, "EMBEDDING_BIAS_WEIGHTS"),
                self._encode,
                self._vocab_size,
            ),
            "OUT_END_ID": _one(tensors, "END_ID", self._end_id),
            "OUT_PAD_ID": _one(tensors, "PAD_ID", self._pad_id),
        }

    def _prompt_ids(self, tensors: Mapping[str, Tensor]) -> Tensor:
        query = _texts(tensors, "QUERY")
        if len(query) != 1:
            seen = f"has {len(query)} prompts" if query else "is missing"
            raise RequestError(f"QUERY (text_input at the front door) {seen}; it must be one prompt")
        ids = self._tokenizer.encode(query[0], add_special_tokens=self._add_special_tokens).ids
        if not ids:
            raise RequestError("the prompt is empty: QUERY (text_input at the front door) has no tokens")
        return np.array([ids], np.int32)

    def _encode(self, word: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(word, add_special_tokens=False).ids
        return ids


def _output_length(tensors: Mapping[str, Tensor]) -> Tensor:
    lengths = _values(tensors, "REQUEST_OUTPUT_LEN")
    if len(lengths) != 1 or lengths[0] < 1:
        raise RequestError(
            f"REQUEST_OUTPUT_LEN (max_tokens at the front door) is {lengths or 'missing'}; "
            "it must be one positive number"
        )
    return np.array([lengths], np.int32)


def _values(tensors: Mapping[str, Tensor], name: str) -> list[Any]:
    tensor = tensors.get(name)
    return [] if tensor is None else tensor.reshape(-1).tolist()


def _texts(tensors: Mapping[str, Tensor], name: str) -> list[str]:
    try:
        return [entry.decode() for entry in _values(tensors, name)]
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8 text: {error}") from None


def _one(tensors: Mapping[str, Tensor], name: str, default: int) -> Tensor:
    values = _values(tensors, name)
    return np.array([[values[0] if values else default]], np.int32)
