"""Whether a folder is the TensorRT-LLM checkpoint that was asked for: read back, not believed.

Reads ``config.json`` and the headers of the rank files; knows nothing about ModelOpt.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import BuildFailed
from specdeploy.modelopt.formats import FORMATS, KV_CACHES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from specdeploy.modelopt.options import Conversion
    from specdeploy.modelopt.source import Source

# What TensorRT-LLM cannot do without.
_REQUIRED: Final = (
    "architecture",
    "dtype",
    "hidden_act",
    "hidden_size",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
)
_LENGTH_BYTES: Final = 8
_LONGEST_HEADER: Final = 100_000_000


def check_layout(folder: Path, wanted: Conversion, source: Source) -> None:
    """Raise when ``folder`` is not the checkpoint of ``source`` that was ``wanted``.

    Raises:
        BuildFailed: Tells everything that is wrong.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _wrong([f"config.json: {error}"]) from error
    if not isinstance(config, dict):
        raise _wrong(["config.json is not a JSON object"])
    wrong = [*_wrong_settings(config, wanted, source), *_wrong_files(folder, wanted.tp_size * wanted.pp_size)]
    if wrong:
        raise _wrong(wrong)


def _wrong(problems: list[str]) -> BuildFailed:
    return BuildFailed(
        f"ModelOpt wrote something else than was asked for: {'; '.join(problems)}",
        hint="nothing was kept; this program is tested with nvidia-modelopt 0.37.0",
    )


def _wrong_settings(config: Mapping[str, Any], wanted: Conversion, source: Source) -> Iterator[str]:
    absent = [key for key in _REQUIRED if config.get(key) is None]
    if absent:
        yield f"config.json lacks {', '.join(absent)}"
    expected = {
        "dtype": wanted.dtype,
        "mapping.world_size": wanted.tp_size * wanted.pp_size,
        "mapping.tp_size": wanted.tp_size,
        "mapping.pp_size": wanted.pp_size,
        "quantization.quant_algo": FORMATS[wanted.qformat].quant_algo,
        "quantization.kv_cache_quant_algo": KV_CACHES[wanted.kv_cache],
    }
    if source.layers is not None:
        expected["num_hidden_layers"] = source.layers
    for path, value in expected.items():
        seen = _at(config, path)
        if seen != value:
            yield f"{path} is {seen!r}, not {value!r}"


def _at(config: Mapping[str, Any], path: str) -> object:
    """Return what ``config`` holds at a dotted path, None where there is nothing."""
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _wrong_files(folder: Path, world_size: int) -> Iterator[str]:
    expected = {f"rank{rank}.safetensors" for rank in range(world_size)}
    found = {path.name for path in folder.glob("*.safetensors")}
    for name in sorted(expected - found):
        yield f"{name} is missing"
    for name in sorted(found - expected):
        yield f"{name} is one rank too many"
    for name in sorted(expected & found):
        problem = _wrong_header(folder / name)
        if problem:
            yield f"{name} {problem}"


def _wrong_header(path: Path) -> str | None:
    """Say what is wrong with a safetensors file, as far as its header and its size show it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < length <= min(_LONGEST_HEADER, size - _LENGTH_BYTES):
            return "has no header"
        header = file.read(length)
    try:
        tensors = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return "has a damaged header"
    if not end:
        return "holds no tensor"
    if size != _LENGTH_BYTES + length + end:
        return f"is {size} bytes long, not the {_LENGTH_BYTES + length + end} that its header promises"
    return None
