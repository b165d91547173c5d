"""The front doors, the tokenizing model and the decoder of a deployment as typed configurations.

Knows their tensors, parameters and wiring (NVIDIA's ``inflight_batcher_llm`` names). Does not know files: the caller
puts code and tokenizer beside the configurations. The engines are in :mod:`specdeploy.triton.repository.engines`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.config.draft_lengths import parse_draft_lengths
from specdeploy.config.rules import PAIRS
from specdeploy.triton.pbtxt import EnsembleStep, InstanceGroup, ModelConfig, Queue, Tensor
from specdeploy.triton.repository import names
from specdeploy.triton.repository.engines import DECODING_MODES, MAX_BATCH_SIZE, engine_tensors
from specdeploy.triton.repository.front_door import NEWER_NAMES, TO_PREPROCESSING, decoder_options, front_door
from specdeploy.triton.tensors import release_tensors

if TYPE_CHECKING:
    from specdeploy.config.schema import DeployConfig
    from specdeploy.triton.repository.facts import EngineFacts

# A streamed control asks the target for this many tokens at a time: few calls, yet text that flows.
CONTROL_SLICE_TOKENS: Final = 16
_US_PER_MS: Final = 1000
_LEAST_QUEUE: Final = 128
_WAITING_FOR_EACH: Final = 16
# `preprocessing` output -> decoder input.
_TO_DECODER: Final = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}


def _tensor(name: str, kind: str, *dims: int, optional: bool = False) -> Tensor:
    return Tensor(name=name, data_type=f"TYPE_{kind}", dims=dims, optional=optional)


# Optional to Triton, required by the model: Triton only counts inputs, and where another one makes up the count an
# ensemble without a required one ends with no response at all. The model says which one is missing.
_PREPROCESSING_INPUTS: Final = (
    _tensor("QUERY", "STRING", 1, optional=True),
    _tensor("REQUEST_OUTPUT_LEN", "INT32", 1, optional=True),
    _tensor("BAD_WORDS_DICT", "STRING", -1, optional=True),
    _tensor("STOP_WORDS_DICT", "STRING", -1, optional=True),
    _tensor("EMBEDDING_BIAS_WORDS", "STRING", -1, optional=True),
    _tensor("EMBEDDING_BIAS_WEIGHTS", "FP32", -1, optional=True),
    _tensor("END_ID", "INT32", 1, optional=True),
    _tensor("PAD_ID", "INT32", 1, optional=True),
    _tensor("REFUSAL_AS_OUTPUT", "BOOL", 1, optional=True),
)
_PREPROCESSING_OUTPUTS: Final = (
    _tensor("INPUT_ID", "INT32", -1),
    _tensor("REQUEST_INPUT_LEN", "INT32", 1),
    _tensor("BAD_WORDS_IDS", "INT32", 2, -1),
    _tensor("STOP_WORDS_IDS", "INT32", 2, -1),
    _tensor("EMBEDDING_BIAS", "FP32", -1),
    _tensor("REQUEST_OUTPUT_LEN", "INT32", -1),
    _tensor("OUT_END_ID", "INT32", 1),
    _tensor("OUT_PAD_ID", "INT32", 1),
    _tensor("REFUSAL", "STRING", 1),
)
_DECODER_INPUTS: Final = (
    _tensor("text_input", "STRING", 1, optional=True),
    _tensor("input_ids", "INT32", -1, optional=True),
    _tensor("input_lengths", "INT32", 1, optional=True),
    _tensor("request_output_len", "INT32", 1, optional=True),
    _tensor("bad_words_list", "INT32", 2, -1, optional=True),
    _tensor("stop_words", "STRING", -1, optional=True),
    _tensor("embedding_bias", "FP32", -1, optional=True),
    _tensor("end_id", "INT32", 1, optional=True),
    _tensor("pad_id", "INT32", 1, optional=True),
)
_DECODER_OUTPUTS: Final = (
    _tensor("text_output", "STRING", -1),
    _tensor("sequence_length", "INT32", 1),
    _tensor("output_ids", "INT32", -1),
    _tensor("finish_reason", "STRING", 1),
    _tensor("bypass_reason", "STRING", 1),
    _tensor("acceptance_rate", "FP32", 1),
    _tensor("total_accepted_draft_tokens", "INT32", 1),
    _tensor("total_draft_tokens", "INT32", 1),
    _tensor("num_spec_steps", "INT32", 1),
    _tensor("spec_decode_acceptance_histogram", "INT32", -1),
    _tensor("num_input_tokens", "INT32", 1),
    _tensor("num_output_tokens", "INT32", 1),
    _tensor("batch_index", "INT32", 1),
    _tensor("sequence_index", "INT32", 1),
    _tensor("cum_log_probs", "FP32", -1),
    _tensor("output_log_probs", "FP32", -1, -1),
    _tensor("decode_trace", "STRING", 1),
)


def decoder_outputs(config: DeployConfig, target: EngineFacts) -> tuple[Tensor, ...]:
    """Return what the decoder and its front doors answer: what the templates do of the target's engine, and ours.

    The LLM API has none of the former; our CPU engines have no logits of the prompt.
    """
    if config.profile == "llmapi":
        return _DECODER_OUTPUTS
    ours = {tensor.name for tensor in _DECODER_OUTPUTS}
    given = {
        tensor.name: tensor for tensor in engine_tensors(config, target.logits_dtype).models["tensorrt_llm"].outputs
    }
    missing = {"context_logits"} if config.profile == "cpu" else set()
    return (
        *_DECODER_OUTPUTS,
        *(
            dataclasses.replace(tensor, data_type=given[tensor.name].data_type)
            for tensor in release_tensors(config.release).models["ensemble"].outputs
            if tensor.name in given and tensor.name not in ours | missing
        ),
    )


def ensemble(name: str, config: DeployConfig, outputs: tuple[Tensor, ...]) -> ModelConfig:
    """Return a front door called *name* for clients of the release in use: `preprocessing`, then `speculative_decoder`.

    Args:
        name: Of the model.
        config: The deployment.
        outputs: Those of the decoder.
    """
    door = front_door(config.release)
    offered = {tensor.name for tensor in door.inputs}
    first = EnsembleStep(
        model_name=names.PREPROCESSING,
        input_map={inner: outer for outer, inner in TO_PREPROCESSING.items() if outer in offered},
        output_map={output: _between(output) for output in _TO_DECODER},
    )
    second = EnsembleStep(
        model_name=names.DECODER,
        input_map={**{inner: _between(output) for output, inner in _TO_DECODER.items()}, **door.to_decoder},
        output_map={tensor.name: tensor.name for tensor in outputs},
    )
    return ModelConfig(
        name=name,
        platform="ensemble",
        max_batch_size=texts_at_once(config),
        inputs=door.inputs,
        outputs=outputs,
        decoupled=config.repo.decoupled,
        steps=(first, second),
        comments={"": "Text in, text out. The same wiring is served as `ensemble` and as `tensorrt_llm_bls`."},
    )


def preprocessing(*, end_id: int, pad_id: int, vocab_size: int, instances: int = 1, texts: int = 1) -> ModelConfig:
    """Return the tokenizing model.

    Args:
        end_id: For requests that send none; -1 is none.
        pad_id: For requests that send none; -1 is none.
        vocab_size: Tokens in the target's logits, which is the length of an embedding bias.
        instances: Processes that tokenise side by side.
        texts: The most texts of one request.
    """
    return ModelConfig(
        name=names.PREPROCESSING,
        backend="python",
        max_batch_size=texts,
        inputs=_PREPROCESSING_INPUTS,
        outputs=_PREPROCESSING_OUTPUTS,
        instance_group=(InstanceGroup(count=instances),),
        parameters={
            "tokenizer_dir": names.TOKENIZER_DIR,
            "add_special_tokens": "true",
            "end_id": str(end_id),
            "pad_id": str(pad_id),
            "vocab_size": str(vocab_size),
        },
        comments={
            "tokenizer_dir": "Relative to this model's version directory.",
            "end_id": "Used by requests that send no end_id; -1 is none.",
            "vocab_size": "Length of an embedding bias: the target's logits, which can be padded beyond the tokenizer.",
        },
    )


_DECODER_COMMENTS: Final = {
    "dynamic_batching": "Requests wait here, in front of the engines; Triton keeps limits only in this block.",
    "num_draft_tokens": "Drafted each round unless the request says otherwise; a request's 0 is the control.",
    "max_draft_tokens": "The engine was built for this many.",
    "use_draft_logits": "Sampled requests: rejection sampling on the draft's logits, not matching of tokens.",
    "adaptive_drafts": "Requests that name no number draft as much as pays.",
    "draft_len_schedule": "requests:drafts: from so many requests decoded at once, at most so many drafts.",
    "max_batch_size": "The most texts of one request, each decoded by itself. What is decoded at once is max_inflight.",
    "max_inflight": "Requests decoded at once; more of them wait.",
    "max_seq_len": "Longest prompt plus answer, in tokens, that the engines were built for.",
    "preprocessing_model_name": "Asked for the ids of requests that bring text, as those of a front door do.",
    "control_slice_tokens": "Tokens asked of the target at a time by a streamed request that does not draft.",
    "draft_timeout_ms": "Longest time that one call to the draft may take before the target goes on alone.",
    "exclude_input_in_output": "Answers without the prompt unless a request asks otherwise.",
    "tokenizer_dir": "Relative to this model's version directory.",
    "engine_stand_in": "The engines behind this decoder stand in for NVIDIA's backend on a CPU.",
    "engine_speculates": "The engine drafts by itself; the decoder passes requests through.",
    "engine_reports": "It says what it drafted and accepted; the decoder adds that up.",
    "ngram_size": "Drafts are looked up in the text so far: what followed the last tokens before, this many at most.",
    "fast_logits": "The draft's logits stay on the GPUs; what comes back in their place is handed on as it is.",
    "engine_input_names": "What the engines of this release call the decoder's inputs.",
    "model_yaml": "Arguments of tensorrt_llm.LLM, beside this model's code.",
}


# The LLM API drafts and verifies by itself, as it was started to.
_LLMAPI_COMMENTS: Final = {
    "max_batch_size": "A request is one text. What is decoded at once is max_inflight.",
    "num_draft_tokens": "What the LLM API drafts each step. A request may name this number, and no other.",
    "max_draft_tokens": "The most that it may come to.",
    "use_draft_logits": "The LLM API verifies drafts in its own way; a request cannot choose another.",
    "max_seq_len": "Longest prompt plus answer, in tokens, as in model.yaml.",
}


def decoder(config: DeployConfig, target: EngineFacts, outputs: tuple[Tensor, ...]) -> ModelConfig:
    """Return the model that decodes: the draft-target loop over two engines, or the LLM API."""
    return ModelConfig(
        name=names.DECODER,
        backend="python",
        max_batch_size=texts_at_once(config),
        inputs=_decoder_inputs(config.release),
        outputs=outputs,
        instance_group=(InstanceGroup(),),
        decoupled=config.repo.decoupled,
        queue=_queue(config),
        parameters={
            **(_llmapi_parameters() if config.profile == "llmapi" else _engine_parameters(config)),
            **_drafting_parameters(config, target),
            "max_inflight": str(config.build.max_batch_size),
            "max_seq_len": str(config.build.max_seq_len),
            "preprocessing_model_name": names.PREPROCESSING,
            "exclude_input_in_output": "true",
            "tokenizer_dir": names.TOKENIZER_DIR,
            **({"engine_stand_in": "true"} if config.profile == "cpu" else {}),
        },
        comments={**_DECODER_COMMENTS, **(_LLMAPI_COMMENTS if config.profile == "llmapi" else {})},
    )


def _decoder_inputs(release: str) -> tuple[Tensor, ...]:
    """Return what an ensemble sends, then the rest of what clients of a front door do: the decoder takes that, too."""
    own = (*_DECODER_INPUTS, *decoder_options())
    taken = {tensor.name for tensor in own}
    return (*own, *(tensor for tensor in front_door(release).inputs if tensor.name not in taken))


def texts_at_once(config: DeployConfig) -> int:
    """Return the most texts of one request: as many as are decoded at once, or one with the LLM API."""
    return MAX_BATCH_SIZE if config.profile == "llmapi" else config.build.max_batch_size


def engine_drafts(config: DeployConfig) -> bool:
    """Say whether the engine drafts on its own, as much as is built into it."""
    return config.profile != "llmapi" and config.speculation.method in DECODING_MODES


def queue_size(config: DeployConfig) -> int:
    """Return how many requests may wait in front of the decoder; 0 is no limit.

    Where nobody says, enough for bursts and load tests, and few enough that a client which has to wait for minutes
    learns at once that it would: a queue without a limit only grows once more comes than is served.
    """
    if config.repo.max_queue_size >= 0:
        return config.repo.max_queue_size
    return max(_LEAST_QUEUE, _WAITING_FOR_EACH * config.build.max_batch_size)


def fixed_by(config: DeployConfig) -> str:
    """Return the method where no request can say how much is drafted; empty where one can."""
    return config.speculation.method if config.profile == "llmapi" or engine_drafts(config) else ""


def _queue(config: DeployConfig) -> Queue | None:
    wanted, size = config.repo, queue_size(config)
    if not (size or wanted.queue_timeout_ms or wanted.priority_levels):
        return None
    return Queue(
        max_size=size,
        timeout_us=wanted.queue_timeout_ms * _US_PER_MS,
        priority_levels=wanted.priority_levels,
    )


def _engine_parameters(config: DeployConfig) -> dict[str, str]:
    pair = config.speculation.method in PAIRS
    return {
        "tensorrt_llm_model_name": names.TARGET,
        **({"tensorrt_llm_draft_model_name": names.DRAFT} if pair else {}),
        "control_slice_tokens": str(CONTROL_SLICE_TOKENS),
        **_input_names(config),
    }


def _llmapi_parameters() -> dict[str, str]:
    return {"model_yaml": names.MODEL_YAML}


def _drafting_parameters(config: DeployConfig, target: EngineFacts) -> dict[str, str]:
    """Return how much is drafted, by whom, and how it is verified."""
    speculation = config.speculation
    if engine_drafts(config):
        # How much it drafts is built into the engine.
        reports = {"engine_reports": "true"} if reports_drafts(config.release) else {}
        return {"num_draft_tokens": "0", "engine_speculates": speculation.method, **reports}
    return {
        "num_draft_tokens": str(speculation.num_draft_tokens),
        **({"max_draft_tokens": str(target.max_draft_len)} if target.max_draft_len else {}),
        "use_draft_logits": _flag(speculation.use_draft_logits and speculation.method in PAIRS),
        **({"adaptive_drafts": "true"} if speculation.adaptive else {}),
        **({"draft_len_schedule": _schedule(config)} if speculation.draft_len_schedule else {}),
        **({"ngram_size": str(speculation.ngram_size)} if _looks_up(config) else {}),
        **({"fast_logits": "true"} if speculation.fast_logits else {}),
    }


def _schedule(config: DeployConfig) -> str:
    entries = parse_draft_lengths(config.speculation.draft_len_schedule, config.speculation.num_draft_tokens)
    return ",".join(f"{requests}:{drafts}" for requests, drafts in entries)


def reports_drafts(release: str) -> bool:
    """Say whether the engines of a release answer what they drafted and accepted, as from 0.19 on."""
    return "total_draft_tokens" in {tensor.name for tensor in release_tensors(release).models["tensorrt_llm"].outputs}


def _looks_up(config: DeployConfig) -> bool:
    """Say whether the decoder itself looks drafts up in the text; the LLM API does it on its own."""
    return config.profile != "llmapi" and config.speculation.method == "ngram"


def _input_names(config: DeployConfig) -> dict[str, str]:
    """Return what the engines of an older release call the inputs that the decoder sends them."""
    if config.profile == "cpu":
        return {}
    offered = {tensor.name for tensor in release_tensors(config.release).models["tensorrt_llm"].inputs}
    older = sorted(f"{newer}={name}" for name, newer in NEWER_NAMES.items() if name in offered)
    return {"engine_input_names": ",".join(older)} if older else {}


def _between(preprocessing_output: str) -> str:
    """Return the ensemble's own name of a tensor between its steps, which must differ from every outer name."""
    return f"_{preprocessing_output}"


def _flag(value: bool) -> str:
    return "true" if value else "false"
