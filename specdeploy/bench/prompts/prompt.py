"""A prompt and a set of them: values, and the two forms that a prompt of a chat has.

A completion endpoint gets ``text``, with the chat template around what the user says; a chat endpoint applies a
template of its own, and gets ``message``, which has none.
"""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Final

from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from specdeploy.findings import Finding

#: The template of SmolLM2, Qwen and others: one turn of the user, and the beginning of the answer.
CHATML: Final = "<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
#: No template: the text is the message.
PLAIN: Final = "{message}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt.

    Args:
        id: Unique in its set.

        category: What results are grouped by.

        text: What a completion endpoint gets.

        before: The part of ``text`` in front of the message that the chat template put there; empty without one.

        after: The part behind it.

        prefix: What the message begins with that messages of other prompts may begin with, too.

        max_tokens: Longest answer in tokens; None leaves it to the run.

        min_tokens: Shortest answer in tokens; None leaves it to the run.
    """

    id: str
    category: str
    text: str
    before: str = ""
    after: str = ""
    prefix: str = ""
    max_tokens: int | None = None
    min_tokens: int | None = None

    @property
    def message(self) -> str:
        """What a chat endpoint gets: the text without the template."""
        return self.text[len(self.before) : len(self.text) - len(self.after)]

    def with_message(self, message: str) -> Prompt:
        """Return the prompt with another message, in the same template; it has no common prefix."""
        return dataclasses.replace(self, text=f"{self.before}{message}{self.after}", prefix="")

    def with_prefix(self, prefix: str) -> Prompt:
        """Return the prompt with a common prefix in front of its message, and of the prefix that it may have."""
        return dataclasses.replace(self.with_message(f"{prefix}{self.message}"), prefix=f"{prefix}{self.prefix}")

    def with_line(self, line: str) -> Prompt:
        """Return the prompt with a line of its own at the beginning of its message, behind the common prefix."""
        rest = self.message[len(self.prefix) :]
        return dataclasses.replace(self.with_message(f"{self.prefix}{line}\n{rest}"), prefix=self.prefix)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Prompts in the order in which a run sends them.

    Args:
        name: Name of the set in reports.

        prompts: The prompts.

        findings: What a reader of the results should know of how the set was made.
    """

    name: str
    prompts: tuple[Prompt, ...]
    findings: tuple[Finding, ...] = ()

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


def make_prompt(
    message: str,
    *,
    id: str,  # noqa: A002 - the name of the field
    category: str,
    template: str = PLAIN,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
) -> Prompt:
    """Return the prompt of a message in a chat template.

    Args:
        message: What the user says.

        id: As in `Prompt`.

        category: As in `Prompt`.

        template: A text with ``{message}`` in one place; other braces stand for themselves.

        max_tokens: As in `Prompt`.

        min_tokens: As in `Prompt`.

    Raises:
        ConfigError: The template does not have one place for the message.
    """
    before, after = split_template(template)
    return Prompt(
        id=id,
        category=category,
        text=f"{before}{message}{after}",
        before=before,
        after=after,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
    )


def split_template(template: str) -> tuple[str, str]:
    """Return what a template puts before a message, and what after it.

    Raises:
        ConfigError: ``{message}`` is not in it, or more than once.
    """
    parts = template.split(PLAIN)
    if len(parts) != 2:
        raise ConfigError(
            f"the chat template {template!r:.200} has {PLAIN} {len(parts) - 1} times, not once",
            hint=f"Write it as {CHATML!r}.",
        )
    return parts[0], parts[1]
