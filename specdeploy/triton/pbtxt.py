"""config.pbtxt: a typed, frozen model configuration, rendered to protobuf text and parsed back.

Knows the part of Triton's ``ModelConfig`` message that decides what a model is called, what it takes and gives, and
how models are wired into an ensemble. Does not know what any model is for, and never touches a file. Parsing needs the
message that tritonclient ships; rendering needs nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# Protobuf's generated classes carry no types.
_Message: TypeAlias = Any
_Generated: TypeAlias = Any

_MESSAGES: Final = "model_config_pb2"
# Escapes of a string literal that stand side by side, and each of them by itself.
_ESCAPED_RUN: Final = re.compile(r"(?:\\(?:[xX][0-9a-fA-F]{1,2}|[0-7]{1,3}|[^\n]))+")
_ESCAPE: Final = re.compile(r"\\(?:[xX]([0-9a-fA-F]{1,2})|([0-7]{1,3})|[^\n])")
_ASCII: Final = 0x7F
_UNDECODABLE: Final = "\N{REPLACEMENT CHARACTER}"
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class PbtxtError(ConfigError):
    """A config.pbtxt that protobuf cannot read.

    Args:
        message: What the parser said.
        line: Line of the text, counted from 1; None when the parser did not say.
        column: Column, counted from 1; None when the parser did not say.
    """

    def __init__(self, message: str, *, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message, hint="mend the file, or write the repository again with `specdeploy repo`")
        self.line = line
        self.column = column


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """One input or output of a model.

    Args:
        name: The tensor's name.
        data_type: Triton's name of the type, such as ``TYPE_INT32``.
        dims: Shape without the batch dimension; -1 is any length.
        optional: A request may leave the input out.
        reshape: Shape the backend sees, when it differs; ``()`` is a scalar.
        allow_ragged_batch: Rows of one batch may differ in length.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False
    reshape: tuple[int, ...] | None = None
    allow_ragged_batch: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceGroup:
    """How many instances of the model run, and on what kind of device.

    ``resources`` is what one instance holds while it executes (name -> count), for servers that limit rates.
    """

    count: int = 1
    kind: str = "KIND_CPU"
    resources: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Queue:
    """How requests wait in front of a model; Triton calls it dynamic batching.

    Args:
        max_size: Requests that may wait; more of them are refused. 0 is no limit.
        timeout_us: A request that waits longer is refused. 0 is no limit.
        priority_levels: Levels that a request may name, 1 first. 0 is none.
    """

    max_size: int = 0
    timeout_us: int = 0
    priority_levels: int = 0

    @property
    def default_priority(self) -> int:
        """The middle level: a request that names none has room on both sides."""
        return (self.priority_levels + 1) // 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmupInput:
    """One input of a warm-up request: ``file`` lies in the model's folder ``warmup``."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    file: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Warmup:
    """A request that Triton makes of a model before it calls it ready."""

    name: str
    inputs: tuple[WarmupInput, ...]
    batch_size: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnsembleStep:
    """One model of an ensemble: the model's tensor name -> the ensemble's tensor name, for inputs and for outputs."""

    model_name: str
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]
    model_version: int = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What one config.pbtxt says.

    ``parameters`` are rendered in the order given and compared without regard to it, as protobuf does. ``comments`` are
    written above the parameter of the same name (the one under ``""`` heads the file); they are not part of the value.

    Args:
        name: Name of the model; Triton insists that it is the directory's.
        backend: Triton backend; empty for an ensemble.
        platform: ``ensemble``, or empty when ``backend`` is set.
        max_batch_size: 0 means that tensors carry no batch dimension.
        inputs: Inputs.
        outputs: Outputs.
        instance_group: Empty leaves it to the backend.
        decoupled: Whether a request may have any number of responses.
        parameters: String parameters of the backend or model.
        steps: Steps of an ensemble, in order.
        default_model_filename: File in the version directory that the backend loads, when it is not its usual one.
        queue: How requests wait; None is Triton's plain queue without limits.
        warmups: Requests that come before those of clients.
        comments: See above.
    """

    name: str
    backend: str = ""
    platform: str = ""
    max_batch_size: int = 0
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    instance_group: tuple[InstanceGroup, ...] = ()
    decoupled: bool = False
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    steps: tuple[EnsembleStep, ...] = ()
    default_model_filename: str = ""
    queue: Queue | None = None
    warmups: tuple[Warmup, ...] = ()
    comments: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)


def render(config: ModelConfig) -> str:
    """Write *config* as protobuf text, the same text for the same value.

    Raises:
        ConfigError: A string holds a lone surrogate (an undecodable file name), which protobuf cannot carry.
    """
    return "\n".join(_lines(config)) + "\n"


