"""Reads the keys of a JSON object of a user's file, each with a message that says where it stands and how to mend it.

Knows JSON and the types of single values. Does not know which keys a format has.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: More tokens than any model's context has; a larger number is a mistake, and would be made into gigabytes of text.
MOST_TOKENS: Final = 10_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """One JSON object and its place, such as ``mine.jsonl:3``."""

    data: dict[str, Any]
    where: str

    def has(self, key: str) -> bool:
        """Say whether a key is given; null is as if it were left out."""
        return self.data.get(key) is not None

    def missing(self, key: str, hint: str) -> ConfigError:
        """Return the error of a key that must be there."""
        known = ", ".join(map(repr, self.data)) or "nothing"
        return ConfigError(f"{self.where}: key {key!r} is missing; the line has {known:.200}", hint=hint)

    def wrong(self, key: str, wanted: str, hint: str = "") -> ConfigError:
        """Return the error of a key whose value is not what is wanted."""
        shown = f"{self.data[key]!r:.200}"
        return ConfigError(f"{self.where}: key {key!r} is {shown}, not {wanted}", hint=hint or f"Mend {key!r}.")

    def string(self, key: str, default: str) -> str:
        """Return a text with something in it.

        Raises:
            ConfigError: It is another thing, empty, or no text that can be sent.
        """
        value = self.data[key] if self.has(key) else default
        if not isinstance(value, str) or not value:
            raise self.wrong(key, "a string with something in it")
        if not _is_unicode(value):
            raise self.wrong(key, "Unicode: it has half of a surrogate pair", "Write the character itself.")
        return value

    def boolean(self, key: str, *, default: bool) -> bool:
        """Return true or false, the default where the key is left out.

        Raises:
            ConfigError: It is another thing.
        """
        value = self.data[key] if self.has(key) else default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def tokens(self, key: str, *, least: int = 1) -> int | None:
        """Return a number of tokens, from ``least`` to `MOST_TOKENS`; None where the key is left out.

        Raises:
            ConfigError: It is another thing.
        """
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST_TOKENS:
            raise self.wrong(key, f"a whole number of tokens from {least} to {MOST_TOKENS:,}")
        return value

    def number(self, key: str, *, most: float, unit: str) -> float:
        """Return a number from 0 to ``most``.

        Raises:
            ConfigError: It is another thing, negative, infinite or not a number.
        """
        value = self.data[key]
        # An integer of hundreds of digits has no float: compare it before it is converted.
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
            raise self.wrong(key, f"a number of {unit} from 0 to {most:,.0f}")
        return float(value)

    def whole_numbers(self, key: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers from 0 on; None where the key is left out.

        Raises:
            ConfigError: It is another thing, or an item is.
        """
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(map(_is_whole, value)):
            raise self.wrong(key, "a list of whole numbers from 0 on")
        return tuple(value)

    def lengths(self) -> tuple[int | None, int | None]:
        """Return ``max_tokens`` and ``min_tokens``.

        Raises:
            ConfigError: One is no number of tokens, or the shortest answer is longer than the longest.
        """
        most, least = self.tokens("max_tokens"), self.tokens("min_tokens", least=0)
        if most is not None and least is not None and least > most:
            raise self.wrong("min_tokens", f"at most 'max_tokens', which is {most}", "Lower one or raise the other.")
        return most, least


def check_number(what: str, value: object, *, least: float, most: float) -> None:
    """Refuse a number that a caller gave.

    Raises:
        ConfigError: It is no number (NaN and booleans are none), or out of bounds.
    """
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not least <= value <= most:  # type: ignore[operator]  # plain says that it is a number
        bounds = f"from {least:,g}" if math.isinf(most) else f"from {least:,g} to {most:,g}"
        raise ConfigError(f"{what} is {value!r:.200}", hint=f"It must be a number {bounds}.")


def json_lines(text: str, source: str, example: str) -> Iterator[tuple[int, Fields]]:
    """Yield the objects of JSON Lines with the numbers of their lines; blank lines are skipped.

    Args:
        text: Content of the file.

        source: The file's name, for messages.

        example: A right line, for messages.

    Raises:
        ConfigError: A line holds no JSON object.
    """
    # Not splitlines(): U+2028 and its like may stand unescaped inside a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{source}:{number}"
            yield number, json_object(read_json(line, where, "Each line is one whole JSON object."), where, example)


def json_object(value: object, where: str, example: str) -> Fields:
    """Take a value as an object.

    Raises:
        ConfigError: It is another thing.
    """
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: a {type(value).__name__}, not an object", hint=f"Write {example}.")
    return Fields(data=value, where=where)


def read_json(text: str, where: str, hint: str) -> Any:  # noqa: ANN401 - whatever the file holds
    """Return the value of a JSON text.

    Raises:
        ConfigError: It is none.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}", hint=hint) from error
    except RecursionError as error:
        raise ConfigError(f"{where}: JSON that is nested too deeply to be read", hint=hint) from error


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
