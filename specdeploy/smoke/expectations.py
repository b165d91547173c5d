"""What a deployment promises, as far as the smoke test holds it to that; plain values, with the bundled prompts."""

from __future__ import annotations

import dataclasses
from typing import Final

from specdeploy.smoke import capabilities


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmokePrompt:
    """A prompt that answers are compared on.

    Args:
        name: Short name, used in reports.

        text: The prompt itself.
    """

    name: str
    text: str


_USUAL_TOKENS: Final = 10

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
        text="Москва является столицей",
    ),
)

#: More kinds, which only the comparisons with the target alone take: no letters, and a prompt of many tokens.
MORE_PROMPTS: Final = (
    SmokePrompt(
        name="chinese",
        text="长江是中国最长的河流。它",
    ),
    SmokePrompt(
        name="long",
        text=(
            "The harbour of the old town lies in a bay that opens to the north-west. In winter the storms come over the"
            " breakwater, and the fishing boats are drawn up on the stones, where their owners mend nets, paint hulls"
            " and argue about the price of diesel. In summer there are visitors. They come by the ferry at noon, walk"
            " once along the quay, look at the church, the market and the lighthouse, eat fried fish out of paper, and"
            " leave by the ferry at six. Nobody in the town could say when it began, but everybody agrees that it was"
            " quieter before. The keeper of the lighthouse, who has lived there for forty years, says that the harbour"
            " was"
        ),
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

        pinned: Whether requests have to name their number of drafts, because the deployment drafts as much as pays.

        max_seq_len: Longest prompt plus answer, in tokens.

        target_precision: Precision of the target's weights, for the reason of a difference.

        max_tokens: Length of the answers that are compared with the target alone; others are shorter.

        request_timeout_s: Every call ends within this many seconds.

        check_timeout_s: A check that takes longer has failed (seconds).

        samples: Sampled answers with drafts, and as many without, for the comparison of distributions; 0 leaves it out.

        seed: Of the sampled answers; the same one gives the same answers again.

        alpha: How often a lossless deployment may fail that comparison by chance.

        tie_margin: Logits of the target's two best tokens that are this near are a tie; 0 goes by its precision.

        clients: Clients at the same time.

        self_draft: Whether the draft is the target itself, so that nearly every draft must be accepted.

        metrics: Whether the server publishes metrics.

        capabilities: What the server can be asked for; see :mod:`specdeploy.smoke.capabilities`.

        prompts: What answers are compared on. The first serves where one is enough, the first and the last where two
            are: the last should be of a script whose characters have several bytes.

        more_prompts: Further ones for the comparison with the target alone; those that may not fit into
            ``max_seq_len`` are left out there.
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
    pinned: bool = False
    target_precision: str = "fp32"
    max_tokens: int = 32
    request_timeout_s: float = 60.0
    check_timeout_s: float = 120.0
    samples: int = 200
    seed: int = 0
    alpha: float = 0.01
    tie_margin: float = 0.0
    clients: int = 10
    self_draft: bool = False
    metrics: bool = True
    capabilities: frozenset[str] = capabilities.ALL
    prompts: tuple[SmokePrompt, ...] = PROMPTS
    more_prompts: tuple[SmokePrompt, ...] = MORE_PROMPTS

    @property
    def usual_tokens(self) -> int:
        """Length of an answer where nothing depends on it: a few rounds, so that a slow server is done with it soon."""
        return min(self.max_tokens, _USUAL_TOKENS)
