"""What a deployment promises, as far as the smoke test holds it to that; plain values, with the bundled prompts."""

from __future__ import annotations

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmokePrompt:
    """A prompt that answers are compared on.

    Args:
        name: Short name, used in reports.

        text: The prompt itself.
    """

    name: str
    text: str


#: Different kinds of text, because drafts are accepted at different rates and characters have different lengths.
PROMPTS: Final = (
    SmokePrompt(
        name="code",
        text="def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +",
    ),
    SmokePrompt(
        name="prose",
        text="The lighthouse keeper climbed the stairs every evening, and when the lamp was lit he sat down to write",
    ),
    SmokePrompt(
        name="list",
        text="The days of the week are Monday, Tuesday, Wednesday,",
    ),
    SmokePrompt(
        name="cyrillic",
        text="Москва является столицей России. Санкт-Петербург",
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expectations:
    """What is expected of the deployment under test.

    Args:
        models: Every model of the repository.

        front_door: The model that requests go to.

        second_door: The other name of the front door; None when there is none.

        target_model: The engine model of the target.

        draft_model: The engine model of the draft; None when drafts come from the text or from the engine itself.

        num_draft_tokens: The deployment's own number of drafts per round.

        max_draft_tokens: The most that a request may ask for; None is no limit.

        fixed_by: What fixes the number of drafts, such as ``medusa``, so that a request can neither change it nor
            switch speculation off; empty when it can.

        max_seq_len: Longest prompt plus answer, in tokens.

        target_precision: Precision of the target's weights, for the reason of a difference.

        max_tokens: Length of the answers that are compared.

        request_timeout_s: Every call ends within this many seconds.

        check_timeout_s: A check that takes longer has failed (seconds).

        prompts: What answers are compared on. The first serves where one is enough, the first and the last where two
            are: the last should be of a script whose characters have several bytes.
    """

    models: tuple[str, ...]
    num_draft_tokens: int
    max_seq_len: int
    front_door: str = "ensemble"
    second_door: str | None = "tensorrt_llm_bls"
    target_model: str = "tensorrt_llm"
    draft_model: str | None = "tensorrt_llm_draft"
    max_draft_tokens: int | None = None
    fixed_by: str = ""
    target_precision: str = "fp32"
    max_tokens: int = 32
    request_timeout_s: float = 60.0
    check_timeout_s: float = 120.0
    prompts: tuple[SmokePrompt, ...] = PROMPTS

    @property
    def control_drafts(self) -> int | None:
        """What to ask for to have the target alone; None, the deployment's own way, where that cannot be had."""
        return None if self.fixed_by else 0
