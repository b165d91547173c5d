"""Reads a TensorRT-LLM checkpoint folder: ``config.json`` and the headers of its rank files, never the weights."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from specdeploy.checkpoint.folder import (
    content_fingerprint,
    existing_folder,
    json_object,
    model_name,
    read_weight_files,
    small_files,
    some,
    touch_fingerprint,
)
from specdeploy.checkpoint.huggingface import BadConfig
from specdeploy.checkpoint.trtllm import TrtllmCheckpoint, TrtllmRank, is_trtllm_config, trtllm_fields
from specdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_CONFIG: Final = "config.json"
# With mixed precision, ModelOpt lists the type of each layer in a file of its own.
_SMALL_FILES: Final = (_CONFIG, "quant_cfg.json")
_RANK: Final = re.compile(r"^rank(\d+)\.safetensors$")


def is_trtllm_checkpoint(path: Path) -> bool:
    """Say whether a folder holds a TensorRT-LLM checkpoint, whole or not; anything unreadable is none."""
    try:
        config = json.loads((path / _CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and is_trtllm_config(config)


def read_trtllm_checkpoint(path: Path, *, full_hash: bool = False) -> TrtllmCheckpoint:
    """Read a TensorRT-LLM checkpoint folder.

    Args:
        path: The folder.
        full_hash: Whether the fingerprint covers every byte of the weights, which are all read for it.

    Raises:
        CheckpointError: It is none, its configuration is wrong, or its rank files are missing, damaged or too many for
            its world size. The message names the file and what was seen in it.
    """
    folder = existing_folder(path, "config.json and rank files")
    small = small_files(folder, _SMALL_FILES)
    config = json_object(small, _CONFIG, folder, "Is it the output folder of a converter?")
    if not is_trtllm_config(config):
        raise CheckpointError(
            f"{folder / _CONFIG} is not TensorRT-LLM's: it has no `architecture`",
            hint="Convert the checkpoint first." if "architectures" in config else "",
            code="checkpoint.not-converted",
        )
    try:
        fields = trtllm_fields(config)
    except BadConfig as error:
        raise CheckpointError(f"{folder / _CONFIG}: {error}") from None
    files = read_weight_files(_rank_files(folder, fields.mapping.world_size))
    return TrtllmCheckpoint(
        path=str(folder),
        name=model_name(folder),
        **vars(fields),
        ranks=tuple(TrtllmRank(file=file.name, size=file.size, tensors=file.tensors) for file in files),
        weight_bytes=sum(tensor.nbytes for file in files for tensor in file.tensors),
        fingerprint=content_fingerprint(small, files, full_hash_of=folder if full_hash else None),
        stat_fingerprint=touch_fingerprint(folder, _SMALL_FILES),
    )


def _rank_files(folder: Path, world_size: int) -> list[Path]:
    wanted = [f"rank{rank}.safetensors" for rank in range(world_size)]
    if absent := [name for name in wanted if not (folder / name).is_file()]:
        raise CheckpointError(
            f"{folder}: {len(absent)} of {world_size} rank files are absent: {some(absent)}",
            hint="The conversion did not finish; run it again.",
            code="checkpoint.rank-missing",
        )
    held = sorted(file.name for file in folder.glob("rank*.safetensors") if _RANK.match(file.name))
    if surplus := [name for name in held if name not in wanted]:
        raise CheckpointError(
            f"{folder}: mapping.world_size is {world_size}, there are {len(held)} rank files: {some(surplus)} too many",
            hint="Two conversions were written into one folder; convert into an empty one.",
            code="checkpoint.too-many-ranks",
        )
    return [folder / name for name in wanted]
