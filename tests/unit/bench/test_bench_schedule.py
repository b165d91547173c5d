"""The order of blocks."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.arrivals import Stage
from specdeploy.bench.prompts import Prefixes, Trace, load_bundled
from specdeploy.bench.records import CONTROL, SPECULATION, WARMUP_PAIR
from specdeploy.bench.schedule import LoadSettings, kv_reuse_findings, plan_load, prompt_findings
from specdeploy.bench.stages import parse_stages
from specdeploy.errors import ConfigError
from specdeploy.findings import Finding

CODE = load_bundled("code")


def test_arms_alternate_abba() -> None:
    """Pair 0 is control, speculation; pair 1 the other way round: what drifts falls on both alike."""
    plan = plan_load(LoadSettings(pairs=3, warmup_requests=0), CODE)

    c, s = CONTROL, SPECULATION
    assert [(block.pair, block.arm) for block in plan.blocks] == [(0, c), (0, s), (1, s), (1, c), (2, c), (2, s)]


@given(
    concurrency=st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
    requests=st.integers(1, 9),
    pairs=st.integers(1, 6),
    warmup=st.integers(0, 5),
    seed=st.integers(0, 3),
)
def test_the_plan_is_fair(concurrency, requests, pairs, warmup, seed) -> None:
    """Both arms of a pair send the same prompts; each concurrency has all its pairs, after its own warm-up."""
    settings = LoadSettings(
        concurrency=tuple(concurrency), requests=requests, pairs=pairs, warmup_requests=warmup, seed=seed
    )
    plan = plan_load(settings, CODE)

    assert plan == plan_load(settings, CODE)
    assert plan.total_requests == len(concurrency) * (2 * requests * pairs + warmup)
    for level in concurrency:
        blocks = [block for block in plan.blocks if block.point.concurrency == level]
        warm = [block for block in blocks if block.pair == WARMUP_PAIR]
        assert blocks[: len(warm)] == warm
        for pair in range(pairs):
            first, second = (block for block in blocks if block.pair == pair)
            assert {first.arm, second.arm} == {CONTROL, SPECULATION}
            assert first.prompts == second.prompts
            assert len(first.prompts) == requests


def test_each_pair_sends_other_prompts_as_long_as_they_last() -> None:
    """Warm-up and pairs are dealt from one order: nothing is asked twice before everything was asked once."""
    plan = plan_load(LoadSettings(requests=8, pairs=5, warmup_requests=2), CODE)
    one_arm = [block for block in plan.blocks if block.pair == WARMUP_PAIR or block.arm == CONTROL]
    dealt = [prompt.id for block in one_arm for prompt in block.prompts]

    assert len(dealt) == len(set(dealt)) == 42


def test_both_engines_are_warmed_up() -> None:
    """Two warm-up requests reach both arms."""
    plan = plan_load(LoadSettings(warmup_requests=2, pairs=1), CODE)

    assert [block.arm for block in plan.blocks if block.pair == WARMUP_PAIR] == [SPECULATION, CONTROL]


@pytest.mark.parametrize(("requests", "slots", "flawed"), [(4, 4, True), (3, 4, True), (5, 4, False), (60, 50, True)])
def test_a_block_that_fits_into_the_kv_cache_is_a_flaw(requests: int, slots: int, flawed: bool) -> None:
    """With no more prompts than slots the second arm finds the first one's prefixes; repeated prompts count once."""
    findings = kv_reuse_findings(plan_load(LoadSettings(requests=requests), CODE), max_sequences=slots)

    assert [finding.code for finding in findings] == (["load.kv-cache-flatters"] if flawed else [])


def test_a_block_longer_than_the_prompt_set_is_noticed() -> None:
    """A prompt that is sent twice in one block says less than two prompts."""
    assert prompt_findings(plan_load(LoadSettings(requests=len(CODE)), CODE)) == ()
    assert prompt_findings(plan_load(LoadSettings(requests=len(CODE) + 1), CODE))[0].code == "load.prompts-repeat"


