"""Checks of speculation: what a caller asks of its engines, and what an engine that drafts by itself needs.

The formulae and limits are those of TensorRT-LLM's builder and backend; see ``specdeploy.engine.tensorrt_llm.methods``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from specdeploy.engine.tensorrt_llm.methods import MODE_NAMES, NO_SPECULATION, lookahead_draft_len
from specdeploy.triton.lint.callers import Caller, callers
from specdeploy.triton.lint.loaded import Engine, Repository, error, warning, whole_number
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.findings import Finding

_EXTERNAL: Final = MODE_NAMES["DRAFT_TOKENS_EXTERNAL"]
# decoding_mode of the backend -> speculative mode of the engine.
_DECODING_MODES: Final = {
    "medusa": MODE_NAMES["MEDUSA"],
    "lookahead": MODE_NAMES["LOOKAHEAD_DECODING"],
    "redrafter": MODE_NAMES["EXPLICIT_DRAFT_TOKENS"],
    "eagle": MODE_NAMES["EAGLE"],
}
_LOOKAHEAD: Final = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
_CHOICES: Final = ("medusa_choices", "eagle_choices")
_PATH: Final = re.compile(r"\{\s*(\d+(?:\s*,\s*\d+)*)\s*\}")


def targets_and_drafts(repository: Repository) -> Iterator[Finding]:
    """The engines that a caller drafts with are set up for it."""
    seen: set[str] = set()
    for caller in callers(repository):
        pair = [repository.engines.get(name) for name in dict.fromkeys((caller.target, caller.draft))]
        if not caller.sends_drafts:
            continue
        for engine in pair:
            if engine is not None and engine.name not in seen:
                seen.add(engine.name)
                yield from _called_in_rounds(caller, engine)
        target, draft = repository.engines.get(caller.target), repository.engines.get(caller.draft)
        if target is not None:
            yield from _verifies(caller, target)
        if target is not None and draft is not None and target is not draft:
            yield from _pair(caller, target, draft)


def built_in(repository: Repository) -> Iterator[Finding]:
    """An engine that drafts by itself was built for the method that its model asks for."""
    for engine in repository.engines.values():
        yield from _decoding_mode(engine)
        yield from _lookahead(engine)
        for key in _CHOICES:
            if key in engine.parameters:
                yield from _choices(engine, key)


def vocabularies(repository: Repository) -> Iterator[Finding]:
    """Where the draft's logits go to the target unless a request says otherwise, both are equally wide."""
    facts = repository.section("engines")
    if all(engine.said().vocab_size is not None for engine in repository.engines.values()):
        return  # the engines themselves were compared
    sizes = [facts[role].get("vocab_size") for role in names.ENGINE_MODELS if isinstance(facts.get(role), dict)]
    sends = repository.section("defaults").get("use_draft_logits")
    if sends is True and len(sizes) == len(names.ENGINE_MODELS) and None not in sizes and sizes[0] != sizes[1]:
        yield error(
            "engine.vocabulary-differs",
            f"the target's engine has {sizes[0]} tokens, the draft's {sizes[1]}, and use_draft_logits is on",
            where=names.MANIFEST,
            hint="set use_draft_logits to false, or use a draft of the same family",
        )


def _called_in_rounds(caller: Caller, engine: Engine) -> Iterator[Finding]:
    config = engine.model.config
    if config is not None and config.decoupled:
        yield error(
            "engine.decoupled",
            "the decoder calls this engine for one answer at a time, so it must not be decoupled",
            where=engine.model.at("decoupled"),
            hint="leave model_transaction_policy out",
        )
    reuse = engine.parameters.get("enable_kv_cache_reuse", "")
    if reuse.lower() not in {"true", "1"}:
        yield error(
            "engine.kv-reuse",
            f"enable_kv_cache_reuse is {reuse!r}: every round would compute the whole text again",
            where=engine.at("enable_kv_cache_reuse"),
            hint='set it to "true"',
        )
    # Our decoder asks for what it needs, request by request.
    if engine.parameters.get("exclude_input_in_output", "").lower() in {"true", "1"} and not caller.ours:
        yield error(
            "engine.exclude-input",
            f'exclude_input_in_output is "true", and {caller.model.directory} cuts the prompt off itself: it sees no '
            "draft",
            where=engine.at("exclude_input_in_output"),
            hint='set it to "false"',
        )
    yield from _reuses(engine)


def _reuses(engine: Engine) -> Iterator[Finding]:
    """Yield why KV-cache blocks are not used again whatever the parameter says; the builder does this in silence."""
    said = engine.said()
    off = "paged context attention is off" if said.paged_context_fmha is False else ""
    if said.kv_cache_type not in {None, "paged"}:
        off = f"its KV cache is {said.kv_cache_type}, not paged"
    if off:
        yield error(
            "engine.no-reuse",
            f"{off} in the engine of {engine.name}, so KV-cache blocks are not used again, which every round needs",
            where=engine.at("gpt_model_path"),
            hint="build with --use_paged_context_fmha=enable; INT8 KV caches turn it off",
        )


