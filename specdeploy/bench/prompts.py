"""Prompts of a load test: parse a JSON Lines prompt set, put it in a seeded order, deal it out to the pairs.

Knows the format of a prompt set and which sets come with specdeploy. Reads a bundled set as a resource of the
package; a user's file is read by the caller, who passes its text. Does not know tokenizers: a prompt is sent as it is
written.
"""

from __future__ import annotations

import dataclasses
import json
import random
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

BUNDLED: Final = ("code", "chat")
_KEYS: Final = ("id", "category", "text")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt: a unique id, a category to group results by, and the text that is sent."""

    id: str
    category: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Prompts in the order in which a run sends them."""

    name: str
    prompts: tuple[Prompt, ...]

    def __len__(self) -> int:
        return len(self.prompts)

    def shuffled(self, seed: int) -> PromptSet:
        """Return the same prompts in the order that ``seed`` gives, the same on every machine."""
        order = list(self.prompts)
        random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
        return dataclasses.replace(self, prompts=tuple(order))

    def select(self, n: int, offset: int = 0) -> tuple[Prompt, ...]:
        """Return ``n`` prompts from position ``offset`` on, beginning anew at the end of the set.

        Calls with offsets ``0, n, 2 * n, ...`` share no prompt until the set is used up.
        """
        return tuple(self.prompts[(offset + step) % len(self.prompts)] for step in range(n))


def load_bundled(name: str) -> PromptSet:
    """Return the bundled prompt set ``name``.

    Raises:
        ConfigError: There is no such set.
    """
    if name not in BUNDLED:
        raise ConfigError(
            f"there is no bundled prompt set {name!r}",
            hint=f"Bundled are {' and '.join(BUNDLED)}; anything else is the path of a JSON Lines file.",
        )
    file = resources.files("specdeploy.bench") / "data" / f"{name}.jsonl"
    return parse_prompts(file.read_text(encoding="utf-8"), source=f"{name}.jsonl", name=name)


def parse_prompts(text: str, *, source: str, name: str) -> PromptSet:
    """Read a prompt set: one JSON object a line, with ``text`` and, if you like, ``id`` and ``category``.

    Args:
        text: Content of the file; blank lines are skipped.

        source: The file's name, for messages.

        name: Name of the set in reports.

    Raises:
        ConfigError: A line is malformed, an id comes twice, or there is no prompt; names file, line and key.
    """
    prompts = tuple(_parse_line(line, f"{source}:{number}", number) for number, line in _lines(text))
    if not prompts:
        raise ConfigError(f"{source} holds no prompt", hint='Write one JSON object a line: {"text": "..."}.')
    _refuse_duplicates(prompts, source)
    return PromptSet(name=name, prompts=prompts)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    # Not splitlines(): U+2028 and its like may stand unescaped inside a JSON string.
    return ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


def _parse_line(line: str, where: str, number: int) -> Prompt:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}", hint="Each line is one whole JSON object.") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: a {type(data).__name__}, not an object", hint='Write {"text": "..."}.')
    return Prompt(
        id=_string(data, "id", where, default=f"line-{number}"),
        category=_string(data, "category", where, default="uncategorised"),
        text=_string(data, "text", where),
    )


def _string(data: dict[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = data.get(key, default)
    if value is None:
        known = ", ".join(map(repr, data)) or "nothing"
        raise ConfigError(f"{where}: key 'text' is missing; the line has {known}", hint=f"Keys are {', '.join(_KEYS)}.")
    if not isinstance(value, str) or not value:
        raise ConfigError(
            f"{where}: key {key!r} is {value!r}, not a string with something in it", hint=f"Mend {key!r}."
        )
    return value


def _refuse_duplicates(prompts: tuple[Prompt, ...], source: str) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise ConfigError(f"{source}: key 'id': {prompt.id!r} comes twice", hint="Give every prompt its own id.")
        seen.add(prompt.id)
