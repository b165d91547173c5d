"""Tensors of NVIDIA's ``inflight_batcher_llm`` model templates, by release of TensorRT-LLM.

Knows how to look a release up in ``tensors.json`` and how its lines are written. Does not know what a tensor means, nor
which of the templates specdeploy generates.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
import re
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import ConfigError
from specdeploy.triton.pbtxt import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINE: Final = re.compile(r"(?P<name>\w+) (?P<type>[A-Z]+\d*)\[(?P<dims>-?\d+(?:,-?\d+)*)\](?P<flags>(?: [a-z]+)*)")
_MINOR: Final = re.compile(r"0\.(\d+)(?:\.|$)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelTensors:
    """What one template takes and gives, in the template's order."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleaseTensors:
    """The templates of one row of the table.

    Args:
        release: Name of the row, such as ``1.x``.
        models: Template name (``ensemble``, ``tensorrt_llm``, ...) -> its tensors.
        parameters: Keys that the backend ``tensorrtllm`` takes from its model's configuration.
        provenance: Where the row is from.
        derived: Whether the release asked for was not read itself, and is taken to be as this row.
    """

    release: str
    models: Mapping[str, ModelTensors]
    parameters: frozenset[str]
    provenance: str
    derived: bool = False


def release_tensors(release: str) -> ReleaseTensors:
    """Return the tensors of a TensorRT-LLM release such as ``1.2.1`` or ``0.19.0``.

    Raises:
        ConfigError: The table has no row for *release*.
    """
    rows = _document()["releases"]
    minor = _MINOR.match(release)
    likened = _document()["derived"].get(f"0.{minor[1]}") if minor else None
    if likened is not None and minor is not None:
        said = _document()["provenance"][f"0.{minor[1]}"]
        return dataclasses.replace(_read(likened), derived=True, provenance=said)
    return _read(_row(release, rows))


def release_parameters(release: str) -> frozenset[str]:
    """Return the keys that the backend ``tensorrtllm`` of a release takes from ``parameters``.

    Raises:
        ConfigError: The table has no row for *release*.
    """
    return release_tensors(release).parameters


def known_releases() -> tuple[str, ...]:
    """Return the names of the table's rows, oldest first."""
    return tuple(_document()["releases"])


def _row(release: str, rows: Mapping[str, Any]) -> str:
    """Return the row for *release*: one for all of 1.x, and one for each minor release of 0.x that we have read."""
    if re.match(r"1(\.|$)", release):
        return "1.x"
    minor = _MINOR.match(release)
    found = [row for row in rows if minor and row.startswith(f"0.{minor[1]}.")]
    if not found:
        known = ", ".join([*(".".join(row.split(".")[:2]) for row in rows), *_document()["derived"]])
        raise ConfigError(
            f"release: the tensors of TensorRT-LLM {release!r} are not known",
            hint=f"known releases: {known}; use the one whose names your clients send",
        )
    return found[0]


@functools.cache
def _document() -> dict[str, Any]:
    text = importlib.resources.files("specdeploy.triton").joinpath("tensors.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


@functools.cache
def _read(row: str) -> ReleaseTensors:
    models = {
        name: ModelTensors(
            inputs=tuple(map(_tensor, tensors["inputs"])),
            outputs=tuple(map(_tensor, tensors["outputs"])),
        )
        for name, tensors in _document()["releases"][row].items()
    }
    return ReleaseTensors(
        release=row, models=models, parameters=_parameters(row), provenance=_document()["provenance"][row]
    )


def _parameters(row: str) -> frozenset[str]:
    """Return what the row's backend takes: the keys of its own release and of those before it."""
    rows = known_releases()
    until = rows[: rows.index(row) + 1]
    return frozenset(key for release in until for key in _document()["engine_parameters"].get(release, ()))


def _tensor(line: str) -> Tensor:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"not a tensor: {line!r}")
    flags = match["flags"].split()
    return Tensor(
        name=match["name"],
        data_type=f"TYPE_{match['type']}",
        dims=tuple(map(int, match["dims"].split(","))),
        optional="optional" in flags,
        reshape=() if "scalar" in flags else None,
        allow_ragged_batch="ragged" in flags,
    )
