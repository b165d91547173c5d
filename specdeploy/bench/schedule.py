"""The order of a run as data: for each load a warm-up, then blocks of both arms in ABBA order, or of one arm alone.

Knows which request is sent in which block, and when; does not send any and has no clock. Pair 0 measures control then
speculation, pair 1 speculation then control, and so on: whatever drifts slowly (heat, page cache, neighbours) then
falls on both arms alike. Both arms of a pair send the same prompts, in an open loop at the same times; each pair sends
other prompts than the one before it, as long as they last.

A block should hold more prompts than the engines have sequence slots. An engine keeps the KV cache of the last
sequences it served, one for each slot, and reuses it for a prompt that begins alike. With as many slots as prompts,
the second arm of a pair finds the whole cache that the first arm left, skips its prefill, and looks faster than it
is. With more prompts than slots the least recently used sequence, which is the next one to be asked for, has always
just been overwritten. `kv_reuse_findings` says whether a plan has that flaw.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np

from specdeploy.bench import arrivals
from specdeploy.bench.arrivals import Process, Stage
from specdeploy.bench.prompts import OutputLength, Prefixes, shared_prefix, unique
from specdeploy.bench.records import ARMS, CONTROL, SPECULATION, WARMUP_PAIR, Arm, LoadPoint
from specdeploy.bench.shards import WHOLE, Shard
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specdeploy.bench.prompts import Prompt, PromptSet, Trace

NO_PREFIXES: Final = Prefixes()
Shape: TypeAlias = Literal["closed", Process, "trace"]
SHAPES: Final[tuple[str, ...]] = ("closed", *get_args(Process), "trace")
DEFAULT_MAX_CONNECTION_FAILURES: Final = 5
#: Warm-up of an open loop: so many requests in flight.
_WARMUP_IN_FLIGHT: Final = 2
#: An open loop is connected for answers that take so long, up to so many connections.
_SECONDS_IN_FLIGHT: Final = 2
_MOST_CONNECTIONS: Final = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Requests of one arm that are sent together and timed as one.

    Args:
        arm: Who answers.

        pair: Number of the pair, or `WARMUP_PAIR`.

        point: The load.

        prompts: What is sent, in this order; a closed loop that lasts ``duration_s`` begins anew at the end.

        offsets_s: When each of them is sent, from the beginning of the block; empty in a closed loop.

        duration_s: A closed loop sends nothing more after this time; None sends every prompt once.

        in_flight: Requests at a time of a closed loop; the concurrency, but for a warm-up.

        lap_seed: Of the first line that a prompt gets when it comes again; None sends it again as it is.
    """

    arm: Arm
    pair: int
    point: LoadPoint
    prompts: tuple[Prompt, ...]
    offsets_s: tuple[float, ...] = ()
    duration_s: float | None = None
    in_flight: int = 1
    lap_seed: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests are sent by a schedule, however many are in flight."""
        return bool(self.offsets_s)

    @property
    def size(self) -> int | None:
        """Number of requests; None when the time decides."""
        return len(self.prompts) if self.duration_s is None else None

    def prompt(self, index: int) -> Prompt:
        """Return what request ``index`` sends; the arms of a pair send the same."""
        lap, place = divmod(index, len(self.prompts))
        if not lap or self.lap_seed is None:
            return self.prompts[place]
        salt = f"{self.point.key}:{self.pair}"
        return unique(self.prompts[place : place + 1], seed=self.lap_seed, salt=salt, first=index)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """What a run is asked to do; the ``load`` section of the configuration, plus the limits of the run itself.

    Args:
        shape: ``closed`` keeps a number of requests in flight; the others send by a schedule.

        concurrency: Of a closed loop: requests in flight, one measurement for each.

        rates: Of an open loop: requests per second, one measurement for each.

        stages: Of an open loop: a profile of changing rates, one measurement, in place of ``rates``.

        burstiness: Of ``gamma``.

        requests: Requests in each block.

        duration_s: Length of each block, in place of ``requests``.

        pairs: Pairs at each load; with one arm alone, blocks.

        compare: Whether both arms are measured, in pairs; else one alone.

        arm: Which one that is.

        warmup_requests: Requests before each load that are not counted.

        output: Lengths of the answers.

        recorded_length: Whether an answer may be as long as the one that the file of prompts has, in place of
            ``output``.

        input_tokens_mean: Of synthetic prompts: their mean length in tokens.

        input_tokens_stddev: Its standard deviation.

        output_tokens_mean: Of synthetic prompts: the mean length of their answers; 0 leaves them to ``output``.

        output_tokens_stddev: Its standard deviation.

        distinct: Whether every request gets a first line of its own, against reuse of the KV cache.

        prefix_tokens: Length of the common prefixes that requests begin with; 0: they begin with none.

        prefix_count: How many such prefixes there are.

        prefix_share: The part of the requests that begins with one of them, above 0 and at most 1.

        temperature: 0 decodes greedily.

        top_p: Nucleus of sampled requests.

        seed: Of the prompt order, of schedules and of sampled requests.

        request_timeout_s: A request that takes longer is an error.

        num_draft_tokens: What the speculation arm asks for; None leaves it to the deployment.

        own_control: Whether the server decodes with the target alone when it is asked for no drafts; else the control
            is another server, and no request says how much is drafted.

        chat: Whether messages are sent, and not texts in a chat template.

        deadline_s: The whole run ends after this many seconds, marked partial; None sets no limit.

        max_connection_failures: So many failed connections in a row end the run.
    """

    shape: Shape = "closed"
    concurrency: tuple[int, ...] = (1,)
    rates: tuple[float, ...] = ()
    stages: tuple[Stage, ...] = ()
    burstiness: float = 1.0
    requests: int = 6
    duration_s: float | None = None
    pairs: int = 5
    compare: bool = True
    arm: Arm = SPECULATION
    warmup_requests: int = 2
    output: OutputLength = OutputLength(max_tokens=64)  # noqa: RUF009 - frozen
    recorded_length: bool = False
    input_tokens_mean: int = 0
    input_tokens_stddev: float = 0.0
    output_tokens_mean: int = 0
    output_tokens_stddev: float = 0.0
    distinct: bool = False
    prefix_tokens: int = 0
    prefix_count: int = 1
    prefix_share: float = 1.0
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    request_timeout_s: float = 120.0
    num_draft_tokens: int | None = None
    own_control: bool = True
    chat: bool = False
    deadline_s: float | None = None
    max_connection_failures: int = DEFAULT_MAX_CONNECTION_FAILURES

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Who is measured."""
        return ARMS if self.compare else (self.arm,)

    @property
    def different_requests(self) -> int | None:
        """How many requests there are that need a prompt of their own; None where a time decides, or a trace."""
        if self.shape == "trace" or self.stages or self.duration_s is not None:
            return None
        loads = len(self.concurrency if self.shape == "closed" else self.rates)
        return loads * (self.warmup_requests + self.pairs * self.requests)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """A run before it is run: settings, prompts by name and how they were made, blocks in order, whose part is sent."""

    settings: LoadSettings
    prompt_set: str
    prompt_count: int
    blocks: tuple[Block, ...]
    findings: tuple[Finding, ...] = ()
    shard: Shard = WHOLE

    @property
    def temperature(self) -> float:
        """0 decodes greedily."""
        return self.settings.temperature

    @property
    def own_control(self) -> bool:
        """Whether the control is the same server, asked for no drafts; else it is another one, which may draft."""
        return self.settings.own_control

    @property
    def block_s(self) -> float | None:
        """How long each block of a closed loop lasts; None where the number of its requests decides."""
        return self.settings.duration_s if self.settings.shape == "closed" else None

    @property
    def total_requests(self) -> int | None:
        """Requests that the shard sends in all blocks, the warm-up included; None when the time decides."""
        counts = [self.shard.count(block) for block in self.blocks]
        return None if None in counts else sum(count or 0 for count in counts)

    @functools.cached_property
    def lengths_s(self) -> tuple[float | None, ...]:
        """About how long each block lasts; None where the number of its requests decides, but 0 for a warm-up."""
        return tuple(
            block.offsets_s[-1] if block.is_open else 0.0 if block.pair == WARMUP_PAIR else block.duration_s
            for block in self.blocks
        )

    @property
    def connections(self) -> int:
        """Connections that are opened beforehand; an open loop may come to need more, and waits for those."""
        rates = ((block.point.rate or 0.0) / self.shard.of for block in self.blocks)
        open_loop = min(math.ceil(max(rates, default=0.0)) * _SECONDS_IN_FLIGHT, _MOST_CONNECTIONS)
        return max((1, open_loop, *(self.shard.in_flight(block) for block in self.blocks)))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as it stands in ``load.json``: everything but the texts of the prompts."""
        settings = dataclasses.asdict(self.settings)
        output = settings.pop("output")
        return {
            "order": "ABBA" if self.settings.compare else "one arm",
            "prompts": self.prompt_set,
            "prompt_count": self.prompt_count,
            **settings,
            "max_tokens": output["max_tokens"],
            "fixed_length": output["fixed"],
            "concurrency": list(self.settings.concurrency) if self.settings.shape == "closed" else [],
            "rates": list(self.settings.rates),
            "stages": list(settings["stages"]),
        }


def plan_load(
    settings: LoadSettings,
    prompts: PromptSet,
    trace: Trace | None = None,
    prefixes: Prefixes = NO_PREFIXES,
    *,
    first_pair: int = 0,
) -> LoadPlan:
    """Lay out the blocks of a run.

    Args:
        settings: What is asked for.

        prompts: What is sent; not looked at for a trace.

        trace: What is sent, and when, with ``shape`` trace.

        prefixes: What a share of the requests begins with.

        first_pair: Number of the first pair at each load; more than 0 goes on with a run that has so many.

    Raises:
        ConfigError: As `check_load`; or the shape and the prompts do not fit together, or a prompt wants a longer
            answer than the run allows.
    """
    check_load(settings)
    if (settings.shape == "trace") != (trace is not None):
        raise ConfigError(
            f"load.shape is {settings.shape}, and the prompts are {'a trace' if trace else 'no trace'}",
            hint="A trace is sent with load.shape trace, and nothing else is.",
        )
    if trace is not None:
        prompts = trace.prompt_set
    for prompt in prompts.prompts:
        settings.output.apply(prompt)
    return LoadPlan(
        settings=settings,
        prompt_set=prompts.name,
        prompt_count=len(prompts),
        blocks=tuple(_Layout(settings, prompts, trace, prefixes.texts).blocks(first_pair)),
        findings=(*prompts.findings, *prefixes.findings),
    )


def check_load(settings: LoadSettings) -> None:
    """Refuse settings that no prompts could be sent by.

    Raises:
        ConfigError: A setting leaves nothing to measure or contradicts another one, or a load comes twice.
    """
    for key in ("requests", "pairs", "max_connection_failures"):
        if getattr(settings, key) < 1:
            raise ConfigError(f"load.{key} is {getattr(settings, key)}", hint="It must be at least 1.")
    if not (math.isfinite(settings.burstiness) and settings.burstiness > 0):
        raise ConfigError(
            f"load.burstiness is {settings.burstiness:g}", hint="It is a finite number above 0; 1 is a Poisson process."
        )
    _check_shape(settings)
    _check_prefix(settings)
    if settings.shape == "closed":
        _check_loads("concurrency", settings.concurrency, least=1)
    elif settings.shape != "trace" and not settings.stages:
        _check_loads("rates", settings.rates, least=0)


def kv_reuse_findings(plan: LoadPlan, *, max_sequences: int) -> tuple[Finding, ...]:
    """Say whether the second arm of a pair could live off the KV cache that the first one left.

    Args:
        plan: The plan.

        max_sequences: Sequence slots of an engine (``build.max_batch_size``).

    Returns:
        One warning if so, else nothing.
    """
    # By their texts: lines of a file have ids of their own, also where they say the same.
    smallest = min(_measured(plan), key=_different)
    distinct = _different(smallest)
    if distinct > max_sequences or not plan.settings.compare:
        return ()
    if plan.settings.distinct and plan.block_s is not None:
        # Its prompts come again with other first lines, so that nobody knows how many a block will have.
        return ()
    # What is shared on purpose is no flaw; whole prompts that come again are one all the same.
    whole = "whole prompts, more than the common prefixes," if plan.settings.prefix_tokens else "its prompts"
    hint, where = _more_prompts(plan, len(smallest.prompts), max_sequences + 1)
    return (
        Finding(
            severity="warning",
            code="load.kv-cache-flatters",
            message=(
                f"a block sends {distinct} different prompts and an engine keeps {max_sequences} sequences: the second "
                f"arm of each pair finds {whole} in the KV cache, so its time to first token and the speed-up mean "
                "little"
            ),
            hint=hint,
            where=where,
        ),
    )


def _different(block: Block) -> int:
    return len({prompt.text for prompt in block.prompts})


def _more_prompts(plan: LoadPlan, sent: int, least: int) -> tuple[str, str]:
    """Return how a block, which sends some now, comes to at least so many different prompts, and by which key."""
    settings = plan.settings
    kind = "trace" if settings.shape == "trace" else "set"
    if sent >= least or plan.block_s is not None:
        return f"Use a {kind} of at least {least} different prompts, or load.distinct.", "load.prompts"
    if settings.shape == "trace":
        return f"Use a trace of at least {least} requests.", "load.prompts"
    for key in ("stages", "duration_s"):
        if getattr(settings, key):
            return f"Make load.{key} longer, to at least {least} requests, with as many prompts.", f"load.{key}"
    return f"Set load.requests to at least {least}, with as many prompts.", "load.requests"


def prompt_findings(plan: LoadPlan) -> tuple[Finding, ...]:
    """Say how the prompts were made, what they share, and whether a block is so long that it sends one twice."""
    known = (*plan.findings, *_prefix_findings(plan))
    longest = max((len(block.prompts) for block in _measured(plan)), default=0)
    if longest <= plan.prompt_count or plan.settings.distinct:
        return known
    key, cure = _length(plan.settings)
    return (
        *known,
        Finding(
            severity="warning",
            code="load.prompts-repeat",
            message=f"a block of {longest} requests repeats prompts: {plan.prompt_set} has {plan.prompt_count}",
            hint=f"Use a larger prompt set, {cure} in more pairs, or load.distinct.",
            where=f"load.{key}",
        ),
    )


def _length(settings: LoadSettings) -> tuple[str, str]:
    """Return the key that says how long a block is, and what makes it shorter."""
    if settings.stages:
        return "stages", "shorter stages"
    if settings.duration_s is not None:
        return "duration_s", "less time"
    return "requests", "fewer requests"


def _prefix_findings(plan: LoadPlan) -> tuple[Finding, ...]:
    """Say how much of what an arm sends begins alike, as it was asked for."""
    settings = plan.settings
    if not settings.prefix_tokens:
        return ()
    # Both arms of a pair send the same.
    sent = [prompt for block in _measured(plan) if block.arm == settings.arms[0] for prompt in block.prompts]
    used = Counter(prompt.prefix for prompt in sent if prompt.prefix)
    # By time nobody knows how many are sent; the share is that of the set.
    by_time = plan.block_s is not None
    part = f"{used.total() / len(sent):.0%} of the" if by_time else f"{used.total()} of {len(sent)}"
    which = f"one of {len(used)} common prefixes" if len(used) > 1 else "a common prefix"
    told = f"{part} requests of an arm begin with {which} of {settings.prefix_tokens} tokens"
    if not used or max(used.values()) == 1:
        return (
            Finding(
                severity="warning",
                code="load.prefix-not-shared",
                message=f"{told}, and no two with the same: no request shares the beginning of another one",
                hint="Lower load.prefix_count, raise load.prefix_share, or send more requests.",
                where="load.prefix_count" if settings.prefix_count > 1 else "load.prefix_share",
            ),
        )
    return (
        Finding(
            severity="info",
            code="load.prefix-shared",
            message=f"{told}: a server that keeps the KV cache of a prefix skips its prefill, in both arms alike",
            where="load.prefix_tokens",
        ),
    )


@dataclasses.dataclass(frozen=True)
class _Timed:
    """What one block of a load point sends: how many requests, and when."""

    count: int
    offsets_s: tuple[float, ...] = ()


class _Layout:
    """Lays out the blocks; every block takes the prompts that follow those of the block before."""

    def __init__(
        self, settings: LoadSettings, prompts: PromptSet, trace: Trace | None, prefixes: Sequence[str]
    ) -> None:
        self._settings = settings
        self._order = prompts if trace is not None else prompts.shuffled(settings.seed)
        self._trace = trace
        self._prefixes = prefixes
        self._taken = 0

    def blocks(self, first_pair: int) -> Iterator[Block]:
        for number, point in enumerate(_points(self._settings, self._trace)):
            yield from self._warmup(point)
            for pair in range(first_pair, first_pair + self._settings.pairs):
                timed = self._timed(point, number, pair)
                prompts = self._take(timed.count)
                for arm in _arm_order(self._settings.arms, pair):
                    yield Block(
                        arm=arm,
                        pair=pair,
                        point=point,
                        prompts=prompts,
                        offsets_s=timed.offsets_s,
                        duration_s=None if timed.offsets_s else self._settings.duration_s,
                        in_flight=min(point.concurrency or 1, len(prompts)),
                        lap_seed=self._settings.seed if self._settings.distinct else None,
                    )

    def _warmup(self, point: LoadPoint) -> Iterator[Block]:
        """Warm both arms; speculation first, because it alone uses both engines."""
        prompts = self._take(self._settings.warmup_requests)
        shares = (
            {SPECULATION: prompts[0::2], CONTROL: prompts[1::2]}
            if self._settings.compare
            else {self._settings.arm: prompts}
        )
        for arm, share in shares.items():
            if share:
                in_flight = min(point.concurrency or _WARMUP_IN_FLIGHT, len(share))
                yield Block(arm=arm, pair=WARMUP_PAIR, point=point, prompts=share, in_flight=in_flight)

    def _timed(self, point: LoadPoint, number: int, pair: int) -> _Timed:
        """Return the times of a pair; each pair has its own, its two arms have the same."""
        settings = self._settings
        if settings.shape == "closed":
            # By time: as many prompts as there are, and from the first again after the last.
            return _Timed(settings.requests if settings.duration_s is None else len(self._order))
        if self._trace is not None:
            return _Timed(len(self._trace), self._trace.offsets_s)
        seed = np.random.SeedSequence([settings.seed, number, pair])
        offsets = arrivals.schedule(
            _process(settings.shape), self._profile(point), seed, burstiness=settings.burstiness
        )
        kept = offsets if settings.stages or settings.duration_s is not None else offsets[: settings.requests]
        if not len(kept):
            key = "stages" if settings.stages else "duration_s"
            raise ConfigError(
                f"load.{key} lets so few requests through that pair {pair} has none ({point})",
                hint="Raise the rate or the time, so that some requests are expected in each half of a pair.",
            )
        return _Timed(len(kept), tuple(kept.tolist()))

    def _profile(self, point: LoadPoint) -> tuple[Stage, ...]:
        if self._settings.stages:
            return self._settings.stages
        rate = point.rate or 0.0
        # By number: so long that even an uneven process has sent as many with near certainty.
        enough_s = (
            self._settings.requests + 10 * (self._settings.requests / self._settings.burstiness) ** 0.5 + 10
        ) / rate
        return arrivals.steady(rate, self._settings.duration_s or enough_s)

    def _take(self, count: int) -> tuple[Prompt, ...]:
        prompts = self._order.select(count, self._taken if self._trace is None else 0)
        settings = self._settings
        if self._prefixes:
            share = settings.prefix_share
            prompts = shared_prefix(prompts, texts=self._prefixes, share=share, seed=settings.seed, first=self._taken)
        if settings.distinct:
            prompts = unique(prompts, seed=settings.seed, first=self._taken)
        self._taken += count
        return prompts


def _points(settings: LoadSettings, trace: Trace | None) -> tuple[LoadPoint, ...]:
    if settings.shape == "closed":
        return tuple(LoadPoint(concurrency=number) for number in settings.concurrency)
    if trace is not None:
        longest_s = trace.offsets_s[-1] if len(trace) else 0.0
        return (LoadPoint(rate=round(len(trace) / longest_s, 3) if longest_s else 1.0),)
    if settings.stages:
        whole_s = sum(stage.duration_s for stage in settings.stages)
        return (LoadPoint(rate=round(sum(stage.expected for stage in settings.stages) / whole_s, 3)),)
    return tuple(LoadPoint(rate=rate) for rate in settings.rates)


def _process(shape: Shape) -> Process:
    if shape in {"closed", "trace"}:
        raise ValueError(f"{shape} has no process")
    return shape  # type: ignore[return-value]  # what is left of the literals


def _arm_order(arms: Sequence[Arm], pair: int) -> tuple[Arm, ...]:
    return tuple(arms) if pair % 2 == 0 else tuple(reversed(arms))


def _measured(plan: LoadPlan) -> Iterator[Block]:
    return (block for block in plan.blocks if block.pair != WARMUP_PAIR)


def _check_shape(settings: LoadSettings) -> None:
    """Refuse what the shape would not look at: a run would measure something else than was asked for."""
    given = [key for key in ("rates", "stages") if getattr(settings, key)]
    if settings.shape in {"closed", "trace"} and given:
        raise ConfigError(
            f"load.{given[0]} is given, and load.shape is {settings.shape}, which has none",
            hint=f"Set load.shape to {', '.join(get_args(Process))}, or load.{given[0]} to [].",
        )
    if len(given) > 1:
        raise ConfigError("load.rates and load.stages are both given", hint="Stages replace rates: keep one of them.")


def _check_prefix(settings: LoadSettings) -> None:
    """Refuse a share of nothing, and nothing of a prefix."""
    given = [key for key in ("prefix_count", "prefix_share") if getattr(settings, key) != 1]
    if given and not settings.prefix_tokens:
        raise ConfigError(
            f"load.{given[0]} is {getattr(settings, given[0])}, and load.prefix_tokens is 0: there is no common prefix",
            hint=f"Say how long it is, such as load.prefix_tokens: 256, or leave out load.{given[0]}.",
        )
    if settings.prefix_tokens and not settings.prefix_share:
        raise ConfigError(
            f"load.prefix_share is 0, so that no request begins with the {settings.prefix_tokens} tokens of "
            "load.prefix_tokens",
            hint="Set load.prefix_share above 0, or leave out load.prefix_tokens.",
        )


def _check_loads(key: str, loads: Sequence[float], *, least: float) -> None:
    if not loads or min(loads) < least or not all(load > 0 for load in loads):
        raise ConfigError(f"load.{key} is {loads}", hint=f"List at least one number, each above {max(least - 1, 0):g}.")
    if len(set(loads)) != len(loads):
        raise ConfigError(f"load.{key} {loads} has a number twice", hint="List each once.")
