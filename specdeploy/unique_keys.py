"""JSON objects whose keys stand once: of two values of one key Python takes the last, and another reader the first."""

from __future__ import annotations

from typing import Any


class RepeatedKey(ValueError):
    """An object has a key twice.

    Args:
        key: The first that does.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"{key!r} stands there twice")
        self.key = key


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its pairs, as ``object_pairs_hook`` of a JSON decoder.

    Raises:
        RepeatedKey: A key is there twice.
    """
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        raise RepeatedKey(next(key for key in keys if keys.count(key) > 1))
    return made
