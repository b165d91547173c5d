"""Checks of a model's own inputs, outputs and warm-up requests, as Triton makes them when it loads the model."""

from __future__ import annotations

import math
import posixpath
from collections import Counter
from typing import TYPE_CHECKING, Final

from specdeploy.triton.lint.loaded import Model, Repository, error, warning
from specdeploy.triton.lint.unread import size_of
from specdeploy.triton.pbtxt import parse_message
from specdeploy.triton.repository import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.findings import Finding
    from specdeploy.triton.pbtxt import ModelConfig, Tensor, Warmup, WarmupInput

UNTYPED: Final = "TYPE_INVALID"
# FORMAT_NHWC and FORMAT_NCHW of Triton's message, and the dimensions of an image without the batch.
_IMAGES: Final = (1, 2)
_IMAGE_DIMS: Final = 3
_LARGEST: Final = 2**63
# Bytes of an element; strings have no fixed size.
_SIZES: Final = {
    **dict.fromkeys(("TYPE_BOOL", "TYPE_UINT8", "TYPE_INT8"), 1),
    **dict.fromkeys(("TYPE_UINT16", "TYPE_INT16", "TYPE_FP16", "TYPE_BF16"), 2),
    **dict.fromkeys(("TYPE_UINT32", "TYPE_INT32", "TYPE_FP32"), 4),
    **dict.fromkeys(("TYPE_UINT64", "TYPE_INT64", "TYPE_FP64"), 8),
}


def tensors(repository: Repository) -> Iterator[Finding]:
    """Every input and output has a name, a type and dimensions, once."""
    for model in repository.models.values():
        if model.config is not None:
            for kind, declared in (("input", model.config.inputs), ("output", model.config.outputs)):
                for tensor in declared:
                    yield from _tensor(model, kind, tensor)
                yield from _duplicates(model, kind, declared)


def formats(repository: Repository) -> Iterator[Finding]:
    """An input whose layout is that of an image has the dimensions of one."""
    for model in repository.models.values():
        if model.config is None or "format" not in (model.text or ""):
            continue
        for tensor in parse_message(model.text or "").input:
            if tensor.format in _IMAGES and len(tensor.dims) != _IMAGE_DIMS:
                yield error(
                    "tensor.format",
                    f"input {tensor.name} has the format of an image, and {len(tensor.dims)} dims",
                    where=model.at(f'"{tensor.name}"'),
                    hint="three dims, or leave format out",
                )


def labels(repository: Repository) -> Iterator[Finding]:
    """The labels of an output are there: Triton reads them when it loads the model."""
    for model in repository.models.values():
        if model.config is None or "label_filename" not in (model.text or ""):
            continue
        for tensor in parse_message(model.text or "").output:
            file = tensor.label_filename
            path = posixpath.normpath(f"{model.directory}/{file}")
            # What lies above the repository cannot be seen.
            if file and path not in repository.tree and not path.startswith("../"):
                yield error(
                    "tensor.labels",
                    f"output {tensor.name} has its labels in {file!r}, which is not there",
                    where=model.at("label_filename"),
                    hint=f"put it in {model.directory}/, or leave label_filename out",
                )


def warmups(repository: Repository) -> Iterator[Finding]:
    """The requests that Triton makes of a model before it calls it ready can be made."""
    for model in repository.models.values():
        for warmup in model.config.warmups if model.config is not None else ():
            # Triton leaves out a sample of batch size 0.
            if model.config is not None and warmup.batch_size > 0:
                yield from _warmup(model, model.config, warmup)


def _tensor(model: Model, kind: str, tensor: Tensor) -> Iterator[Finding]:
    where = model.at(f'"{tensor.name}"')
    if not tensor.name:
        yield error("tensor.name-missing", f"an {kind} has no name", where=model.where, hint="give it a name")
    if tensor.data_type == UNTYPED:
        yield error(
            "tensor.type-missing",
            f"{kind} {tensor.name} has no data_type",
            where=where,
            hint="such as data_type: TYPE_INT32",
        )
    if not tensor.dims or any(size == 0 or size < -1 for size in tensor.dims):
        yield error(
            "tensor.dims",
            f"{kind} {tensor.name} has dims {list(tensor.dims)}",
            where=where,
            hint="at least one dimension, each positive, or -1 for any length",
        )
    elif tensor.reshape is not None and not _same_size(tensor.dims, tensor.reshape):
        yield error(
            "tensor.reshape",
            f"{kind} {tensor.name} has dims {list(tensor.dims)} and is reshaped to {list(tensor.reshape)}",
            where=where,
            hint="both shapes hold the same number of elements",
        )


def _same_size(dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Say whether Triton takes *shape* for *dims*: as many elements, and as many dimensions of any length."""
    if -1 in dims or -1 in shape:
        return dims.count(-1) == shape.count(-1)
    return math.prod(dims) == math.prod(shape)


def _duplicates(model: Model, kind: str, declared: tuple[Tensor, ...]) -> Iterator[Finding]:
    required = {tensor.name for tensor in declared if kind == "input" and not tensor.optional}
    for name, count in Counter(tensor.name for tensor in declared).items():
        if count > 1:
            # Triton counts inputs: the second of the same name can never be sent.
            yield (error if name in required else warning)(
                "tensor.duplicate",
                f"{kind} {name} is declared {count} times",
                where=model.at(f'"{name}"'),
                hint="declare it once",
            )


def _warmup(model: Model, config: ModelConfig, warmup: Warmup) -> Iterator[Finding]:
    where = model.at("model_warmup")
    declared = {tensor.name: tensor for tensor in config.inputs}
    given = {item.name for item in warmup.inputs}
    missing = [tensor.name for tensor in config.inputs if not tensor.optional and tensor.name not in given]
    unknown = sorted(given - set(declared))
    if missing or unknown:
        seen = [*(f"{name} is missing" for name in missing), *(f"{name} is no input" for name in unknown)]
        yield error(
            "warmup.inputs",
            f"the warm-up request {warmup.name!r} cannot be made: {', '.join(seen)}",
            where=where,
            hint="give every required input of the model, and no others",
        )
    for item in warmup.inputs:
        if item.name in declared:
            yield from _warmup_input(model, item, declared[item.name], where)


def _warmup_input(model: Model, item: WarmupInput, declared: Tensor, where: str) -> Iterator[Finding]:
    if item.data_type != declared.data_type:
        yield error(
            "warmup.type",
            f"the warm-up request gives {item.name} as {item.data_type}, the model takes {declared.data_type}",
            where=where,
            hint="use the model's type",
        )
    if not item.file:
        return
    path = f"{names.WARMUP_DIR}/{item.file}"
    data = model.files.get(path)
    needed = min(_SIZES.get(item.data_type, 0) * math.prod(item.dims), _LARGEST)
    if data is None:
        yield error(
            "warmup.file",
            f"the warm-up request reads {item.name} from {path}, which is not there",
            where=where,
            hint="write the repository again with `specdeploy repo`",
        )
    elif size_of(data) < needed:
        yield error(
            "warmup.file",
            f"{path} has {size_of(data)} bytes, and {item.name} takes {needed}",
            where=f"{model.directory}/{path}",
            hint="write the repository again with `specdeploy repo`",
        )
