"""The engine models of a deployment as typed configurations: NVIDIA's tensors and parameters of the release in use.

What the draft-target path needs is set here and not left to defaults that changed between releases. Knows parameters
and what they mean; does not know files, and takes where the ranks are and how much memory they get as values.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.config.rules import PAIRS
from specdeploy.errors import RepositoryError
from specdeploy.triton.pbtxt import InstanceGroup, ModelConfig, Warmup, WarmupInput
from specdeploy.triton.repository import names
from specdeploy.triton.tensors import release_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specdeploy.config.schema import DeployConfig
    from specdeploy.planning.placement import EnginePlacement, Placement
    from specdeploy.triton.pbtxt import Tensor
    from specdeploy.triton.tensors import ReleaseTensors

# Requests are batched inside the engines, across sequences; Triton's own batch dimension is there because clients of
# NVIDIA's templates send it.
MAX_BATCH_SIZE: Final = 1
# Our CPU backend and our decoder speak the newest names.
_NEWEST_RELEASE: Final = "1"
_LOGITS: Final = frozenset({"draft_logits", "context_logits", "generation_logits"})
_LOGITS_TYPES: Final = {"float32": "TYPE_FP32", "float16": "TYPE_FP16"}
#: Speculation method -> the backend's ``decoding_mode``; engines that take drafts from outside need none.
DECODING_MODES: Final = {"medusa": "medusa", "eagle": "eagle", "lookahead": "lookahead", "redrafter": "redrafter"}
_CHOICES: Final = {"medusa": "medusa_choices", "eagle": "eagle_choices"}
# Where NVIDIA's image keeps the program that the orchestrator spawns for each rank.
_WORKER: Final = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
_STAND_IN: Final = "Profile cpu: the backend `tensorrtllm` is here specdeploy's CPU stand-in, not NVIDIA's."
_COMMENTS: Final = {
    "gpt_model_path": "Absolute, or relative to the root of this model repository, where the server is started.",
    "batch_scheduler_policy": "Never evicts a sequence that has started: a round of drafts is short.",
    "enable_kv_cache_reuse": "Each round sends the whole text again; only its new tokens are to be computed.",
    "exclude_input_in_output": "The decoder asks for what it needs, request by request.",
    "kv_cache_free_gpu_mem_fraction": "Of the memory that is free when this engine loads; the target loads first.",
    "max_tokens_in_paged_kv_cache": "As planned. Bounds the cache whichever engine happens to load first.",
    "gpu_device_ids": "The GPU of each rank.",
    "participant_ids": "The MPI rank of each rank of the engine; 0 is the orchestrator.",
    "executor_worker_path": "What the orchestrator starts for each rank.",
    "decoding_mode": "What the engine was built for.",
    "medusa_choices": "Paths of the tree that is tried in each step.",
    "eagle_choices": "Paths of the tree that is tried in each step.",
    "lookahead_window_size": "These three come to exactly the draft length that the engine was built for.",
    "speculative_decoding_fast_logits": "The draft's logits go to the target over MPI; Triton carries only their name.",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "Input tensors that are on a GPU already are not copied to the host first.",
    "max_batch_size": "A call brings one sequence; the engine batches calls in flight, as many as it was built for.",
    "instance_group": "One instance holds all ranks. Where they are is said by parameters, so its kind picks no GPU.",
    "gpt_model_type": "Sequences join and leave the running batch at any step.",
    "max_beam_width": "Speculation knows no beams.",
    "specdeploy_max_sequences": "CPU only: sequences whose KV cache is held at once.",
    "specdeploy_max_seq_len": "CPU only: longest prompt plus answer, in tokens.",
}
_WARMUP_TOKENS: Final = 8
_WORD_BYTES: Final = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class KvBudget:
    """What the KV cache of an engine may take.

    Args:
        fraction: Of the GPU memory that is free when it loads.
        tokens: The most that it holds; None leaves that to the fraction.
    """

    fraction: float
    tokens: int | None = None


def engine(
    role: str, config: DeployConfig, *, path: str, placement: Placement, kv: KvBudget, logits_dtype: str
) -> ModelConfig:
    """Return the configuration of one engine; NVIDIA's backend and ours read the same one.

    Raises:
        RepositoryError: The backend of the release cannot serve an engine of the method.
    """
    on_cpu = config.profile == "cpu"
    tensors = engine_tensors(config, logits_dtype)
    extra = _cpu_parameters(config) if on_cpu else _gpu_parameters(role, config, placement, tensors)
    return ModelConfig(
        name=names.ENGINE_MODELS[role],
        backend="tensorrtllm",
        max_batch_size=MAX_BATCH_SIZE,
        inputs=tensors.models["tensorrt_llm"].inputs,
        outputs=tensors.models["tensorrt_llm"].outputs,
        # Which GPUs it uses is not said here but in its parameters.
        instance_group=(InstanceGroup(),),
        parameters={**_common_parameters(path, kv), **extra},
        warmups=(_WARMUP,) if config.repo.warmup else (),
        comments={**_COMMENTS, "": _STAND_IN if on_cpu else ""},
    )


def engine_tensors(config: DeployConfig, logits_dtype: str) -> ReleaseTensors:
    """Return the tensors of the engine models, logits typed as the engines give them."""
    tensors = release_tensors(_NEWEST_RELEASE if config.profile == "cpu" else config.release)
    template = tensors.models["tensorrt_llm"]
    typed = dataclasses.replace(
        template,
        inputs=tuple(_typed(tensor, logits_dtype) for tensor in template.inputs),
        outputs=tuple(_typed(tensor, logits_dtype) for tensor in template.outputs),
    )
    return dataclasses.replace(tensors, models={**tensors.models, "tensorrt_llm": typed})


def warmup_files(vocab_size: int) -> Mapping[str, bytes]:
    """Return the data of the warm-up request by file name: a few ids, their number, and one token to answer."""
    some_id = vocab_size // 2
    return {
        "input_ids": some_id.to_bytes(_WORD_BYTES, "little") * _WARMUP_TOKENS,
        "input_lengths": _WARMUP_TOKENS.to_bytes(_WORD_BYTES, "little"),
        "request_output_len": (1).to_bytes(_WORD_BYTES, "little"),
    }


_WARMUP: Final = Warmup(
    name="one token",
    inputs=tuple(
        WarmupInput(name=name, data_type="TYPE_INT32", dims=(length,), file=name)
        for name, length in (("input_ids", _WARMUP_TOKENS), ("input_lengths", 1), ("request_output_len", 1))
    ),
)


def _typed(tensor: Tensor, logits_dtype: str) -> Tensor:
    if tensor.name not in _LOGITS:
        return tensor
    return dataclasses.replace(tensor, data_type=_LOGITS_TYPES[logits_dtype])


def _common_parameters(path: str, kv: KvBudget) -> dict[str, str]:
    tokens = {} if kv.tokens is None else {"max_tokens_in_paged_kv_cache": str(kv.tokens)}
    return {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": path,
        "batch_scheduler_policy": "guaranteed_no_evict",
        "enable_kv_cache_reuse": "true",
        "exclude_input_in_output": "false",
        "kv_cache_free_gpu_mem_fraction": f"{kv.fraction:g}",
        **tokens,
        "max_beam_width": "1",
    }


def _gpu_parameters(role: str, config: DeployConfig, placement: Placement, tensors: ReleaseTensors) -> dict[str, str]:
    return {
        **_place_parameters(placement, placement.of(role)),
        **(_method_parameters(config, tensors) if role == "target" else {}),
        **({"speculative_decoding_fast_logits": "true"} if config.speculation.fast_logits else {}),
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    }


def _place_parameters(placement: Placement, own: EnginePlacement) -> dict[str, str]:
    parameters = {"gpu_device_ids": _ids(own.gpu_ids)}
    if own.participant_ids:
        parameters["participant_ids"] = _ids(own.participant_ids)
    if placement.mode == "orchestrator":
        parameters["executor_worker_path"] = _WORKER
    return parameters


def _method_parameters(config: DeployConfig, tensors: ReleaseTensors) -> dict[str, str]:
    """Return what makes the backend decode as the target's engine was built to."""
    speculation = config.speculation
    method = speculation.method
    if method in PAIRS or method not in DECODING_MODES:
        return {}
    parameters = {"decoding_mode": DECODING_MODES[method]}
    if method in _CHOICES and speculation.tree_choices:
        parameters[_CHOICES[method]] = speculation.tree_choices
    if method == "lookahead":
        window = {
            "lookahead_window_size": speculation.window_size,
            "lookahead_ngram_size": speculation.ngram_size,
            "lookahead_verification_set_size": speculation.verification_size,
        }
        _require_known(window, tensors, config.release)
        parameters |= {key: str(value) for key, value in window.items()}
    return parameters


def _require_known(wanted: Mapping[str, int], tensors: ReleaseTensors, release: str) -> None:
    missing = sorted(wanted.keys() - tensors.parameters)
    if missing:
        raise RepositoryError(
            f"the Triton backend of TensorRT-LLM {release} has no {', '.join(missing)}: it cannot serve lookahead",
            hint="They came with 0.19: use that release or a later one, or another speculation.method.",
        )


def _cpu_parameters(config: DeployConfig) -> dict[str, str]:
    return {
        "specdeploy_max_sequences": str(config.build.max_batch_size),
        "specdeploy_max_seq_len": str(config.build.max_seq_len),
    }


def _ids(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
