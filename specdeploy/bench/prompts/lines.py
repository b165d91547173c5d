"""Reads prompts from JSON Lines, one object a line: a text, or the message of a user."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from specdeploy.bench.prompts.fields import json_lines
from specdeploy.bench.prompts.prompt import CHATML, PLAIN, Prompt, make_prompt
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specdeploy.bench.prompts.fields import Fields

_EXAMPLE: Final = '{"text": "..."}'
_KEYS: Final = ("id", "category", "text", "message", "chat", "max_tokens", "min_tokens")


def parse_lines(text: str, *, source: str, template: str = CHATML) -> tuple[Prompt, ...]:
    """Return the prompts of JSON Lines; ``parse_prompts`` says which keys there are.

    Raises:
        ConfigError: A line is malformed, an id comes twice, or there is no prompt; names file, line and key.
    """
    prompts = tuple(
        prompt_of(fields, number, template=template) for number, fields in json_lines(text, source, _EXAMPLE)
    )
    if not prompts:
        raise ConfigError(f"{source} holds no prompt", hint=f"Write one JSON object a line: {_EXAMPLE}.")
    refuse_duplicates(prompts, source)
    return prompts


def prompt_of(fields: Fields, number: int, *, template: str) -> Prompt:
    """Return the prompt of one line.

    Args:
        fields: The line.

        number: Its number; gives a prompt without id its own.

        template: Chat template of a message.

    Raises:
        ConfigError: A key is missing or has a wrong value.
    """
    if not fields.has("text") and not fields.has("message"):
        raise _without_text(fields)
    most, least = fields.lengths()
    message = fields.string("message" if fields.has("message") else "text", default="")
    prompt = make_prompt(
        message,
        id=fields.string("id", default=f"line-{number}"),
        category=fields.string("category", default="uncategorised"),
        template=template if fields.boolean("chat", default=fields.has("message")) else PLAIN,
        max_tokens=most,
        min_tokens=least,
    )
    return _in_its_text(prompt, fields, message) if fields.has("text") and fields.has("message") else prompt


def refuse_duplicates(prompts: Iterable[Prompt], source: str) -> None:
    """Refuse two prompts of one id.

    Raises:
        ConfigError: There are; names the first.
    """
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise ConfigError(f"{source}: key 'id': {prompt.id!r} comes twice", hint="Give every prompt its own id.")
        seen.add(prompt.id)


def _in_its_text(prompt: Prompt, fields: Fields, message: str) -> Prompt:
    """Return the prompt with the text that the line gives beside the message: that text is the template."""
    parts = fields.string("text", default="").split(message)
    if len(parts) != 2:
        raise fields.wrong(
            "text",
            f"a text that has 'message' in it once (it has it {len(parts) - 1} times)",
            "Write the message as it stands in the text, or leave one of the two out.",
        )
    return dataclasses.replace(prompt, text=message.join(parts), before=parts[0], after=parts[1])


def _without_text(fields: Fields) -> ConfigError:
    hint = f"Keys are {', '.join(_KEYS)}."
    if fields.has("input_length"):
        hint = "Lines with 'input_length' are a trace of lengths; it also needs 'timestamp' and 'output_length'."
    return fields.missing("text", hint)
