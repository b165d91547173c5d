"""The texts that a model is calibrated with: a local file, read once, never fetched."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def read_texts(path: Path, count: int) -> tuple[str, ...]:
    """Return the first ``count`` texts of a file, or all when it has fewer.

    Args:
        path: ``.jsonl`` with an object in every line whose ``text`` is used, or plain text, each line one text. Empty
            lines are passed over.
        count: Texts to read at most.

    Raises:
        ConfigError: It cannot be read, a line of ``.jsonl`` has no text, or there is no text at all.
    """
    read = _jsonl_texts if path.suffix == ".jsonl" else _lines
    try:
        texts = tuple(itertools.islice((text for _, text in read(path)), count))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--calib-dataset: cannot read {path}: {getattr(error, 'strerror', None) or error}",
            hint="it is a file of UTF-8 text",
        ) from error
    if not texts:
        raise ConfigError(f"--calib-dataset: {path} holds no text", hint="some hundred texts of your traffic are good")
    return texts


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line number and line, where there is something in it."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line.rstrip("\r\n")


def _jsonl_texts(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in _lines(path):
        try:
            text = json.loads(line)["text"]
        except (ValueError, TypeError, KeyError):
            text = None
        if not isinstance(text, str):
            raise ConfigError(
                f'--calib-dataset: line {number} of {path} is no object with a "text"', hint='{"text": "..."}'
            )
        if text.strip():
            yield number, text
