"""A request to the front door as a value, and its two encodings: tensors (gRPC) and JSON (HTTP generate).

Triton accepts JSON fields that it does not know without a word, so a typo in ``num_draft_tokens`` would turn
speculation off silently. Names are therefore checked here, against the inputs that the model really has.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import ConfigError
from specdeploy.triton.protocol.tensors import Tensor, make_tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Inputs of NVIDIA's text templates (`ensemble` and `tensorrt_llm_bls`, 1.x) that a plain value can fill.
FRONT_DOOR_INPUTS: Final[Mapping[str, str]] = {
    "text_input": "BYTES",
    "max_tokens": "INT32",
    "stream": "BOOL",
    "num_draft_tokens": "INT32",
    "use_draft_logits": "BOOL",
    "temperature": "FP32",
    "top_k": "INT32",
    "top_p": "FP32",
    "seed": "UINT64",
    "stop_words": "BYTES",
    "bad_words": "BYTES",
    "min_tokens": "INT32",
    "end_id": "INT32",
    "pad_id": "INT32",
    "length_penalty": "FP32",
    "repetition_penalty": "FP32",
    "presence_penalty": "FP32",
    "frequency_penalty": "FP32",
    "beam_width": "INT32",
    "num_return_sequences": "INT32",
    "exclude_input_in_output": "BOOL",
    "return_log_probs": "BOOL",
    "return_context_logits": "BOOL",
    "return_generation_logits": "BOOL",
    "return_perf_metrics": "BOOL",
    "return_num_input_tokens": "BOOL",
    "return_num_output_tokens": "BOOL",
    "embedding_bias_words": "BYTES",
    "embedding_bias_weights": "FP32",
    "lora_task_id": "UINT64",
    "guided_decoding_guide_type": "BYTES",
    "guided_decoding_guide": "BYTES",
}

#: Field of ``GenerateRequest`` -> name of the input, where the two differ.
_INPUT_OF_FIELD: Final = {"prompt": "text_input"}
_SAMPLING: Final = ("temperature", "top_k", "top_p")
#: Name of an input -> what releases before 1.0 call it.
_OLDER_NAMES: Final = {"seed": "random_seed", "min_tokens": "min_length"}
_NEWER_NAMES: Final = {older: name for name, older in _OLDER_NAMES.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """What one client asks for.

    Args:
        prompt: The text to continue.

        max_tokens: Longest answer, in tokens.

        num_draft_tokens: Drafts per round; 0 decodes with the target alone, None leaves it to the deployment.

        temperature: 0 decodes greedily, and then ``top_k`` and ``top_p`` are not sent either: without all three,
            NVIDIA's engines take their own default, which is the most likely token.

        top_k: Sample among this many most likely tokens.

        top_p: Sample among the most likely tokens that hold this much probability.

        seed: Seed of a sampled request.

        stop_words: The answer ends before the first of these texts.

        stream: Whether the answer comes in pieces.

        extra: Further inputs of the model by name: a plain value, or a flat list of them.
    """

    prompt: str
    max_tokens: int
    num_draft_tokens: int | None = None
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop_words: tuple[str, ...] = ()
    stream: bool = True
    extra: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    def inputs(self) -> dict[str, object]:
        """Return what is sent, by input name; what was left out is absent.

        Raises:
            ConfigError: ``extra`` repeats a field.
        """
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "extra"}
        if self.greedy:
            fields = {name: value for name, value in fields.items() if name not in _SAMPLING}
        named = {_INPUT_OF_FIELD.get(name, name): v for name, v in fields.items() if v is not None and v != ()}
        for name in self.extra:
            if name in _FIELD_OF_INPUT:
                raise ConfigError(f"extra repeats the input {name!r}", hint=f"Set {_FIELD_OF_INPUT[name]} instead.")
        return named | dict(self.extra)

    def to_tensors(self, known: Mapping[str, str] = FRONT_DOOR_INPUTS) -> tuple[Tensor, ...]:
        """Return the request as tensors of shape [1, n].

        Args:
            known: The model's inputs: name -> Triton data type.

        Raises:
            ConfigError: An input that the model does not have, or a value that does not fit its type.
        """
        return tuple(make_tensor(name, known[name], value) for name, value in self._named(known).items())

    def to_json(self, known: Mapping[str, str] = FRONT_DOOR_INPUTS) -> dict[str, object]:
        """Return the body for HTTP ``generate``: plain values, lists where there may be several.

        Raises:
            ConfigError: As ``to_tensors``.
        """
        self.to_tensors(known)
        return {name: list(v) if isinstance(v, tuple) else v for name, v in self._named(known).items()}

    def _named(self, known: Mapping[str, str]) -> dict[str, object]:
        """Return what is sent under the names that this model uses."""
        inputs = self.inputs()
        for name, older in _OLDER_NAMES.items():
            if name in inputs and name not in known and older in known:
                inputs[older] = inputs.pop(name)
        check_names(inputs, known)
        return inputs

    @classmethod
    def from_tensors(cls, tensors: Iterable[Tensor]) -> GenerateRequest:
        """Read a request back from its tensors."""
        return cls.from_json({tensor.name: _plain(tensor) for tensor in tensors})

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> GenerateRequest:
        """Read a request back from the body of an HTTP ``generate`` call.

        Raises:
            ConfigError: ``text_input`` or ``max_tokens`` is missing.
        """
        missing = [name for name in ("text_input", "max_tokens") if name not in body]
        if missing:
            raise ConfigError(f"the request lacks {', '.join(missing)}")
        fields: dict[str, Any] = {"stream": False}
        extra = {}
        for sent, value in body.items():
            name = _NEWER_NAMES.get(sent, sent)
            if name in _FIELD_OF_INPUT:
                fields[_FIELD_OF_INPUT[name]] = _words(value) if name == "stop_words" else value
            else:
                extra[name] = value
        return cls(**fields, extra=extra)


_FIELD_OF_INPUT: Final = {
    _INPUT_OF_FIELD.get(f.name, f.name): f.name for f in dataclasses.fields(GenerateRequest) if f.name != "extra"
}


def check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse inputs that the model does not have.

    Raises:
        ConfigError: With the nearest name that the model does have.
    """
    known = sorted(known)
    unknown = sorted(set(names) - set(known))
    if not unknown:
        return
    near = difflib.get_close_matches(unknown[0], known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(known)}."
    listed = ", ".join(repr(name) for name in unknown)
    raise ConfigError(f"the model has no input {listed}; Triton would ignore it silently", hint=hint)


def _words(value: object) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, list | tuple) else (str(value),)


def _plain(tensor: Tensor) -> object:
    """Return the value (one element) or the list that a tensor was made from."""
    values = tensor.data.reshape(-1).tolist()
    if tensor.datatype == "BYTES":
        values = [value.decode() for value in values]
    return values[0] if len(values) == 1 else values
