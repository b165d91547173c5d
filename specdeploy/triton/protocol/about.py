"""What a server says about its models: metadata and counters, read from the JSON of Triton's HTTP API."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.triton.protocol.tensors import MalformedResponse

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One input or output of a model: its name, Triton data type and shape (-1: any length)."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelMetadata:
    """A model's versions, platform and tensors."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def input_types(self) -> dict[str, str]:
        """Input name -> Triton data type."""
        return {tensor.name: tensor.datatype for tensor in self.inputs}

    @property
    def output_types(self) -> dict[str, str]:
        """Output name -> Triton data type."""
        return {tensor.name: tensor.datatype for tensor in self.outputs}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelStatistics:
    """Triton's own counters of a model since the server started, all versions together.

    Args:
        name: The model.

        success_count: Requests that were answered.

        failure_count: Requests that ended with an error or were cancelled.
    """

    name: str
    success_count: int
    failure_count: int


def read_metadata(body: Mapping[str, Any]) -> ModelMetadata:
    """Read the answer of ``GET /v2/models/NAME``.

    Raises:
        MalformedResponse: A key is missing.
    """
    try:
        return ModelMetadata(
            name=body["name"],
            versions=tuple(body.get("versions", ())),
            platform=body.get("platform", ""),
            inputs=tuple(_tensor(spec) for spec in body["inputs"]),
            outputs=tuple(_tensor(spec) for spec in body["outputs"]),
        )
    except (KeyError, TypeError) as error:
        raise MalformedResponse(f"no model metadata (missing {error}): {body!r}") from error


def read_statistics(body: Mapping[str, Any], name: str) -> ModelStatistics:
    """Read the answer of ``GET /v2/models/NAME/stats``.

    Raises:
        MalformedResponse: The model is not in it, or a key is missing.
    """
    try:
        stats = [entry["inference_stats"] for entry in body["model_stats"] if entry["name"] == name]
        success = sum(entry["success"]["count"] for entry in stats)
        failure = sum(entry["fail"]["count"] for entry in stats)
    except (KeyError, TypeError) as error:
        raise MalformedResponse(f"no statistics of {name} (missing {error}): {body!r}") from error
    if not stats:
        raise MalformedResponse(f"no statistics of {name}: {body!r}")
    return ModelStatistics(name=name, success_count=success, failure_count=failure)


def _tensor(spec: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(name=spec["name"], datatype=spec["datatype"], shape=tuple(int(size) for size in spec["shape"]))
