"""Reads a user's workload of any format that we know; the file's first keys say which it is.

Knows how the formats are told apart. The caller reads the file and passes its text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from specdeploy.bench.prompts.lines import parse_lines
from specdeploy.bench.prompts.prompt import CHATML, PromptSet
from specdeploy.bench.prompts.sharegpt import parse_sharegpt
from specdeploy.bench.prompts.trace import TIMESTAMP, Trace, parse_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdeploy.bench.prompts.synthetic import Synthesiser

# A list of objects; a list of other things in the first line is a wrong line of JSON Lines.
_LIST_OF_OBJECTS: Final = re.compile(r"\s*\[\s*[{\]]")


def parse_prompts(
    text: str, *, source: str, name: str, template: str = CHATML, count_tokens: Callable[[str], int] | None = None
) -> PromptSet:
    """Read a prompt set: JSON Lines, or a list of conversations as ShareGPT has them.

    A line has ``text``, which is sent as it stands, or ``message``, which is what a user says: a completion endpoint
    gets it in the chat template, a chat endpoint without. ``"chat": true`` makes a message of a ``text``. With both, a
    completion endpoint gets ``text``, which must have the message in it. If you like, it has ``id``, ``category``, and
    in tokens ``max_tokens`` and ``min_tokens``. Other keys are not looked at.

    Args:
        text: Content of the file; blank lines are skipped.

        source: The file's name, for messages.

        name: Name of the set in reports.

        template: Chat template of messages: with ``{message}`` in one place.

        count_tokens: As for `parse_sharegpt`; JSON Lines say themselves how long their answers are.

    Raises:
        ConfigError: A line is malformed, an id comes twice, or there is no prompt; names file, line and key.
    """
    if is_sharegpt(text):
        return parse_sharegpt(text, source=source, name=name, template=template, count_tokens=count_tokens)
    return PromptSet(name=name, prompts=parse_lines(text, source=source, template=template))


def parse_workload(
    text: str,
    *,
    source: str,
    name: str,
    template: str = CHATML,
    synthesiser: Synthesiser | None = None,
    count_tokens: Callable[[str], int] | None = None,
) -> PromptSet | Trace:
    """Read a prompt set or a trace: a trace is JSON Lines of which the first has ``timestamp``.

    Args:
        text: As for `parse_prompts`.

        source: As for `parse_prompts`.

        name: As for `parse_prompts`.

        template: As for `parse_prompts`.

        synthesiser: As for `parse_trace`.

        count_tokens: As for `parse_sharegpt`.

    Raises:
        ConfigError: As `parse_prompts` and `parse_trace`.
    """
    if is_trace(text):
        return parse_trace(text, source=source, name=name, template=template, synthesiser=synthesiser)
    return parse_prompts(text, source=source, name=name, template=template, count_tokens=count_tokens)


def is_sharegpt(text: str) -> bool:
    """Say whether a file is a list of conversations."""
    return _LIST_OF_OBJECTS.match(text) is not None


def is_trace(text: str) -> bool:
    """Say whether a file says when its requests were sent."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    try:
        data = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and TIMESTAMP in data
