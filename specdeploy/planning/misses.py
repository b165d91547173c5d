"""Why is an engine not in the store? The engine there that is nearest to it, and what is different about it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from specdeploy.engine.profile import EngineManifest
    from specdeploy.planning.build import PlannedEngine

_ABSENT = "absent"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Miss:
    """An engine that has to be built.

    Args:
        nearest: Key of the stored engine that differs least; None when there is none of the same profile.
        reasons: What differs from it, such as ``max_batch_size 8 → 16``; empty without one.
    """

    nearest: str | None
    reasons: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return dataclasses.asdict(self)


def explain_miss(engine: PlannedEngine, stored: Iterable[EngineManifest]) -> Miss:
    """Return why the store does not have an engine.

    Args:
        engine: The engine that is wanted.
        stored: What the store has.
    """
    wanted = _flat([step.parts for step in engine.steps])
    candidates = [
        (manifest, _differences(_flat(list(manifest.parts.values())), wanted))
        for manifest in stored
        if manifest.profile == engine.profile and manifest.parts
    ]
    if not candidates:
        return Miss(nearest=None, reasons=())
    name = engine.spec.checkpoint.name
    # An engine of the same checkpoint says more than one that happens to have the same flags.
    manifest, reasons = min(candidates, key=lambda item: (item[0].checkpoint_name != name, len(item[1]), item[0].key))
    return Miss(nearest=manifest.key, reasons=tuple(reasons))


def _flat(steps: Sequence[Mapping[str, Any]]) -> dict[tuple[int, str], Any]:
    """Return (number of the step from the end, dotted name) to value: the last step is the build, whatever precedes."""
    last = len(steps) - 1
    return {(last - number, name): value for number, parts in enumerate(steps) for name, value in _leaves("", parts)}


def _leaves(prefix: str, parts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in parts.items():
        if isinstance(value, dict):
            yield from _leaves(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _differences(old: Mapping[tuple[int, str], Any], new: Mapping[tuple[int, str], Any]) -> list[str]:
    """Return each difference once, though several steps have the same part."""
    found: dict[str, str] = {}
    for key in [*new, *(key for key in old if key not in new)]:
        before, after = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if before != after:
            found.setdefault(key[1], f"{key[1]} {_shown(before)} → {_shown(after)}")
    return list(found.values())


def _shown(value: object) -> str:
    text = str(value)
    # A fingerprint: its beginning tells it apart.
    return text[:12] if len(text) == 64 and text.isalnum() else text
