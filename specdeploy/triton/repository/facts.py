"""What a repository has to know of an engine, wherever it learned it: from our manifest, or from the engine itself."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdeploy.engine.profile import EngineManifest


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """One engine.

    Args:
        key: Its key in the store; empty for one that is not ours.
        name: For people.
        profile: The profile that made it.
        precision: Of its weights; so is ``checkpoint``, the name of the folder it was made of.
        size_bytes: Sum of its files.
        build_s: Seconds that building it took, all steps; None where that is not known.
        vocab_size: Width of its logits.
        max_seq_len: Longest sequence that it holds.
        eos_token_ids: Ids that end an answer; the first is the default.
        release: TensorRT-LLM's that built it; empty where none did, and so are the following.
        world_size: Ranks.
        max_draft_len: Draft tokens that one step takes; 0 without speculation.
        max_batch_size: Sequences that it was built for; 0 where nothing is built in.
        logits_dtype: ``float32`` or ``float16``.
    """

    key: str
    name: str
    profile: str
    precision: str
    checkpoint: str
    size_bytes: int
    vocab_size: int
    max_seq_len: int
    eos_token_ids: tuple[int, ...]
    release: str = ""
    world_size: int = 1
    max_draft_len: int = 0
    max_batch_size: int = 0
    logits_dtype: str = "float32"
    build_s: float | None = None

    @classmethod
    def of(cls, manifest: EngineManifest) -> EngineFacts:
        """Return what our manifest says."""
        facts = manifest.facts
        return cls(
            key=manifest.key,
            name=manifest.name,
            profile=manifest.profile,
            precision=manifest.precision,
            checkpoint=manifest.checkpoint_name,
            size_bytes=manifest.size_bytes,
            vocab_size=manifest.vocab_size,
            max_seq_len=manifest.max_seq_len,
            eos_token_ids=manifest.eos_token_ids,
            release=str(facts.get("release", "")),
            world_size=int(facts.get("world_size", 1)),
            max_draft_len=int(facts.get("max_draft_len", 0)),
            max_batch_size=int(facts.get("max_batch_size", 0)),
            logits_dtype=str(facts.get("logits_dtype", "float32")),
            # A build that went on from what an earlier one had kept took longer than it knows.
            build_s=manifest.duration_s if set(manifest.parts) <= set(manifest.steps) else None,
        )

    def as_dict(self, model: str) -> dict[str, Any]:
        """Return what the repository's manifest says of it; facts that it has not are left out."""
        document: dict[str, Any] = {
            "model": model,
            "key": self.key,
            "name": self.name,
            "profile": self.profile,
            "precision": self.precision,
            "size_bytes": self.size_bytes,
            "checkpoint": self.checkpoint,
            "vocab_size": self.vocab_size,
            "max_seq_len": self.max_seq_len,
            "eos_token_ids": list(self.eos_token_ids),
        }
        if self.build_s is not None:
            document["build_s"] = self.build_s
        if not self.release:
            return document
        return document | {
            "release": self.release,
            "world_size": self.world_size,
            "max_draft_len": self.max_draft_len,
            "max_batch_size": self.max_batch_size,
            "logits_dtype": self.logits_dtype,
        }
