"""Compares answers token by token, and tells where and how they first differ."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from specdeploy.smoke.probe import Broken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdeploy.triton.protocol import Chunk

_AROUND = 4
_SHOWN = 80


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two answers part.

    Args:
        position: Index of the first token that differs (or that only one of them has).

        expected: The reference's token ids around it.

        seen: The other's token ids around it.

        expected_text: The reference's text from a little before the first different character.

        seen_text: The other's.
    """

    position: int
    expected: tuple[int, ...]
    seen: tuple[int, ...]
    expected_text: str
    seen_text: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self)


def first_difference(expected: Chunk, seen: Chunk) -> Difference | None:
    """Compare two answers by their ids, and by their texts when the ids agree; None when they are the same."""
    if expected.ids == seen.ids and expected.text == seen.text:
        return None
    return _from(expected, seen)


def ending(answer: Chunk) -> Difference:
    """Return the end of an answer, as the place where another parts from it that is the same and ends otherwise."""
    return _from(answer, answer)


def _from(expected: Chunk, seen: Chunk) -> Difference:
    token = _parting(expected.ids, seen.ids)
    character = _parting(expected.text, seen.text)
    around = slice(max(token - _AROUND, 0), token + _AROUND)
    shown = slice(max(character - _AROUND, 0), character + _SHOWN)
    return Difference(
        position=token,
        expected=expected.ids[around],
        seen=seen.ids[around],
        expected_text=expected.text[shown],
        seen_text=seen.text[shown],
    )


def require_same(what: str, expected: Chunk, seen: Chunk) -> None:
    """Fail unless two answers have the same ids and the same text.

    Args:
        what: The two sides in words, for the reason.

        expected: The reference.

        seen: What is compared with it.

    Raises:
        Broken: With position, ids and texts around the first difference.
    """
    difference = first_difference(expected, seen)
    if difference is None:
        return
    if expected.ids == seen.ids:
        reason = f"{what}: same token ids, different text: {difference.expected_text!r} and {difference.seen_text!r}"
    else:
        reason = (
            f"{what}: differ at token {difference.position} of {len(expected.ids)}: "
            f"{list(difference.expected)} and {list(difference.seen)} around it"
        )
    raise Broken(reason, difference.as_dict())


def require_ids(what: str, chunk: Chunk) -> None:
    """Fail when an answer brings no token ids, because then nothing could be compared.

    Raises:
        Broken: There are none.
    """
    if not chunk.ids:
        raise Broken(f"{what}: the answer has no token ids (text {chunk.text[:_SHOWN]!r})")


def require_content(what: str, chunk: Chunk) -> None:
    """Fail when an answer that should have some content has neither text nor token ids.

    Raises:
        Broken: It is empty: a comparison with it would say nothing.
    """
    if not (chunk.text or chunk.ids):
        raise Broken(f"{what}: the answer is empty: it has neither text nor token ids")


def _parting(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Return the index of the first place where two sequences differ."""
    both = min(len(left), len(right))
    return next((i for i in range(both) if left[i] != right[i]), both)
