"""What stands at the beginning of prompts, so that the share of a KV cache that can be reused is chosen and not chance.

An engine that reuses its KV cache by prefix skips the prefill of whatever it has seen before. `unique` leaves it
nothing to reuse but the few tokens of a chat template, fewer than a block of any engine's cache has; `shared_prefix`
gives it a stated share, as a system prompt in production does. Both put their text inside the message of a chat.

``salt`` tells runs of one prompt apart. With the same salt both arms of a pair send the same texts, and the second may
live off the cache that the first one left; with a salt for each arm the texts differ in those marks alone.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Final

from specdeploy.bench.prompts.fields import MOST_TOKENS, check_number
from specdeploy.bench.prompts.synthetic import Synthesiser, prose
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdeploy.bench.prompts.prompt import Prompt
    from specdeploy.bench.prompts.synthetic import Tokenizer

_MARKS: Final = 2**32
# Odd, so that numbers below 2**32 have different marks; near the golden ratio, so that neighbours begin differently.
_STEP: Final = 0x9E3779B1


def unique(prompts: Sequence[Prompt], *, seed: int = 0, salt: str = "", first: int = 0) -> tuple[Prompt, ...]:
    """Return the prompts, each behind a line that no other request has, such as ``[1f6a83d0]``.

    Args:
        prompts: In the order of the requests; a prompt may come more than once.

        seed: Of the lines.

        salt: Another one gives other lines for the same requests.

        first: Number of the first request; a line depends on the number of its request alone.
    """
    return tuple(
        _behind(prompt, f"[{_mark(f'{seed}:{salt}', first + index)}]\n") for index, prompt in enumerate(prompts)
    )


def shared_prefix(
    prompts: Sequence[Prompt], *, prefix: str, share: float = 0.5, seed: int = 0, salt: str = "", first: int = 0
) -> tuple[Prompt, ...]:
    """Return the prompts, a share of which begins with the same text; `prefix_text` makes one.

    The others stay as they are. Apply `unique` before, so that nothing but this text is shared.

    Args:
        prompts: In the order of the requests.

        prefix: What they begin with; an empty line follows.

        share: The part of them that does, from 0 to 1, to the nearest request.

        seed: Chooses which do.

        salt: Where it is given, the text begins with a line of its own, so that it is shared within a salt alone; the
            same requests are chosen.

        first: Number of the first request: a later part of a run has a choice of its own.

    Raises:
        ConfigError: ``share`` is no part of a whole, or the text is empty.
    """
    check_number("the share of requests with a common prefix", share, least=0, most=1)
    if not prefix.strip():
        raise ConfigError(f"the common prefix is {prefix!r}", hint="Give a text, or leave the common prefix out.")
    rng = random.Random(f"{seed}:shared:{first}")  # noqa: S311 - a choice, not a secret
    chosen = set(rng.sample(range(len(prompts)), round(share * len(prompts))))
    mark = f"[{_mark(f'{seed}:shared:{salt}', 0)}]\n" if salt else ""
    return tuple(
        _behind(prompt, f"{mark}{prefix}\n\n") if index in chosen else prompt for index, prompt in enumerate(prompts)
    )


def prefix_text(
    *, characters: int | None = None, tokens: int | None = None, tokenizer: Tokenizer | None = None, seed: int = 0
) -> str:
    """Return prose to begin prompts with, of about a length in characters or in tokens.

    Args:
        characters: Its length in characters; the text ends with the last word that fits.

        tokens: Its length in tokens, instead of characters.

        tokenizer: Counts them.

        seed: Of the text.

    Raises:
        ConfigError: Neither or both lengths are given, one is out of bounds, or there is no tokenizer to count tokens.
    """
    if (characters is None) == (tokens is None):
        raise ConfigError(
            f"the common prefix has {characters} characters and {tokens} tokens", hint="Give one of the two lengths."
        )
    if characters is not None:
        check_number("the length of the common prefix in characters", characters, least=1, most=MOST_TOKENS)
        return _cut(prose(f"{seed}:prefix", characters // 4 + 8), characters)
    check_number("the length of the common prefix in tokens", tokens, least=1, most=MOST_TOKENS)
    if tokenizer is None or tokens is None:
        raise ConfigError(
            f"a common prefix of {tokens} tokens needs a tokenizer", hint="Name the model's, or give characters."
        )
    made = Synthesiser(tokenizer, seed=seed).prompt(tokens, id="prefix", category="prefix", key="prefix")
    return made.prompt.message


def _behind(prompt: Prompt, beginning: str) -> Prompt:
    return prompt.with_message(f"{beginning}{prompt.message}")


def _mark(key: str, number: int) -> str:
    """Return eight hexadecimal digits, different for every number below 2**32."""
    offset = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")
    return f"{(offset + number * _STEP) % _MARKS:08x}"


def _cut(text: str, characters: int) -> str:
    """Return the words that fit, or the beginning of the first one."""
    return text[: text.rfind(" ", 0, characters + 1)] if " " in text[: characters + 1] else text[:characters]
