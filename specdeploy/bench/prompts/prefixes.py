"""What stands at the beginning of prompts, so that the share of a KV cache that can be reused is chosen and not chance.

An engine that reuses its KV cache by prefix skips the prefill of whatever it has seen before. `unique` leaves it
nothing to reuse but the few tokens of a chat template, fewer than a block of any engine's cache has; `shared_prefix`
gives it a stated share, as system prompts do in production. Both put their text inside the message of a chat, and may
be applied in any order: the line of `unique` always stands behind what is shared.
"""

from __future__ import annotations

import hashlib
import math
import random
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from specdeploy.bench.prompts.fields import MOST_TOKENS, check_number
from specdeploy.bench.prompts.prompt import PLAIN
from specdeploy.bench.prompts.synthetic import Synthesiser, miss_findings
from specdeploy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdeploy.bench.prompts.prompt import Prompt
    from specdeploy.bench.prompts.synthetic import Tokenizer
    from specdeploy.findings import Finding

MOST_PREFIXES: Final = 10_000
_MARKS: Final = 2**32
# Odd, so that numbers below 2**32 have different marks; near the golden ratio, so that neighbours begin differently.
_STEP: Final = 0x9E3779B1


class Prefixes(NamedTuple):
    """Texts to begin prompts with, and what a reader of the results should know of how they were made."""

    texts: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def unique(prompts: Sequence[Prompt], *, seed: int = 0, salt: str = "", first: int = 0) -> tuple[Prompt, ...]:
    """Return the prompts, each behind a line that no other request has, such as ``[1f6a83d0]``.

    A common prefix stays in front of it. With the same salt both arms of a pair send the same texts, and the second may
    live off the cache that the first one left; with a salt for each arm the texts differ in those lines alone.

    Args:
        prompts: In the order of the requests; a prompt may come more than once.

        seed: Of the lines.

        salt: Another one gives other lines for the same requests.

        first: Number of the first request; a line depends on the number of its request alone.
    """
    return tuple(
        prompt.with_line(f"[{_mark(f'{seed}:{salt}', first + index)}]") for index, prompt in enumerate(prompts)
    )


def shared_prefix(
    prompts: Sequence[Prompt], *, texts: Sequence[str], share: float = 1.0, seed: int = 0, first: int = 0
) -> tuple[Prompt, ...]:
    """Return the prompts, a share of which begins with one of a few texts; `make_prefixes` makes these.

    The others stay as they are. Parts of a run that follow each other have together the share of the whole, to the
    nearest request, however short they are; so it is with the texts, each of which comes as often as the others.

    Args:
        prompts: In the order of the requests.

        texts: What they begin with; an empty line follows.

        share: The part of them that does, from 0 to 1.

        seed: Chooses which do, and with which text.

        first: Number of the first request: each part of a run has a choice of its own.

    Raises:
        ConfigError: ``share`` is no part of a whole, or there is no text, or nothing in one.
    """
    check_number("the share of requests with a common prefix", share, least=0, most=1)
    if not texts or not all(text.strip() for text in texts):
        raise ConfigError(f"the common prefixes are {list(texts)!r:.200}", hint="Give texts with something in them.")
    # How many of all requests up to a number have one; exact, so that no request has more than one.
    before, after = (math.floor(Fraction(share) * number + Fraction(1, 2)) for number in (first, first + len(prompts)))
    rng = random.Random(f"{seed}:shared:{first}")  # noqa: S311 - a choice, not a secret
    chosen = dict(zip(rng.sample(range(len(prompts)), after - before), range(before, after), strict=True))
    return tuple(
        prompt.with_prefix(f"{texts[chosen[index] % len(texts)]}\n\n") if index in chosen else prompt
        for index, prompt in enumerate(prompts)
    )


def make_prefixes(count: int, *, tokens: int, tokenizer: Tokenizer, seed: int = 0) -> Prefixes:
    """Make prose to begin prompts with. Several begin with a line of their own, so that they share nothing.

    Args:
        count: How many.

        tokens: Length of each.

        tokenizer: Counts them, and cuts.

        seed: Of the texts.

    Returns: The texts. Where one misses its length by more than a token, a finding says so.

    Raises:
        ConfigError: ``count`` or ``tokens`` is out of bounds, or the tokenizer makes nothing of the prose.
    """
    check_number("the number of common prefixes", count, least=1, most=MOST_PREFIXES)
    check_number("the length of a common prefix in tokens", tokens, least=1, most=MOST_TOKENS)
    made = []
    for number in range(count):
        line = f"[{_mark(f'{seed}:prefix', number)}]\n" if count > 1 else ""
        synthesiser = Synthesiser(tokenizer, seed=seed, template=f"{line}{PLAIN}")
        name = f"prefix-{number + 1}"
        made.append(synthesiser.prompt(tokens, id=name, category="prefix", key=name))
    return Prefixes(tuple(one.prompt.text for one in made), miss_findings(made, "load.prefix_tokens"))


def _mark(key: str, number: int) -> str:
    """Return eight hexadecimal digits, different for every number below 2**32."""
    offset = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")
    return f"{(offset + number * _STEP) % _MARKS:08x}"
