"""From token ids to text as they come: exact, never a broken character, stop words held back until decided.

The text of an answer is what the tokenizer makes of prompt and answer together, less the text of the prompt; so the
space in front of the first word is neither lost nor doubled. :class:`Detokenizer` gives it out piece by piece, holding
back only what further tokens could still change. :class:`TextWriter` looks for stop words in it.

Knows nothing of engines, requests and Triton. Ids of every prompt and answer must be the tokenizer's own.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_REPLACEMENT: Final = "\ufffd"

_WINDOW_LIMIT: Final = 48
"""Ids that are decoded anew with every piece before the older ones are dropped."""

_CONTEXT: Final = 8
"""Ids that stay as context of the next piece."""


class AddedToken(Protocol):
    """The part of ``tokenizers.AddedToken`` that is used here."""

    @property
    def content(self) -> str:
        """Text of the token."""

    @property
    def special(self) -> bool:
        """Whether the token is left out of decoded text."""


class Tokenizer(Protocol):
    """The part of ``tokenizers.Tokenizer`` that is used here."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = ...) -> str:
        """Return the text of ``ids``."""

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, or None."""

    def get_added_tokens_decoder(self) -> Mapping[int, AddedToken]:
        """Return the added tokens by id."""


class Vocabulary:
    """What a tokenizer knows that detokenising needs, looked up once for all requests.

    Attributes:
        special_tokens: Text of each special token and its id; these never appear in text.
        open_ids: Ids after which a run of byte tokens may go on: the byte tokens, and the special tokens, which are
            left out of text; empty for a tokenizer without byte tokens.

    Args:
        tokenizer: The tokenizer of target and draft.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special_tokens = {token.content: number for number, token in added.items() if token.special}
        names = (tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        byte_ids = frozenset(number for number in names if number is not None)
        self.open_ids = byte_ids | frozenset(self.special_tokens.values()) if byte_ids else byte_ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids`` without special tokens."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)


class Detokenizer:
    """Turns the ids of one answer into text, piece by piece.

    Two kinds of text are undecided: a last character whose bytes are not complete (it decodes to U+FFFD), and a run of
    byte tokens (``<0xE2>`` and the like), because a byte fallback decoder replaces a whole run when its end is not
    valid.

    Args:
        vocabulary: The tokenizer.
        prompt: Token ids of the prompt.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._window = self._context(prompt)
        self._given = len(vocabulary.decode(self._window))
        self._undecided = ""

    def add(self, ids: Sequence[int]) -> str:
        """Take the next ids and return the text that they settle."""
        self._window.extend(ids)
        text = self._vocabulary.decode(self._window)
        settled = max(self._settled(text), self._given)
        piece = text[self._given : settled]
        self._given, self._undecided = settled, text[settled:]
        if not self._undecided and len(self._window) > _WINDOW_LIMIT:
            self._window = self._context(self._window)
            self._given = len(self._vocabulary.decode(self._window))
        return piece

    @property
    def undecided(self) -> str:
        """The text that would follow if no further token came."""
        return self._undecided

    def _settled(self, text: str) -> int:
        """Return how much of the text no further token can change."""
        end = len(self._window)
        while end and self._window[end - 1] in self._vocabulary.open_ids:
            end -= 1
        if end < len(self._window):
            return len(self._vocabulary.decode(self._window[:end]))
        return len(text) - text.endswith(_REPLACEMENT)

    def _context(self, ids: Sequence[int]) -> list[int]:
        """Return a tail of the ids that has text, so that what follows is not taken for the beginning of a text.

        It does not begin inside a run of byte tokens: the rest of such a run would decode to nothing but U+FFFD.
        """
        start = max(len(ids) - _CONTEXT, 0)
        while start and (ids[start] in self._vocabulary.open_ids or not self._vocabulary.decode(list(ids[start:]))):
            start -= 1
        return list(ids[start:])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """Text that is ready to leave.

    Attributes:
        text: The new text.
        used: How many of the given ids belong to the answer; the others came after a stop word.
        stopped: A stop word was completed.
    """

    text: str
    used: int
    stopped: bool = False


class TextWriter:
    """Writes the text of one answer up to its first stop word.

    The answer ends with the first token after which its text contains a stop word, and its text ends in front of that
    word; where several are there, the one that is complete first counts, and of those the longest. Neither depends on
    how the ids are grouped.

    Args:
        vocabulary: The tokenizer.
        prompt: Token ids of the prompt.
        stop_words: Texts that end the answer. The text of a special token stands for the token.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int], stop_words: Collection[str] = ()) -> None:
        special = vocabulary.special_tokens
        self._stop_ids = frozenset(special[word] for word in stop_words if word in special)
        self._stop_words = tuple(word for word in stop_words if word and word not in special)
        self._detokenizer = Detokenizer(vocabulary, prompt)
        self._held = ""

    def add(self, ids: Sequence[int]) -> Piece:
        """Take the next ids and return the text that can leave."""
        if not (self._stop_ids or self._stop_words):
            return Piece(text=self._detokenizer.add(ids), used=len(ids))
        released = []
        for position, token in enumerate(ids):
            text, stopped = self._step(token)
            released.append(text)
            if stopped:
                return Piece(text="".join(released), used=position + 1, stopped=True)
        return Piece(text="".join(released), used=len(ids))

    def finish(self) -> str:
        """Return the text that was held back, once it is sure that no token follows and none completed a stop word."""
        return self._held + self._detokenizer.undecided

    def _step(self, token: int) -> tuple[str, bool]:
        """Take one id; return the text that can leave and whether the answer ends here."""
        settled = self._held + self._detokenizer.add((token,))
        text = settled + self._detokenizer.undecided
        if token in self._stop_ids:
            return text, True
        start = self._first_stop(text)
        if start is not None:
            return text[:start], True
        kept = len(settled) - self._longest_beginning(settled)
        self._held = settled[kept:]
        return settled[:kept], False

    def _first_stop(self, text: str) -> int | None:
        """Return where the stop word begins that is complete first."""
        found = [(start + len(word), start) for word in self._stop_words if (start := text.find(word)) >= 0]
        return min(found)[1] if found else None

    def _longest_beginning(self, text: str) -> int:
        """Return the length of the longest end of the text with which a stop word begins."""
        lengths = (
            length
            for word in self._stop_words
            for length in range(1, min(len(word) - 1, len(text)) + 1)
            if text.endswith(word[:length])
        )
        return max(lengths, default=0)
