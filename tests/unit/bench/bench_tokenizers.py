"""Small tokenizers that keep the contract of real ones: what is decoded and encoded again need not be the same ids."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specdeploy.bench.prompts import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable


def by_pieces(split: Callable[[str], list[str]], *, begin: bool = False) -> Tokenizer:
    """Return the tokenizer whose tokens are the pieces of a text; ``begin`` adds a token that decodes to nothing."""
    ids: dict[str, int] = {"": 0}
    pieces: list[str] = [""]

    def encode(text: str) -> list[int]:
        found = ([""] if begin else []) + split(text)
        for piece in found:
            if piece not in ids:
                ids[piece] = len(pieces)
                pieces.append(piece)
        return [ids[piece] for piece in found]

    return Tokenizer(encode=encode, decode=lambda tokens: "".join(pieces[token] for token in tokens))


def _words(text: str) -> list[str]:
    return re.findall(r" ?[A-Za-z]+| ?[^\sA-Za-z]|\s", text)


def _from_the_right(text: str) -> list[str]:
    """Cut words into pieces of four letters from their end, so that a word that is cut short has other pieces."""
    return [piece for word in _words(text) for piece in _tail_first(word)]


def _tail_first(word: str) -> list[str]:
    first = len(word) % 4
    rest = [word[at : at + 4] for at in range(first, len(word), 4)]
    return [word[:first], *rest] if first else rest


def _five_each(text: str) -> list[str]:
    """Make five tokens of each word: most lengths cannot be had."""
    return [piece for word in re.findall(r"\S+\s*", text) for piece in (word, "", "", "", "")]


def _sentencepiece(text: str) -> list[str]:
    """Begin every text with a token of its own, as a tokenizer does that puts a space before it."""
    return ["", *_words(text)] if text else []


WORDS = by_pieces(_words)
TOKENIZERS = {
    "words": WORDS,
    "begin": by_pieces(_words, begin=True),
    "letters": by_pieces(list),
    "right": by_pieces(_from_the_right),
    "sentencepiece": by_pieces(_sentencepiece),
}
FIVES = by_pieces(_five_each)
