"""Makes prompts of a wanted number of tokens from the bundled prose, counted by the tokenizer of the model.

The tokens are real: whole sentences in a seeded order, cut where the count is right. Random token ids would decode to
noise, which no draft predicts, so that acceptance would mean nothing. Every text is encoded again to count it, because
a text that was cut may be tokenised in another way than the tokens that it was cut from.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from typing import TYPE_CHECKING, Final

from specdeploy.bench.prompts.bundled import load_bundled
from specdeploy.bench.prompts.fields import MOST_TOKENS, check_number
from specdeploy.bench.prompts.prompt import PLAIN, Prompt, PromptSet, make_prompt, split_template
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

DEFAULT_BLOCK_TOKENS: Final = 512
#: A miss of so many tokens is nothing to speak of.
_TOLERANCE: Final = 1
_MOST_PROMPTS: Final = 1_000_000
_SENTENCE_END: Final = re.compile(r"(?<=[.?!]) ")
# Put before a block to count it: it stands behind a sentence, where its first word may be another token than alone.
_ANCHOR: Final = "So it was. "
# What is tried at the end of a text that no cut makes right.
_ENDINGS: Final = (" a", " a a", " the", ".", " .", " I", ",", " 7", " 77", "!", " x", "s")
_CUTS: Final = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """The tokenizer of the model.

    Args:
        encode: Text -> token ids. Special tokens that it adds are counted.

        decode: Token ids -> text, without special tokens.
    """

    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]

    def count(self, text: str) -> int:
        """Return how many tokens a text has."""
        return len(self.encode(text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lengths:
    """Lengths in tokens, normally distributed; what falls below 1 is 1.

    Args:
        mean: Their mean.

        stddev: Their standard deviation; 0 makes them all alike.

    Raises:
        ConfigError: A value is no number, or out of bounds.
    """

    mean: float
    stddev: float = 0.0

    def __post_init__(self) -> None:
        check_number("the mean length in tokens", self.mean, least=1, most=MOST_TOKENS)
        check_number("the standard deviation of the length in tokens", self.stddev, least=0, most=MOST_TOKENS)

    def draw(self, rng: random.Random) -> int:
        """Return one length."""
        return min(max(round(rng.gauss(self.mean, self.stddev)), 1), MOST_TOKENS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """A prompt that was made, with the tokens that it should have and those that it has."""

    prompt: Prompt
    wanted: int
    tokens: int

    def with_answer(self, tokens: int) -> Made:
        """Return it with an answer of exactly so many tokens."""
        return dataclasses.replace(self, prompt=dataclasses.replace(self.prompt, max_tokens=tokens, min_tokens=tokens))


class Synthesiser:
    """Makes prompts of a wanted length; the same ones for the same seed and tokenizer.

    Args:
        tokenizer: Counts, and cuts.

        seed: Of the texts.

        template: Chat template around each message, counted with it; as of `make_prompt`.

        block_tokens: Tokens of a block that requests share.

    Raises:
        ConfigError: The template has no one place for the message, or a block has no size.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        seed: int = 0,
        template: str = PLAIN,
        block_tokens: int = DEFAULT_BLOCK_TOKENS,
    ) -> None:
        check_number("the block size in tokens", block_tokens, least=1, most=MOST_TOKENS)
        self.block_tokens = block_tokens
        self._tokenizer = tokenizer
        self._seed = seed
        self._template = template
        self._before, self._after = split_template(template)
        self._blocks: dict[tuple[int, bool], str] = {}

    def prompt(self, tokens: int, *, id: str, category: str, key: str, blocks: Sequence[int] = ()) -> Made:  # noqa: A002 - the name of the field
        """Make a prompt.

        Args:
            tokens: How many the text shall have, the template included.

            id: As in `Prompt`.

            category: As in `Prompt`.

            key: Chooses the text: equal keys give equal texts, as far as their lengths go.

            blocks: Numbers of the blocks that the text consists of, instead of a key; the last one is cut to the
                length. Texts whose first blocks have equal numbers begin alike.

        Raises:
            ConfigError: The tokenizer makes nothing of the prose.
        """
        message, count = self._of_blocks(tokens, blocks) if blocks else self._of_key(tokens, f"text:{key}")
        prompt = make_prompt(message, id=id, category=category, template=self._template)
        return Made(prompt=prompt, wanted=tokens, tokens=count)

    def _of_key(self, tokens: int, key: str) -> tuple[str, int]:
        return self._fit(key, tokens, self._before, self._after)

    def _of_blocks(self, tokens: int, blocks: Sequence[int]) -> tuple[str, int]:
        whole = [self._block(number, first=not index) for index, number in enumerate(blocks[:-1])]
        # The end of the template may leave no room in the last block: then the one before it is cut, too.
        while whole and self._tokenizer.count(f"{self._before}{_joined(whole)}{self._after}") >= tokens:
            whole.pop()
        head = _joined(whole)
        tail, count = self._fit(_block_key(blocks[len(whole)]), tokens, f"{self._before}{head}", self._after)
        return head + tail, count

    def _block(self, number: int, *, first: bool) -> str:
        """Return the text of a whole block, which has its number of tokens where it stands."""
        if (number, first) not in self._blocks:
            before = self._before if first else _ANCHOR
            counted = 0 if first else self._tokenizer.count(_ANCHOR.rstrip())
            text, _ = self._fit(_block_key(number), counted + self.block_tokens, before, "")
            self._blocks[number, first] = text
        return self._blocks[number, first]

    def _fit(self, key: str, wanted: int, before: str, after: str) -> tuple[str, int]:
        """Return prose that makes ``before`` + prose + ``after`` as long as wanted, or nearly so, and its length."""
        best: tuple[int, str, int] | None = None
        for message in self._candidates(key, wanted, before, after):
            count = self._tokenizer.count(f"{before}{message}{after}")
            if best is None or abs(count - wanted) < best[0]:
                best = (abs(count - wanted), message, count)
            if count == wanted:
                break
        if best is None:
            raise ConfigError(
                f"the tokenizer decodes the ids of {self._prose(key, 8)[:60]!r} to nothing",
                hint="Pass encode and decode of one tokenizer.",
            )
        return best[1], best[2]

    def _candidates(self, key: str, wanted: int, before: str, after: str) -> Iterator[str]:
        """Yield prose of about the right length: cuts that home in on it, then cuts with another ending."""
        room = max(wanted - self._tokenizer.count(f"{before}{after}"), 1)
        ids = self._ids(key, room)
        size, tried = room, set[int]()
        while size not in tried and len(tried) < _CUTS:
            tried.add(size)
            text = self._tokenizer.decode(ids[:size]).strip()
            if text:
                yield text
            size = max(size + wanted - self._tokenizer.count(f"{before}{text}{after}"), 1)
        for shorter in range(1, 4):
            stem = self._tokenizer.decode(ids[: max(room - shorter, 1)]).strip()
            yield from (stem + ending for ending in _ENDINGS if stem)

    def _ids(self, key: str, count: int) -> Sequence[int]:
        """Return the ids of prose, rather more than ``count`` of them."""
        wanted = words = count + 64
        while True:
            prose = self._prose(key, words)
            ids = self._tokenizer.encode(prose)
            if len(ids) >= wanted:
                return ids
            if words > 16 * wanted:
                raise ConfigError(
                    f"the tokenizer makes {len(ids)} tokens of {words} words",
                    hint="Pass a tokenizer that reads English.",
                )
            words *= 2

    def _prose(self, key: str, words: int) -> str:
        return prose(f"{self._seed}:{key}", words)


