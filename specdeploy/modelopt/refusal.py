"""Reasons not to start: all of them are told at once, each with what would help."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdeploy.errors import SpecdeployError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """One reason.

    Args:
        message: What is wrong, with the value seen.
        hint: What to do about it.
    """

    message: str
    hint: str


def refuse(refusals: Iterable[Refusal], error: type[SpecdeployError]) -> None:
    """Raise one ``error`` that tells all of ``refusals``; do nothing when there are none."""
    reasons = tuple(refusals)
    if reasons:
        hints = dict.fromkeys(reason.hint for reason in reasons)
        raise error("; ".join(reason.message for reason in reasons), hint="; ".join(hints))