def _verifies(caller: Caller, target: Engine) -> Iterator[Finding]:
    said = target.said()
    if said.mode is not None and said.mode != _EXTERNAL:
        yield error(
            "engine.mode",
            f"{caller.model.directory} sends draft tokens to {target.name}, whose engine was built for "
            f"{_mode(said.mode)}",
            where=target.at("gpt_model_path"),
            hint="build the target with --speculative_decoding_mode=draft_tokens_external",
        )
    elif said.max_draft_len is not None and said.max_draft_len < (caller.drafts or 1):
        yield error(
            "engine.draft-length",
            f"{caller.model.directory} sends up to {caller.drafts or 1} draft tokens, and the engine of {target.name} "
            f"takes {said.max_draft_len}",
            where=target.at("gpt_model_path"),
            hint=f"build the target with --max_draft_len={caller.drafts or 1} or more, or draft less",
        )


def _pair(caller: Caller, target: Engine, draft: Engine) -> Iterator[Finding]:
    if draft.said().mode == _EXTERNAL:
        yield warning(
            "engine.mode",
            f"the engine of {draft.name} takes draft tokens, and nobody sends a draft any: such an engine may end a "
            "request after one step",
            where=draft.at("gpt_model_path"),
            hint="build the draft without --speculative_decoding_mode",
        )
    if target.path and target.path == draft.path:
        yield warning(
            "engine.same",
            f"target and draft both load {target.path!r}: drafting costs what it saves",
            where=draft.at("gpt_model_path"),
            hint="name the draft's engine",
        )
    widths = (target.said().logits_width, draft.said().logits_width)
    if caller.sends_logits and None not in widths and widths[0] != widths[1]:
        yield error(
            "engine.vocabulary-differs",
            f"the logits of {draft.name} are {widths[1]} wide and those of {target.name} {widths[0]}",
            where=caller.at("use_draft_logits"),
            hint="set use_draft_logits to false, or use a draft of the same family",
        )


def _decoding_mode(engine: Engine) -> Iterator[Finding]:
    wanted = _DECODING_MODES.get(engine.parameters.get("decoding_mode", ""))
    mode = engine.said().mode
    if wanted is not None and mode is not None and mode != wanted:
        yield error(
            "engine.decoding-mode",
            f"decoding_mode is {engine.parameters['decoding_mode']!r}, and the engine was built for {_mode(mode)}",
            where=engine.at("decoding_mode"),
            hint="build the engine for that method, or leave decoding_mode empty",
        )


def _lookahead(engine: Engine) -> Iterator[Finding]:
    given = {key: engine.parameters[key] for key in _LOOKAHEAD if key in engine.parameters}
    if len(given) < len(_LOOKAHEAD):
        if engine.parameters.get("decoding_mode") == "lookahead":
            missing = ", ".join(key for key in _LOOKAHEAD if key not in given)
            yield error(
                "engine.lookahead",
                f"decoding_mode is 'lookahead', and {missing} is not set",
                where=engine.at("decoding_mode"),
                hint="set all three to what the engine was built for",
            )
        return
    length, mode = engine.said().max_draft_len, engine.said().mode
    window, ngram, verification = (whole_number(given[key]) or 0 for key in _LOOKAHEAD)
    if length is None or mode not in {None, _DECODING_MODES["lookahead"]} or not (window and ngram and verification):
        return
    tokens = lookahead_draft_len(window, ngram, verification)
    if tokens != length:
        yield error(
            "engine.lookahead",
            f"window {window}, n-gram {ngram} and verification set {verification} are {tokens} draft tokens, and the "
            f"engine was built for {length}",
            where=engine.at(_LOOKAHEAD[0]),
            hint="build with the --max_draft_len of these three, exactly",
        )


def _choices(engine: Engine, key: str) -> Iterator[Finding]:
    text, said = engine.parameters[key], engine.said()
    paths = [match[1].split(",") for match in _PATH.finditer(text)]
    if _PATH.sub("", text).strip(" ,{}\t") or not paths:
        yield error(
            "engine.choices",
            f"{key} is {text[:40]!r}",
            where=engine.at(key),
            hint="paths such as {0},{0,0},{1}",
        )
        return
    depth = max(map(len, paths))
    if said.heads is not None and depth > said.heads:
        yield error(
            "engine.choices",
            f"{key} goes {depth} deep, and the engine has {said.heads} heads or layers to draft with",
            where=engine.at(key),
            hint=f"paths of at most {said.heads} numbers",
        )
    elif said.max_draft_len is not None and len(paths) > said.max_draft_len:
        yield error(
            "engine.choices",
            f"{key} has {len(paths)} paths, and the engine takes {said.max_draft_len} draft tokens",
            where=engine.at(key),
            hint="fewer paths, or build with a larger --max_draft_len",
        )


def _mode(mode: int) -> str:
    if mode == NO_SPECULATION:
        return "no speculation"
    return next((name.lower() for name, bit in MODE_NAMES.items() if bit == mode), f"the mode {mode}")
