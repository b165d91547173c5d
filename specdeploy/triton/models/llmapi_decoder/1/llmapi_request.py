"""One request for the LLM API: what it cannot serve is refused by name, the rest becomes ``SamplingParams``.

The front door is the other profiles': ``decoder_request`` reads and checks the inputs. What differs here is that the
engine speculates by itself, with a length that was fixed when it was loaded, so that no request can be taken out of
speculation. Knows the fields of ``SamplingParams``; does not import it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from decoder_request import RequestError, read_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from decoder_request import DecodeRequest, Tensor
    from llmapi_settings import Deployment

_PENALTIES: Final = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_SAMPLING: Final = {"runtime_top_k": "top_k", "runtime_top_p": "top_p", "temperature": "temperature"}
_GUIDE_TYPE: Final = "guided_decoding_guide_type"
_GUIDE: Final = "guided_decoding_guide"
_SERVED: Final = frozenset({*_PENALTIES, *_SAMPLING, _GUIDE_TYPE, _GUIDE, "bad_words_list", "return_log_probs"})
_CLIENTS_NAMES: Final = {
    "embedding_bias": "embedding_bias_words",
    "len_penalty": "length_penalty",
    "prompt_table_extra_ids": "prompt_table_extra_id",
}
"""Engine input -> what the client called it, where the two differ."""

_GUIDE_FIELDS: Final = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf_grammar": "grammar",
    "structural_tag": "structural_tag",
}
"""Guide type at the front door -> field of ``GuidedDecodingParams``; ``json`` alone takes no guide."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LlmRequest:
    """A checked request.

    Attributes:
        decoding: What the front door read.
        sampling: Arguments of ``SamplingParams``.
        guide: Arguments of ``GuidedDecodingParams``; empty for none.
        streaming: The engine reports every step; without, only the whole answer.
        banned: Ids that the answer may not hold.
    """

    decoding: DecodeRequest
    sampling: Mapping[str, Any]
    guide: Mapping[str, Any]
    streaming: bool
    banned: frozenset[int]


def read_llm_request(
    tensors: Mapping[str, Tensor], deployment: Deployment, *, penalties: bool, fresh_seed: int
) -> LlmRequest:
    """Check a request.

    Args:
        tensors: The inputs that were sent, by name, each with the batch dimension of 1 in front.
        deployment: What is served.
        penalties: The engine acts on penalties.
        fresh_seed: A random seed for requests that send none.

    Raises:
        RequestError: An input is missing, out of range, or not served by this profile.
    """
    if deployment.speculates:
        tensors = _without_length(tensors, deployment.settings.num_draft_tokens)
    decoding = read_request(tensors, deployment.settings, fresh_seed=fresh_seed)
    _refuse_unserved(decoding)
    _refuse_by_engine(decoding, deployment, penalties=penalties)
    banned = _banned(decoding)
    return LlmRequest(
        decoding=decoding,
        sampling=_sampling(decoding, deployment, banned),
        guide=_guide(decoding, deployment),
        streaming=decoding.stream or bool(decoding.stop_words),
        banned=banned,
    )


def _refuse_unserved(decoding: DecodeRequest) -> None:
    if decoding.return_decode_trace:
        raise RequestError("return_decode_trace: the LLM API does not tell what its rounds drafted; leave it out")
    names = sorted(_CLIENTS_NAMES.get(name, name) for name in decoding.target_inputs.keys() - _SERVED)
    if names:
        raise RequestError(f"{', '.join(names)}: not served by the LLM API profile; leave it out")


def _without_length(tensors: Mapping[str, Tensor], drafted: int) -> Mapping[str, Tensor]:
    """Take a draft length out that says what holds anyway; any other is refused."""
    given = tensors.get("num_draft_tokens")
    if given is not None and given.size and given.reshape(-1).tolist() != [drafted]:
        wanted = ", ".join(map(str, given.reshape(-1).tolist()))
        raise RequestError(
            f"num_draft_tokens is {wanted}, but this deployment's engine always drafts {drafted}: the length is fixed "
            "when it is loaded. Leave the input out; the control is a deployment without speculation"
        )
    return {name: tensor for name, tensor in tensors.items() if name != "num_draft_tokens"}


def _refuse_by_engine(decoding: DecodeRequest, deployment: Deployment, *, penalties: bool) -> None:
    unheeded = [name for name in _PENALTIES if name in decoding.target_inputs]
    if unheeded and not penalties:
        raise RequestError(
            f"{', '.join(unheeded)}: the sampler of this deployment's TensorRT-LLM takes penalties and does nothing"
        )
    if decoding.return_log_probs and deployment.speculates:
        # Some samplers of speculating engines leave them out, others end the engine's process on an assertion.
        raise RequestError("return_log_probs: not served by an engine that speculates")


def _banned(decoding: DecodeRequest) -> frozenset[int]:
    """Return the banned tokens: ``bad_words_list`` is [2, L], ids and below them each word's end, padded with -1."""
    words = decoding.target_inputs.get("bad_words_list")
    if words is None:
        return frozenset()
    ids, ends = words.reshape(2, -1).tolist()
    count = sum(end >= 0 for end in ends)
    if ends[:count] != list(range(1, count + 1)):
        raise RequestError("bad_words: the LLM API bans single tokens, and one of these words has several")
    return frozenset(ids[:count])


def _sampling(decoding: DecodeRequest, deployment: Deployment, banned: frozenset[int]) -> dict[str, Any]:
    plan, inputs = decoding.plan, decoding.target_inputs
    sampling: dict[str, Any] = {"max_tokens": plan.max_new_tokens, "end_id": plan.end_id, "detokenize": False}
    if decoding.pad_id is not None and decoding.pad_id >= 0:
        sampling["pad_id"] = decoding.pad_id
    if decoding.sampled:
        drawn = {ours: _number(inputs[name]) for name, ours in _SAMPLING.items() if name in inputs}
        # 0 is no limit at the front door, and top_p 0 is greedy in the LLM API.
        sampling |= {name: value for name, value in drawn.items() if value or name == "temperature"}
        sampling["seed"] = plan.seed
    sampling |= {name: _number(inputs[name]) for name in _PENALTIES if name in inputs}
    if plan.min_tokens:
        sampling["min_tokens"] = plan.min_tokens
    if banned:
        sampling["bad_token_ids"] = sorted(banned)
    if decoding.return_log_probs:
        sampling["logprobs"] = 1
    if deployment.speculates:
        sampling["return_perf_metrics"] = True
    return sampling


def _guide(decoding: DecodeRequest, deployment: Deployment) -> dict[str, Any]:
    kind, guide = (_text(decoding, name) for name in (_GUIDE_TYPE, _GUIDE))
    if not (kind or guide):
        return {}
    if not deployment.guided:
        raise RequestError(f"{_GUIDE_TYPE}: model.yaml of this deployment has no guided_decoding_backend")
    if kind == "json":
        return {"json_object": True}
    if kind not in _GUIDE_FIELDS or not guide:
        kinds = ", ".join(("json", *_GUIDE_FIELDS))
        raise RequestError(f"{_GUIDE_TYPE} is {kind!r}; it must be one of {kinds}, and all but json need {_GUIDE}")
    return {_GUIDE_FIELDS[kind]: guide}


def _number(tensor: Tensor) -> float:
    value: float = tensor.reshape(-1)[0].item()
    return value


def _text(decoding: DecodeRequest, name: str) -> str:
    tensor = decoding.target_inputs.get(name)
    if tensor is None or not tensor.size:
        return ""
    try:
        return str(tensor.reshape(-1)[0].decode())
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8 text: {error}") from None
