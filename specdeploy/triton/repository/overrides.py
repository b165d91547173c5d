"""What a user adds to the generated models: further parameters of their backends, and rate limits.

Reads the lines of ``repo.parameters`` and ``repo.rate_limits``, says what is wrong with them, and lays them over the
configurations. What the draft-target path stands on has a key of its own in ``specdeploy.yaml`` and is refused here.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import TYPE_CHECKING, Final

from specdeploy.findings import Finding
from specdeploy.triton.repository import names
from specdeploy.triton.tensors import release_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from specdeploy.config.schema import DeployConfig
    from specdeploy.triton.pbtxt import ModelConfig

_LINE: Final = re.compile(r"(?P<model>\S+)\s+(?P<key>[^\s=]+)\s*=\s*(?P<value>.*)")
_SHAPES: Final = {"parameters": "MODEL KEY=VALUE", "rate_limits": "MODEL RESOURCE=COUNT"}
#: Parameter of an engine -> the key of ``specdeploy.yaml`` that decides it; None for what never changes.
_DECIDED: Final[Mapping[str, str | None]] = {
    "gpt_model_path": "repo.engine_root",
    "gpt_model_type": None,
    "enable_kv_cache_reuse": None,
    "exclude_input_in_output": None,
    "max_beam_width": None,
    "executor_worker_path": None,
    "kv_cache_free_gpu_mem_fraction": "target.kv_fraction and draft.kv_fraction",
    "gpu_device_ids": "target.gpu_ids and draft.gpu_ids",
    "participant_ids": "speculation.fast_logits",
    "speculative_decoding_fast_logits": "speculation.fast_logits",
    "decoding_mode": "speculation.method",
    "medusa_choices": "speculation.tree_choices",
    "eagle_choices": "speculation.tree_choices",
    "lookahead_window_size": "speculation.window_size",
    "lookahead_ngram_size": "speculation.ngram_size",
    "lookahead_verification_set_size": "speculation.verification_size",
}
#: What our own models take beyond what follows from the configuration.
_OWN: Final = {
    names.PREPROCESSING: frozenset({"add_special_tokens", "end_id", "pad_id"}),
    names.DECODER: frozenset(
        {
            "control_slice_tokens",
            "draft_timeout_ms",
            "exclude_input_in_output",
            "max_inflight",
            "otlp_traces_endpoint",
        }
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Override:
    """One line: a model, a key, and its value."""

    model: str
    key: str
    value: str


def check_overrides(config: DeployConfig) -> tuple[Finding, ...]:
    """Return everything that is wrong with the lines of ``repo.parameters`` and ``repo.rate_limits``."""
    return (*_check_parameters(config), *_check_rate_limits(config))


def apply_overrides(config: DeployConfig, models: Sequence[ModelConfig]) -> tuple[ModelConfig, ...]:
    """Return the configurations with the user's lines laid over them; the lines were checked before."""
    parameters, limits = read(config.repo.parameters), read(config.repo.rate_limits)
    return tuple(_limited(_extended(model, parameters), limits) for model in models)


def read(lines: Sequence[str]) -> tuple[Override, ...]:
    """Return the lines that can be read; :func:`check_overrides` names the others."""
    matches = (_LINE.fullmatch(line.strip()) for line in lines)
    return tuple(Override(**match.groupdict()) for match in matches if match)


def _extended(model: ModelConfig, overrides: Sequence[Override]) -> ModelConfig:
    own = {override.key: override.value for override in overrides if override.model == model.name}
    return dataclasses.replace(model, parameters={**model.parameters, **own}) if own else model


def _limited(model: ModelConfig, limits: Sequence[Override]) -> ModelConfig:
    own = {limit.key: int(limit.value) for limit in limits if limit.model == model.name}
    if not own:
        return model
    groups = tuple(dataclasses.replace(group, resources=own) for group in model.instance_group)
    return dataclasses.replace(model, instance_group=groups)


def _check_parameters(config: DeployConfig) -> Iterator[Finding]:
    yield from _unreadable("parameters", config.repo.parameters)
    engines = set(names.engine_models(config).values())
    for override in read(config.repo.parameters):
        if override.model not in engines | _OWN.keys():
            yield _unknown_model("parameters", override, sorted(engines | _OWN.keys()))
        elif override.model in engines:
            yield from _check_engine_parameter(override, config.release)
        elif override.key not in _OWN[override.model]:
            yield _unknown_key(override, _OWN[override.model])


def _check_engine_parameter(override: Override, release: str) -> Iterator[Finding]:
    known = release_parameters(release)
    if override.key in _DECIDED:
        decides = _DECIDED[override.key]
        yield _error(
            "repo.parameter-decided",
            "repo.parameters",
            f"{override.model} {override.key} is not set here",
            f"{decides} decides it." if decides else "Speculative decoding stands on its value; leave it out.",
        )
    elif override.key not in known:
        yield _unknown_key(override, known - _DECIDED.keys())


def _check_rate_limits(config: DeployConfig) -> Iterator[Finding]:
    yield from _unreadable("rate_limits", config.repo.rate_limits)
    limited = [name for name in names.model_names(config) if name not in {names.ENSEMBLE, names.BLS}]
    for limit in read(config.repo.rate_limits):
        if limit.model not in limited:
            yield _unknown_model("rate_limits", limit, limited)
        elif not (limit.value.isascii() and limit.value.isdecimal() and int(limit.value) > 0):
            message = f"{limit.model} {limit.key} is {limit.value!r}, which is no number of resources"
            yield _error("repo.rate-limit", "repo.rate_limits", message, "Write a whole number from 1 up.")


def _unreadable(kind: str, lines: Sequence[str]) -> Iterator[Finding]:
    for line in lines:
        if _LINE.fullmatch(line.strip()) is None:
            yield _error("repo.line", f"repo.{kind}", f"{line!r} cannot be read", f"Write `{_SHAPES[kind]}`.")


def _unknown_model(kind: str, override: Override, known: Sequence[str]) -> Finding:
    message = f"{override.model} is not a model of this deployment that takes {kind.replace('_', ' ')}"
    return _error("repo.unknown-model", f"repo.{kind}", message, f"Known: {', '.join(known)}.")


def _unknown_key(override: Override, known: frozenset[str]) -> Finding:
    nearest = difflib.get_close_matches(override.key, sorted(known), n=1)
    hint = f"Did you mean {nearest[0]}?" if nearest else f"It takes {', '.join(sorted(known))}."
    message = f"{override.model} takes no parameter {override.key}"
    return _error("repo.unknown-parameter", "repo.parameters", message, hint)


def _error(code: str, where: str, message: str, hint: str) -> Finding:
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)