@pytest.mark.parametrize(
    ("length", "where", "cure"),
    [
        ({"requests": 100}, "load.requests", "fewer requests in more pairs"),
        ({"rates": (100.0,), "duration_s": 1.0}, "load.duration_s", "less time in more pairs"),
        ({"stages": parse_stages(["100 for 1s"])}, "load.stages", "shorter stages in more pairs"),
    ],
)
def test_a_repeated_prompt_is_told_at_the_key_that_decides(length: dict, where: str, cure: str) -> None:
    """What a run does not look at is not advised: a run by time or by stages has no number of requests."""
    shape = {} if "requests" in length else {"shape": "constant"}
    (finding,) = prompt_findings(plan_load(LoadSettings(**shape, **length), CODE))

    assert (finding.code, finding.where) == ("load.prompts-repeat", where)
    assert cure in finding.hint


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": ()},
        {"concurrency": (0,)},
        {"concurrency": (2, 2)},
        {"requests": 0},
        {"pairs": 0},
        {"burstiness": 0.0, "shape": "gamma", "rates": (5.0,)},
        {"rates": (), "shape": "poisson"},
    ],
)
def test_a_plan_that_measures_nothing_is_refused(wrong: dict) -> None:
    """The message names the key."""
    with pytest.raises(ConfigError) as caught:
        plan_load(LoadSettings(**wrong), CODE)

    assert f"load.{next(iter(wrong))}" in caught.value.message


STAGES = (Stage(start=5.0, end=5.0, duration_s=2.0),)


@pytest.mark.parametrize(
    "ignored",
    [{"rates": (5.0,)}, {"stages": STAGES}, {"stages": STAGES, "rates": (5.0,), "shape": "poisson"}],
)
def test_a_load_that_the_shape_would_not_look_at_is_refused(ignored: dict) -> None:
    """Rates with a closed loop, or beside stages: the run would measure something else than was asked for."""
    with pytest.raises(ConfigError) as caught:
        plan_load(LoadSettings(**ignored), CODE)

    assert f"load.{next(iter(ignored))}" in caught.value.message


def test_a_prompt_that_wants_more_than_the_run_allows_is_refused_before_it() -> None:
    """Also the last one: a run is not lost to it when its turn comes."""
    *others, last = CODE.prompts
    prompts = dataclasses.replace(CODE, prompts=(*others, dataclasses.replace(last, min_tokens=100)))

    with pytest.raises(ConfigError, match="at least 100 tokens"):
        plan_load(LoadSettings(), prompts)


def test_how_the_prompts_were_made_is_told() -> None:
    """What the reader of a file found out about it stands beside the findings of the plan."""
    told = Finding(severity="info", code="load.conversations-skipped", message="2 of 44 conversations")
    prompts = dataclasses.replace(CODE, findings=(told,))

    assert prompt_findings(plan_load(LoadSettings(), prompts)) == (told,)
    assert [finding.code for finding in prompt_findings(plan_load(LoadSettings(requests=50), prompts))] == [
        "load.conversations-skipped",
        "load.prompts-repeat",
    ]


def test_distinct_requests_stay_distinct_when_a_block_by_time_begins_anew() -> None:
    """However many requests a block comes to, no two begin alike; those of the other arm are the same."""
    plan = plan_load(LoadSettings(distinct=True, duration_s=60.0, pairs=2, warmup_requests=0), CODE)
    sent = [[block.prompt(index).message for index in range(3 * len(CODE))] for block in plan.blocks]
    lines = {message.partition("\n")[0] for block in sent for message in block}

    assert sent[0] == sent[1]
    assert len(lines) == 2 * 3 * len(CODE)


# What a cache can flatter


def flaw(settings: LoadSettings, prompts=CODE, trace: Trace | None = None, slots: int = 4):
    """Return what is found of the KV cache."""
    (finding,) = kv_reuse_findings(plan_load(settings, prompts, trace), max_sequences=slots)
    return finding


