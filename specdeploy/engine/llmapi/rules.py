"""What the keys must be together, which no schema says: the method, the checkpoint, the ranks and the limits.

A rule that TensorRT-LLM's own classes enforce is an error; one that is derived from how it works is a warning.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from specdeploy.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.checkpoint.info import CheckpointInfo
    from specdeploy.config.schema import DeployConfig
    from specdeploy.engine.llmapi.document import ModelDocument
    from specdeploy.engine.llmapi.releases import LlmApiRelease
    from specdeploy.engine.profile import EngineSpec

# The documentation names DeepSeek-V3 and -R1, which are one architecture, and its successor.
_MTP_ARCHITECTURES: Final = frozenset({"DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"})
_LAYER: Final = re.compile(r"^model\.layers\.(\d+)\.")
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|BEARER|(?:^|_)(API)?KEY", re.IGNORECASE)
_ARGS: Final = "llmapi.args"
_METHOD: Final = "speculation.method"
_LENGTH: Final = "speculation.num_draft_tokens"


def check_method(release: LlmApiRelease, method: str) -> tuple[Finding, ...]:
    """Return an error when the release's PyTorch backend does not speculate by *method*."""
    if method in release.decoding_types:
        return ()
    message = f"the LLM API of TensorRT-LLM {release.name} does not speculate by {method}"
    return (_finding("error", "method", _METHOD, message, f"It takes {', '.join(release.decoding_types)}."),)


def check_together(
    config: DeployConfig, spec: EngineSpec, release: LlmApiRelease, document: ModelDocument
) -> tuple[Finding, ...]:
    """Return every contradiction between keys of one engine; the release has the method."""
    return (
        *_parts(config, spec),
        *_lengths(config, document),
        *_mtp(config, spec.checkpoint, release),
        *_ranks(config, spec),
        *_limits(config, spec, document),
        *_scheduler(config, release, document),
        *_kv_cache(spec),
        *_bounds(document),
        *_secrets(document),
    )


def _parts(config: DeployConfig, spec: EngineSpec) -> Iterator[Finding]:
    method = config.speculation.method
    if method == "draft_target" and spec.draft is None:
        yield _finding("error", "no-draft", "draft.checkpoint", "the method draft_target needs a draft checkpoint")
    if method == "eagle3" and spec.head is None:
        yield _finding("error", "no-head", "draft.checkpoint", "the method eagle3 needs the folder of an EAGLE-3 head")


def _lengths(config: DeployConfig, document: ModelDocument) -> Iterator[Finding]:
    wanted = config.speculation
    if wanted.num_draft_tokens < 1:
        message = f"{wanted.method} must propose at least one token a round, not {wanted.num_draft_tokens}"
        yield _finding("error", "draft-length", _LENGTH, message)
    if wanted.max_draft_tokens > wanted.num_draft_tokens:
        message = f"a request cannot ask the LLM API for {wanted.max_draft_tokens} draft tokens"
        hint = f"Every request is drafted {wanted.num_draft_tokens}; leave max_draft_tokens out."
        yield _finding("warning", "max-draft-tokens", "speculation.max_draft_tokens", message, hint)
    if wanted.method == "ngram" and wanted.ngram_size < 1:
        message = f"ngram must match at least one token, not {wanted.ngram_size}"
        yield _finding("error", "ngram-size", "speculation.ngram_size", message)
    beams = document.content.get("max_beam_width")
    if isinstance(beams, int) and beams > 1:
        message = f"max_beam_width is {beams}, and speculation works without beams"
        yield _finding("error", "beams", "llmapi.args", message, "Leave it out.")


def _mtp(config: DeployConfig, checkpoint: CheckpointInfo, release: LlmApiRelease) -> Iterator[Finding]:
    if config.speculation.method != "mtp":
        return
    if checkpoint.architecture not in _MTP_ARCHITECTURES:
        # Younger releases learn further ones.
        severity: Severity = "warning" if release.after_schema else "error"
        message = f"{checkpoint.architecture} is not known to have layers for multi-token prediction"
        hint = f"mtp is for {', '.join(sorted(_MTP_ARCHITECTURES))}; choose another {_METHOD}."
        yield _finding(severity, "mtp-architecture", _METHOD, message, hint)
    elif checkpoint.tensors and not _has_mtp_layers(checkpoint):
        message = f"{checkpoint.name} has {checkpoint.num_layers} layers and none for multi-token prediction after them"
        hint = "Copies for other engines often leave them out; use the original checkpoint."
        yield _finding("error", "mtp-layers", "target.checkpoint", message, hint)


def _has_mtp_layers(checkpoint: CheckpointInfo) -> bool:
    """Say whether there are layers behind the decoder's last one, which is where DeepSeek keeps them."""
    layers = (_LAYER.match(tensor.name) for tensor in checkpoint.tensors)
    return any(match and int(match[1]) >= checkpoint.num_layers for match in layers)


