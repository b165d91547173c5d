"""What the executor reports while it builds; how it is shown is the caller's business."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheHit:
    """The store has the engine already; nothing runs."""

    engine: str
    key: str
    path: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waiting:
    """Another build makes this engine, or works with what it is made from; what that leaves will be taken."""

    engine: str
    key: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepKept:
    """What a command would write is there from an earlier run; it is not run again."""

    engine: str
    step: str
    path: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepStarted:
    """A command begins; ``log`` is the file that its output goes to."""

    engine: str
    step: str
    argv: tuple[str, ...]
    log: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOutput:
    """One line that a command printed."""

    engine: str
    step: str
    line: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepFinished:
    """A command ended well, after ``duration_s`` seconds."""

    engine: str
    step: str
    duration_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """The engine is in the store under its key."""

    engine: str
    key: str
    path: str
    size_bytes: int
    duration_s: float


BuildEvent: TypeAlias = CacheHit | Waiting | StepKept | StepStarted | StepOutput | StepFinished | Published
