"""What became of each value of a deployment that was moved: carried over, changed, never set, or lost.

Shows them to people and as JSON. Knows nothing of what is moved; a mover writes one note per value that it met.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Outcome: TypeAlias = Literal["carried", "changed", "unset", "lost"]

SCHEMA_VERSION: Final = "1.0"
_TITLES: Final = {
    "lost": "Cannot be carried over",
    "changed": "Changed",
    "carried": "Carried over",
    "unset": "Never filled in, so the backend's default was in use",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Note:
    """What became of one value.

    Args:
        outcome: What happened.
        where: Where it stood, such as ``tensorrt_llm kv_cache_free_gpu_mem_fraction``.
        value: What it was.
        to: Where it is now and what it is there; empty when it is nowhere.
        why: Why it is not what it was, or what to do about it; empty for what is carried over as it was.
    """

    outcome: Outcome
    where: str
    value: str
    to: str = ""
    why: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return plain data for ``--json``."""
        return dataclasses.asdict(self)


def notes_document(notes: Sequence[Note], **about: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return the machine-readable report; *about* goes before the notes."""
    counts = {outcome: sum(note.outcome == outcome for note in notes) for outcome in _TITLES}
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "migration",
        **about,
        "counts": counts,
        "notes": [note.as_dict() for note in notes],
    }


def notes_text(notes: Sequence[Note]) -> str:
    """Return the report for people: what needs a decision first, what was never set in one line."""
    return "\n".join(_lines(notes)) + "\n"


def _lines(notes: Sequence[Note]) -> Iterator[str]:
    for outcome, title in _TITLES.items():
        found = [note for note in notes if note.outcome == outcome]
        if not found:
            continue
        yield f"{title} ({len(found)}):"
        if outcome == "unset":
            yield from _by_model(found)
            continue
        for note in found:
            value = f" = {note.value}" if note.value else ""
            yield f"  {note.where}{value}{f' -> {note.to}' if note.to else ''}"
            if note.why:
                yield f"      {note.why}"


def _by_model(notes: Sequence[Note]) -> Iterator[str]:
    models = dict.fromkeys(note.where.partition(" ")[0] for note in notes)
    for model in models:
        keys = [key for note in notes for name, _, key in [note.where.partition(" ")] if name == model]
        yield f"  {model}: {', '.join(dict.fromkeys(keys))}"