def test_the_cure_is_the_key_that_decides_how_many_are_sent() -> None:
    """A number of requests, a time, stages or the prompts themselves: what the run does not look at is not named."""
    few = dataclasses.replace(CODE, prompts=CODE.prompts[:3])
    brief = (Stage(start=5.0, end=5.0, duration_s=0.4),)
    open_loop = {"shape": "constant", "rates": (5.0,), "pairs": 1}

    by_number = flaw(LoadSettings(requests=3))
    by_time = flaw(LoadSettings(**open_loop, duration_s=0.4))
    by_stages = flaw(LoadSettings(shape="constant", stages=brief, pairs=1))
    by_prompts = [flaw(LoadSettings(requests=9), few), flaw(LoadSettings(duration_s=60.0), few)]

    assert [(found.where, found.where in found.hint) for found in (by_number, by_time, by_stages)] == [
        ("load.requests", True),
        ("load.duration_s", True),
        ("load.stages", True),
    ]
    for found in by_prompts:
        assert found.where == "load.prompts"
        assert found.hint == "Use a set of at least 5 different prompts, or load.distinct."


@pytest.mark.parametrize("distinct", [True, False])
def test_a_trace_is_cured_by_another_trace(distinct: bool) -> None:
    """It has its own number of requests: ``load.requests`` is not looked at."""
    trace = Trace(name="trace", offsets_s=(0.0, 1.0, 2.0), prompts=CODE.prompts[:3])
    found = flaw(LoadSettings(shape="trace", distinct=distinct), trace=trace)

    assert (found.hint, found.where) == ("Use a trace of at least 5 requests.", "load.prompts")
    assert "load.requests" not in found.hint


def test_requests_that_say_the_same_are_one() -> None:
    """Lines of a file have ids of their own; the cache knows their texts alone."""
    same = tuple(dataclasses.replace(prompt, text="a") for prompt in CODE.prompts[:9])
    trace = Trace(name="trace", offsets_s=tuple(map(float, range(9))), prompts=same)
    found = flaw(LoadSettings(shape="trace"), trace=trace)

    assert "sends 1 different prompts" in found.message
    assert found.hint == "Use a trace of at least 5 different prompts, or load.distinct."
    plan = plan_load(LoadSettings(shape="trace", distinct=True), CODE, trace)
    assert kv_reuse_findings(plan, max_sequences=4) == ()


def test_distinct_requests_by_time_are_no_flaw() -> None:
    """However few prompts there are, they come again with other first lines."""
    few = dataclasses.replace(CODE, prompts=CODE.prompts[:3])
    plan = plan_load(LoadSettings(duration_s=60.0, distinct=True), few)

    assert kv_reuse_findings(plan, max_sequences=4) == ()


# Common prefixes

TWO = Prefixes(("You are kind.", "You are brief."))


def shared(prompts=CODE, prefixes: Prefixes = TWO, **settings):
    """Return a plan with common prefixes."""
    asked = {"prefix_tokens": 4, "prefix_count": len(prefixes.texts), **settings}
    return plan_load(LoadSettings(**asked), prompts, prefixes=prefixes)


@given(
    share=st.sampled_from([0.1, 0.25, 0.5, 1.0]),
    requests=st.integers(1, 9),
    pairs=st.integers(1, 6),
    distinct=st.booleans(),
    seed=st.integers(0, 3),
)
def test_a_share_of_a_run_begins_alike(share, requests, pairs, distinct, seed) -> None:
    """Also where a block has few requests; both arms of a pair send the same, and the same seed the same again."""
    settings = {"prefix_share": share, "requests": requests, "pairs": pairs, "distinct": distinct, "seed": seed}
    plan = shared(**settings, warmup_requests=0)
    sent = [prompt for block in plan.blocks if block.arm == CONTROL for prompt in block.prompts]
    used = [prompt.prefix for prompt in sent if prompt.prefix]

    assert plan == shared(**settings, warmup_requests=0)
    assert abs(len(used) - share * requests * pairs) <= 0.5
    assert abs(used.count("You are kind.\n\n") - used.count("You are brief.\n\n")) <= 1
    for pair in range(pairs):
        first, second = (block for block in plan.blocks if block.pair == pair)
        assert first.prompts == second.prompts


