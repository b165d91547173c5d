"""Reads ``speculation.draft_len_schedule``: from so many requests decoded at once, at most so many drafts.

The thresholds are those of TensorRT-LLM 1.0 to 1.2: ``{1: 4, 4: 2, 8: 0}`` drafts 4 tokens below 4 requests, 2 below 8,
and none from 8 on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_ENTRY: Final = re.compile(r"\s*(?P<requests>\d{1,6})\s*:\s*(?P<drafts>\d{1,4})\s*", re.ASCII)
_HINT: Final = "Write `requests: drafts`, one a line, such as `1: 4`, `4: 2`, `8: 0`."


def spell_entry(pairs: Sequence[tuple[str, str]]) -> str:
    """Return the text of an entry that YAML made a mapping of."""
    return ", ".join(f"{requests}: {drafts}" for requests, drafts in pairs)


def parse_draft_lengths(entries: Sequence[str], longest: int) -> tuple[tuple[int, int], ...]:
    """Return (requests, drafts) of each entry, fewest requests first.

    Args:
        entries: As written.

        longest: ``num_draft_tokens``.

    Raises:
        ConfigError: One cannot be read, drafts more than there are, or stands twice.
    """
    found: dict[int, int] = {}
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        if match is None or int(match["requests"]) < 1:
            raise ConfigError(f"{entry!r} says no number of requests and of drafts", hint=_HINT)
        requests, drafts = int(match["requests"]), int(match["drafts"])
        if drafts > longest:
            raise ConfigError(
                f"{entry!r} drafts more than num_draft_tokens, {longest}", hint="The schedule only takes away from it."
            )
        if requests in found:
            raise ConfigError(f"{requests} requests stand twice", hint="Leave one of the two entries out.")
        found[requests] = drafts
    return tuple(sorted(found.items()))
