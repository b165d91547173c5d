"""Checks of the string parameters of NVIDIA's backend, which takes what it cannot read for "not set" and says nothing.

Knows the keys of each release and what a value may look like. Does not know the engine behind them.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError
from specdeploy.triton.lint.loaded import Engine, Repository, error, warning, whole_number
from specdeploy.triton.tensors import release_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.findings import Finding

# What an unknown release is taken for: the newest one takes the keys of all before it.
_NEWEST: Final = "1"
# Parameters that Triton itself, or our stand-in, reads.
_OTHERS: Final = re.compile(
    r"specdeploy_\w+|FORCE_CPU_ONLY_INPUT_TENSORS|EXECUTION_ENV_PATH|TRITON_\w+|enable_trt_overlap"
)
_FRACTIONS: Final = (
    "kv_cache_free_gpu_mem_fraction",
    "cross_kv_cache_fraction",
    "lora_cache_gpu_memory_fraction",
)
_FLAGS: Final = (
    "enable_kv_cache_reuse",
    "enable_chunked_context",
    "exclude_input_in_output",
    "normalize_log_probs",
    "kv_cache_onboard_blocks",
    "multi_block_mode",
    "enable_context_fmha_fp32_acc",
    "cuda_graph_mode",
    "speculative_decoding_fast_logits",
)
_COUNTS: Final = (
    "max_beam_width",
    "max_tokens_in_paged_kv_cache",
    "kv_cache_host_memory_bytes",
    "sink_token_length",
    "cuda_graph_cache_size",
    "lookahead_window_size",
    "lookahead_ngram_size",
    "lookahead_verification_set_size",
    "iter_stats_max_iterations",
    "request_stats_max_iterations",
    "stats_check_period_ms",
    "cancellation_check_period_ms",
    "lora_cache_optimal_adapter_size",
    "lora_cache_max_adapter_size",
    "lora_cache_host_memory_bytes",
    "num_nodes",
)
# Only the first stops the engine from loading; for the others the backend says so in its log and takes its default.
_CHOICES: Final = {
    "gpt_model_type": (error, ("inflight_fused_batching", "inflight_batching", "V1", "v1")),
    "batch_scheduler_policy": (warning, ("max_utilization", "guaranteed_no_evict", "static_batch")),
    "decoding_mode": (
        warning,
        ("top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle"),
    ),
}


def known(repository: Repository) -> Iterator[Finding]:
    """Keys are ones that the backend reads; a misspelt one is passed over in silence."""
    release = str((repository.manifest or {}).get("release") or _NEWEST)
    try:
        keys = release_parameters(release)
    except ConfigError:
        keys = release_parameters(_NEWEST)
    for engine in repository.engines.values():
        for key in engine.model.config.parameters if engine.model.config is not None else ():
            if key not in keys and not _OTHERS.fullmatch(key):
                nearest = difflib.get_close_matches(key, keys, n=1)
                yield warning(
                    "parameter.unknown",
                    f"the backend has no parameter {key!r}, and takes no notice of it",
                    where=engine.at(key),
                    hint=f"did you mean {nearest[0]}?" if nearest else "leave it out",
                )


def values(repository: Repository) -> Iterator[Finding]:
    """Values are of the kind that the backend reads."""
    for engine in repository.engines.values():
        yield from _fractions(engine)
        yield from _flags(engine)
        yield from _counts(engine)
        yield from _choices(engine)


def _fractions(engine: Engine) -> Iterator[Finding]:
    for key in _FRACTIONS:
        value = engine.parameters.get(key)
        if value is not None and not is_fraction(value):
            yield error(
                "parameter.fraction", f"{key} is {value!r}", where=engine.at(key), hint="above 0, and at most 1: 0.5"
            )


def is_fraction(text: str) -> bool:
    """Say whether *text* is a number above 0 and at most 1."""
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False


def _flags(engine: Engine) -> Iterator[Finding]:
    for key in _FLAGS:
        value = engine.parameters.get(key)
        if value is not None and value.lower() not in {"true", "false", "1", "0"}:
            yield error("parameter.flag", f"{key} is {value!r}", where=engine.at(key), hint='"true" or "false"')


def _counts(engine: Engine) -> Iterator[Finding]:
    for key in _COUNTS:
        value = engine.parameters.get(key)
        if value is not None and whole_number(value) is None:
            yield error("parameter.number", f"{key} is {value!r}", where=engine.at(key), hint="a whole number")


def _choices(engine: Engine) -> Iterator[Finding]:
    for key, (finding, choices) in _CHOICES.items():
        value = engine.parameters.get(key)
        if value is not None and value not in choices:
            nearest = difflib.get_close_matches(value, choices, n=1)
            yield finding(
                "parameter.choice",
                f"{key} is {value!r}",
                where=engine.at(key),
                hint=f"did you mean {nearest[0]}?" if nearest else f"one of {', '.join(choices)}",
            )
