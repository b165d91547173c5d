"""What every kind of checkpoint folder has in common: small JSON files, weight files, and two fingerprints.

Knows files and errors; which files a folder must have, and what is in them, is for ``read``, ``read_head`` and
``read_trtllm``.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from specdeploy.checkpoint.safetensors import WeightFile, read_weight_file
from specdeploy.errors import CheckpointError
from specdeploy.findings import Finding
from specdeploy.system import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
# Pickles can run code when they are loaded, and their headers cannot be read without doing so.
_PICKLES: Final = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_SHOWN: Final = 3
# Hashing leaves the interpreter, so that several files are read at once.
_READERS: Final = 4


def existing_folder(path: Path, contents: str) -> Path:
    """Return the absolute folder; *contents* says what it should hold.

    Raises:
        CheckpointError: It is not there, or it is a file.
    """
    if not path.exists():
        raise CheckpointError(
            f"there is no checkpoint folder {path}",
            hint="Relative paths start at the YAML's folder.",
            code="checkpoint.missing",
        )
    if not path.is_dir():
        raise CheckpointError(
            f"{path} is a file; a checkpoint is a folder with {contents}",
            hint="Name the folder that it lies in.",
            code="checkpoint.no-folder",
        )
    return path.resolve()


def model_name(folder: Path) -> str:
    """Return what a checkpoint is called: its folder, or in a hub's cache what the folder around the snapshots says."""
    around = folder.parent.parent.name
    if folder.parent.name == "snapshots" and around.startswith("models--"):
        return around.rpartition("--")[2]
    return folder.name


