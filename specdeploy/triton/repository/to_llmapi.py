"""From a deployment on TensorRT-LLM engines to the same one on the LLM API, whose releases have no engines any more.

Takes the keys that a ``specdeploy.yaml`` gives and returns those of the new one, with a note for every key that is not
the same there and for everything that clients lose. Does not know files.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final

from specdeploy.config.rules import METHODS, PAIRS, PRECISIONS
from specdeploy.config.template import as_yaml
from specdeploy.engine.llmapi.releases import llmapi_release
from specdeploy.errors import RepositoryError
from specdeploy.findings import Finding
from specdeploy.triton.repository import names
from specdeploy.triton.repository.migrate_rules import Ledger
from specdeploy.triton.repository.overrides import read as read_overrides

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from specdeploy.config.leaves import Value
    from specdeploy.config.schema import DeployConfig
    from specdeploy.triton.repository.notes import Note
    from specdeploy.triton.repository.overrides import Override

_PROFILE: Final = "llmapi"
#: The newest release whose images have both: the engines that are left and the LLM API that is moved to.
_RELEASE: Final = "1.2.1"
_FIRST_MAJOR: Final = 1
_MAJOR: Final = re.compile(r"(\d+)\.")
# Methods of the engine flow that the PyTorch backend never learned, and what stands in their place.
_GONE: Final = {
    "eagle": "EAGLE-1 and -2 heads cannot be used: it takes EAGLE-3 heads, which are trained anew.",
    "medusa": "Its PyTorch backend has no Medusa.",
    "redrafter": "It has no ReDrafter.",
    "lookahead": "Its PyTorch backend has no lookahead decoding.",
}
_WAYS: Final = (
    "Choose another one: --method ngram needs no draft; --method draft_target --draft DIR a small model of the family; "
    "--method eagle3 --draft DIR a head."
)
_ENGINE_ONLY: Final = {
    "extra_convert_args": "Nothing is converted.",
    "extra_build_args": "Nothing is built; many of these flags have a key in llmapi.args.",
    "gpu_ids": "CUDA_VISIBLE_DEVICES of the server says which GPUs it sees.",
}
_GONE_KEYS: Final = {
    "speculation.use_draft_logits": "The LLM API decides how a draft is accepted.",
    "speculation.fast_logits": "Draft and target are in one process.",
    "speculation.tree_choices": "It has no such tree.",
    "speculation.tree_tokens": "It has no such tree.",
    "speculation.num_heads": "It has no such heads.",
    "speculation.tree_depth": "It has no such tree.",
    "speculation.num_beams": "It has no such beams.",
    "speculation.beam_tokens": "It has no such beams.",
    "speculation.window_size": "It has no such window.",
    "speculation.verification_size": "It has no such set.",
    "tensorrt_llm.converter": "Nothing is converted.",
    "tensorrt_llm.examples_dir": "Nothing is converted.",
    "tensorrt_llm.python": "Nothing is converted.",
    "tensorrt_llm.logits_dtype": "Logits do not pass through Triton.",
    "tensorrt_llm.calib_dataset": "Nothing is calibrated.",
    "tensorrt_llm.calib_size": "Nothing is calibrated.",
    "tensorrt_llm.workers": "Nothing is built.",
    "repo.serving_mode": "The LLM API starts its own processes.",
    "repo.warmup": "There is no engine model to send a first request to.",
}
_CLIENTS: Final = (
    (
        "request num_draft_tokens",
        "Refused when it is not the deployment's own; a deployment without speculation is the control.",
    ),
    ("request use_draft_logits", "The LLM API decides how a draft is accepted."),
    ("request embedding_bias_words, embedding_bias_weights", "Refused."),
    ("request bad_words", "A word of several tokens is refused."),
    ("request return_log_probs", "Refused: an engine that speculates does not give them."),
    ("request return_context_logits, return_generation_logits", "Refused: logits do not pass through Triton."),
    ("request lora_task_id, lora_weights, lora_config, prompt_embedding_table", "Refused."),
    ("models tensorrt_llm and tensorrt_llm_draft", "Clients that call an engine model by itself have none to call."),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moved:
    """The new deployment.

    Args:
        values: The keys that its ``specdeploy.yaml`` gives.
        notes: What became of the old one's keys.
    """

    values: Mapping[str, Value]
    notes: tuple[Note, ...]


def to_llmapi(
    config: DeployConfig, given: Mapping[str, Value], *, method: str = "", draft: str = "", release: str = ""
) -> Moved:
    """Work out the same deployment on the LLM API.

    Args:
        config: The deployment on engines.
        given: The keys that its ``specdeploy.yaml`` gives, and their values.
        method: Another method than its own; empty keeps it.
        draft: Another draft or head; empty keeps it.
        release: Another release; empty keeps it.

    Raises:
        RepositoryError: It is no deployment on engines, or the method cannot be carried over.
    """
    if config.profile != "tensorrt_llm":
        raise RepositoryError(
            f"the configuration has the profile {config.profile}; only tensorrt_llm can be moved to llmapi",
            hint="Name the specdeploy.yaml of a deployment on engines.",
        )
    wanted = method or config.speculation.method
    _require_method(config, wanted, draft)
    ledger = Ledger(values={key: value for key, value in given.items() if key != "llmapi.args"})
    values = ledger.values
    values["profile"] = _PROFILE
    _release(ledger, config, release)
    _method(ledger, config, wanted, draft)
    _models(ledger, config, wanted)
    for key, why in _GONE_KEYS.items():
        _drop(ledger, key, why)
    _drafts(ledger, config)
    _arguments(ledger, config)
    _repository(ledger, config)
    for where, why in _CLIENTS:
        ledger.lost(where, "", why)
    return Moved(values=values, notes=tuple(ledger.notes))


def _require_method(config: DeployConfig, wanted: str, draft: str) -> None:
    problems = []
    if wanted not in METHODS[_PROFILE]:
        message = f"the LLM API does not speculate by {wanted}. {_GONE.get(wanted, '')}".rstrip()
        problems.append(_error("method", message, "speculation.method", _WAYS))
    changed = wanted != config.speculation.method
    if wanted in {*PAIRS, "eagle3"} and changed and not draft:
        message = f"the method {wanted} needs a draft of its own, and none is named"
        problems.append(_error("draft", message, "draft.checkpoint", "Add --draft DIR."))
    if problems:
        raise RepositoryError("the deployment cannot be moved to the LLM API as it is", findings=problems)


def _release(ledger: Ledger, config: DeployConfig, wanted: str) -> None:
    match = _MAJOR.match(config.release)
    old = match is None or int(match[1]) < _FIRST_MAJOR
    new = wanted or (_RELEASE if old else config.release)
    llmapi_release(new)
    ledger.values["release"] = new
    if new == config.release:
        ledger.kept("release", config.release, f"release: {new}")
    else:
        why = "The LLM API on Triton with PyTorch is there from 1.0 on." if old else "As it was asked for."
        ledger.changed("release", config.release, f"release: {new}", f"{why} Serve it with that release's image.")


def _method(ledger: Ledger, config: DeployConfig, wanted: str, draft: str) -> None:
    values, old = ledger.values, config.speculation.method
    values["speculation.method"] = wanted
    if wanted == old:
        ledger.kept("speculation.method", old, f"speculation.method: {wanted}")
    else:
        ledger.changed("speculation.method", old, f"speculation.method: {wanted}", "As it was asked for.")
    if wanted not in {*PAIRS, "eagle3"}:
        if config.draft.checkpoint:
            ledger.changed("draft.checkpoint", config.draft.checkpoint, "", f"The method {wanted} has no draft.")
        for key in [key for key in values if key.startswith("draft.")]:
            del values[key]
    elif draft:
        values["draft.checkpoint"] = draft
        ledger.changed(
            "draft.checkpoint", config.draft.checkpoint, f"draft.checkpoint: {draft}", "As it was asked for."
        )
    if not old == wanted == "ngram":
        _drop(ledger, "speculation.ngram_size", "It is ngram's longest match there.")


def _models(ledger: Ledger, config: DeployConfig, method: str) -> None:
    for role, model in (("target", config.target), ("draft", config.draft)):
        if role == "draft" and method not in {*PAIRS, "eagle3"}:
            continue
        if model.precision not in PRECISIONS[_PROFILE]:
            why = (
                f"It serves checkpoints as they are stored: quantise one before and name its folder {role}.checkpoint."
            )
            ledger.lost(f"{role}.precision", model.precision, why)
            ledger.values.pop(f"{role}.precision", None)
        if model.kv_cache == "int8":
            ledger.lost(f"{role}.kv_cache", "int8", "Its PyTorch backend has no INT8 KV cache; fp8 and auto are left.")
            ledger.values.pop(f"{role}.kv_cache", None)
        for key, why in _ENGINE_ONLY.items():
            _drop(ledger, f"{role}.{key}", why)
    for key in ("tp_size", "pp_size", "ep_size"):
        if f"draft.{key}" in ledger.values:
            to = f"as target.{key}: {getattr(config.target, key)}"
            ledger.changed(f"draft.{key}", str(ledger.values.pop(f"draft.{key}")), to, "One division for both.")


def _drafts(ledger: Ledger, config: DeployConfig) -> None:
    speculation = config.speculation
    if "speculation.max_draft_tokens" in ledger.values:
        ledger.values.pop("speculation.max_draft_tokens")
        to = f"speculation.num_draft_tokens: {speculation.num_draft_tokens}"
        why = "A request cannot ask for another number of drafts."
        ledger.changed("speculation.max_draft_tokens", str(speculation.max_draft_tokens), to, why)


def _arguments(ledger: Ledger, config: DeployConfig) -> None:
    """Turn the KV cache's share and the engines' parameters into arguments of the LLM API where it has them."""
    lines = list(config.llmapi.args)
    target, draft = (ledger.values.pop(f"{role}.kv_fraction", 0.0) for role in ("target", "draft"))
    shares = [share for share in (target, draft) if isinstance(share, float) and share > 0]
    if shares:
        total = shares[0] if len(shares) == 1 else shares[0] + (1 - shares[0]) * shares[1]
        line = f"kv_cache_config.free_gpu_memory_fraction={total:.2f}"
        lines.append(line)
        why = "One share for the caches of both; the draft's was of what the target's engine left."
        ledger.changed(
            "target.kv_fraction, draft.kv_fraction", ", ".join(map(str, shares)), f"llmapi.args: {line}", why
        )
    kept = []
    for override in read_overrides(config.repo.parameters):
        where = f"repo.parameters {override.model} {override.key}"
        if override.model == names.PREPROCESSING:
            kept.append(f"{override.model} {override.key}={override.value}")
            ledger.kept(where, override.value, "repo.parameters")
        elif argument := _argument(override):
            lines.append(argument)
            ledger.kept(where, override.value, f"llmapi.args: {argument}")
        else:
            ledger.lost(where, override.value, "The LLM API has no such argument, or has no engine of that name.")
    _put(ledger, "llmapi.args", tuple(lines))
    _put(ledger, "repo.parameters", tuple(kept))


def _argument(override: Override) -> str:
    rule = _ARGUMENTS.get(override.key) if override.model == names.TARGET else None
    return "" if rule is None else rule(override.value.strip())


def _as(path: str) -> Callable[[str], str]:
    return lambda value: f"{path}={value.lower() if value.lower() in {'true', 'false'} else value}"


def _list_of(path: str) -> Callable[[str], str]:
    return lambda value: f"{path}=[{value}]"


_ARGUMENTS: Final[Mapping[str, Callable[[str], str]]] = {
    "kv_cache_host_memory_bytes": _as("kv_cache_config.host_cache_size"),
    "kv_cache_onboard_blocks": _as("kv_cache_config.onboard_blocks"),
    "max_tokens_in_paged_kv_cache": _as("kv_cache_config.max_tokens"),
    "max_attention_window_size": _list_of("kv_cache_config.max_attention_window"),
    "sink_token_length": _as("kv_cache_config.sink_token_length"),
    "enable_chunked_context": _as("enable_chunked_prefill"),
    "guided_decoding_backend": _as("guided_decoding_backend"),
    "iter_stats_max_iterations": _as("iter_stats_max_iterations"),
    "request_stats_max_iterations": _as("request_stats_max_iterations"),
    "batch_scheduler_policy": lambda value: f"scheduler_config.capacity_scheduler_policy={value.upper()}",
}


def _repository(ledger: Ledger, config: DeployConfig) -> None:
    engines = set(names.ENGINE_MODELS.values())
    kept = []
    for limit in read_overrides(config.repo.rate_limits):
        line = f"{limit.model} {limit.key}={limit.value}"
        if limit.model in engines:
            ledger.lost("repo.rate_limits", line, "There is no such model.")
        else:
            kept.append(line)
    _put(ledger, "repo.rate_limits", tuple(kept))
    new = f"{config.repo.path.rstrip('/')}-llmapi"
    ledger.values["repo.path"] = new
    ledger.changed("repo.path", config.repo.path, f"repo.path: {new}", "The old repository stays until you remove it.")
    if config.repo.engine_root:
        why = "It is the folder of the checkpoints now, which are served from there."
        ledger.changed("repo.engine_root", config.repo.engine_root, f"repo.engine_root: {config.repo.engine_root}", why)


def _drop(ledger: Ledger, key: str, why: str) -> None:
    """Take a key out, with a note when it was given."""
    if key in ledger.values:
        ledger.lost(key, as_yaml(ledger.values.pop(key)), why)


def _put(ledger: Ledger, key: str, lines: tuple[str, ...]) -> None:
    ledger.values.pop(key, None)
    if lines:
        ledger.values[key] = lines


def relative_keys() -> Iterator[str]:
    """Yield the keys that name a path relative to the configuration's folder."""
    yield from ("target.checkpoint", "target.tokenizer", "draft.checkpoint", "draft.tokenizer")
    yield from ("build.engines_dir", "repo.path", "report.path", "load.prompts")


def _error(code: str, message: str, where: str, hint: str) -> Finding:
    return Finding(severity="error", code=f"migrate.{code}", message=message, hint=hint, where=where)
