"""What a profile gives (steps, as data) and what a finished engine is (its manifest); nothing here runs.

A profile turns an ``EngineSpec`` into ``BuildStep`` values; one executor, one store and one manifest serve them all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specdeploy.checkpoint.head import HeadInfo
    from specdeploy.checkpoint.info import CheckpointInfo
    from specdeploy.findings import Finding

Role: TypeAlias = Literal["target", "draft"]

SCHEMA_VERSION: Final = 2
# Replaced in a step's argv and environment by the executor: where the engine goes, and where throw-away files go.
OUTPUT: Final = "{output}"
SCRATCH: Final = "{scratch}"
# What the step before it wrote.
PREVIOUS: Final = "{previous}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildStep:
    """One command of a build, or one set of small files to write.

    Args:
        name: What it does, for progress lines.
        argv: Program and arguments; one that is ``{output}``, ``{previous}`` or ``{scratch}``, or begins so and goes on
            with a slash, stands for a directory.
            Empty when the step only writes ``writes``.
        env: Variables set on top of the inherited environment.
        inputs: Paths that must exist before it starts.
        outputs: Names relative to its output that must be non-empty files when it has ended.
        key: SHA-256 of everything that decides what it writes.
        parts: What the key was made from, by name, so that two keys that differ can be explained.
        requires: Importable packages and programs without which it cannot run.
        writes: Name relative to its output to text, written before the command runs.
        gpus: GPUs that it needs.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    key: str
    parts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    requires: tuple[str, ...] = ()
    writes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gpus: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        data: dict[str, Any] = json_data(dataclasses.asdict(self))
        return data


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """One engine that is wanted.

    Args:
        role: What the deployment uses it as.
        name: For people, such as ``SmolLM2-135M-Instruct-int8``.
        precision: Of its weights, never ``auto``.
        checkpoint: What it is made from.
        max_seq_len: Longest prompt plus answer that it must hold, in tokens.
        max_batch_size: Sequences that it must hold at once.
        head: What is built into it beside the checkpoint, for methods that have one.
        draft: The draft's checkpoint, for an engine that loads both.
        kv_cache: Type of its KV cache: ``auto`` is as the weights compute.
        tp_size: Ranks that share every layer.
        pp_size: Ranks that have some of the layers each.
        ep_size: Ranks that share the experts.
        extra_convert_args: The user's own arguments of the converter.
        extra_build_args: The user's own arguments of the compiler.
    """

    role: Role
    name: str
    precision: str
    checkpoint: CheckpointInfo
    max_seq_len: int
    max_batch_size: int
    head: HeadInfo | None = None
    draft: CheckpointInfo | None = None
    kv_cache: str = "auto"
    tp_size: int = 1
    pp_size: int = 1
    ep_size: int = 1
    extra_convert_args: tuple[str, ...] = ()
    extra_build_args: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks of the engine, one GPU each."""
        return self.tp_size * self.pp_size


class EngineProfile(Protocol):
    """How one kind of engine is made. Pure: the same spec gives the same answers on every machine."""

    @property
    def name(self) -> str:
        """The name in the configuration."""
        ...

    @property
    def inspected(self) -> tuple[str, ...]:
        """Names of the small files of a finished engine that :meth:`verify` wants to read."""
        ...

    def requirements(self) -> tuple[str, ...]:
        """Return the importable packages and programs that building and describing the usual engine needs."""
        ...

    def precision(self, wanted: str, checkpoint: CheckpointInfo) -> str:
        """Return the precision that *wanted* (which may be ``auto``) means for a checkpoint."""
        ...

    def check(self, spec: EngineSpec) -> tuple[Finding, ...]:
        """Return what speaks against building the engine, before anything runs."""
        ...

    def steps(self, spec: EngineSpec) -> tuple[BuildStep, ...]:
        """Return the commands that make the engine, in order; each reads what the one before it wrote."""
        ...

    def verify(self, spec: EngineSpec, files: Mapping[str, bytes], sizes: Mapping[str, int]) -> tuple[Finding, ...]:
        """Return how a finished engine differs from what was planned; an error keeps it from being published.

        Args:
            spec: What was wanted.
            files: Content of those of :attr:`inspected` that are there.
            sizes: Every file of the engine, relative to its directory, and its size in bytes.
        """
        ...

    def facts(self, spec: EngineSpec) -> Mapping[str, Any]:
        """Return what the manifest should say about how the engine was made, beside what every engine has."""
        ...

    def limit(self, spec: EngineSpec) -> int:
        """Return the longest sequence that the finished engine can hold, in tokens; at least what is wanted."""
        ...

    def estimated_bytes(self, spec: EngineSpec) -> int:
        """Return about how large the engine's files will be, for messages; not a promise."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineFile:
    """One file of an engine: its path relative to the engine's directory, its size in bytes and its SHA-256."""

    path: str
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineManifest:
    """What an engine is and where it came from, as kept beside its files in ``manifest.json``.

    One engine can serve several deployments and either role, so neither is in it.

    Args:
        key: SHA-256 of everything that decides its content.
        profile: The profile that made it.
        name: The name it was first built under.
        precision: Of its weights.
        checkpoint_name: Folder name of the checkpoint; ``checkpoint_fingerprint`` identifies it.
        checkpoint_fingerprint: SHA-256, see ``CheckpointInfo.fingerprint``.
        vocab_size: Width of its logits.
        max_seq_len: Longest sequence that it can hold; a deployment may allow less.
        num_layers: Decoder layers; with ``num_kv_heads`` and ``head_dim`` the size of its KV cache.
        num_kv_heads: Key and value heads.
        head_dim: Width of a head.
        eos_token_ids: Ids that end an answer.
        files: Every file but the manifest.
        argv: The commands that made it, one tuple each.
        tool_versions: Package to version, of what those commands used.
        created: When, in UTC as ISO 8601.
        duration_s: Seconds that making it took, and ``steps`` each of its steps that ran.
        size_bytes: Sum of its files.
        parts: What the key was made from, by step and name.
        facts: What its profile says about it, such as the release, the method and the world size.
        environment: Variables that the steps were given, secrets blotted out.
        host: The machine that made it: GPU, driver, container image, as far as they were seen.
        steps: Name of each step that ran to its duration in seconds; not those that an earlier run had done.
        schema_version: Of this document.
    """

    key: str
    profile: str
    name: str
    precision: str
    checkpoint_name: str
    checkpoint_fingerprint: str
    vocab_size: int
    max_seq_len: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    eos_token_ids: tuple[int, ...]
    files: tuple[EngineFile, ...]
    argv: tuple[tuple[str, ...], ...]
    tool_versions: Mapping[str, str]
    created: str
    duration_s: float
    size_bytes: int
    parts: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    host: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    steps: Mapping[str, float] = dataclasses.field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return plain data whose JSON :meth:`from_dict` reads back; the schema's version comes first."""
        data = json_data(dataclasses.asdict(self))
        return {"schema_version": data.pop("schema_version"), **data}

    @classmethod
    def from_dict(cls, data: object) -> EngineManifest:
        """Read what :meth:`to_dict` wrote.

        Raises:
            ConfigError: It is no manifest, or one of another schema version.
        """
        if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
            seen = data.get("schema_version") if isinstance(data, dict) else type(data).__name__
            raise ConfigError(f"not an engine manifest of schema version {SCHEMA_VERSION}: {seen!r}")
        try:
            return cls(**{field.name: _converted(field.name, data[field.name]) for field in dataclasses.fields(cls)})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the engine manifest is damaged: {error!r}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} must be text")
    return value


