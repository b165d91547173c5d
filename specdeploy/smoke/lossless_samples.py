"""Sampled answers with and without drafts: how they are asked for, and what their tokens say about the distribution."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdeploy.holm import holm
from specdeploy.smoke.permutation import detectable, least_p_value, p_value, tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from specdeploy.smoke.permutation import Tally
    from specdeploy.smoke.probe import Probe
    from specdeploy.triton.protocol import Chunk, GenerateRequest

#: Few tokens to choose from, so that each comes often enough to be counted, and a temperature that is not 1, so that
#: one that is forgotten on either side shows.
TEMPERATURE: Final = 0.5
TOP_K: Final = 8
#: The first token comes before any draft; the next is the first that may be a draft, the one after it what follows it.
POSITIONS: Final = (1, 2)
#: Room for two drafts and the target's own token after the first token; the target alone writes what is compared.
LENGTH: Final = 4
CONTROL_LENGTH: Final = 3
#: With fewer answers on each side nothing but the grossest fault would show.
LEAST: Final = 40
_SEED: Final = 20_260_117
#: More than a run sends sampled requests, so that runs with different seeds share none.
_SEEDS_OF_A_RUN: Final = 100_000
#: What a token that is not there is counted as: the answer ended before.
_ENDED: Final = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples:
    """Token ids of sampled answers to one prompt, without and with drafts.

    Args:
        prompt: Name of the prompt.

        control: Answers of the target alone.

        drafted: Answers with drafts.

        drafts: Tokens that were drafted for the latter.

        accepted: How many of them were accepted.
    """

    prompt: str
    control: tuple[tuple[int, ...], ...]
    drafted: tuple[tuple[int, ...], ...]
    drafts: int = 0
    accepted: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class NextTokenTest:
    """One comparison of next-token counts.

    Args:
        prompt: Name of the prompt.

        position: Index of the token in the answer.

        counts: Of every token.

        p: How likely samples of one distribution are at least as far apart.

        adjusted: The same by Holm's rule, for all comparisons of the check.

        detectable: Smallest total-variation distance that it finds four times of five; None when it finds none.
    """

    prompt: str
    position: int
    counts: Tally
    p: float
    adjusted: float
    detectable: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "prompt": self.prompt,
            "position": self.position,
            "samples": list(self.counts.sizes),
            "tokens": list(self.counts.tokens),
            "control": list(self.counts.control),
            "drafted": list(self.counts.drafted),
            "distance": self.counts.distance,
            "p_value": self.p,
            "adjusted_p_value": self.adjusted,
            "detectable_distance": self.detectable,
        }


class Sampler:
    """Asks for sampled answers, several at a time, every one with a seed of its own.

    Args:
        probe: Sends the requests.

        options: Further inputs of every request, such as how drafts are verified.

        part: Of the check, 0 or 1; each has seeds of its own, whatever the other used.
    """

    def __init__(self, probe: Probe, options: dict[str, object], *, part: int = 0) -> None:
        self._probe = probe
        self._options = options
        self._seed = _SEED + _SEEDS_OF_A_RUN * (2 * probe.expect.seed + part)

    def request(self, prompt: str, *, drafts: int | None, max_tokens: int, **sampling: Any) -> GenerateRequest:  # noqa: ANN401
        """Return a sampled request with the next seed."""
        self._seed += 1
        plain = self._probe.request(prompt, max_tokens=max_tokens, drafts=drafts)
        return dataclasses.replace(plain, seed=self._seed, extra=self._options, **sampling)

    def answers(self, requests: Sequence[GenerateRequest]) -> list[Chunk]:
        """Send requests, as many at a time as there are clients."""
        with ThreadPoolExecutor(self._probe.expect.clients) as pool:
            return list(pool.map(self._probe.whole, requests))

    def take(self, name: str, prompt: str, count: int, enough: Callable[[int], bool]) -> Samples:
        """Take ``count`` answers on each side, in turns; fewer when ``enough`` says so after some."""
        control: list[Chunk] = []
        drafted: list[Chunk] = []
        while len(control) < count and not enough(len(control)):
            size = min(self._probe.expect.clients, count - len(control))
            arms = [(0, CONTROL_LENGTH), (None, LENGTH)] * size
            requests = [
                self.request(prompt, drafts=drafts, max_tokens=length, temperature=TEMPERATURE, top_k=TOP_K)
                for drafts, length in arms
            ]
            answers = self.answers(requests)
            control += answers[::2]
            drafted += answers[1::2]
        return Samples(
            prompt=name,
            control=tuple(answer.ids for answer in control),
            drafted=tuple(answer.ids for answer in drafted),
            drafts=sum(answer.total_draft_tokens or 0 for answer in drafted),
            accepted=sum(answer.total_accepted_draft_tokens or 0 for answer in drafted),
        )


def compare(samples: Iterable[Samples], alpha: float) -> tuple[NextTokenTest, ...]:
    """Compare next-token counts at each position of each prompt; where all answers have one token there is no test.

    Args:
        samples: Of each prompt.

        alpha: Level of all comparisons together.
    """
    counted = [
        (sample.prompt, position, tally(_tokens(sample.control, position), _tokens(sample.drafted, position)))
        for sample in samples
        for position in POSITIONS
        if sample.control and sample.drafted
    ]
    choices = [entry for entry in counted if len(entry[2].tokens) > 1]
    if not choices:
        return ()
    level, rng = alpha / len(choices), np.random.default_rng(_SEED)
    p_values = [p_value(counts, level, rng) for _, _, counts in choices]
    powers = [detectable(counts, level, rng) for _, _, counts in choices]
    entries = zip(choices, p_values, holm(p_values), powers, strict=True)
    return tuple(
        NextTokenTest(prompt=prompt, position=position, counts=counts, p=p, adjusted=adjusted, detectable=power)
        for (prompt, position, counts), p, adjusted, power in entries
    )


def too_few(tests: Sequence[NextTokenTest], alpha: float) -> str:
    """Say why these comparisons could not have found anything; nothing when they could."""
    if not tests:
        return "every sampled answer has the same tokens, so there is no distribution to compare"
    least = min(least_p_value(test.counts.sizes) for test in tests)
    if least > alpha / len(tests):
        return f"so few answers give no p-value below {least:.2g}, for a level of {alpha / len(tests):.2g}"
    if all(test.detectable is None for test in tests):
        return "so few answers show no difference of distribution four times of five, however large"
    return ""


def _tokens(answers: Sequence[tuple[int, ...]], position: int) -> list[int]:
    return [ids[position] if position < len(ids) else _ENDED for ids in answers]