def synthetic_prompts(
    count: int,
    *,
    tokenizer: Tokenizer,
    inputs: Lengths,
    outputs: Lengths | None = None,
    seed: int = 0,
    template: str = PLAIN,
) -> PromptSet:
    """Make prompts of drawn lengths; the first ones are the same however many there are.

    Args:
        count: How many.

        tokenizer: Counts, and cuts.

        inputs: Lengths of the prompts, the template included.

        outputs: Lengths of the answers: each is made exactly so long. None leaves them to the run.

        seed: Of lengths and texts.

        template: Chat template around each message, as of `make_prompt`.

    Returns: The set. Where a text misses its length by more than one token, a finding says so.

    Raises:
        ConfigError: ``count`` or the template is wrong, or the tokenizer makes nothing of the prose.
    """
    check_number("the number of synthetic prompts", count, least=1, most=_MOST_PROMPTS)
    synthesiser = Synthesiser(tokenizer, seed=seed, template=template)
    made = [_numbered(synthesiser, number, inputs, outputs, seed) for number in range(count)]
    name = "synthetic"
    return PromptSet(name=name, prompts=tuple(one.prompt for one in made), findings=miss_findings(made, name))


def prose(key: str, words: int) -> str:
    """Return whole sentences of the bundled prose, at least ``words`` words, in an order that follows from ``key``."""
    rng = random.Random(key)  # noqa: S311 - an order, not a secret
    chosen: list[str] = []
    count = 0
    while count < words:
        order = list(_sentences())
        rng.shuffle(order)
        for sentence in order:
            chosen.append(sentence)
            count += sentence.count(" ") + 1
            if count >= words:
                break
    return " ".join(chosen)


def miss_findings(made: Iterable[Made], where: str) -> tuple[Finding, ...]:
    """Say which prompts could not be made as long as they should be.

    Args:
        made: What was made.

        where: The file or set, for the finding.

    Returns:
        One warning if any misses its length by more than one token, else nothing.
    """
    total = list(made)
    missed = [one for one in total if abs(one.tokens - one.wanted) > _TOLERANCE]
    if not missed:
        return ()
    worst = max(missed, key=lambda one: abs(one.tokens - one.wanted))
    return (
        Finding(
            severity="warning",
            code="load.synthetic-length",
            message=(
                f"{len(missed)} of {len(total)} synthetic prompts miss their length by more than a token; the worst, "
                f"{worst.prompt.id}, has {worst.tokens} tokens instead of {worst.wanted}"
            ),
            hint="Lengths must leave room for the chat template; encode and decode must be of one tokenizer.",
            where=where,
        ),
    )


def _numbered(synthesiser: Synthesiser, number: int, inputs: Lengths, outputs: Lengths | None, seed: int) -> Made:
    rng = random.Random(f"{seed}:length:{number}")  # noqa: S311 - a length, not a secret
    wanted = inputs.draw(rng)
    made = synthesiser.prompt(wanted, id=f"synthetic-{number + 1}", category="synthetic", key=str(number))
    return made if outputs is None else made.with_answer(outputs.draw(rng))


def _joined(blocks: Sequence[str]) -> str:
    return "".join(f"{block} " for block in blocks)


def _block_key(number: int) -> str:
    return f"block:{number}"


@functools.cache
def _sentences() -> tuple[str, ...]:
    paragraphs = (max(prompt.message.split("\n\n"), key=len) for prompt in load_bundled("summarisation").prompts)
    return tuple(sentence for paragraph in paragraphs for sentence in _SENTENCE_END.split(paragraph))
