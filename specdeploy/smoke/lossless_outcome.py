"""What a passed check saw, in a line, with the plain data behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


class Outcome(str):
    """The line that a check returns, which also carries details for the report.

    Args:
        line: What was seen.

        details: Plain data.
    """

    __slots__ = ("details",)
    details: Mapping[str, Any]

    def __new__(cls, line: str, details: Mapping[str, Any] | None = None) -> Self:
        """Make the line; a copy is made without details and given them afterwards."""
        outcome = super().__new__(cls, line)
        outcome.details = dict(details or {})
        return outcome
