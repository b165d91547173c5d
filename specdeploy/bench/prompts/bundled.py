"""The prompt sets that come with specdeploy, read as resources of the package.

``code`` is text to be continued; the others are what users say, in the chat template that the caller names. ``mixed``
is all of them.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from importlib import resources
from typing import Final

from specdeploy.bench.prompts.lines import parse_lines
from specdeploy.bench.prompts.prompt import CHATML, Prompt, PromptSet
from specdeploy.errors import ConfigError

_SETS: Final = ("code", "chat", "summarisation", "translation", "reasoning", "multilingual")
_MIXED: Final = "mixed"
BUNDLED: Final = (*_SETS, _MIXED)


def load_bundled(name: str, *, template: str = CHATML) -> PromptSet:
    """Return the bundled prompt set ``name``.

    In ``mixed`` every set is spread evenly over the whole; a prompt's category there is the set that it is from.

    Args:
        name: One of `BUNDLED`.

        template: Chat template of the text of a prompt that is a message: with ``{message}`` in one place.

    Raises:
        ConfigError: There is no such set, or the template does not have one place for the message.
    """
    if name not in BUNDLED:
        raise ConfigError(
            f"there is no bundled prompt set {name!r}",
            hint=f"Bundled are {', '.join(BUNDLED[:-1])} and {BUNDLED[-1]}; anything else is the path of a file.",
        )
    if name == _MIXED:
        return PromptSet(name=_MIXED, prompts=_mixed(template))
    file = resources.files("specdeploy.bench") / "data" / f"{name}.jsonl"
    prompts = parse_lines(file.read_text(encoding="utf-8"), source=f"{name}.jsonl", template=template)
    return PromptSet(name=name, prompts=prompts)


def _mixed(template: str) -> tuple[Prompt, ...]:
    placed: list[tuple[Fraction, int, Prompt]] = []
    for number, name in enumerate(_SETS):
        prompts = load_bundled(name, template=template).prompts
        for index, prompt in enumerate(prompts):
            # The middle of the prompt's share of the whole, so that sets of any size are spread evenly.
            place = Fraction(2 * index + 1, 2 * len(prompts))
            placed.append((place, number, dataclasses.replace(prompt, id=f"{name}/{prompt.id}", category=name)))
    return tuple(prompt for *_, prompt in sorted(placed, key=lambda item: item[:2]))
