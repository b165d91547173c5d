"""Checks of our decoder's parameters, by themselves and against the engines that it calls."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint.callers import Caller, callers
from specdeploy.triton.lint.loaded import Engine, Repository, error, warning, whole_number
from specdeploy.triton.lint.unread import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.findings import Finding

# Decoder parameter -> the least value that makes sense.
_COUNTS: Final = {
    "num_draft_tokens": 0,
    "max_draft_tokens": 1,
    "max_inflight": 1,
    "max_seq_len": 2,
    "control_slice_tokens": 1,
    "draft_timeout_ms": 1,
    "ngram_size": 1,
}
# What a request needs, as ids or as text; with ids, max_tokens is as good as request_output_len.
_WITH_IDS: Final = frozenset({"input_ids", "input_lengths", "max_tokens"})
_WITH_TEXT: Final = frozenset({"text_input", "max_tokens"})
_SCHEDULE: Final = re.compile(r"\d+:\d+(,\d+:\d+)*", re.ASCII)
_FLAGS: Final = ("use_draft_logits", "adaptive_drafts", "exclude_input_in_output")


def decoder(repository: Repository) -> Iterator[Finding]:
    """The decoder streams where its front doors do, and its parameters make sense."""
    for caller in callers(repository):
        if caller.ours:
            yield from _decoder(repository, caller)


def _decoder(repository: Repository, caller: Caller) -> Iterator[Finding]:
    doors = _decoupled_doors(repository, caller.model.directory)
    if doors and not caller.config.decoupled:
        yield error(
            "decoder.not-decoupled",
            f"{', '.join(doors)} can stream by the configuration, but the decoder behind it is not decoupled, and "
            "refuses requests that stream",
            where=caller.model.where,
            hint="model_transaction_policy { decoupled: true } here, or in no model: repo.decoupled sets all of them",
        )
    yield from _inputs(repository, caller)
    yield from _arguments(caller)
    wrong = [*_counts(caller), *_flags(caller), *_schedule(caller)]
    yield from wrong
    if not wrong:
        yield from _lengths(caller)
        for name in dict.fromkeys((caller.target, caller.draft)):
            engine = repository.engines.get(name)
            if engine is not None:
                yield from _against(caller, engine)


def _decoupled_doors(repository: Repository, decoder: str) -> tuple[str, ...]:
    """Return the ensembles around the decoder that may send several responses."""
    return tuple(
        name
        for name, config in repository.configs().items()
        if config.decoupled and decoder in {step.model_name for step in config.steps}
    )


def _inputs(repository: Repository, caller: Caller) -> Iterator[Finding]:
    """Yield what an ensemble does not feed: to Triton all inputs are optional, since a prompt is text or ids."""
    decoder, reads_text = caller.model.directory, "preprocessing_model_name" in caller.parameters
    for name, config in repository.configs().items():
        for number, step in enumerate(config.steps, 1):
            if step.model_name != decoder:
                continue
            fed = {"max_tokens" if tensor == "request_output_len" else tensor for tensor in step.input_map}
            needed = _WITH_TEXT if "input_ids" not in fed and reads_text else _WITH_IDS
            for missing in sorted(needed - fed):
                yield error(
                    "decoder.input-missing",
                    f"step {number} ({decoder}) does not feed {missing}, without which every request is refused",
                    where=repository.models[name].where,
                    hint=f'input_map {{ key: "{missing}" ... }}',
                )


def _arguments(caller: Caller) -> Iterator[Finding]:
    """Yield that the LLM API's arguments are not there: the decoder loads the model that they name."""
    file = caller.parameters.get("model_yaml")
    for version in caller.model.versions if file is not None else ():
        if not size_of(caller.model.files.get(f"{version}/{file}", b"")):
            yield error(
                "decoder.arguments",
                f"model_yaml is {file!r}, which is missing or empty",
                where=f"{caller.model.directory}/{version}/{file}",
                hint="write the repository again with `specdeploy repo`",
            )


def _counts(caller: Caller) -> Iterator[Finding]:
    for key, least in _COUNTS.items():
        value = caller.parameters.get(key)
        number = whole_number(value)
        if value is not None and (number is None or number < least):
            yield error(
                "decoder.parameter",
                f"{key} is {value!r}",
                where=caller.at(key),
                hint=f"a whole number from {least} up",
            )


def _flags(caller: Caller) -> Iterator[Finding]:
    for key in _FLAGS:
        value = caller.parameters.get(key)
        if value is not None and value not in {"true", "false"}:
            yield error("decoder.parameter", f"{key} is {value!r}", where=caller.at(key), hint='"true" or "false"')


def _schedule(caller: Caller) -> Iterator[Finding]:
    value = caller.parameters.get("draft_len_schedule", "")
    if value and not _SCHEDULE.fullmatch(value):
        yield error(
            "decoder.parameter",
            f"draft_len_schedule is {value!r}",
            where=caller.at("draft_len_schedule"),
            hint='"requests:drafts,...", such as "1:4,4:2,8:0"',
        )


def _lengths(caller: Caller) -> Iterator[Finding]:
    drafts, longest = int(caller.parameters["num_draft_tokens"]), int(caller.parameters.get("max_seq_len", -1))
    if 0 <= longest <= drafts + 1:
        yield error(
            "decoder.drafts-too-long",
            f"num_draft_tokens is {drafts}; with a prompt and the verified token they do not fit max_seq_len {longest}",
            where=caller.at("num_draft_tokens"),
            hint="draft less, or let longer sequences in",
        )


def _against(caller: Caller, engine: Engine) -> Iterator[Finding]:
    longest = int(caller.parameters.get("max_seq_len", 0))
    # A limit of our stand-in is set in its configuration; NVIDIA's engines have theirs built in.
    holds = [whole_number(engine.parameters.get("specdeploy_max_seq_len")), engine.said().max_seq_len]
    short = [limit for limit in holds if limit is not None and longest > limit]
    if short:
        yield error(
            "decoder.sequence-too-long",
            f"max_seq_len is {longest}, and the engine of {engine.name} holds {min(short)}",
            where=caller.at("max_seq_len"),
            hint="lower build.max_seq_len, or build the engine for longer sequences",
        )
    inflight = int(caller.parameters.get("max_inflight", 0))
    caches = [whole_number(engine.parameters.get("specdeploy_max_sequences")), engine.said().max_batch_size]
    few = [count for count in caches if count is not None and inflight > count]
    if few:
        yield warning(
            "decoder.inflight",
            f"max_inflight is {inflight}, and {engine.name} keeps the KV cache of {min(few)}",
            where=caller.at("max_inflight"),
            hint="requests above that compute their text again each round",
        )
