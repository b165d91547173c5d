"""The order of blocks."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.arrivals import Stage
from specdeploy.bench.prompts import load_bundled
from specdeploy.bench.records import CONTROL, SPECULATION, WARMUP_PAIR
from specdeploy.bench.schedule import LoadSettings, kv_reuse_findings, plan_load, prompt_findings
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