def _ranks(config: DeployConfig, spec: EngineSpec) -> Iterator[Finding]:
    yield from _heads("target", spec.checkpoint, spec.tp_size)
    if spec.draft is not None:
        # The draft runs on the target's ranks and is divided as the target is.
        yield from _heads("draft", spec.draft, spec.tp_size)
    for key, wanted, have in (
        ("tp_size", config.draft.tp_size, spec.tp_size),
        ("pp_size", config.draft.pp_size, spec.pp_size),
    ):
        if wanted not in {1, have}:
            message = f"the draft is divided as the target is, by {have}, not by {wanted}"
            yield _finding("error", "draft-ranks", f"draft.{key}", message, f"Leave draft.{key} out.")
    yield from _experts(spec)
    if spec.pp_size > 1:
        message = f"speculation with {spec.pp_size} pipeline stages is not known to work with the PyTorch backend"
        yield _finding("warning", "pipeline", "target.pp_size", message, "Use target.tp_size.")


def _experts(spec: EngineSpec) -> Iterator[Finding]:
    info, ep_size = spec.checkpoint, spec.ep_size
    if spec.tp_size % ep_size:
        message = f"{spec.tp_size} ranks cannot share the experts in groups of {ep_size}"
        yield _finding("error", "experts", "target.ep_size", message, "Choose a divisor of target.tp_size.")
    elif ep_size > 1 and info.num_experts is None:
        message = f"{ep_size} ranks should share the experts, and {info.name} has none"
        yield _finding("error", "experts", "target.ep_size", message, "Leave it out.")


def _heads(role: str, checkpoint: CheckpointInfo, tp_size: int) -> Iterator[Finding]:
    queries, keys = checkpoint.num_heads, checkpoint.num_kv_heads
    if queries % tp_size:
        message = f"{checkpoint.name} has {queries} heads, which {tp_size} ranks cannot share"
        yield _finding("error", "heads", "target.tp_size", message, f"Choose a divisor of {role}'s {queries} heads.")
    elif keys % tp_size and tp_size % keys:
        message = f"{checkpoint.name} has {keys} KV heads: {tp_size} ranks can neither share nor repeat them evenly"
        yield _finding("error", "kv-heads", "target.tp_size", message, f"Choose a divisor or a multiple of {keys}.")


def _limits(config: DeployConfig, spec: EngineSpec, document: ModelDocument) -> Iterator[Finding]:
    tokens = spec.max_batch_size * (1 + config.speculation.num_draft_tokens)
    limit: Any = document.content["max_num_tokens"]
    if tokens > limit:
        message = f"{spec.max_batch_size} sequences with their drafts are {tokens} tokens, and a pass holds {limit}"
        hint = f"Raise it to {tokens}, or lower build.max_batch_size."
        yield _finding("warning", "num-tokens", "tensorrt_llm.max_num_tokens", message, hint)


def _scheduler(config: DeployConfig, release: LlmApiRelease, document: ModelDocument) -> Iterator[Finding]:
    method = config.speculation.method
    if method in release.serial_methods and document.content.get("disable_overlap_scheduler") is False:
        message = (
            f"{method} needs disable_overlap_scheduler in TensorRT-LLM {release.name}, and llmapi.args sets it false"
        )
        yield _finding("warning", "overlap", "llmapi.args", message, "Leave it out.")


def _kv_cache(spec: EngineSpec) -> Iterator[Finding]:
    # The schema has text here; the PyTorch backend has kernels for the compute type, FP8 and NVFP4.
    if spec.kv_cache not in {"auto", "fp8"}:
        message = f"the PyTorch backend has no {spec.kv_cache} KV cache"
        yield _finding("error", "kv-cache", "target.kv_cache", message, "Use auto or fp8.")


def _bounds(document: ModelDocument) -> Iterator[Finding]:
    """Check what the schema leaves open: shares of the memory, and limits of nothing."""
    cache: Any = document.content.get("kv_cache_config") or {}
    share = cache.get("free_gpu_memory_fraction") if isinstance(cache, dict) else None
    if isinstance(share, int | float) and not 0 < share <= 1:
        message = f"free_gpu_memory_fraction is {share}, and it is a share of the free memory"
        yield _finding("error", "bounds", _ARGS, message, "Between 0 and 1, such as 0.8.")
    for key in ("max_input_len", "max_batch_size", "max_seq_len", "max_num_tokens"):
        value: Any = document.content.get(key)
        if isinstance(value, int) and value < 1:
            yield _finding("error", "bounds", _ARGS, f"{key} is {value}", "At least 1.")
    if document.content.get("load_format") in {"dummy", 1}:
        message = "load_format dummy serves random weights in the place of the checkpoint's"
        yield _finding("warning", "dummy-weights", _ARGS, message, "Leave it out.")


def _secrets(document: ModelDocument) -> Iterator[Finding]:
    """Refuse secrets: the file and the manifest are passed around."""
    given: Any = document.content.get("env_overrides")
    for name in given if isinstance(given, dict) else ():
        if _SECRET.search(str(name)):
            message = f"env_overrides.{name} looks like a secret, and the file is not the place for one"
            yield _finding("error", "secret", _ARGS, message, "Set the variable where the server is started.")


def _finding(severity: Severity, code: str, where: str, message: str, hint: str = "") -> Finding:
    return Finding(severity=severity, code=f"llmapi.{code}", message=message, hint=hint, where=where)
