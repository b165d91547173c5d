"""Do a target and a draft head belong together? Everything that speaks against it, at once.

Compares values that were read before. Which method a profile can build is the profile's own knowledge; here a head must
suit its method and its target.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from specdeploy.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.checkpoint.head import HeadInfo
    from specdeploy.checkpoint.info import CheckpointInfo

_KINDS: Final = {
    "eagle": ("eagle",),
    "eagle3": ("eagle3", "speculators-eagle3"),
    "medusa": ("medusa",),
    "redrafter": ("redrafter",),
}
_FAMILIES: Final = frozenset(
    {"vicuna", "llama", "mixtral", "mistral", "qwen", "gemma", "phi", "deepseek", "exaone", "falcon"}
)
# `Llama-2-7b-chat-hf` and `llama2_7b`: types, sizes, words and numbers, however they are strung together.
_WORDS: Final = re.compile(r"(?:fp|bf|int)\d+|\d+(?:\.\d+)?[bm](?![a-z])|[a-z]+|\d+(?:\.\d+)?")
_SIZE: Final = re.compile(r"\d+(?:\.\d+)?[bm]")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")


def check_head(
    target: CheckpointInfo, head: HeadInfo, *, method: str, num_heads: int | None = None
) -> tuple[Finding, ...]:
    """Return all findings about a head and its target, errors first.

    Args:
        target: The large checkpoint.
        head: The head.
        method: The speculative method, such as ``medusa``.
        num_heads: Medusa: heads that the engine is built with; None to leave them unchecked.
    """
    findings = [
        *_check_kind(head, method),
        *_check_base_model(target, head),
        *_check_sizes(target, head),
        *_check_draft_vocabulary(head),
        *_check_medusa_heads(head, num_heads),
        *_check_bias(head, method),
        *_describe(target, head),
    ]
    order: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(findings, key=lambda finding: order[finding.severity]))


def _check_kind(head: HeadInfo, method: str) -> Iterator[Finding]:
    kinds = _KINDS.get(method)
    if kinds is None:
        yield _finding("error", "method-takes-none", f"the method {method!r} takes no head", f"Use {_methods(head)}.")
    elif head.kind not in kinds:
        message = f"{head.name} is a head of the kind {head.kind}, the method is {method}"
        yield _finding("error", "kind-mismatch", message, _kind_cure(head, method))
    elif head.kind.startswith("speculators-"):
        yield _finding(
            "warning",
            "speculators-format",
            f"{head.name} is in vLLM's speculators format, which TensorRT-LLM is not documented to read",
            "Prefer the head as its authors trained it, or move transformer_layer_config to the top of config.json.",
        )


def _kind_cure(head: HeadInfo, method: str) -> str:
    if head.kind == "speculators-eagle":
        return "Take the head as its authors trained it: this format renames fc to fusion_fc."
    profiles = {"eagle3": "llmapi"}
    methods = [name for name, kinds in _KINDS.items() if head.kind in kinds]
    cures = [f"speculation.method {name} with profile {profiles.get(name, 'tensorrt_llm')}" for name in methods]
    return f"Take a head made for {method}" + (f", or set {' or '.join(cures)}." if cures else ".")


def _methods(head: HeadInfo) -> str:
    """Return the methods that a head of this kind serves, as text."""
    return " or ".join(method for method, kinds in _KINDS.items() if head.kind in kinds) or "another method"


def _check_base_model(target: CheckpointInfo, head: HeadInfo) -> Iterator[Finding]:
    """Compare names: an error when they contradict each other, a warning when one only says more than the other."""
    if head.base_model is None:
        return
    ours, theirs = _words(target.name), _words(PurePosixPath(head.base_model.replace("\\", "/")).name)
    if ours == theirs:
        return
    message = f"the head was trained for {head.base_model}, the target is {target.name}"
    if _contradict(ours, theirs):
        yield _finding("error", "base-model-differs", message, "Take the head that was trained for this target.")
    else:
        hint = "If it is another network or another tuning of it, the drafts will hardly be accepted."
        yield _finding("warning", "base-model-unsure", message, hint)


def _words(name: str) -> frozenset[str]:
    return frozenset(_WORDS.findall(name.lower()))


def _contradict(ours: frozenset[str], theirs: frozenset[str]) -> bool:
    """Say whether two names tell different families, sizes or versions; a name that does not tell contradicts none."""
    parts = (
        (ours & _FAMILIES, theirs & _FAMILIES),
        ({word for word in ours if _SIZE.fullmatch(word)}, {word for word in theirs if _SIZE.fullmatch(word)}),
        ({word for word in ours if _NUMBER.fullmatch(word)}, {word for word in theirs if _NUMBER.fullmatch(word)}),
    )
    return any(not (mine <= yours or yours <= mine) for mine, yours in parts)


def _check_sizes(target: CheckpointInfo, head: HeadInfo) -> Iterator[Finding]:
    if head.target_hidden_size != target.hidden_size:
        yield _finding(
            "error",
            "hidden-size-differs",
            f"the head reads hidden states of {head.target_hidden_size} values, the target's have {target.hidden_size}",
            "Take the head that was trained for this target.",
        )
    if head.vocab_size is not None and head.vocab_size != target.vocab_size:
        yield _finding(
            "error",
            "vocabulary-differs",
            f"the head knows {head.vocab_size} ids, the target has {target.vocab_size} embedding rows",
            "Take the head that was trained for this target, and the target with the embedding that it was trained on.",
        )


def _check_draft_vocabulary(head: HeadInfo) -> Iterator[Finding]:
    if head.draft_vocab_size is None:
        return
    whole = head.vocab_size
    if whole is not None and head.draft_vocab_size > whole:
        message = f"the head proposes {head.draft_vocab_size} ids out of {whole}"
        yield _finding("error", "draft-vocabulary-too-large", message, "Its config.json contradicts itself.")
    else:
        out_of = f"of {whole} " if whole is not None else ""
        message = f"the head proposes only the {head.draft_vocab_size} {out_of}ids that it was trained on"
        yield _finding("info", "draft-vocabulary", message)


def _check_medusa_heads(head: HeadInfo, wanted: int | None) -> Iterator[Finding]:
    held, said = head.num_heads_in_weights, head.num_heads_in_config
    if held is None:
        return
    if said is not None and said != held:
        yield _finding(
            "warning",
            "medusa-count",
            f"config.json says {said} Medusa heads, the weights hold {held}",
            f"The weights are right: up to {held} heads can be used.",
        )
    if wanted is not None and wanted > held:
        yield _finding(
            "error",
            "medusa-too-few",
            f"{wanted} Medusa heads are wanted, the weights hold {held}",
            f"Set speculation.num_heads to {held} or less.",
        )
    elif wanted is not None and wanted < held:
        yield _finding("info", "medusa-unused", f"{wanted} of the {held} Medusa heads are used")


def _check_bias(head: HeadInfo, method: str) -> Iterator[Finding]:
    if method == "eagle" and head.kind == "eagle" and head.has_fc_bias is False:
        yield _finding(
            "error",
            "no-fc-bias",
            f"{head.name} has no fc.bias, which TensorRT-LLM's converter for EAGLE reads (KeyError: 'fc.bias')",
            "Save the head with an fc.bias of zeros: it computes the same (github.com/NVIDIA/TensorRT-LLM/issues/2588)",
        )


def _describe(target: CheckpointInfo, head: HeadInfo) -> Iterator[Finding]:
    share = head.parameters / max(1, target.parameters)
    yield _finding(
        "info", "cost", f"the head has {head.parameters / 1e6:.4g} M parameters, {share:.2g} of the target's"
    )


def _finding(severity: Severity, code: str, message: str, hint: str = "") -> Finding:
    return Finding(severity=severity, code=f"head.{code}", message=message, hint=hint, where="draft")
