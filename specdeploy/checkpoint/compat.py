"""Do two checkpoints belong together as target and draft? Everything that speaks against it, at once.

Compares values that were read before; touches no file and knows no engine. An ``error`` means that the deployment
cannot be right (or cannot be built), a ``warning`` that it will probably disappoint, an ``info`` that it is worth
knowing. Codes are stable.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from specdeploy.checkpoint.trtllm import padded_vocab_size
from specdeploy.findings import Finding, Severity
from specdeploy.planning.precision import precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from specdeploy.checkpoint.info import CheckpointInfo, TokenizerInfo

_SHOWN: Final = 3
# Beyond this the chance that every draft is accepted is small for any real draft, and each one still costs a pass.
_MANY_DRAFT_TOKENS: Final = 16
_SAME_TOKENIZER: Final = "Take a draft that was made for the target's tokenizer."


def check_pair(  # all but the two checkpoints are keywords
    target: CheckpointInfo,
    draft: CheckpointInfo,
    *,
    method: str,
    max_seq_len: int,
    num_draft_tokens: int,
    use_draft_logits: bool = True,
    precisions: tuple[str, str] | None = None,
    tp_sizes: tuple[int, int] = (1, 1),
) -> tuple[Finding, ...]:
    """Return all findings about the pair, errors first.

    Args:
        target: The large checkpoint.
        draft: The small one.
        method: The speculative method; only ``draft_target`` takes a draft checkpoint.
        max_seq_len: Longest prompt plus answer that the deployment allows, in tokens.
        num_draft_tokens: Tokens proposed each round.
        use_draft_logits: Whether sampled requests compare the two distributions, which needs equal vocabulary sizes.
        precisions: Of the target's and the draft's engine, such as ``("fp32", "int8")``; None compares the checkpoints'
            own bytes.
        tp_sizes: Ranks that share a layer of the target's and of the draft's engine; each pads its vocabulary to a
            multiple of its own.
    """
    findings = [
        *_check_method(method),
        *_check_tokenizers(target.tokenizer, draft.tokenizer),
        *_check_special_ids(target, draft),
        *_check_embedding_rows(target, draft),
        *(
            _check_padding(target, draft, tp_sizes, use_draft_logits=use_draft_logits)
            if _same_tokens(target.tokenizer, draft.tokenizer)
            # Padding does not help a draft that speaks of other tokens.
            else ()
        ),
        *_check_context({"target": target, "draft": draft}, max_seq_len),
        *_check_rope(target, draft),
        *_check_draft_tokens(num_draft_tokens, max_seq_len),
        *_check_cost(target, draft, precisions),
    ]
    order: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(findings, key=lambda finding: order[finding.severity]))


def _same_tokens(ours: TokenizerInfo, theirs: TokenizerInfo) -> bool:
    return ours.digest == theirs.digest or ours.vocab == theirs.vocab


def check_alone(target: CheckpointInfo, *, max_seq_len: int) -> tuple[Finding, ...]:
    """Return all findings about a target whose method takes neither a draft nor a head."""
    return tuple(_check_context({"target": target}, max_seq_len))


def _check_method(method: str) -> Iterator[Finding]:
    if method != "draft_target":
        yield Finding(
            severity="error",
            code="method.unknown",
            message=f"the method {method!r} does not pair two checkpoints",
            hint="Use draft_target.",
            where="speculation.method",
        )


def _check_tokenizers(target: TokenizerInfo, draft: TokenizerInfo) -> Iterator[Finding]:
    if target.digest != draft.digest:
        if target.kind != draft.kind:
            yield _tokenizer_error("kind-differs", f"the target's tokenizer is {target.kind}, the draft's {draft.kind}")
        yield from _check_tokens(target, draft)
        yield from _check_parts(target, draft)
    if target.chat_template != draft.chat_template:
        yield Finding(
            severity="warning",
            code="tokenizer.chat-template-differs",
            message=f"chat templates differ: target {_size(target.chat_template)}, draft {_size(draft.chat_template)}",
            hint="The target's is used. A draft tuned on another format guesses worse; compare the acceptance.",
            where="draft",
        )


def _check_tokens(target: TokenizerInfo, draft: TokenizerInfo) -> Iterator[Finding]:
    """Name the first tokens that differ, each once: as an added token where it is one in either."""
    ours, theirs = {**target.vocab, **target.added_tokens}, {**draft.vocab, **draft.added_tokens}
    differing = _differing(ours, theirs)
    added = {*target.added_tokens, *draft.added_tokens}
    plain = [token for token in differing if token not in added]
    if plain:
        message = f"{len(plain)} tokens of the vocabularies differ: {_named(plain, ours, theirs)}"
        yield _tokenizer_error("vocabulary-differs", message)
    status = _differing(target.added_tokens, draft.added_tokens)
    if special := sorted({*(token for token in differing if token in added), *status}, key=_by_id(ours, theirs)):
        message = f"{len(special)} added tokens differ: {_named(special, target.added_tokens, draft.added_tokens)}"
        yield _tokenizer_error("added-tokens-differ", message)


def _check_parts(target: TokenizerInfo, draft: TokenizerInfo) -> Iterator[Finding]:
    merges = "scores" if target.kind == "Unigram" else "merge rules"
    parts = (
        ("merges-differ", f"the tokenizers' {merges} differ", target.merges_digest, draft.merges_digest),
        ("options-differ", "the tokenizers' options differ", target.options_digest, draft.options_digest),
        ("normalizer-differs", "the normalizers differ", target.normalizer_digest, draft.normalizer_digest),
        ("pre-tokenizer-differs", "the pre-tokenizers differ", target.pre_tokenizer_digest, draft.pre_tokenizer_digest),
    )
    for code, message, ours, theirs in parts:
        if ours != theirs:
            yield _tokenizer_error(code, f"{message}, so one text becomes different ids")
    # Only the target's tokenizer runs in the deployment, and what it adds around a text the draft sees as well.
    for name, ours, theirs in (
        ("post-processor", target.post_processor_digest, draft.post_processor_digest),
        ("decoder", target.decoder_digest, draft.decoder_digest),
    ):
        if ours != theirs:
            message = f"the tokenizers' {name}s differ; the target's is used"
            yield Finding(severity="warning", code=f"tokenizer.{name}-differs", message=message, where="draft")


def _check_special_ids(target: CheckpointInfo, draft: CheckpointInfo) -> Iterator[Finding]:
    roles: tuple[tuple[str, Severity, object, object, str], ...] = (
        ("bos", "warning", target.bos_token_id, draft.bos_token_id, "The draft may guess worse at the start."),
        ("eos", "warning", set(target.eos_token_ids), set(draft.eos_token_ids), "The target's end an answer."),
        ("pad", "info", target.pad_token_id, draft.pad_token_id, "The target's is used."),
    )
    for role, severity, ours, theirs, hint in roles:
        if ours != theirs:
            message = f"the {role.upper()} ids differ: target {_id_text(ours)}, draft {_id_text(theirs)}"
            yield Finding(severity=severity, code=f"ids.{role}-differs", message=message, hint=hint, where="draft")
    if not target.eos_token_ids:
        yield Finding(
            severity="warning",
            code="ids.eos-missing",
            message="the target names no EOS id: answers end only at their token limit or a stop word",
            hint="Set eos_token_id in its generation_config.json.",
            where="target",
        )


def _check_embedding_rows(target: CheckpointInfo, draft: CheckpointInfo) -> Iterator[Finding]:
    """Check that both have a row for every id; 128000 rows, say, lack the 256 special tokens of a Llama 3 tokenizer."""
    needed = target.tokenizer.size
    for role, info in (("target", target), ("draft", draft)):
        if info.vocab_size < needed:
            yield Finding(
                severity="error",
                code="vocabulary.too-small",
                message=f"the {role} has {info.vocab_size} embedding rows, the target's tokenizer uses {needed} ids",
                hint=f"Resize the {role}'s embedding to at least {needed} rows: {_resize(needed)}.",
                where=role,
            )


def _check_padding(
    target: CheckpointInfo, draft: CheckpointInfo, tp_sizes: tuple[int, int], *, use_draft_logits: bool
) -> Iterator[Finding]:
    """Compare the widths of the logits: the rows, which are often padded, padded once more for tensor parallelism.

    Token match compares ids, so widths may differ; rejection sampling compares whole distributions, so they may not
    (github.com/NVIDIA/TensorRT-LLM/issues/2789).
    """
    rows = (target.vocab_size, draft.vocab_size)
    ours, theirs = (padded_vocab_size(size, tp) for size, tp in zip(rows, tp_sizes, strict=True))
    if rows[0] == rows[1] and ours == theirs:
        return
    message = f"vocab_size is {rows[0]} in the target and {rows[1]} in the draft"
    if (ours, theirs) != rows:
        message += f", padded to {ours} and {theirs} for tp_size {tp_sizes[0]} and {tp_sizes[1]}"
    message += f"; the tokenizer uses {target.tokenizer.size} ids, the rest is padding"
    hopeless = use_draft_logits and ours != theirs
    if ours == theirs:
        message += ": draft logits can be compared"
    else:
        message += ": draft logits cannot be compared" if hopeless else ": fine by token match"
    yield Finding(
        severity="error" if hopeless else "info",
        code="vocabulary.padding-differs",
        message=message,
        hint=_padding_cure(target, draft, tp_sizes) if hopeless else "",
        where="speculation.use_draft_logits",
    )


def _padding_cure(target: CheckpointInfo, draft: CheckpointInfo, tp_sizes: tuple[int, int]) -> str:
    """Return both ways out: no logits, or as many rows in both as every rank count divides."""
    rows = padded_vocab_size(max(target.vocab_size, draft.vocab_size), math.lcm(*tp_sizes))
    short = " and ".join(role for role, info in (("target", target), ("draft", draft)) if info.vocab_size != rows)
    return f"Set speculation.use_draft_logits to false, or pad the {short} to {rows} rows: {_resize(rows)}."


def _resize(rows: int) -> str:
    return f"model.resize_token_embeddings({rows}) in transformers"


def _check_rope(target: CheckpointInfo, draft: CheckpointInfo) -> Iterator[Finding]:
    if target.rope_scaling != draft.rope_scaling:
        ours, theirs = (_rope_text(info.rope_scaling) for info in (target, draft))
        message = f"rotary scaling is {ours} in the target and {theirs} in the draft"
        hint = "Each keeps its own; it only matters how well the draft follows long contexts."
        yield Finding(severity="info", code="context.rope-differs", message=message, hint=hint, where="draft")


def _rope_text(scaling: Mapping[str, Any] | None) -> str:
    if scaling is None:
        return "none"
    kind, factor = scaling.get("rope_type", scaling.get("type", "unnamed")), scaling.get("factor")
    return f"{kind} by {factor}" if factor is not None else str(kind)


def _check_context(roles: Mapping[str, CheckpointInfo], max_seq_len: int) -> Iterator[Finding]:
    for role, info in roles.items():
        if max_seq_len > info.max_position_embeddings:
            yield Finding(
                severity="error",
                code="context.too-long",
                message=f"max_seq_len is {max_seq_len}, the {role} has {info.max_position_embeddings} positions",
                hint=f"Set build.max_seq_len to at most {info.max_position_embeddings}, or take another {role}.",
                where="build.max_seq_len",
            )


def _check_draft_tokens(num_draft_tokens: int, max_seq_len: int) -> Iterator[Finding]:
    where = "speculation.num_draft_tokens"
    if num_draft_tokens < 1 or num_draft_tokens + 1 >= max_seq_len:
        yield Finding(
            severity="error",
            code="draft-tokens.out-of-range",
            message=f"{num_draft_tokens} draft tokens a round do not fit in max_seq_len {max_seq_len}",
            hint="3 to 8 are usual.",
            where=where,
        )
    elif num_draft_tokens > _MANY_DRAFT_TOKENS:
        yield Finding(
            severity="warning",
            code="draft-tokens.many",
            message=f"{num_draft_tokens} draft tokens a round: all cost time, the last are hardly ever accepted",
            hint="3 to 8 are usual; measure before going higher.",
            where=where,
        )


def _check_cost(target: CheckpointInfo, draft: CheckpointInfo, precisions: tuple[str, str] | None) -> Iterator[Finding]:
    ours, theirs = _engine_bytes(target, draft, precisions)
    parameters, size = draft.parameters / max(1, target.parameters), theirs / max(1.0, ours)
    cache, its_cache = _kv_bytes(draft), _kv_bytes(target)
    ratio = (
        f"{parameters:.3g} times its parameters, {size:.3g} times its bytes, "
        f"{cache / its_cache:.3g} times its KV cache ({cache} bytes a token beside {its_cache}, at 16 bits)"
    )
    same = "the same network as the target" if draft.fingerprint == target.fingerprint else ""
    if theirs >= ours:
        yield Finding(
            severity="warning",
            code="draft.not-smaller",
            message=f"the draft is {same or 'not smaller than the target'}: {ratio}",
            hint="Every round then costs more than it can save; take a smaller draft or a lower precision for it.",
            where="draft",
        )
        return
    note = f"the draft is {same} at a lower precision" if same else "the draft is smaller than the target"
    yield Finding(severity="info", code="draft.cost", message=f"{note}: {ratio}", where="draft")


def _engine_bytes(
    target: CheckpointInfo, draft: CheckpointInfo, precisions: tuple[str, str] | None
) -> tuple[float, float]:
    if precisions is None:
        return target.weight_bytes, draft.weight_bytes
    ours, theirs = (precision(name).bytes_per_weight for name in precisions)
    return target.parameters * ours, draft.parameters * theirs


def _kv_bytes(info: CheckpointInfo) -> int:
    """Return the bytes that keys and values of one token take in all layers, at 16 bits."""
    return 2 * info.num_layers * info.num_kv_heads * info.head_dim * 2


def _tokenizer_error(code: str, message: str) -> Finding:
    return Finding(severity="error", code=f"tokenizer.{code}", message=message, hint=_SAME_TOKENIZER, where="draft")


def _differing(ours: Mapping[str, int], theirs: Mapping[str, int]) -> list[str]:
    """Return the tokens that only one side has or that have different ids, the lowest id first."""
    tokens = {token for token, _ in ours.items() ^ theirs.items()}
    return sorted(tokens, key=_by_id(ours, theirs))


def _by_id(ours: Mapping[str, int], theirs: Mapping[str, int]) -> Callable[[str], tuple[int, str]]:
    """Return a sort key: the lowest id that a token has on either side."""

    def key(token: str) -> tuple[int, str]:
        return min(ids for ids in (ours.get(token), theirs.get(token)) if ids is not None), token

    return key


def _named(tokens: list[str], ours: Mapping[str, int], theirs: Mapping[str, int]) -> str:
    named = [
        f"{token!r} is {_id_text(ours.get(token))} in the target and {_id_text(theirs.get(token))} in the draft"
        for token in tokens[:_SHOWN]
    ]
    more = len(tokens) - _SHOWN
    return "; ".join(named) + (f"; and {more} more" if more > 0 else "")


def _id_text(value: object) -> str:
    if value is None or value == set():
        return "absent"
    return ", ".join(map(str, sorted(value))) if isinstance(value, set) else str(value)


def _size(template: str | None) -> str:
    return "none" if template is None else f"{len(template)} characters"
