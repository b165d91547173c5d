"""A TensorRT-LLM engine as its own ``config.json`` describes it, whoever built it.

Takes the parsed document. Knows what the builder adds to a value without saying so; does not read files.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.engine.tensorrt_llm.methods import MODE_NAMES
from specdeploy.engine.tensorrt_llm.precisions import DTYPES, PRECISIONS
from specdeploy.errors import RepositoryError
from specdeploy.triton.repository.facts import EngineFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Bit of the speculative mode -> our method; the bit of external draft tokens is also that of ngram.
METHODS: Final = {2: "draft_target", 4: "medusa", 8: "lookahead", 16: "redrafter", 32: "eagle"}
_EAGLE: Final = 32
_ALGORITHMS: Final = {
    **{precision.algorithm: name for name, precision in PRECISIONS.items() if precision.algorithm},
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "W4A16_GPTQ": "int4_wo",
    "W8A16_GPTQ": "int8_wo",
}
_FLOATS: Final = {dtype: precision for precision, dtype in DTYPES.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuiltEngine:
    """One engine.

    Args:
        name: Of its folder.
        release: TensorRT-LLM's that built it.
        architecture: Such as ``LlamaForCausalLM``.
        precision: Our name of its weights' precision; empty when we have none for it.
        kv_cache: ``auto``, ``fp8`` or ``int8``.
        logits_dtype: ``float32`` or ``float16``.
        vocab_size: Width of its logits.
        tp_size: Ranks that share every layer; ``pp_size`` those that have some of the layers each.
        max_seq_len: Longest prompt plus answer, without what the builder adds for drafts.
        max_batch_size: Sequences at once.
        max_num_tokens: Tokens of one pass.
        max_draft_len: Draft tokens of one step.
        mode: Bit of its speculative mode; 1 is none.
        extras: What a method's checkpoint brings along, such as ``num_medusa_heads``.
        size_bytes: Sum of its files.
    """

    name: str
    release: str
    architecture: str
    precision: str
    kv_cache: str
    logits_dtype: str
    vocab_size: int
    tp_size: int
    pp_size: int
    max_seq_len: int
    max_batch_size: int
    max_num_tokens: int
    max_draft_len: int
    mode: int
    extras: Mapping[str, int]
    size_bytes: int

    @property
    def method(self) -> str:
        """Our name of the method that it was built for; empty for none."""
        return METHODS.get(self.mode, "")

    def facts(self, eos_token_ids: tuple[int, ...]) -> EngineFacts:
        """Return what a repository has to know of it; its key is empty, since our store does not hold it."""
        return EngineFacts(
            key="",
            name=self.name,
            profile="tensorrt_llm",
            precision=self.precision or "auto",
            checkpoint="",
            size_bytes=self.size_bytes,
            vocab_size=self.vocab_size,
            max_seq_len=self.max_seq_len,
            eos_token_ids=eos_token_ids,
            release=self.release,
            world_size=self.tp_size * self.pp_size,
            max_draft_len=self.max_draft_len,
            max_batch_size=self.max_batch_size,
            logits_dtype=self.logits_dtype,
        )


def read_built(document: object, *, name: str, size_bytes: int) -> BuiltEngine:
    """Read an engine's ``config.json``.

    Args:
        document: The parsed JSON.
        name: Of the engine's folder.
        size_bytes: Sum of its files.

    Raises:
        RepositoryError: It is not the document of an engine; the message names the engine and what is missing.
    """
    try:
        return _read(document, name, size_bytes)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RepositoryError(
            f"config.json of {name} is not an engine's: {type(error).__name__} {error}",
            hint="gpt_model_path must name the folder that trtllm-build wrote.",
        ) from error


def _read(document: Any, name: str, size_bytes: int) -> BuiltEngine:  # noqa: ANN401 - JSON
    pretrained, build = document["pretrained_config"], document["build_config"]
    mapping = pretrained.get("mapping") or {}
    quantization = pretrained.get("quantization") or {}
    mode, drafts = _mode(build.get("speculative_decoding_mode")), int(build.get("max_draft_len") or 0)
    layers = int(pretrained.get("num_eagle_layers") or 0) if mode == _EAGLE else 0
    keys = [key for key in pretrained if key.startswith(("num_medusa", "num_eagle", "redrafter_"))]
    return BuiltEngine(
        name=name,
        release=str(document["version"]),
        architecture=str(pretrained["architecture"]),
        precision=_precision(quantization.get("quant_algo"), str(pretrained["dtype"])),
        kv_cache={"FP8": "fp8", "INT8": "int8"}.get(str(quantization.get("kv_cache_quant_algo")), "auto"),
        logits_dtype=str(pretrained.get("logits_dtype") or "float32"),
        vocab_size=int(pretrained["vocab_size"]),
        tp_size=int(mapping.get("tp_size", 1)),
        pp_size=int(mapping.get("pp_size", 1)),
        # The builder makes room for a step's drafts on top of what was asked for, and an EAGLE tree's depth.
        max_seq_len=int(build["max_seq_len"]) - (drafts + layers if mode != 1 else 0),
        max_batch_size=int(build["max_batch_size"]),
        max_num_tokens=int(build.get("max_num_tokens") or 8192),
        max_draft_len=drafts,
        mode=mode,
        extras={key: int(pretrained[key]) for key in keys if isinstance(pretrained[key], int)},
        size_bytes=size_bytes,
    )


def _mode(recorded: object) -> int:
    """Return the bit: it is written as a number, and by some releases as a name."""
    if isinstance(recorded, int):
        return recorded
    text = str(recorded or "NONE").rpartition(".")[2].upper()
    return int(text) if text.isdecimal() else MODE_NAMES[text]


def _precision(algorithm: object, dtype: str) -> str:
    if not algorithm:
        return _FLOATS.get(dtype, "")
    text = str(algorithm)
    return "int8_sq" if text.startswith("W8A8_SQ") else _ALGORITHMS.get(text, "")
