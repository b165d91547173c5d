"""Checks of the draft-target deployment: engines, decoder parameters, and what must agree between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint.loaded import Repository, error, warning
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.findings import Finding
    from specdeploy.triton.pbtxt import ModelConfig

_BACKEND: Final = "tensorrtllm"
_REFERENCES: Final = ("tensorrt_llm_model_name", "tensorrt_llm_draft_model_name")
# What makes an engine directory complete: a CPU engine of ours, or TensorRT-LLM's.
_COMPLETE: Final = (frozenset({"genai_config.json", "model.onnx"}), frozenset({"config.json", "rank0.engine"}))
# Decoder parameter -> the least value that makes sense.
_COUNTS: Final = {"num_draft_tokens": 0, "max_inflight": 1, "max_seq_len": 2, "control_slice_tokens": 1}
_FLAGS: Final = ("use_draft_logits", "exclude_input_in_output")
# TensorRT-LLM takes this fraction of the free memory when nothing is said.
_DEFAULT_KV_FRACTION: Final = "0.9"


def references(repository: Repository) -> Iterator[Finding]:
    """Models that parameters name exist: a BLS model finds out only at its first request."""
    for name, config in repository.configs().items():
        for key in _REFERENCES:
            value = config.parameters.get(key, "")
            if value and "${" not in value and value not in repository.models:
                yield error(
                    "bls.unknown-model",
                    f"{key} is {value!r}, which is not in the repository",
                    where=repository.models[name].where,
                    hint=f"one of {', '.join(sorted(repository.models))}",
                )


def engines(repository: Repository) -> Iterator[Finding]:
    """Engines are where the configuration says, complete, and set up to verify drafts."""
    verifying = _referenced(repository)
    for name, config in repository.configs().items():
        if config.backend == _BACKEND:
            where = repository.models[name].where
            yield from _engine_files(repository, config, where)
            if name in verifying:
                yield from _engine_parameters(config, where)
    yield from _memory(repository, verifying)


def decoder(repository: Repository) -> Iterator[Finding]:
    """The decoder's parameters make sense, by themselves and against the engines."""
    config = repository.configs().get(names.DECODER)
    if config is None:
        return
    where = repository.models[names.DECODER].where
    wrong = [*_counts(config, where), *_flags(config, where)]
    yield from wrong
    if not config.decoupled:
        yield error("decoder.not-decoupled", "the decoder streams, so it must be decoupled", where=where)
    if not wrong:
        yield from _lengths(config, where)
        yield from _against_engines(repository, config, where)


def vocabularies(repository: Repository) -> Iterator[Finding]:
    """Target and draft name the same tokens: their engines' vocabularies have one size."""
    facts = (repository.manifest or {}).get("engines", {})
    sizes = {role: facts.get(role, {}).get("vocab_size") for role in names.ENGINE_MODELS}
    if None in sizes.values() or len(set(sizes.values())) == 1:
        return
    yield error(
        "engine.vocabulary-differs",
        f"the target's engine has {sizes['target']} tokens, the draft's {sizes['draft']}",
        where=names.MANIFEST,
        hint="use a draft of the same family; `specdeploy check` compares the two",
    )


def engine_limits(repository: Repository) -> Iterator[Finding]:
    """The engines were built for sequences as long as the decoder lets in."""
    document = repository.manifest or {}
    wanted = document.get("defaults", {}).get("max_seq_len")
    for role, facts in document.get("engines", {}).items():
        built = facts.get("max_seq_len")
        if wanted is not None and built is not None and wanted > built:
            yield error(
                "engine.too-short",
                f"requests may be {wanted} tokens long, and the {role}'s engine holds {built}",
                where=names.MANIFEST,
                hint="lower build.max_seq_len, or build the engine for longer sequences",
            )


def _referenced(repository: Repository) -> dict[str, str]:
    """Return the engines that a decoder with a draft uses: model -> the parameter that names it."""
    pairs = [config.parameters for config in repository.configs().values() if config.parameters.get(_REFERENCES[1])]
    return {parameters[key]: key for parameters in pairs for key in _REFERENCES if key in parameters}


