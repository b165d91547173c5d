"""The order of a closed-loop run as data: for each concurrency a warm-up, then pairs of blocks in ABBA order.

Knows which request is sent in which block; does not send any and has no clock. Pair 0 measures control then
speculation, pair 1 speculation then control, and so on: whatever drifts slowly (heat, page cache, neighbours) then
falls on both arms alike. Both arms of a pair send the same prompts, each pair sends other prompts than the one before
it, as long as they last.

A block should hold more prompts than the engines have sequence slots. An engine keeps the KV cache of the last
sequences it served, one for each slot, and reuses it for a prompt that begins alike. With as many slots as prompts,
the second arm of a pair finds the whole cache that the first arm left, skips its prefill, and looks faster than it
is. With more prompts than slots the least recently used sequence, which is the next one to be asked for, has always
just been overwritten. `kv_reuse_findings` says whether a plan has that flaw.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from specdeploy.bench.records import ARMS, CONTROL, SPECULATION, WARMUP_PAIR, Arm
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdeploy.bench.prompts import Prompt, PromptSet

DEFAULT_MAX_CONNECTION_FAILURES: Final = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Requests of one arm that are sent together and timed as one.

    Args:
        arm: Who answers.

        pair: Number of the pair, or `WARMUP_PAIR`.

        concurrency: Requests in flight.

        prompts: What is sent, in this order.
    """

    arm: Arm
    pair: int
    concurrency: int
    prompts: tuple[Prompt, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """What a run is asked to do; the ``load`` section of the configuration, plus the limits of the run itself.

    Args:
        concurrency: Requests in flight, one measurement for each.

        requests: Requests in each block.

        pairs: Pairs at each concurrency.

        warmup_requests: Requests before each concurrency that are not counted.

        max_tokens: Longest answer in tokens.

        temperature: 0 decodes greedily.

        top_p: Nucleus of sampled requests.

        seed: Of the prompt order and of sampled requests.

        request_timeout_s: A request that takes longer is an error.

        num_draft_tokens: What the speculation arm asks for; None leaves it to the deployment.

        deadline_s: The whole run ends after this many seconds, marked partial; None sets no limit.

        max_connection_failures: So many failed connections in a row end the run.
    """

    concurrency: tuple[int, ...] = (1,)
    requests: int = 6
    pairs: int = 5
    warmup_requests: int = 2
    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    request_timeout_s: float = 120.0
    num_draft_tokens: int | None = None
    deadline_s: float | None = None
    max_connection_failures: int = DEFAULT_MAX_CONNECTION_FAILURES


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """A run before it is run: its settings, the name of its prompts, and its blocks in order."""

    settings: LoadSettings
    prompt_set: str
    prompt_count: int
    blocks: tuple[Block, ...]

    @property
    def total_requests(self) -> int:
        """Requests of all blocks, the warm-up included."""
        return sum(len(block.prompts) for block in self.blocks)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as it stands in ``load.json``: everything but the texts of the prompts."""
        return {
            "shape": "closed_loop",
            "order": "ABBA",
            "prompts": self.prompt_set,
            "prompt_count": self.prompt_count,
            **dataclasses.asdict(self.settings),
            "concurrency": list(self.settings.concurrency),
        }


def plan_load(settings: LoadSettings, prompts: PromptSet) -> LoadPlan:
    """Lay out the blocks of a run.

    Raises:
        ConfigError: A setting leaves nothing to measure, or a concurrency comes twice.
    """
    _check(settings)
    order = prompts.shuffled(settings.seed)
    return LoadPlan(
        settings=settings,
        prompt_set=prompts.name,
        prompt_count=len(prompts),
        blocks=tuple(_blocks(settings, order)),
    )


def kv_reuse_findings(plan: LoadPlan, *, max_sequences: int) -> tuple[Finding, ...]:
    """Say whether the second arm of a pair could live off the KV cache that the first one left.

    Args:
        plan: The plan.

        max_sequences: Sequence slots of an engine (``build.max_batch_size``).

    Returns:
        One warning if so, else nothing.
    """
    distinct = min((len(set(block.prompts)) for block in _measured(plan)), default=0)
    if distinct > max_sequences:
        return ()
    return (
        Finding(
            severity="warning",
            code="load.kv-cache-flatters",
            message=(
                f"a block sends {distinct} different prompts and an engine keeps {max_sequences} sequences: the second "
                "arm of each pair finds its prompts in the KV cache, so its time to first token and the speed-up mean "
                "little"
            ),
            hint=f"Set load.requests to at least {max_sequences + 1}, with as many prompts.",
            where="load.requests",
        ),
    )


def prompt_findings(plan: LoadPlan) -> tuple[Finding, ...]:
    """Say whether a block is so long that it sends a prompt twice."""
    requests = plan.settings.requests
    if requests <= plan.prompt_count:
        return ()
    return (
        Finding(
            severity="warning",
            code="load.prompts-repeat",
            message=f"a block of {requests} requests repeats prompts: {plan.prompt_set} has {plan.prompt_count}",
            hint="Use a larger prompt set, or fewer requests in more pairs.",
            where="load.requests",
        ),
    )


def _blocks(settings: LoadSettings, order: PromptSet) -> Iterator[Block]:
    offset = 0
    for concurrency in settings.concurrency:
        warmup = order.select(settings.warmup_requests, offset)
        yield from _warmup_blocks(concurrency, warmup)
        offset += settings.warmup_requests
        for pair in range(settings.pairs):
            prompts = order.select(settings.requests, offset)
            for arm in _arm_order(pair):
                yield Block(arm=arm, pair=pair, concurrency=concurrency, prompts=prompts)
            offset += settings.requests


def _warmup_blocks(concurrency: int, prompts: tuple[Prompt, ...]) -> Iterator[Block]:
    """Warm both arms; speculation first, because it alone uses both engines."""
    for arm, share in ((SPECULATION, prompts[0::2]), (CONTROL, prompts[1::2])):
        if share:
            yield Block(arm=arm, pair=WARMUP_PAIR, concurrency=concurrency, prompts=share)


def _arm_order(pair: int) -> tuple[Arm, ...]:
    return ARMS if pair % 2 == 0 else ARMS[::-1]


def _measured(plan: LoadPlan) -> Iterator[Block]:
    return (block for block in plan.blocks if block.pair != WARMUP_PAIR)


def _check(settings: LoadSettings) -> None:
    if not settings.concurrency or min(settings.concurrency) < 1:
        raise ConfigError(
            f"load.concurrency is {settings.concurrency}", hint="List at least one number, each 1 or more."
        )
    if len(set(settings.concurrency)) != len(settings.concurrency):
        raise ConfigError(f"load.concurrency {settings.concurrency} has a number twice", hint="List each once.")
    for key in ("requests", "pairs", "max_connection_failures"):
        if getattr(settings, key) < 1:
            raise ConfigError(f"load.{key} is {getattr(settings, key)}", hint="It must be at least 1.")