# Plain data back into the types of the manifest's fields; those that are not listed are text.
_CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "files": lambda value: tuple(
        EngineFile(path=_text(file["path"]), size=int(file["size"]), sha256=_text(file["sha256"])) for file in value
    ),
    "argv": lambda value: tuple(tuple(map(_text, argv)) for argv in value),
    "eos_token_ids": lambda value: tuple(map(int, value)),
    "tool_versions": lambda value: {_text(tool): _text(version) for tool, version in value.items()},
    "duration_s": float,
    "parts": lambda value: {_text(step): dict(parts) for step, parts in value.items()},
    "facts": dict,
    "environment": lambda value: {_text(name): _text(text) for name, text in value.items()},
    "host": dict,
    "steps": lambda value: {_text(step): float(seconds) for step, seconds in value.items()},
    **dict.fromkeys(
        ("vocab_size", "max_seq_len", "num_layers", "num_kv_heads", "head_dim", "size_bytes", "schema_version"), int
    ),
}


def _converted(name: str, value: object) -> Any:  # noqa: ANN401  # the manifest knows the field's type
    return _CONVERSIONS.get(name, _text)(value)


def json_data(value: Any) -> Any:  # noqa: ANN401  # JSON
    """Return a value as JSON has it: tuples become lists, mappings objects."""
    return json.loads(json.dumps(value))


def content_key(**parts: object) -> str:
    """Return the SHA-256 of named parts, equal for equal parts whatever their order."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def engine_key(steps: Sequence[BuildStep]) -> str:
    """Return an engine's key: that of its step, or of its chain of steps."""
    return steps[0].key if len(steps) == 1 else content_key(steps=[step.key for step in steps])