def _engine_files(repository: Repository, config: ModelConfig, where: str) -> Iterator[Finding]:
    path = config.parameters.get("gpt_model_path", "")
    if not path:
        yield error("engine.path-missing", "gpt_model_path is not set", where=where)
        return
    if repository.engine_files is None or "${" in path:
        return
    files = repository.engine_files(path)
    build = "build it with `specdeploy build`, then write the repository again"
    if files is None:
        yield error("engine.missing", f"gpt_model_path is {path!r}: no such directory", where=where, hint=build)
    elif not any(needed <= files for needed in _COMPLETE):
        listed = ", ".join(sorted(files)) or "nothing"
        yield error(
            "engine.incomplete", f"{path!r} is not a complete engine; it holds {listed}", where=where, hint=build
        )


def _engine_parameters(config: ModelConfig, where: str) -> Iterator[Finding]:
    if config.decoupled:
        yield error(
            "engine.decoupled",
            "the decoder calls this engine for one answer at a time, so it must not be decoupled",
            where=where,
        )
    reuse = config.parameters.get("enable_kv_cache_reuse", "")
    if reuse.lower() not in {"true", "1"}:
        yield error(
            "engine.kv-reuse",
            f"enable_kv_cache_reuse is {reuse!r}: every round would compute the whole text again",
            where=where,
            hint='set it to "true"',
        )
    if config.parameters.get("exclude_input_in_output", "").lower() == "true":
        yield error(
            "engine.exclude-input",
            'exclude_input_in_output is "true": decoders that cut the prompt off themselves then see no draft',
            where=where,
            hint='set it to "false"',
        )


def _memory(repository: Repository, engines: Mapping[str, str]) -> Iterator[Finding]:
    """Two engines that each want most of the memory: which one starves depends on who loads first."""
    configs = repository.configs()
    shares = {
        name: configs[name].parameters.get("kv_cache_free_gpu_mem_fraction") or _DEFAULT_KV_FRACTION
        for name in engines
        if name in configs and not configs[name].parameters.get("gpu_device_ids")
    }
    values = [value for value in map(_number, shares.values()) if value is not None]
    if len(values) > 1 and sum(values) >= 1:
        yield warning(
            "engine.kv-fractions",
            f"the engines take {' and '.join(shares.values())} of the memory that is free when each of them loads",
            where=", ".join(shares),
            hint="kv_cache_free_gpu_mem_fraction: together below 1",
        )


def _counts(config: ModelConfig, where: str) -> Iterator[Finding]:
    for key, least in _COUNTS.items():
        value = config.parameters.get(key)
        if value is not None and not (value.isascii() and value.isdecimal() and int(value) >= least):
            yield error("decoder.parameter", f"{key} is {value!r}", where=where, hint=f"a whole number from {least} up")


def _flags(config: ModelConfig, where: str) -> Iterator[Finding]:
    for key in _FLAGS:
        value = config.parameters.get(key)
        if value is not None and value not in {"true", "false"}:
            yield error("decoder.parameter", f"{key} is {value!r}", where=where, hint='"true" or "false"')


def _lengths(config: ModelConfig, where: str) -> Iterator[Finding]:
    drafts, longest = (int(config.parameters.get(key, -1)) for key in ("num_draft_tokens", "max_seq_len"))
    if longest >= 0 and drafts + 1 >= longest:
        yield error(
            "decoder.drafts-too-long",
            f"num_draft_tokens is {drafts}; with a prompt and the verified token they do not fit max_seq_len {longest}",
            where=where,
        )


def _against_engines(repository: Repository, config: ModelConfig, where: str) -> Iterator[Finding]:
    for key in _REFERENCES:
        name = config.parameters.get(key, "")
        engine = repository.configs().get(name)
        if engine is None:
            continue
        longest = _number(engine.parameters.get("specdeploy_max_seq_len"))
        if longest is not None and int(config.parameters.get("max_seq_len", 0)) > longest:
            yield error(
                "decoder.sequence-too-long",
                f"max_seq_len is {config.parameters['max_seq_len']}, and the engine {name} holds {longest:g}",
                where=where,
            )
        sequences = _number(engine.parameters.get("specdeploy_max_sequences"))
        if sequences is not None and int(config.parameters.get("max_inflight", 0)) > sequences:
            yield warning(
                "decoder.inflight",
                f"max_inflight is {config.parameters['max_inflight']}, and {name} keeps the KV cache of {sequences:g}",
                where=where,
                hint="requests above that compute their text again each round",
            )


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
