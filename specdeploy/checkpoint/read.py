"""Reads a Hugging Face checkpoint folder into a ``CheckpointInfo``: JSON files and safetensors headers, never weights.

Needs neither torch nor transformers nor tokenizers, so that a 70B checkpoint is understood in well under a second on
any machine. What the fields mean is in ``huggingface``, ``tokenizer`` and ``safetensors``; this module finds the files.

Fingerprints. The engine store asks "is this the checkpoint that the engine was made from?", and hashing 140 GB on every
run is no answer. ``fingerprint`` covers the configuration, the tokenizer, and of each weight file its header, its size
and the first and last 64 KiB of its data: a fine-tune changes every tensor, so it shows in the samples, and a copy to
another folder or machine keeps the fingerprint, since neither paths nor times are in it. Weights that were edited only
in the middle of a file while keeping every shape would go unseen. ``stat_fingerprint`` covers names, sizes and times
instead; it answers whether anything was touched since it was last read.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import json
import math
from typing import TYPE_CHECKING, Any, Final

from specdeploy.checkpoint import huggingface
from specdeploy.checkpoint.info import CheckpointInfo
from specdeploy.checkpoint.safetensors import WeightFile, read_weight_file
from specdeploy.checkpoint.tokenizer import BadTokenizer, tokenizer_info
from specdeploy.errors import CheckpointError
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from specdeploy.checkpoint.info import TensorInfo, TokenizerInfo

_CONFIG: Final = "config.json"
_TOKENIZER: Final = "tokenizer.json"
_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_SMALL_FILES: Final = (
    _CONFIG,
    "generation_config.json",
    _TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    _INDEX,
)
# Pickles can run code when they are loaded, and their headers cannot be read without doing so.
_PICKLES: Final = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_TORCH_DTYPES: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8"}
_SHOWN: Final = 3


def read_checkpoint(path: Path) -> CheckpointInfo:
    """Read a checkpoint folder.

    Raises:
        CheckpointError: The folder or one of its files is missing, truncated, invalid, or in a refused format. The
            message names the file and what was seen in it.
    """
    folder = _folder(path)
    small = {name: data for name in _SMALL_FILES if (data := _bytes(folder / name)) is not None}
    config = _json(small, _CONFIG, folder)
    generation = _json(small, "generation_config.json", folder) if "generation_config.json" in small else {}
    try:
        fields = huggingface.model_fields(config)
    except huggingface.BadConfig as error:
        raise CheckpointError(f"{folder / _CONFIG}: {error}") from None
    tokenizer = _tokenizer(small, folder)
    files = _weight_files(small, folder)
    tensors = sorted((tensor for file in files for tensor in file.tensors), key=lambda tensor: tensor.name)
    tied = fields.tie_word_embeddings
    tied = tied if tied is not None else all(tensor.name != "lm_head.weight" for tensor in tensors)
    return CheckpointInfo(
        path=str(folder),
        name=folder.name,
        **{**vars(fields), "tie_word_embeddings": tied, "dtype": fields.dtype or _main_dtype(tensors)},
        bos_token_id=_special_id("bos", generation, config, tokenizer),
        eos_token_ids=_special_ids("eos", generation, config, tokenizer),
        pad_token_id=_special_id("pad", generation, config, tokenizer),
        parameters=sum(math.prod(tensor.shape) for tensor in tensors if not (tied and tensor.name == "lm_head.weight")),
        weight_bytes=sum(tensor.nbytes for tensor in tensors),
        tensors=tuple(tensors),
        tokenizer=tokenizer,
        fingerprint=_fingerprint(small, files),
        stat_fingerprint=stat_fingerprint(folder),
    )


def stat_fingerprint(path: Path) -> str:
    """Return the SHA-256 of names, sizes and modification times of the files that a checkpoint is made of."""
    names = {*_SMALL_FILES, *(file.name for file in path.glob("*.safetensors"))}
    digest = hashlib.sha256()
    for name in sorted(names):
        file = path / name
        if file.is_file():
            status = file.stat()
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _folder(path: Path) -> Path:
    if not path.exists():
        raise CheckpointError(
            f"there is no checkpoint folder {path}", hint="Relative paths start at the YAML's folder."
        )
    if not path.is_dir():
        raise CheckpointError(f"{path} is a file; a checkpoint is a folder with config.json and safetensors files")
    return path.resolve()


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _json(small: dict[str, bytes], name: str, folder: Path) -> dict[str, Any]:
    if name not in small:
        raise CheckpointError(f"{folder} has no {name}", hint="Is it a Hugging Face checkpoint folder?")
    try:
        value = _parsed(small[name])
    except ValueError as error:
        raise CheckpointError(
            f"{folder / name} is not valid JSON: {error}", hint="Copy or download it again."
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{folder / name} must hold an object, it holds a {type(value).__name__}")
    return value


@functools.lru_cache(maxsize=16)
def _parsed(data: bytes) -> Any:  # noqa: ANN401  # JSON
    """Parse once what target and draft share: ten megabytes of tokenizer take longer than everything else together.

    Callers treat the value as read-only.
    """
    return json.loads(data)


def _tokenizer(small: dict[str, bytes], folder: Path) -> TokenizerInfo:
    if _TOKENIZER not in small:
        old = next((name for name in ("tokenizer.model", "vocab.json") if (folder / name).is_file()), None)
        seen = f", only {old}" if old else ""
        raise CheckpointError(
            f"{folder} has no {_TOKENIZER}{seen}",
            hint="transformers writes it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder).",
        )
    template = small.get("chat_template.jinja")
    try:
        return tokenizer_info(
            _json(small, _TOKENIZER, folder),
            settings=_json(small, "tokenizer_config.json", folder) if "tokenizer_config.json" in small else {},
            special_map=_json(small, "special_tokens_map.json", folder) if "special_tokens_map.json" in small else {},
            chat_template=None if template is None else template.decode(errors="replace"),
            digest=hashlib.sha256(small[_TOKENIZER]).hexdigest(),
        )
    except BadTokenizer as error:
        raise CheckpointError(f"{folder / _TOKENIZER}: {error}") from None


def _weight_files(small: dict[str, bytes], folder: Path) -> tuple[WeightFile, ...]:
    """Return the weight files, the single one before an index, as transformers looks for them."""
    if (folder / _SINGLE).is_file():
        return (read_weight_file(folder / _SINGLE),)
    if _INDEX in small:
        return _sharded(_json(small, _INDEX, folder).get("weight_map"), folder)
    pickles = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{folder} has its weights only as pickles ({_some(pickles)}), which can run code when they are loaded",
            hint="Convert it where you trust it: model.save_pretrained(folder, safe_serialization=True).",
        )
    raise CheckpointError(f"{folder} has no weights: neither {_SINGLE} nor {_INDEX}")


def _sharded(weight_map: object, folder: Path) -> tuple[WeightFile, ...]:
    index = folder / _INDEX
    if not (isinstance(weight_map, dict) and weight_map and all(isinstance(v, str) for v in weight_map.values())):
        raise CheckpointError(f"{index}: weight_map must map tensor names to file names")
    names = sorted(set(weight_map.values()))
    if outside := [name for name in names if "/" in name or name in {".", ".."}]:
        raise CheckpointError(f"{index} lists files outside of the folder: {_some(outside)}")
    if absent := [name for name in names if not (folder / name).is_file()]:
        raise CheckpointError(
            f"{folder}: {len(absent)} of {len(names)} shards that {_INDEX} lists are absent: {_some(absent)}",
            hint="Copy or download them.",
        )
    files = _read_all([folder / name for name in names])
    held = {(tensor.name, file.name) for file in files for tensor in file.tensors}
    if missing := sorted(f"{tensor} in {file}" for tensor, file in weight_map.items() if (tensor, file) not in held):
        raise CheckpointError(f"{folder}: {len(missing)} tensors are not where {_INDEX} says: {_some(missing)}")
    return files


def _read_all(paths: list[Path]) -> tuple[WeightFile, ...]:
    """Read every file before complaining, so that one run names all shards that are to be copied again."""
    files: list[WeightFile] = []
    errors: list[CheckpointError] = []
    for path in paths:
        try:
            files.append(read_weight_file(path))
        except CheckpointError as error:
            errors.append(error)
    if len(errors) > 1:
        findings = [
            Finding(severity="error", code="checkpoint.damaged", message=error.message, hint=error.hint)
            for error in errors
        ]
        raise CheckpointError(f"{paths[0].parent}: {len(errors)} of {len(paths)} shards are damaged", findings=findings)
    if errors:
        raise errors[0]
    return tuple(files)


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


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


def _main_dtype(tensors: Iterable[TensorInfo]) -> str:
    """Return the type that most of the bytes have."""
    counter: collections.Counter[str] = collections.Counter()
    for tensor in tensors:
        counter[tensor.dtype] += tensor.nbytes
    dtype = counter.most_common(1)[0][0] if counter else "F32"
    return _TORCH_DTYPES.get(dtype, dtype.lower())


def _fingerprint(small: dict[str, bytes], files: Iterable[WeightFile]) -> str:
    digest = hashlib.sha256()
    for name, data in sorted(small.items()):
        digest.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\0".encode())
    for file in files:
        digest.update(f"{file.name}\0{file.size}\0{file.digest}\0".encode())
    return digest.hexdigest()