def parse(text: str) -> ModelConfig:
    """Read protobuf text; fields of Triton's message that :class:`ModelConfig` does not have are checked and dropped.

    Raises:
        PbtxtError: The text is not a ``ModelConfig``; the error carries line and column.
    """
    message = _read_message(text)
    return ModelConfig(
        name=message.name,
        backend=message.backend,
        platform=message.platform,
        max_batch_size=message.max_batch_size,
        inputs=tuple(_tensor(item, is_input=True) for item in message.input),
        outputs=tuple(_tensor(item, is_input=False) for item in message.output),
        instance_group=tuple(_instance_group(item) for item in message.instance_group),
        decoupled=message.model_transaction_policy.decoupled,
        parameters={key: message.parameters[key].string_value for key in sorted(message.parameters)},
        steps=tuple(_step(item) for item in message.ensemble_scheduling.step),
        default_model_filename=message.default_model_filename,
        queue=_queue(message.dynamic_batching) if message.HasField("dynamic_batching") else None,
        warmups=tuple(_warmup(item) for item in message.model_warmup),
    )


def parse_message(text: str) -> _Message:
    """Return everything that protobuf text says, as tritonclient's ``ModelConfig`` message.

    Raises:
        PbtxtError: See :func:`parse`.
    """
    return _read_message(text)


def quote(text: str) -> str:
    """Return *text* as a protobuf string literal: printable characters as they are, all others escaped.

    Raises:
        ConfigError: *text* holds a lone surrogate.
    """
    try:
        return '"' + "".join(_ESCAPES.get(char) or _escaped(char) for char in text) + '"'
    except UnicodeEncodeError as error:
        raise ConfigError(f"{text!r} cannot be written to config.pbtxt: it is not valid Unicode") from error


def _escaped(char: str) -> str:
    data = char.encode()
    return char if char.isprintable() else "".join(f"\\{byte:03o}" for byte in data)


def _lines(config: ModelConfig) -> Iterator[str]:
    yield from _comment(config.comments.get("", ""))
    yield f"name: {quote(config.name)}"
    for field in ("backend", "platform", "default_model_filename"):
        if value := getattr(config, field):
            yield f"{field}: {quote(value)}"
    yield from _comment(config.comments.get("max_batch_size", ""))
    yield f"max_batch_size: {config.max_batch_size}"
    if config.decoupled:
        yield "model_transaction_policy { decoupled: true }"
    yield from _comment(config.comments.get("instance_group", "") if config.instance_group else "")
    yield from (f"instance_group {{ {_instance_group_text(group)} }}" for group in config.instance_group)
    if config.queue is not None:
        yield from _comment(config.comments.get("dynamic_batching", ""))
        yield f"dynamic_batching {{ {_queue_text(config.queue)} }}"
    yield from (line for warmup in config.warmups for line in _warmup_text(warmup))
    yield from (f"input {{ {_tensor_text(tensor)} }}" for tensor in config.inputs)
    yield from (f"output {{ {_tensor_text(tensor)} }}" for tensor in config.outputs)
    for key, value in config.parameters.items():
        yield from _comment(config.comments.get(key, ""))
        yield f"parameters {{ key: {quote(key)} value {{ string_value: {quote(value)} }} }}"
    if config.steps:
        yield from _steps_text(config.steps)


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}".rstrip() for line in text.splitlines())


def _tensor_text(tensor: Tensor) -> str:
    parts = [f"name: {quote(tensor.name)}", f"data_type: {tensor.data_type}", f"dims: {_shape(tensor.dims)}"]
    if tensor.reshape is not None:
        parts.append(f"reshape {{ shape: {_shape(tensor.reshape)} }}")
    if tensor.optional:
        parts.append("optional: true")
    if tensor.allow_ragged_batch:
        parts.append("allow_ragged_batch: true")
    return " ".join(parts)


