"""What each speculative method asks of the engines: flags, largest draft, and the combinations that cannot work.

Facts are upstream's (TensorRT-LLM's builder and the READMEs of its examples); where a release rewrites a value without
saying so, the value here is what the finished engine has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specdeploy.config.schema import SpeculationConfig
    from specdeploy.engine.profile import EngineSpec

# The method's name for trtllm-build, and the bit that the engine's config.json has for it.
MODES: Final[Mapping[str, tuple[str, int]]] = {
    "draft_target": ("draft_tokens_external", 2),
    # Tokens are looked up in the prompt by the caller; the engine sees external draft tokens.
    "ngram": ("draft_tokens_external", 2),
    "medusa": ("medusa", 4),
    "lookahead": ("lookahead_decoding", 8),
    "redrafter": ("explicit_draft_tokens", 16),
    "eagle": ("eagle", 32),
}
MODE_NAMES: Final[Mapping[str, int]] = {"NONE": 1, **{name.upper(): bit for name, bit in MODES.values()}}
NO_SPECULATION: Final = 1
# The builder of EAGLE engines asserts both.
_EAGLE_MAX_BATCH: Final = 512
_EAGLE_MAX_TREE: Final = 256
# Methods that send the text again each round, and would compute all of it again without blocks that are used again.
REUSING: Final = frozenset({"draft_target", "ngram"})


def max_draft_len(speculation: SpeculationConfig) -> int:
    """Return the most draft tokens of a step that the target's engine has to hold."""
    method = speculation.method
    if method in REUSING:
        return max(speculation.max_draft_tokens, speculation.num_draft_tokens)
    if method == "lookahead":
        return lookahead_draft_len(speculation.window_size, speculation.ngram_size, speculation.verification_size)
    if method == "redrafter":
        return speculation.num_beams * speculation.beam_tokens
    return speculation.tree_tokens


def lookahead_draft_len(window: int, ngram: int, verification: int) -> int:
    """Return the draft tokens of a lookahead step; the run-time configuration must come to exactly this number.

    Source: upstream's lookahead README; (7, 7, 7) is 83.
    """
    return (0 if ngram == 1 else ngram - 2) + (window - 1 + verification) * (ngram - 1)


def build_flags(speculation: SpeculationConfig, role: str) -> dict[str, str]:
    """Return the flags of the method; a draft's engine needs none, it is an ordinary one."""
    if role == "draft":
        return {}
    flags = {"--speculative_decoding_mode": MODES[speculation.method][0]}
    if speculation.method != "redrafter":  # baked into its checkpoint, from where the builder takes it
        flags["--max_draft_len"] = str(max_draft_len(speculation))
    return flags


def expected_mode(speculation: SpeculationConfig, role: str) -> int:
    """Return the bit-flag that the finished engine's ``speculative_decoding_mode`` must be."""
    return NO_SPECULATION if role == "draft" else MODES[speculation.method][1]


def check_method(spec: EngineSpec, speculation: SpeculationConfig) -> Iterator[Finding]:
    """Yield the combinations of the method with the rest of the deployment that cannot be built or served."""
    if spec.role == "draft":
        return
    if speculation.method == "eagle":
        yield from _check_eagle(spec, speculation)
    if speculation.method == "redrafter" and spec.pp_size > 1:
        yield _no_pipeline("redrafter", spec.pp_size)
    if speculation.method == "lookahead" and speculation.ngram_size == 1:
        yield _error(
            "method.lookahead-ngram",
            "speculation.ngram_size",
            "an n-gram of 1 proposes nothing",
            "3 to 7 are usual.",
        )
    if speculation.method == "ngram":
        yield Finding(
            severity="info",
            code="method.ngram-caller",
            message="the engine takes external draft tokens; looking them up is the caller's part",
            where="speculation.method",
        )
    most, tokens = spec.max_seq_len, max_draft_len(speculation)
    if tokens >= most:
        yield _error(
            "method.draft-too-long",
            "build.max_seq_len",
            f"a step of {tokens} draft tokens does not fit into max_seq_len {most}",
            "Raise build.max_seq_len, or draft less.",
        )


def _check_eagle(spec: EngineSpec, speculation: SpeculationConfig) -> Iterator[Finding]:
    if spec.pp_size > 1:
        yield _no_pipeline("eagle", spec.pp_size)
    if spec.max_batch_size > _EAGLE_MAX_BATCH:
        yield _error(
            "method.eagle-batch",
            "build.max_batch_size",
            f"max_batch_size is {spec.max_batch_size}, an EAGLE engine holds at most {_EAGLE_MAX_BATCH}",
            f"Set it to at most {_EAGLE_MAX_BATCH}.",
        )
    if speculation.tree_tokens > _EAGLE_MAX_TREE:
        yield _error(
            "method.eagle-tree",
            "speculation.tree_tokens",
            f"a tree of {speculation.tree_tokens} tokens, an EAGLE engine takes at most {_EAGLE_MAX_TREE}",
            f"Set it to at most {_EAGLE_MAX_TREE}; 63 is usual.",
        )
    if speculation.tree_depth > speculation.tree_tokens:
        yield _error(
            "method.eagle-depth",
            "speculation.tree_depth",
            f"a tree of {speculation.tree_tokens} tokens cannot be {speculation.tree_depth} deep",
            "A path of the tree has a token at every depth: raise tree_tokens or lower tree_depth.",
        )


def _no_pipeline(method: str, stages: int) -> Finding:
    message = f"pp_size is {stages}, and an engine of the method {method} has no pipeline parallelism"
    return _error(f"method.{method}-pipeline", "target.pp_size", message, "Use target.tp_size instead.")


def _error(code: str, where: str, message: str, hint: str) -> Finding:
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)
