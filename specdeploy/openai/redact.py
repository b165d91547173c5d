"""Keeps the key out of every message: some servers repeat what they were sent in the text of an error. Pure."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Final

from specdeploy.triton.client.failures import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN: Final = "***"
_BEARER: Final = re.compile(r"(?i)\b(bearer)\s+[^\s'\"\\,;)}\]]+")
# A shorter key may be a part of ordinary words; then only the whole word is taken for it.
_UNLIKE_WORDS: Final = 8
# How much of the key, at the end of a message that was cut off, tells something about it.
_TELLING: Final = 4
_ENDS: Final = "'\""


class Redactor:
    """Takes a key, and whatever else is called a bearer token, out of texts and failures.

    Args:
        key: What must not be shown; None where no key is sent.
    """

    def __init__(self, key: str | None) -> None:
        self._key = key or ""
        # As it is, and as JSON and Python write it inside of quotes.
        spellings = {self._key, json.dumps(self._key)[1:-1], repr(self._key)[1:-1], self._key.replace("/", "\\/")}
        self._spellings = sorted(spellings - {""}, key=len, reverse=True)

    def text(self, said: str) -> str:
        """Return what was said, without the key."""
        for spelling in self._spellings:
            word = re.escape(spelling)
            said = re.sub(word if len(spelling) >= _UNLIKE_WORDS else rf"(?<!\w){word}(?!\w)", _SHOWN, said)
        return _BEARER.sub(rf"\1 {_SHOWN}", self._without_beginning(said))

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Take the key out of the failures of the block."""
        try:
            yield
        except RequestFailed as error:
            raise RequestFailed(error.label, self.text(error.said), status=error.status) from None

    def _without_beginning(self, said: str) -> str:
        """Take away what a message that was cut off within the key still has of it."""
        text = said.rstrip(_ENDS)
        for length in range(min(len(self._key) - 1, len(text)), _TELLING - 1, -1):
            if text.endswith(self._key[:length]):
                return f"{text[:-length]}{_SHOWN}{said[len(text) :]}"
        return said
