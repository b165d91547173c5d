"""Does a finished engine do what was planned? Reads what ``trtllm-build`` recorded, knowing what it rewrites silently.

The builder raises ``max_num_tokens`` and ``max_seq_len``, forces modes and plugins on, and turns paged attention of the
context off, without an error; so equality with what was asked is not the question. Whether the deployment can work is.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, Final

from specdeploy.engine.tensorrt_llm.methods import MODE_NAMES
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CONFIG: Final = "config.json"
_RANK: Final = re.compile(r"rank(\d+)\.engine")
_AGAIN: Final = "Build it again; if it happens again, the step's log says more."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """What the deployment needs of an engine.

    Args:
        version: TensorRT-LLM's.
        mode: Bit-flag of the speculative mode.
        max_draft_len: Draft tokens of a step; 0 without speculation.
        exact_draft_len: Whether more of them would be wrong, too.
        max_seq_len: Least, without what the builder adds for drafts.
        max_batch_size: Least.
        tp_size: Of the mapping; so is ``pp_size``.
        logits_dtype: Of the logits.
        kv_algorithm: ``kv_cache_quant_algo``; None for an unquantised cache.
        reuses: Whether KV-cache blocks must be usable again.
    """

    version: str
    mode: int
    max_draft_len: int
    exact_draft_len: bool
    max_seq_len: int
    max_batch_size: int
    tp_size: int
    pp_size: int
    logits_dtype: str
    kv_algorithm: str | None
    reuses: bool


def inspect_engine(
    expected: Expected, config: bytes | None, sizes: Mapping[str, int], where: str
) -> tuple[Finding, ...]:
    """Return how an engine differs from what the deployment needs.

    Args:
        expected: What is needed.
        config: Its ``config.json``; None when there is none.
        sizes: Its files and their sizes in bytes.
        where: Its name, for the findings.
    """
    try:
        document = json.loads(config or b"")
        sections = {name: dict(document.get(name) or {}) for name in ("pretrained_config", "build_config")}
    except (ValueError, AttributeError, TypeError):
        seen = "is missing" if config is None else "is not the JSON of an engine"
        return (_error("engine.config-unreadable", f"{CONFIG} {seen}", _AGAIN, where),)
    findings = (
        *_ranks(expected, sizes),
        *_version(expected, document.get("version")),
        *_mapping(expected, sections["pretrained_config"]),
        *_speculation(expected, sections["build_config"]),
        *_limits(expected, sections["build_config"]),
        *_types(expected, sections["pretrained_config"]),
        *_kv_cache_type(sections["build_config"]),
        *(_reuse(sections["build_config"]) if expected.reuses else ()),
    )
    return tuple(dataclasses.replace(finding, where=where) for finding in findings)


def _ranks(expected: Expected, sizes: Mapping[str, int]) -> Iterator[Finding]:
    world = expected.tp_size * expected.pp_size
    found = {int(match[1]) for name, size in sizes.items() if size and (match := _RANK.fullmatch(name))}
    if found != set(range(world)):
        listed = ", ".join(f"rank{rank}.engine" for rank in sorted(found)) or "none"
        message = f"the engine has {world} ranks, and the files with content are: {listed}"
        yield _error("engine.ranks", message, _AGAIN)


def _version(expected: Expected, version: object) -> Iterator[Finding]:
    if version != expected.version:
        yield _error(
            "engine.version",
            f"it was built by TensorRT-LLM {version}, and {expected.version} is to serve it",
            f"Build with the image of {expected.version}, or set release to what builds: an engine runs on its own "
            "release only.",
        )


def _mapping(expected: Expected, pretrained: Mapping[str, Any]) -> Iterator[Finding]:
    mapping = pretrained.get("mapping") or {}
    for key, wanted in (
        ("tp_size", expected.tp_size),
        ("pp_size", expected.pp_size),
        ("world_size", expected.tp_size * expected.pp_size),
    ):
        if mapping.get(key, 1) != wanted:
            yield _error("engine.mapping", f"{key} is {mapping.get(key)}, planned was {wanted}", _AGAIN)


def _speculation(expected: Expected, build: Mapping[str, Any]) -> Iterator[Finding]:
    recorded = build.get("speculative_decoding_mode")
    if _mode(recorded) != expected.mode:
        names = {bit: name for name, bit in MODE_NAMES.items()}
        wanted = names[expected.mode]
        message = f"its speculative mode is {recorded!r}, planned was {wanted} ({expected.mode})"
        yield _error("engine.mode", message, "Requests with draft tokens would be refused. " + _AGAIN)
    length = build.get("max_draft_len")
    fits: Callable[[int, int], bool] = int.__eq__ if expected.exact_draft_len else int.__ge__
    if not isinstance(length, int) or not fits(length, expected.max_draft_len):
        exactly = "exactly" if expected.exact_draft_len else "at least"
        message = f"it takes {length} draft tokens, planned was {exactly} {expected.max_draft_len}"
        yield _error("engine.draft-length", message, _AGAIN)


def _mode(recorded: object) -> object:
    """Return the bit-flag of a mode, which releases record as a number or by name."""
    return MODE_NAMES.get(recorded.upper(), recorded) if isinstance(recorded, str) else recorded


def _limits(expected: Expected, build: Mapping[str, Any]) -> Iterator[Finding]:
    for key, wanted in (("max_seq_len", expected.max_seq_len), ("max_batch_size", expected.max_batch_size)):
        value = build.get(key)
        if not isinstance(value, int) or value < wanted:
            yield _error("engine.limit", f"{key} is {value}, planned was at least {wanted}", _AGAIN)


def _types(expected: Expected, pretrained: Mapping[str, Any]) -> Iterator[Finding]:
    logits = pretrained.get("logits_dtype")
    if logits != expected.logits_dtype:
        message = f"its logits are {logits}, planned was {expected.logits_dtype}"
        yield _error("engine.logits", message, "Triton's logits_datatype must agree with it.")
    algorithm = (pretrained.get("quantization") or {}).get("kv_cache_quant_algo")
    if algorithm != expected.kv_algorithm:
        message = f"its KV cache is {algorithm or 'unquantised'}, planned was {expected.kv_algorithm or 'unquantised'}"
        yield _error("engine.kv-cache", message, _AGAIN)


def _reuse(build: Mapping[str, Any]) -> Iterator[Finding]:
    """Check what KV-cache reuse stands on; the builder turns it off for some KV-cache types and says nothing."""
    plugins = build.get("plugin_config") or {}
    if plugins.get("use_paged_context_fmha") not in {True, "enable", "true"}:
        yield _error(
            "engine.no-reuse",
            "paged context attention is off, so KV-cache blocks are not used again, which every round needs",
            "INT8 KV caches, and FP8 ones under other weights, turn it off: set kv_cache to auto.",
        )


def _kv_cache_type(build: Mapping[str, Any]) -> Iterator[Finding]:
    """Check what in-flight batching stands on."""
    kind = str(build.get("kv_cache_type", "")).rpartition(".")[2].lower()
    if kind != "paged":
        yield _error("engine.kv-cache-type", f"its KV cache is {kind or 'of an unknown type'}, not paged", _AGAIN)


def _error(code: str, message: str, hint: str, where: str = "") -> Finding:
    return Finding(severity="error", code=code, message=message, hint=hint, where=where)
