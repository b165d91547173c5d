"""Keys of a configuration that only make sense together: which profile takes which methods, precisions and runners.

Looks at the configuration alone. What the checkpoints, the release and the GPUs allow is for those who know them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from specdeploy.config.draft_lengths import parse_draft_lengths
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.config.schema import DeployConfig, ModelConfig

METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "cpu": ("draft_target", "ngram"),
    "tensorrt_llm": ("draft_target", "medusa", "eagle", "redrafter", "lookahead", "ngram"),
    "llmapi": ("draft_target", "eagle3", "mtp", "ngram"),
}
PRECISIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "cpu": ("auto", "fp32", "int8", "int4"),
    "tensorrt_llm": (
        *("auto", "fp32", "fp16", "bf16", "fp8", "nvfp4"),
        *("int8_sq", "int8_wo", "int4_wo", "int4_awq", "w4a8_awq"),
    ),
    # The LLM API serves a checkpoint as it is stored; quantising is done before, by others.
    "llmapi": ("auto", "fp32", "fp16", "bf16"),
}
#: Two checkpoints, so two engines.
PAIRS: Final = frozenset({"draft_target"})
#: The draft's folder holds a head that is built into the target's engine.
HEADS: Final = frozenset({"medusa", "eagle", "redrafter", "eagle3"})


_NAME: Final = re.compile(r"\w[\w .+-]{0,99}")


def check_config(config: DeployConfig) -> tuple[Finding, ...]:
    """Return every contradiction between keys, each an error at the key that would have to change."""
    return (
        *_name(config),
        *_method(config),
        *_drafting(config),
        *_precisions(config),
        *_sharding(config),
        *_runner(config),
    )


def _name(config: DeployConfig) -> Iterator[Finding]:
    """The name goes into reports, manifests and the names of jobs."""
    if not _NAME.fullmatch(config.name):
        yield _error(
            "config.name",
            "name",
            f"the name {config.name!r} has characters that reports and jobs cannot carry",
            "Letters, digits, blanks and . _ + - (not first), 100 at most.",
        )


def _method(config: DeployConfig) -> Iterator[Finding]:
    speculation = config.speculation
    method, allowed = speculation.method, METHODS[config.profile]
    if method not in allowed:
        yield _error(
            "config.method",
            "speculation.method",
            f"the profile {config.profile} does not speculate by {method}",
            f"It takes {', '.join(allowed)}.{_elsewhere(method, config.profile)}",
        )
    elif method in PAIRS | HEADS and not config.draft.checkpoint:
        yield _error(
            "config.missing-key",
            "draft.checkpoint",
            f"`draft.checkpoint` is required by the method {method}",
            "Name the draft's folder." if method in PAIRS else "Name the folder of the head.",
        )
    elif method not in PAIRS | HEADS and config.draft.checkpoint:
        yield _error(
            "config.needless-key",
            "draft.checkpoint",
            f"the method {method} takes no draft, and `draft.checkpoint` names {config.draft.checkpoint}",
            "Leave it out, or choose another speculation.method.",
        )
    if 0 < speculation.max_draft_tokens < speculation.num_draft_tokens:
        yield _error(
            "config.draft-tokens",
            "speculation.max_draft_tokens",
            f"at most {speculation.max_draft_tokens} draft tokens are allowed, and {speculation.num_draft_tokens} are "
            "the default",
            "Raise max_draft_tokens, or leave it out: then it is num_draft_tokens.",
        )


def _drafting(config: DeployConfig) -> Iterator[Finding]:
    """What our decoder decides, where it is ours that drafts."""
    speculation = config.speculation
    try:
        parse_draft_lengths(speculation.draft_len_schedule, speculation.num_draft_tokens)
    except ConfigError as error:
        yield _error("config.draft-lengths", "speculation.draft_len_schedule", error.message, error.hint)
    if config.profile != "llmapi" and speculation.method in {"draft_target", "ngram"}:
        return
    for key in ("adaptive", "draft_len_schedule"):
        if getattr(speculation, key):
            message = (
                f"{key} is for drafts of our decoder, and {speculation.method} ({config.profile}) drafts without it"
            )
            yield _error("config.needless-key", f"speculation.{key}", message, "Leave it out.")


def _elsewhere(method: str, profile: str) -> str:
    others = [name for name, methods in METHODS.items() if method in methods and name != profile]
    return f" {method} works with profile: {' or '.join(others)}." if others else ""


def _models(config: DeployConfig) -> tuple[tuple[str, ModelConfig], ...]:
    return (("target", config.target), ("draft", config.draft))


def _precisions(config: DeployConfig) -> Iterator[Finding]:
    allowed = PRECISIONS[config.profile]
    for role, model in _models(config):
        if model.precision not in allowed:
            yield _error(
                "config.precision",
                f"{role}.precision",
                f"the profile {config.profile} has no precision {model.precision}",
                f"It takes {', '.join(allowed)}.",
            )


def _sharding(config: DeployConfig) -> Iterator[Finding]:
    if config.profile != "cpu":
        return
    for role, model in _models(config):
        for key, value in (("tp_size", model.tp_size), ("pp_size", model.pp_size), ("ep_size", model.ep_size)):
            if value > 1:
                message = f"{key} is {value}, and an engine of the profile cpu is not divided"
                yield _error("config.sharding", f"{role}.{key}", message, "Leave it out.")
        if model.kv_cache != "auto":
            message = f"kv_cache is {model.kv_cache}, and the profile cpu keeps it as it computes"
            yield _error("config.kv-cache", f"{role}.kv_cache", message, "Leave it out.")


def _runner(config: DeployConfig) -> Iterator[Finding]:
    if config.profile == "cpu" and config.build.runner == "container":
        message = "engines of the profile cpu are compiled by this Python, not in a container"
        yield _error("config.runner", "build.runner", message, "Use local or slurm.")


def _error(code: str, where: str, message: str, hint: str) -> Finding:
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)
