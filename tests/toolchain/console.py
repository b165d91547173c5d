"""Log lines in the manner of the real tools: time, library, level letter, text."""

from __future__ import annotations

import time
from typing import Final

_LEVELS: Final = ("internal_error", "error", "warning", "info", "verbose", "debug", "trace")


class Console:
    """Prints what is at least as urgent as ``level``, one of the names that ``--log_level`` takes."""

    def __init__(self, level: str = "info") -> None:
        self._level = _LEVELS.index(level)

    def info(self, text: str) -> None:
        """Print progress."""
        self._say("info", text)

    def warning(self, text: str) -> None:
        """Print what the tool changed or doubts."""
        self._say("warning", text)

    def _say(self, level: str, text: str) -> None:
        if _LEVELS.index(level) <= self._level:
            print(f"[{time.strftime('%m/%d/%Y-%H:%M:%S')}] [TRT-LLM] [{level[0].upper()}] {text}", flush=True)


def took(start: float) -> str:
    """Return the time since ``start`` (``time.monotonic``) as ``HH:MM:SS``."""
    return time.strftime("%H:%M:%S", time.gmtime(time.monotonic() - start))