def _shape(dims: Iterable[int]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _instance_group_text(group: InstanceGroup) -> str:
    parts = [f"count: {group.count}", f"kind: {group.kind}"]
    if group.resources:
        listed = " ".join(
            f"resources {{ name: {quote(name)} count: {count} }}" for name, count in sorted(group.resources.items())
        )
        parts.append(f"rate_limiter {{ {listed} }}")
    return " ".join(parts)


def _queue_text(queue: Queue) -> str:
    parts = []
    if queue.priority_levels:
        parts.append(f"priority_levels: {queue.priority_levels} default_priority_level: {queue.default_priority}")
    policy = []
    if queue.max_size:
        policy.append(f"max_queue_size: {queue.max_size}")
    if queue.timeout_us:
        # A client may ask for less patience, not for more.
        policy.append(
            f"timeout_action: REJECT default_timeout_microseconds: {queue.timeout_us} allow_timeout_override: true"
        )
    if policy:
        parts.append(f"default_queue_policy {{ {' '.join(policy)} }}")
    return " ".join(parts)


def _warmup_text(warmup: Warmup) -> Iterator[str]:
    yield "model_warmup {"
    yield f"  name: {quote(warmup.name)}"
    yield f"  batch_size: {warmup.batch_size}"
    for item in warmup.inputs:
        value = f"data_type: {item.data_type} dims: {_shape(item.dims)} input_data_file: {quote(item.file)}"
        yield f"  inputs {{ key: {quote(item.name)} value {{ {value} }} }}"
    yield "}"


def _steps_text(steps: Iterable[EnsembleStep]) -> Iterator[str]:
    yield "ensemble_scheduling {"
    for step in steps:
        yield "  step {"
        yield f"    model_name: {quote(step.model_name)}"
        yield f"    model_version: {step.model_version}"
        for field, pairs in (("input_map", step.input_map), ("output_map", step.output_map)):
            yield from (f"    {field} {{ key: {quote(key)} value: {quote(value)} }}" for key, value in pairs.items())
        yield "  }"
    yield "}"


def _read_message(text: str) -> _Message:
    # Imported here: protobuf is heavy, and only those who parse need it.
    from google.protobuf import text_format  # noqa: PLC0415 - see above

    try:
        return _parsed(text)
    except text_format.ParseError as error:
        # Triton's parser takes bytes that are not UTF-8; Python's does not.
        if "utf-8" in str(error):
            return _retried(text)
        raise _refusal(error) from error
    except (ValueError, RecursionError) as error:
        raise PbtxtError(f"it cannot be parsed: {error}") from error


def _retried(text: str) -> _Message:
    from google.protobuf import text_format  # noqa: PLC0415 - heavy, and needed only to parse

    try:
        return _parsed(_decodable(text))
    except text_format.ParseError as error:
        raise _refusal(error) from error


def _parsed(text: str) -> _Message:
    from google.protobuf import text_format  # noqa: PLC0415 - heavy, and needed only to parse

    message = _messages().ModelConfig()
    text_format.Parse(text, message)
    return message


def _refusal(error: _Generated) -> PbtxtError:
    line, column = error.GetLine(), error.GetColumn()
    return PbtxtError(str(error).removeprefix(f"{line}:{column} : "), line=line, column=column)


def _decodable(text: str) -> str:
    """Return *text* with a replacement character for each escaped byte that belongs to no UTF-8 character."""
    return _ESCAPED_RUN.sub(_decodable_run, text)


def _decodable_run(run: re.Match[str]) -> str:
    escapes = list(_ESCAPE.finditer(run[0]))
    values = [int(one[1], 16) if one[1] else int(one[2], 8) & 0xFF if one[2] else 0 for one in escapes]
    try:
        bytes(values).decode()
    except UnicodeDecodeError:
        return "".join(_UNDECODABLE if value > _ASCII else one[0] for one, value in zip(escapes, values, strict=True))
    return run[0]


@functools.cache
def _messages() -> _Generated:
    """Return the module of Triton's configuration messages.

    It is loaded by its file: the package around it imports gRPC and NumPy, which takes longer than a whole lint. The
    messages are in protobuf's one pool either way, so that whoever imports the package later gets the same.
    """
    package = importlib.util.find_spec("tritonclient")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        file = Path(folder, "grpc", f"{_MESSAGES}.py")
        spec = importlib.util.spec_from_file_location(f"_specdeploy_{_MESSAGES}", file) if file.is_file() else None
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    from tritonclient.grpc import model_config_pb2  # noqa: PLC0415 - heavy, and needed only to parse

    return model_config_pb2


def _enum_name(enum: _Generated, number: int) -> str:
    """Return the name of an enumeration's value; the number where it has none, which Triton lets pass."""
    try:
        return str(enum.Name(number))
    except ValueError:
        return str(number)


def _tensor(message: _Message, *, is_input: bool) -> Tensor:
    return Tensor(
        name=message.name,
        data_type=_enum_name(_messages().DataType, message.data_type),
        dims=tuple(message.dims),
        optional=is_input and message.optional,
        reshape=tuple(message.reshape.shape) if message.HasField("reshape") else None,
        allow_ragged_batch=is_input and message.allow_ragged_batch,
    )


def _instance_group(message: _Message) -> InstanceGroup:
    return InstanceGroup(
        count=message.count,
        kind=_enum_name(message.Kind, message.kind),
        resources={item.name: item.count for item in message.rate_limiter.resources},
    )


def _queue(message: _Message) -> Queue:
    policy = message.default_queue_policy
    return Queue(
        max_size=policy.max_queue_size,
        timeout_us=policy.default_timeout_microseconds,
        priority_levels=message.priority_levels,
    )


def _warmup(message: _Message) -> Warmup:
    inputs = tuple(
        WarmupInput(
            name=name,
            data_type=_enum_name(_messages().DataType, value.data_type),
            dims=tuple(value.dims),
            file=value.input_data_file,
        )
        for name, value in sorted(message.inputs.items())
    )
    return Warmup(name=message.name, batch_size=message.batch_size, inputs=inputs)


def _step(message: _Message) -> EnsembleStep:
    return EnsembleStep(
        model_name=message.model_name,
        model_version=message.model_version,
        input_map=dict(sorted(message.input_map.items())),
        output_map=dict(sorted(message.output_map.items())),
    )
