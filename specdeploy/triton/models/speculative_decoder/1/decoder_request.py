"""One request: its inputs read, checked, and sorted into what each engine is sent.

Decides when speculation would change the result and the target decodes alone (:func:`bypass_reason`). Knows the names
of the front door's and the engines' tensors; knows nothing of Triton's classes, and of how the loop runs.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from decoder_loop import Ids, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from decoder_settings import Settings

Tensor: TypeAlias = npt.NDArray[Any]

_SAMPLING: Final = {"top_k": "runtime_top_k", "top_p": "runtime_top_p", "temperature": "temperature"}

_NEUTRAL: Final = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}

_SMALLEST_FACTOR: Final = 1e-6

_SEQUENCES: Final = ("beam_width", "num_return_sequences")

_TARGET_ONLY: Final = {
    "length_penalty": "len_penalty",
    "prompt_table_extra_id": "prompt_table_extra_ids",
    **{
        name: name
        for name in (
            *_NEUTRAL,
            *_SEQUENCES,
            "guided_decoding_guide_type",
            "guided_decoding_guide",
            "lora_task_id",
            "lora_weights",
            "lora_config",
            "prompt_embedding_table",
            "prompt_vocab_size",
            "return_log_probs",
            "return_context_logits",
            "return_generation_logits",
        )
    },
}
"""Inputs that only the target is sent, and their names there."""

_UNSTREAMED_SLICES: Final = 8
"""Slices of a streamed control that one call of another request may make at most."""

_STATEFUL: Final = frozenset({*_SEQUENCES, "guided_decoding", "return_context_logits", "return_generation_logits"})
"""Reasons for which the target must decode the answer in one call.

A grammar follows and a beam ranks the tokens of one call, and logits are answered for it: the next call would begin
anew. So these requests get one call, streamed or not, and their stream is one response. Penalties and banned words are
no such reason: engines count and compare all tokens that they know of, those of the prompt as well, so the next call
goes on exactly (``batchApplyPenalty`` and ``ban_bad_words`` of TensorRT-LLM). They are reasons against drafts, since
the engine does not count those that come before in the same step.
"""


class RequestError(ValueError):
    """The request cannot be decoded as it is; the message goes to the client."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DecodeRequest:
    """A checked request.

    Attributes:
        prompt_ids: Token ids of the prompt [n].
        prompt_text: Text in front of the answer; empty unless the request asks for it.
        plan: What the loop is asked for.
        sampled: Tokens are drawn, not the most likely ones taken.
        use_draft_logits: Drafts are verified by rejection sampling on the draft's logits.
        bypass_reason: Why the target decodes alone; empty when the request speculates.
        stop_words: Texts that end the answer.
        stream: One response for each verified group.
        return_log_probs: The target's log probabilities are answered.
        return_decode_trace: What each round drafted and came to is answered.
        return_perf_metrics: What the target's engine measures is answered.
        pad_id: Padding token, sent to the engines; None when the request has none.
        draft_inputs: Further tensors for the draft engine, by their name there.
        target_inputs: Further tensors for the target engine.
        pass_through: Outputs of the target that are answered unread.
        engine_speculates: The engine drafts on its own.
        pinned: Every round drafts as the plan says: the request named its number of drafts, or a seed, and what a seed
            draws depends on the rounds.
    """

    prompt_ids: Ids
    prompt_text: str
    plan: Plan
    sampled: bool
    use_draft_logits: bool
    bypass_reason: str
    stop_words: tuple[str, ...]
    stream: bool
    return_log_probs: bool
    pad_id: int | None
    draft_inputs: Mapping[str, Tensor]
    target_inputs: Mapping[str, Tensor]
    pass_through: tuple[str, ...]
    engine_speculates: bool = False
    pinned: bool = False
    return_decode_trace: bool = False
    return_perf_metrics: bool = False

    def without_drafts(self, reason: str) -> DecodeRequest:
        """Return the request as the target decodes it alone, and why it has to."""
        return dataclasses.replace(self, plan=dataclasses.replace(self.plan, num_draft_tokens=0), bypass_reason=reason)

    @property
    def longest_draft(self) -> int:
        """The most drafts that one step can carry: the histogram has one entry more."""
        return min(self.plan.num_draft_tokens, self.plan.max_new_tokens)