def test_the_plan_says_what_is_shared() -> None:
    """All three numbers, by the names of their keys."""
    told = shared(prefix_share=0.5).to_dict()

    assert {key: told[key] for key in told if key.startswith("prefix_")} == {
        "prefix_tokens": 4,
        "prefix_count": 2,
        "prefix_share": 0.5,
    }


def test_what_is_shared_is_told() -> None:
    """How many requests of an arm begin with one of how many prefixes, and what that does to the numbers."""
    (told,) = prompt_findings(shared(prefix_share=0.5, pairs=4))
    (by_time,) = prompt_findings(shared(prefixes=Prefixes(TWO.texts[:1]), prefix_share=0.5, duration_s=9.0))

    assert (told.severity, told.code, told.where) == ("info", "load.prefix-shared", "load.prefix_tokens")
    assert "12 of 24 requests of an arm begin with one of 2 common prefixes of 4 tokens" in told.message
    assert "50% of the requests of an arm begin with a common prefix of 4 tokens" in by_time.message


def test_a_prefix_that_nobody_shares_is_a_warning() -> None:
    """More prefixes than requests that have one leave nothing to reuse, whatever was asked for."""
    many = Prefixes(tuple(f"You are {number}." for number in range(50)))
    (told,) = prompt_findings(shared(prefixes=many, pairs=2))
    (none,) = prompt_findings(shared(prefix_share=0.01, pairs=1, requests=5))

    assert (told.severity, told.code, told.where) == ("warning", "load.prefix-not-shared", "load.prefix_count")
    assert "12 of 12 requests of an arm begin with one of 12 common prefixes" in told.message
    assert "0 of 5 requests" in none.message


def test_a_stated_prefix_is_no_flattery_and_whole_prompts_are() -> None:
    """What is shared on purpose is not warned of; a second arm that finds whole prompts again is."""
    assert kv_reuse_findings(shared(requests=5), max_sequences=4) == ()
    (found,) = kv_reuse_findings(shared(requests=4), max_sequences=4)

    assert "finds whole prompts, more than the common prefixes, in the KV cache" in found.message


def test_a_prefix_stays_in_front_when_a_block_by_time_begins_anew() -> None:
    """The line that keeps requests apart comes behind it, each time."""
    (block,) = shared(duration_s=60.0, pairs=1, compare=False, warmup_requests=0, distinct=True).blocks
    sent = [block.prompt(index) for index in range(2 * len(CODE))]

    assert all(prompt.message.startswith(f"{prompt.prefix}[") for prompt in sent)
    assert {prompt.prefix for prompt in sent} == {f"{text}\n\n" for text in TWO.texts}
    assert len({prompt.message[: len(prompt.prefix) + 10] for prompt in sent}) == 2 * len(CODE)


@pytest.mark.parametrize(
    ("settings", "said", "cure"),
    [
        ({"prefix_share": 0.5}, "load.prefix_share is 0.5, and load.prefix_tokens is 0", "load.prefix_tokens: 256"),
        ({"prefix_count": 3}, "load.prefix_count is 3, and load.prefix_tokens is 0", "load.prefix_tokens: 256"),
        ({"prefix_tokens": 9, "prefix_share": 0.0}, "load.prefix_share is 0", "above 0"),
    ],
)
def test_a_share_of_no_prefix_is_refused(settings: dict, said: str, cure: str) -> None:
    """And a prefix that no request has: the run would measure something else than was asked for."""
    with pytest.raises(ConfigError) as caught:
        plan_load(LoadSettings(**settings), CODE)

    assert said in caught.value.message
    assert cure in caught.value.hint
