"""An engine directory as a value, and what its own documents say of it.

Knows the ``config.json`` that ``trtllm-build`` writes, the ``genai_config.json`` of a CPU engine and the
``manifest.json`` of the engine store. Reads no file: the caller hands the directory in. What a document does not say is
None, and no check fails on it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from specdeploy.checkpoint.trtllm import padded_vocab_size
from specdeploy.engine.tensorrt_llm.methods import MODE_NAMES

CONFIG: Final = "config.json"
CPU_CONFIG: Final = "genai_config.json"
STORE_MANIFEST: Final = "manifest.json"
#: The small files of an engine directory that lint reads.
DOCUMENTS: Final = (CONFIG, CPU_CONFIG, STORE_MANIFEST)
_RANK: Final = re.compile(r"rank([0-9]{1,9})\.engine")
_LARGEST: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineDirectory:
    """What lies in an engine's directory.

    Args:
        sizes: Path of every file relative to the directory -> its bytes.
        documents: Content of those of :data:`DOCUMENTS` that are there.
        unreadable: Why nothing is known of the directory; empty when it was read.
    """

    sizes: Mapping[str, int]
    documents: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    unreadable: str = ""

    @property
    def files(self) -> frozenset[str]:
        """Files that have content."""
        return frozenset(name for name, size in self.sizes.items() if size)

    def document(self, name: str) -> Mapping[str, Any] | None:
        """Return one of the documents; None when it is not there, or is no JSON object."""
        try:
            value = json.loads(self.documents.get(name, b""))
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What an engine says it is; None is not said.

    Args:
        version: TensorRT-LLM's that built it.
        world_size: Ranks.
        mode: Bit-flag of its speculative mode.
        max_draft_len: Draft tokens that one step takes.
        max_seq_len: Longest sequence, in tokens.
        max_batch_size: Sequences at once.
        logits_dtype: Such as ``float32``.
        vocab_size: Rows of its embedding.
        tp_size: Ranks that share every layer; the logits are padded to a multiple of it.
        kv_cache_type: ``paged``, ``continuous`` or ``disabled``.
        paged_context_fmha: Whether KV-cache blocks can be used again.
        heads: Deepest path of a medusa or eagle tree.
        ranks: Ranks whose ``rank<N>.engine`` has content.
    """

    version: str | None = None
    world_size: int | None = None
    mode: int | None = None
    max_draft_len: int | None = None
    max_seq_len: int | None = None
    max_batch_size: int | None = None
    logits_dtype: str | None = None
    vocab_size: int | None = None
    tp_size: int | None = None
    kv_cache_type: str | None = None
    paged_context_fmha: bool | None = None
    heads: int | None = None
    ranks: frozenset[int] = frozenset()

    @property
    def logits_width(self) -> int | None:
        """Return how wide its logits are."""
        return None if self.vocab_size is None else padded_vocab_size(self.vocab_size, self.tp_size or 1)


def read_config(directory: EngineDirectory) -> EngineConfig | None:
    """Return what the engine's own configuration says; None when there is none, or it is not one."""
    tensorrt = directory.document(CONFIG)
    if tensorrt is not None and "build_config" in tensorrt:
        return _tensorrt_llm(tensorrt, directory.files)
    genai = directory.document(CPU_CONFIG)
    return None if genai is None else _cpu(genai)


def _tensorrt_llm(document: Mapping[str, Any], files: frozenset[str]) -> EngineConfig:
    build, model = _section(document, "build_config"), _section(document, "pretrained_config")
    fmha = _section(build, "plugin_config").get("use_paged_context_fmha")
    kind = build.get("kv_cache_type")
    version = document.get("version")
    return EngineConfig(
        version=version if isinstance(version, str) else None,
        world_size=_whole(_section(model, "mapping").get("world_size")),
        mode=_mode(build.get("speculative_decoding_mode")),
        max_draft_len=_whole(build.get("max_draft_len")),
        max_seq_len=_whole(build.get("max_seq_len")),
        max_batch_size=_whole(build.get("max_batch_size")),
        logits_dtype=model["logits_dtype"] if isinstance(model.get("logits_dtype"), str) else None,
        vocab_size=_whole(model.get("vocab_size")),
        tp_size=_whole(_section(model, "mapping").get("tp_size")),
        kv_cache_type=kind.rpartition(".")[2].lower() if isinstance(kind, str) else None,
        paged_context_fmha=None if fmha is None else fmha in (True, "enable", "true"),
        heads=_whole(model.get("num_medusa_heads")) or _whole(model.get("num_eagle_layers")),
        ranks=frozenset(int(match[1]) for name in files if (match := _RANK.fullmatch(name))),
    )


def _cpu(document: Mapping[str, Any]) -> EngineConfig:
    model = _section(document, "model")
    return EngineConfig(max_seq_len=_whole(model.get("context_length")), vocab_size=_whole(model.get("vocab_size")))


def _mode(recorded: object) -> int | None:
    """Return the bit-flag of a mode, which releases record as a number or by name."""
    if isinstance(recorded, str):
        return MODE_NAMES.get(recorded.rpartition(".")[2].upper())
    return _whole(recorded)


def _whole(value: object) -> int | None:
    """Return a number as the backend holds it: what does not fit is not said."""
    fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST
    return value if isinstance(value, int) and fits else None


def _section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, Mapping) else {}