def _limits(least: float, most: float) -> str:
    """Say what a finite number may be."""
    if most < math.inf:
        return f"from {least:g} to {most:g}"
    return "finite" if least == -math.inf else f"at least {least:g}"


class _Inputs:
    """The tensors of a request by front-door name, with checks."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors

    def given(self, name: str) -> float | None:
        """Return the single number of an input, or None when it was not sent."""
        tensor = self.tensors.get(name)
        if tensor is None or not tensor.size:
            return None
        if tensor.size > 1:
            raise RequestError(f"{name} has {tensor.size} values where one is expected")
        value: float = tensor.reshape(-1)[0].item()
        return value

    def number(self, name: str, default: float, *, least: float, most: float = math.inf) -> float:
        """Return a number in [least, most], or the default."""
        value = self.given(name)
        if value is None:
            return default
        if not (math.isfinite(value) and least <= value <= most):
            raise RequestError(f"{name} is {value:g}; it must be {_limits(least, most)}")
        return value

    def integer(self, name: str, default: int, *, least: int) -> int:
        """Return a whole number from ``least``, or the default."""
        return int(self.number(name, default, least=least))

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a boolean, or the default."""
        value = self.given(name)
        return default if value is None else bool(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the strings of an input that are not empty."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return ()
        try:
            return tuple(entry.decode() for entry in tensor.reshape(-1) if entry)
        except UnicodeDecodeError as error:
            raise RequestError(f"{name} is not UTF-8 text: {error}") from None


def read_request(tensors: Mapping[str, Tensor], settings: Settings, *, fresh_seed: int) -> DecodeRequest:
    """Check a request and sort its inputs.

    Args:
        tensors: The inputs that were sent, by name, each with the batch dimension of 1 in front.
        settings: What the deployment does where the request says nothing.
        fresh_seed: A random seed for requests that send none, so that theirs are independent of each other.

    Raises:
        RequestError: An input is missing, out of range, or asks for what the engines cannot hold.
    """
    inputs = _Inputs(tensors)
    prompt = _prompt(inputs)
    sampled = _is_sampled(inputs)
    reason = bypass_reason(tensors, settings)
    stateful = not _STATEFUL.isdisjoint(_target_alone_reasons(inputs))
    stop_words = inputs.texts("stop_words")
    stream = _streams(inputs, settings)
    sliced = not stateful and (stream or bool(stop_words) or (sampled and inputs.given("seed") is not None))
    shared = _shared_inputs(inputs, sampled=sampled)
    plan = _plan(inputs, settings, prompt, speculate=not reason, fresh_seed=fresh_seed)
    return DecodeRequest(
        prompt_ids=prompt,
        prompt_text=_echo(inputs, settings),
        plan=dataclasses.replace(
            plan,
            slice_tokens=settings.control_slice_tokens if sliced else 0,
            longest_call=0 if stateful else _UNSTREAMED_SLICES * settings.control_slice_tokens,
            restartable=not stateful,
        ),
        sampled=sampled,
        use_draft_logits=_uses_draft_logits(inputs, settings, sampled=sampled),
        bypass_reason=reason,
        stop_words=stop_words,
        stream=stream,
        return_log_probs=inputs.flag("return_log_probs"),
        return_decode_trace=inputs.flag("return_decode_trace"),
        return_perf_metrics=inputs.flag("return_perf_metrics"),
        pad_id=None if inputs.given("pad_id") is None else inputs.integer("pad_id", -1, least=-1),
        draft_inputs=shared,
        target_inputs={**shared, **_target_inputs(inputs)},
        pass_through=tuple(name for name in ("context_logits", "generation_logits") if inputs.flag(f"return_{name}")),
        engine_speculates=bool(settings.engine_speculates),
        pinned=inputs.given("num_draft_tokens") is not None or (sampled and inputs.given("seed") is not None),
    )


def bypass_reason(tensors: Mapping[str, Tensor], settings: Settings) -> str:
    """Say why a request is decoded by the target alone; empty when it speculates.

    ``requested`` (``num_draft_tokens`` is 0), ``no_draft_model``, or the input under which speculation could change the
    result or which only the target can serve.
    """
    inputs = _Inputs(tensors)
    if settings.engine_speculates:
        return ""
    if not settings.drafts:
        return "no_draft_model"
    if not inputs.integer("num_draft_tokens", settings.num_draft_tokens, least=0):
        return "requested"
    return next(iter(_target_alone_reasons(inputs)), "")


def _target_alone_reasons(inputs: _Inputs) -> list[str]:
    """List every input that keeps the draft out, in a fixed order."""
    reasons = [name for name, neutral in _NEUTRAL.items() if _differs(inputs, name, neutral)]
    reasons += [name for name in _SEQUENCES if inputs.number(name, 1, least=1) > 1]
    if inputs.texts("guided_decoding_guide_type") or inputs.texts("guided_decoding_guide"):
        reasons.append("guided_decoding")
    reasons += [name for name in ("return_context_logits", "return_generation_logits") if inputs.flag(name)]
    if any(inputs.tensors.get(name) is not None for name in ("lora_task_id", "lora_weights", "lora_config")):
        reasons.append("lora")
    if inputs.tensors.get("prompt_embedding_table") is not None:
        reasons.append("prompt_embedding_table")
    if _longest_bad_word(inputs) > 1:
        reasons.append("bad_words")
    return reasons


def _differs(inputs: _Inputs, name: str, neutral: float) -> bool:
    # What occurred is divided by a repetition penalty; presence and frequency may be rewarded.
    least = _SMALLEST_FACTOR if name == "repetition_penalty" else -math.inf
    return not math.isclose(inputs.number(name, neutral, least=least), neutral)


def _longest_bad_word(inputs: _Inputs) -> int:
    """Return the tokens of the longest banned word: 0 for none.

    ``bad_words_list`` is [2, L]: ids one word after the other, and below them each word's end offset, padded with -1.
    """
    words = inputs.tensors.get("bad_words_list")
    if words is None or not words.size:
        return 0
    if words.size % 2:
        raise RequestError(f"bad_words_list has {words.size} values; it must be two rows: ids, and ends of words")
    ends = words.reshape(2, -1)[1]
    ends = ends[ends >= 0]
    return int(np.diff(ends, prepend=0).max()) if ends.size else 0


def _prompt(inputs: _Inputs) -> Ids:
    ids = inputs.tensors.get("input_ids")
    if ids is None or not ids.size:
        raise RequestError("input_ids is missing or empty, and so is text_input; the prompt needs at least one token")
    if ids.min() < 0:
        raise RequestError(f"input_ids has {ids.min()}, which is no token")
    length = inputs.number("input_lengths", ids.size, least=1, most=ids.size)
    return ids.reshape(-1)[: int(length)].astype(np.int32, copy=False)


def _streams(inputs: _Inputs, settings: Settings) -> bool:
    """Say whether the answer comes in pieces; as NVIDIA's engines, a model of one response each refuses to stream."""
    stream = inputs.flag("stream")
    if stream and not settings.decoupled:
        raise RequestError(
            "streaming is only supported in decoupled mode; send stream false, or serve a repository that was written "
            "with repo.decoupled true"
        )
    return stream


def _is_sampled(inputs: _Inputs) -> bool:
    """Tell whether tokens are drawn: TensorRT-LLM is greedy at top_k 1, at temperature 0, and without either limit."""
    top_k = inputs.number("top_k", 0, least=0)
    top_p = inputs.number("top_p", 0.0, least=0, most=1)
    temperature = inputs.number("temperature", 1.0, least=0)
    return bool((top_k > 1 or (top_p > 0 and top_k != 1)) and temperature > 0)


def _uses_draft_logits(inputs: _Inputs, settings: Settings, *, sampled: bool) -> bool:
    """Decide how drafts of a sampled request are verified.

    With banned words or a bias the draft's tokens are drawn from other probabilities than its logits say, and rejection
    sampling on those logits would not be exact. A match of tokens is exact for any draft.
    """
    altered = _longest_bad_word(inputs) > 0 or _has_bias(inputs)
    wanted = bool(settings.draft_model) and inputs.flag("use_draft_logits", default=settings.use_draft_logits)
    return sampled and not altered and wanted


def _has_bias(inputs: _Inputs) -> bool:
    bias = inputs.tensors.get("embedding_bias")
    return bias is not None and bool(np.any(bias))


def _plan(inputs: _Inputs, settings: Settings, prompt: Ids, *, speculate: bool, fresh_seed: int) -> Plan:
    if inputs.given("request_output_len") is None:
        raise RequestError("request_output_len (max_tokens at the front door) is missing")
    most = inputs.integer("request_output_len", 0, least=1)
    if prompt.size + most > settings.max_seq_len:
        raise RequestError(
            f"the prompt's {prompt.size} tokens and max_tokens {most} make {prompt.size + most}, but the engines hold "
            f"{settings.max_seq_len} (max_seq_len); shorten the prompt or ask for at most "
            f"{max(settings.max_seq_len - prompt.size, 0)} tokens"
        )
    drafts = _draft_tokens(inputs, settings)
    seed = inputs.given("seed")
    return Plan(
        max_new_tokens=most,
        num_draft_tokens=drafts if speculate else 0,
        end_id=inputs.integer("end_id", -1, least=-1),
        seed=fresh_seed if seed is None else int(seed),
        min_tokens=min(inputs.integer("min_tokens", 0, least=0), most),
        end_is_kept=settings.stand_in,
        paused_tokens=settings.control_slice_tokens,
    )


def _draft_tokens(inputs: _Inputs, settings: Settings) -> int:
    drafts = inputs.integer("num_draft_tokens", settings.num_draft_tokens, least=0)
    method = settings.engine_speculates
    if method and inputs.given("num_draft_tokens") is not None:
        raise RequestError(
            f"num_draft_tokens is {drafts}, but the engine drafts on its own ({method}), always as it was built to; "
            "leave it out, and take a deployment without speculation for a control"
        )
    if settings.max_draft_tokens and drafts > settings.max_draft_tokens:
        raise RequestError(
            f"num_draft_tokens is {drafts}; the target's engine was built for at most {settings.max_draft_tokens}"
        )
    return drafts


def _echo(inputs: _Inputs, settings: Settings) -> str:
    if inputs.flag("exclude_input_in_output", default=settings.exclude_input):
        return ""
    texts = inputs.texts("text_input")
    if not texts:
        raise RequestError("text_input is missing; exclude_input_in_output=false needs it in front of the answer")
    return texts[0]


def _shared_inputs(inputs: _Inputs, *, sampled: bool) -> dict[str, Tensor]:
    """Return what both engines are sent; a greedy request sends no sampling inputs, which is the engines' default."""
    shared: dict[str, Tensor] = {}
    if sampled:
        shared.update(_renamed(inputs, _SAMPLING))
    if _longest_bad_word(inputs):
        shared["bad_words_list"] = inputs.tensors["bad_words_list"]
    if _has_bias(inputs):
        shared["embedding_bias"] = inputs.tensors["embedding_bias"]
    return shared


def _target_inputs(inputs: _Inputs) -> dict[str, Tensor]:
    """Return what only the target is sent, without inputs that say what holds anyway."""
    neutral = {**_NEUTRAL, **dict.fromkeys(_SEQUENCES, 1)}
    names = {
        name: engine_name
        for name, engine_name in _TARGET_ONLY.items()
        if not (name in neutral and not _differs(inputs, name, neutral[name]))
        and not (name.startswith("return_") and not inputs.flag(name))
        and not (name == "length_penalty" and inputs.number("beam_width", 1, least=1) == 1)
    }
    return _renamed(inputs, names)


def _renamed(inputs: _Inputs, names: Mapping[str, str]) -> dict[str, Tensor]:
    return {engine: inputs.tensors[name] for name, engine in names.items() if inputs.tensors.get(name) is not None}
