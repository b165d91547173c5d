"""The order of blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.bench.prompts import load_bundled
from specdeploy.bench.records import CONTROL, SPECULATION, WARMUP_PAIR
from specdeploy.bench.schedule import LoadSettings, kv_reuse_findings, plan_load, prompt_findings
from specdeploy.errors import ConfigError

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
        blocks = [block for block in plan.blocks if block.concurrency == level]
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
    "wrong", [{"concurrency": ()}, {"concurrency": (0,)}, {"concurrency": (2, 2)}, {"requests": 0}, {"pairs": 0}]
)
def test_a_plan_that_measures_nothing_is_refused(wrong: dict) -> None:
    """The message names the key."""
    with pytest.raises(ConfigError) as caught:
        plan_load(LoadSettings(**wrong), CODE)

    assert f"load.{next(iter(wrong))}" in caught.value.message
