"""The six models of a deployment as typed configurations.

Knows their tensors, parameters and wiring (NVIDIA's ``inflight_batcher_llm`` names). Does not know files: the caller
says where the engines are and puts code and tokenizer beside the configurations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.triton.pbtxt import EnsembleStep, InstanceGroup, ModelConfig, Tensor
from specdeploy.triton.repository import names
from specdeploy.triton.repository.front_door import TO_PREPROCESSING, decoder_options, front_door
from specdeploy.triton.tensors import release_tensors

if TYPE_CHECKING:
    from specdeploy.config.schema import DeployConfig

# Requests are batched inside the engines, across sequences; Triton's own batch dimension is there because clients of
# NVIDIA's templates send it.
MAX_BATCH_SIZE: Final = 1
# A streamed control asks the target for this many tokens at a time: few calls, yet text that flows.
CONTROL_SLICE_TOKENS: Final = 16
# Fraction of the GPU memory *still free when the engine loads*; the sum stays below one in whatever order they load.
_KV_FRACTION: Final = {names.TARGET: "0.5", names.DRAFT: "0.3"}
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
)
_DECODER_INPUTS: Final = (
    _tensor("text_input", "STRING", 1, optional=True),
    _tensor("input_ids", "INT32", -1),
    _tensor("input_lengths", "INT32", 1),
    _tensor("request_output_len", "INT32", 1),
    _tensor("bad_words_list", "INT32", 2, -1, optional=True),
    _tensor("stop_words", "STRING", -1, optional=True),
    _tensor("embedding_bias", "FP32", -1, optional=True),
    _tensor("end_id", "INT32", 1, optional=True),
    _tensor("pad_id", "INT32", 1, optional=True),
)
DECODER_OUTPUTS: Final = (
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
)


def ensemble(name: str, release: str) -> ModelConfig:
    """Return a front door called *name* for clients of *release*: `preprocessing`, then `speculative_decoder`."""
    door = front_door(release)
    offered = {tensor.name for tensor in door.inputs}
    first = EnsembleStep(
        model_name=names.PREPROCESSING,
        input_map={inner: outer for outer, inner in TO_PREPROCESSING.items() if outer in offered},
        output_map={output: _between(output) for output in _TO_DECODER},
    )
    second = EnsembleStep(
        model_name=names.DECODER,
        input_map={**{inner: _between(output) for output, inner in _TO_DECODER.items()}, **door.to_decoder},
        output_map={tensor.name: tensor.name for tensor in DECODER_OUTPUTS},
    )
    return ModelConfig(
        name=name,
        platform="ensemble",
        max_batch_size=MAX_BATCH_SIZE,
        inputs=door.inputs,
        outputs=DECODER_OUTPUTS,
        decoupled=True,
        steps=(first, second),
        comments={"": "Text in, text out. The same wiring is served as `ensemble` and as `tensorrt_llm_bls`."},
    )


def preprocessing(*, end_id: int, pad_id: int, vocab_size: int) -> ModelConfig:
    """Return the tokenizing model.

    Args:
        end_id: For requests that send none; -1 is none.
        pad_id: For requests that send none; -1 is none.
        vocab_size: Tokens in the target's logits, which is the length of an embedding bias.
    """
    return ModelConfig(
        name=names.PREPROCESSING,
        backend="python",
        max_batch_size=MAX_BATCH_SIZE,
        inputs=_PREPROCESSING_INPUTS,
        outputs=_PREPROCESSING_OUTPUTS,
        instance_group=(InstanceGroup(),),
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


def decoder(config: DeployConfig) -> ModelConfig:
    """Return the model that runs the draft-target loop."""
    return ModelConfig(
        name=names.DECODER,
        backend="python",
        max_batch_size=MAX_BATCH_SIZE,
        inputs=(*_DECODER_INPUTS, *decoder_options()),
        outputs=DECODER_OUTPUTS,
        instance_group=(InstanceGroup(),),
        decoupled=True,
        parameters=_decoder_parameters(config),
        comments={
            "num_draft_tokens": "Drafted each round unless the request says otherwise; a request's 0 is the control.",
            "use_draft_logits": "Sampled requests: rejection sampling on the draft's logits, not matching of tokens.",
            "max_inflight": "Requests decoded at once; more of them wait.",
            "control_slice_tokens": "Tokens asked of the target at a time by a streamed request that does not draft.",
            "exclude_input_in_output": "Answers without the prompt unless a request asks otherwise.",
            "tokenizer_dir": "Relative to this model's version directory.",
            "engine_stand_in": "The engines behind this decoder stand in for NVIDIA's backend on a CPU.",
        },
    )


def _decoder_parameters(config: DeployConfig) -> dict[str, str]:
    return {
        "tensorrt_llm_model_name": names.TARGET,
        "tensorrt_llm_draft_model_name": names.DRAFT,
        "num_draft_tokens": str(config.speculation.num_draft_tokens),
        "use_draft_logits": _flag(config.speculation.use_draft_logits),
        "max_inflight": str(config.build.max_batch_size),
        "max_seq_len": str(config.build.max_seq_len),
        "control_slice_tokens": str(CONTROL_SLICE_TOKENS),
        "exclude_input_in_output": "true",
        "tokenizer_dir": names.TOKENIZER_DIR,
        **({"engine_stand_in": "true"} if _on_cpu(config.profile) else {}),
    }


def engine(name: str, config: DeployConfig, *, path: str) -> ModelConfig:
    """Return the configuration of one of the two engines; NVIDIA's backend and ours read the same one.

    The tensors are those of the newest release, which our CPU backend and our decoder speak, whatever the front door's.
    """
    tensors = release_tensors("1").models["tensorrt_llm"]
    return ModelConfig(
        name=name,
        backend="tensorrtllm",
        max_batch_size=MAX_BATCH_SIZE,
        inputs=tensors.inputs,
        outputs=tensors.outputs,
        instance_group=(InstanceGroup(),),
        parameters={**_engine_parameters(name, path), **_cpu_parameters(config)},
        comments={
            "": _STAND_IN if _on_cpu(config.profile) else "",
            "gpt_model_path": "Absolute, or relative to the root of this model repository.",
            "batch_scheduler_policy": "Never evicts a sequence that has started: a round of drafts is short.",
            "enable_kv_cache_reuse": "Each round sends the whole text again; only its new tokens are to be computed.",
            "exclude_input_in_output": "The decoder asks for what it needs, request by request.",
            "kv_cache_free_gpu_mem_fraction": "Of the memory free at load; both engines together stay below 1.",
            "specdeploy_max_sequences": "CPU only: sequences whose KV cache is held at once.",
            "specdeploy_max_seq_len": "CPU only: longest prompt plus answer, in tokens.",
        },
    )


_STAND_IN: Final = "Profile cpu: the backend `tensorrtllm` is here specdeploy's CPU stand-in, not NVIDIA's."


def _engine_parameters(name: str, path: str) -> dict[str, str]:
    return {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": path,
        "batch_scheduler_policy": "guaranteed_no_evict",
        "enable_kv_cache_reuse": "true",
        "exclude_input_in_output": "false",
        "kv_cache_free_gpu_mem_fraction": _KV_FRACTION[name],
        "max_beam_width": "1",
    }


def _cpu_parameters(config: DeployConfig) -> dict[str, str]:
    if not _on_cpu(config.profile):
        return {}
    return {
        "specdeploy_max_sequences": str(config.build.max_batch_size),
        "specdeploy_max_seq_len": str(config.build.max_seq_len),
    }


def _between(preprocessing_output: str) -> str:
    """Return the ensemble's own name of a tensor between its steps, which must differ from every outer name."""
    return f"_{preprocessing_output}"


def _on_cpu(profile: str) -> bool:
    return profile == "cpu"


def _flag(value: bool) -> str:
    return "true" if value else "false"
