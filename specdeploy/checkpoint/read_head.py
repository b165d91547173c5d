"""Reads the folder of a draft head into a ``HeadInfo``: ``config.json`` and safetensors headers, never weights.

A head has no tokenizer: it speaks the target's. Many are published as ``pytorch_model.bin`` or ``medusa_lm_head.pt``
only; those are pickles, refused as for checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdeploy.checkpoint.folder import (
    INDEX,
    SINGLE,
    content_fingerprint,
    existing_folder,
    json_object,
    model_name,
    small_files,
    touch_fingerprint,
    weight_files,
)
from specdeploy.checkpoint.head import BadHead, HeadInfo, count_parameters, head_fields
from specdeploy.checkpoint.read import main_dtype
from specdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_CONFIG: Final = "config.json"
_SMALL_FILES: Final = (_CONFIG, "generation_config.json", INDEX)
# The one file of a Medusa head that upstream's converter opens; before it, it looks for the pickle.
_MEDUSA: Final = "medusa_lm_head.safetensors"
_MEDUSA_PICKLE: Final = "medusa_lm_head.pt"
_SINGLES: Final = (SINGLE, _MEDUSA)


def read_head(path: Path, *, full_hash: bool = False) -> HeadInfo:
    """Read the folder of a head.

    Args:
        path: The folder.
        full_hash: Whether the fingerprint covers every byte of the weights, which are all read for it.

    Raises:
        CheckpointError: The folder or one of its files is missing, damaged or a pickle, or it holds no known head. The
            message names the file and what was seen in it.
    """
    folder = existing_folder(path, "config.json and safetensors files")
    small = small_files(folder, _SMALL_FILES)
    config = json_object(small, _CONFIG, folder, "Is it the folder of a draft head?")
    files = weight_files(small, folder, _SINGLES)
    tensors = tuple(sorted((tensor for file in files for tensor in file.tensors), key=lambda tensor: tensor.name))
    try:
        fields = head_fields(config, tensors)
        if fields.kind == "medusa":
            _require_medusa_file(folder, [file.name for file in files])
    except BadHead as error:
        raise CheckpointError(
            f"{folder}: {error}",
            hint="A model of its own is a draft for the method draft_target, not a head.",
            code="checkpoint.no-head",
        ) from None
    return HeadInfo(
        path=str(folder),
        name=model_name(folder),
        **vars(fields),
        dtype=main_dtype(tensors),
        parameters=count_parameters(tensors),
        weight_bytes=sum(tensor.nbytes for tensor in tensors),
        tensors=tensors,
        fingerprint=content_fingerprint(small, files, full_hash_of=folder if full_hash else None),
        stat_fingerprint=touch_fingerprint(folder, _SMALL_FILES),
    )


def _require_medusa_file(folder: Path, names: list[str]) -> None:
    """Refuse what the converter would not open, or would open in the place of what was read here."""
    if (folder / _MEDUSA_PICKLE).exists():
        raise CheckpointError(
            f"{folder} has {_MEDUSA_PICKLE} beside {', '.join(names)}: converters open the pickle, which can run code",
            hint=f"Remove {_MEDUSA_PICKLE}.",
            code="checkpoint.pickle",
        )
    if names != [_MEDUSA]:
        raise CheckpointError(
            f"{folder} has its Medusa heads in {', '.join(names)}; converters open {_MEDUSA} only",
            hint=f"Rename the file to {_MEDUSA}.",
            code="checkpoint.file-name",
        )