def small_files(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the content of those of the named files that are there.

    Raises:
        CheckpointError: One is there and cannot be read.
    """
    return {name: data for name in names if (data := _bytes(folder / name)) is not None}


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def json_object(small: Mapping[str, bytes], name: str, folder: Path, hint: str = "") -> dict[str, Any]:
    """Return the JSON object in one of the small files; *hint* helps when it is missing.

    Raises:
        CheckpointError: It is missing, no JSON, or no object.
    """
    if name not in small:
        raise CheckpointError(f"{folder} has no {name}", hint=hint, code="checkpoint.file-missing")
    try:
        value = _parsed(small[name])
    except ValueError as error:
        raise CheckpointError(
            f"{folder / name} is not valid JSON: {error}", hint="Copy or download it again.", code="checkpoint.bad-json"
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{folder / name} must hold an object, it holds a {type(value).__name__}",
            hint="Copy or download it again.",
            code="checkpoint.bad-json",
        )
    return value


@functools.lru_cache(maxsize=16)
def _parsed(data: bytes) -> Any:  # noqa: ANN401  # JSON
    """Parse once what target and draft share: ten megabytes of tokenizer take longer than everything else together.

    Callers treat the value as read-only.
    """
    return json.loads(data)


def weight_files(
    small: Mapping[str, bytes], folder: Path, singles: Sequence[str] = (SINGLE,)
) -> tuple[WeightFile, ...]:
    """Return the weight files: the first of *singles* that is there, or the shards of an index.

    Raises:
        CheckpointError: There are none, only pickles, or not all of them; files are damaged.
    """
    single = next((name for name in singles if (folder / name).is_file()), None)
    if single is not None:
        return (read_weight_file(folder / single),)
    if INDEX in small:
        return _sharded(json_object(small, INDEX, folder).get("weight_map"), folder)
    pickles = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{folder} has its weights only as pickles ({some(pickles)}), which can run code when they are loaded",
            hint=_pickle_cure(pickles[0], singles),
            code="checkpoint.pickle",
        )
    raise CheckpointError(
        f"{folder} has no weights: neither {' nor '.join((*singles, INDEX))}",
        hint="Copy or download it again.",
        code="checkpoint.no-weights",
    )


def _pickle_cure(pickle: str, singles: Sequence[str]) -> str:
    """Return how to convert: a model by transformers, the bare tensors of a head without it."""
    if singles == (SINGLE,):
        return "Convert it where you trust it: model.save_pretrained(folder, safe_serialization=True)."
    stem = pickle.rpartition(".")[0]
    name = next((single for single in singles if single == f"{stem}.safetensors"), SINGLE)
    load = f'torch.load("{pickle}", weights_only=True)'
    return f'Convert it where you trust it: safetensors.torch.save_file({load}, "{name}"), and remove {pickle}.'


def _sharded(weight_map: object, folder: Path) -> tuple[WeightFile, ...]:
    index = folder / INDEX
    if not (isinstance(weight_map, dict) and weight_map and all(isinstance(v, str) for v in weight_map.values())):
        raise CheckpointError(
            f"{index}: weight_map must map tensor names to file names",
            hint="Copy or download it again.",
            code="checkpoint.bad-index",
        )
    names = sorted(set(weight_map.values()))
    if outside := [name for name in names if "/" in name or name in {".", ".."}]:
        raise CheckpointError(
            f"{index} lists files outside of the folder: {some(outside)}",
            hint="Take the index that belongs to the shards.",
            code="checkpoint.bad-index",
        )
    if absent := [name for name in names if not (folder / name).is_file()]:
        raise CheckpointError(
            f"{folder}: {len(absent)} of {len(names)} shards that {INDEX} lists are absent: {some(absent)}",
            hint="Copy or download them.",
            code="checkpoint.shard-missing",
        )
    shards = read_weight_files([folder / name for name in names])
    held = {(tensor.name, shard.name) for shard in shards for tensor in shard.tensors}
    if missing := sorted(f"{tensor} in {file}" for tensor, file in weight_map.items() if (tensor, file) not in held):
        raise CheckpointError(
            f"{folder}: {len(missing)} tensors are not where {INDEX} says: {some(missing)}",
            hint="Take shards and index from one download; one of them is of another.",
            code="checkpoint.tensor-missing",
        )
    return shards


def read_weight_files(paths: Sequence[Path]) -> tuple[WeightFile, ...]:
    """Read every file before complaining, so that one run names all of them that are to be copied again.

    Raises:
        CheckpointError: One or more are damaged; of several, ``findings`` has each.
    """
    found: list[WeightFile] = []
    errors: list[CheckpointError] = []
    for path in paths:
        try:
            found.append(read_weight_file(path))
        except CheckpointError as error:
            errors.append(error)
    if len(errors) > 1:
        findings = [
            Finding(severity="error", code=error.code, message=error.message, hint=error.hint) for error in errors
        ]
        raise CheckpointError(f"{paths[0].parent}: {len(errors)} of {len(paths)} shards are damaged", findings=findings)
    if errors:
        raise errors[0]
    return tuple(found)


def some(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def content_fingerprint(
    small: Mapping[str, bytes], weights: Sequence[WeightFile], *, full_hash_of: Path | None = None
) -> str:
    """Return the SHA-256 of the small files and of each weight file's header, size and samples of its data.

    Args:
        small: The small files.
        weights: The weight files.
        full_hash_of: Their folder, to cover every byte of them; takes as long as reading them.
    """
    digest = hashlib.sha256()
    for name, data in sorted(small.items()):
        digest.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\0".encode())
    for file in weights:
        digest.update(f"{file.name}\0{file.size}\0{file.digest}\0".encode())
    if full_hash_of is not None:
        with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
            for content in pool.map(files.sha256_file, [full_hash_of / file.name for file in weights]):
                digest.update(content.encode())
    return digest.hexdigest()


def touch_fingerprint(folder: Path, names: Iterable[str]) -> str:
    """Return the SHA-256 of names, sizes and times of the named files that are there, and of all weight files."""
    digest = hashlib.sha256()
    for name in sorted({*names, *(file.name for file in folder.glob("*.safetensors"))}):
        file = folder / name
        if file.is_file():
            status = file.stat()
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()
