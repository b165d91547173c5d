"""Reads a Hugging Face checkpoint folder into a ``CheckpointInfo``: JSON files and safetensors headers, never weights.

Needs neither torch nor transformers nor tokenizers, so that a 70B checkpoint is understood in well under a second on
any machine. What the fields mean is in ``huggingface``, ``tokenizer`` and ``safetensors``; this module finds the files.

Fingerprints. The engine store asks "is this the checkpoint that the engine was made from?", and hashing 140 GB on every
run is no answer. ``fingerprint`` covers the configuration, the tokenizer, and of each weight file its header, its size,
the first and last 64 KiB of its data and 4 KiB in the middle of every tensor: whatever was trained, merged or quantised
differs there, and a copy to another folder or machine keeps the fingerprint, since neither paths nor times are in it.
An edit of single values in the middle of a tensor would go unseen; ``full_hash`` reads everything. ``stat_fingerprint``
covers names, sizes and times instead; it answers whether anything was touched since it was last read.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import math
from typing import TYPE_CHECKING, Any, Final

from specdeploy.checkpoint import huggingface
from specdeploy.checkpoint.folder import (
    INDEX,
    content_fingerprint,
    existing_folder,
    json_object,
    model_name,
    small_files,
    touch_fingerprint,
    weight_files,
)
from specdeploy.checkpoint.info import CheckpointInfo
from specdeploy.checkpoint.tokenizer import BadTokenizer, tokenizer_info
from specdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from specdeploy.checkpoint.info import TensorInfo, TokenizerInfo

_CONFIG: Final = "config.json"
_TOKENIZER: Final = "tokenizer.json"
_SMALL_FILES: Final = (
    _CONFIG,
    "generation_config.json",
    _TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    INDEX,
)
_TOKENIZER_FILES: Final = (_TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
# The tokenizer that was read last, by the content of its files.
_SEEN: Final[dict[tuple[bytes | None, ...], TokenizerInfo]] = {}
_TORCH_DTYPES: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerParts:
    """A tokenizer and the ids of its folder; the names are those of ``CheckpointInfo``."""

    tokenizer: TokenizerInfo
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None


def read_checkpoint(path: Path, *, full_hash: bool = False) -> CheckpointInfo:
    """Read a checkpoint folder.

    Args:
        path: The folder.
        full_hash: Whether the fingerprint covers every byte of the weights, which are all read for it.

    Raises:
        CheckpointError: The folder or one of its files is missing, truncated, invalid, or in a refused format. The
            message names the file and what was seen in it.
    """
    folder = existing_folder(path, "config.json and safetensors files")
    small = small_files(folder, _SMALL_FILES)
    config = json_object(small, _CONFIG, folder, "Is it a Hugging Face checkpoint folder?")
    generation = _optional_object(small, "generation_config.json", folder)
    try:
        fields = huggingface.model_fields(config)
    except huggingface.BadConfig as error:
        raise CheckpointError(
            f"{folder / _CONFIG}: {error}",
            hint="Copy or download config.json again, or correct it.",
            code="checkpoint.bad-config",
        ) from None
    tokenizer = _tokenizer(small, folder)
    files = weight_files(small, folder)
    tensors = sorted((tensor for file in files for tensor in file.tensors), key=lambda tensor: tensor.name)
    tied = fields.tie_word_embeddings
    tied = tied if tied is not None else all(tensor.name != "lm_head.weight" for tensor in tensors)
    return CheckpointInfo(
        path=str(folder),
        name=model_name(folder),
        **{**vars(fields), "tie_word_embeddings": tied, "dtype": fields.dtype or main_dtype(tensors)},
        bos_token_id=_special_id("bos", generation, config, tokenizer),
        eos_token_ids=_special_ids("eos", generation, config, tokenizer),
        pad_token_id=_special_id("pad", generation, config, tokenizer),
        parameters=sum(math.prod(tensor.shape) for tensor in tensors if not (tied and tensor.name == "lm_head.weight")),
        weight_bytes=sum(tensor.nbytes for tensor in tensors),
        tensors=tuple(tensors),
        tokenizer=tokenizer,
        fingerprint=content_fingerprint(small, files, full_hash_of=folder if full_hash else None),
        stat_fingerprint=stat_fingerprint(folder),
    )


def stat_fingerprint(path: Path) -> str:
    """Return the SHA-256 of names, sizes and modification times of the files that a checkpoint is made of."""
    return touch_fingerprint(path, _SMALL_FILES)


def read_tokenizer(path: Path) -> TokenizerParts:
    """Read the tokenizer of a folder that need not hold a model, with the ids that its configurations name.

    Raises:
        CheckpointError: There is no folder, or no tokenizer in it.
    """
    folder = existing_folder(path, _TOKENIZER)
    small = small_files(folder, _SMALL_FILES)
    tokenizer = _tokenizer(small, folder)
    config = _optional_object(small, _CONFIG, folder)
    generation = _optional_object(small, "generation_config.json", folder)
    return TokenizerParts(
        tokenizer=tokenizer,
        bos_token_id=_special_id("bos", generation, config, tokenizer),
        eos_token_ids=_special_ids("eos", generation, config, tokenizer),
        pad_token_id=_special_id("pad", generation, config, tokenizer),
    )


def _optional_object(small: dict[str, bytes], name: str, folder: Path) -> dict[str, Any]:
    return json_object(small, name, folder) if name in small else {}


def _tokenizer(small: dict[str, bytes], folder: Path) -> TokenizerInfo:
    if _TOKENIZER not in small:
        old = next((name for name in ("tokenizer.model", "vocab.json") if (folder / name).is_file()), None)
        seen = f", only {old}" if old else ""
        raise CheckpointError(
            f"{folder} has no {_TOKENIZER}{seen}",
            hint="transformers writes it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder).",
            code="checkpoint.tokenizer-missing",
        )
    # Target and draft mostly have the same one, and making sense of it takes longer than everything else together.
    key = tuple(small.get(name) for name in _TOKENIZER_FILES)
    if key not in _SEEN:
        _SEEN.clear()
        _SEEN[key] = _read_tokenizer(small, folder)
    return _SEEN[key]


def _read_tokenizer(small: dict[str, bytes], folder: Path) -> TokenizerInfo:
    template = small.get("chat_template.jinja")
    try:
        return tokenizer_info(
            json_object(small, _TOKENIZER, folder),
            settings=_optional_object(small, "tokenizer_config.json", folder),
            special_map=_optional_object(small, "special_tokens_map.json", folder),
            chat_template=None if template is None else template.decode(errors="replace"),
            digest=hashlib.sha256(small[_TOKENIZER]).hexdigest(),
        )
    except BadTokenizer as error:
        raise CheckpointError(
            f"{folder / _TOKENIZER}: {error}", hint="Copy or download it again.", code="checkpoint.bad-tokenizer"
        ) from None


def _special_ids(
    role: str, generation: dict[str, Any], config: dict[str, Any], tokenizer: TokenizerInfo
) -> tuple[int, ...]:
    """Return the ids of a role; where no configuration says, the tokenizer's token of that role."""
    chosen = huggingface.chosen_ids(f"{role}_token_id", generation, config)
    token = tokenizer.special_tokens.get(f"{role}_token")
    known = tokenizer.token_id(token) if token is not None else None
    return chosen or (() if known is None else (known,))


def _special_id(role: str, generation: dict[str, Any], config: dict[str, Any], tokenizer: TokenizerInfo) -> int | None:
    return next(iter(_special_ids(role, generation, config, tokenizer)), None)


def main_dtype(tensors: Iterable[TensorInfo]) -> str:
    """Return the type that most of the bytes have."""
    counter: collections.Counter[str] = collections.Counter()
    for tensor in tensors:
        counter[tensor.dtype] += tensor.nbytes
    dtype = counter.most_common(1)[0][0] if counter else "F32"
    return _TORCH_DTYPES.get(dtype, dtype.lower())
